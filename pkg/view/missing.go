package view

import (
	"slices"
	"strings"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/store"
)

// Container is a container as the API server and its node show it.
type Container struct {
	Name  string
	State *inventory.ContainerState // nil: the API server does not show it
	Facts *store.Facts              // nil: the node does not report it
}

// ContainersWithoutUsage returns the containers of a pod that should have usage but do not: those
// that run according to the API server, and those that the node reports. A node chooses how many
// these are, so the time must not grow with their product.
func ContainersWithoutUsage(o *inventory.Object, facts *store.PodFacts) []Container {
	var found []Container
	hasState := make([]bool, len(facts.Containers))
	for i := range o.Containers {
		c := Container{Name: o.Containers[i].Name, State: &o.Containers[i]}
		j, reported := slices.BinarySearchFunc(facts.Containers, c.Name, func(f store.ContainerFacts, name string) int {
			return strings.Compare(f.Name, name)
		})
		if reported {
			c.Facts, hasState[j] = &facts.Containers[j].Facts, true
		}
		if c.Facts == nil && c.State.Running || c.Facts != nil && !c.Facts.HasAmount {
			found = append(found, c)
		}
	}
	for j := range facts.Containers {
		if f := &facts.Containers[j]; !f.HasAmount && !hasState[j] {
			found = append(found, Container{Name: f.Name, Facts: &f.Facts})
		}
	}
	return found
}
