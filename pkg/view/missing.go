package view

import (
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
	reported := make(map[string]*store.Facts, len(facts.Containers)) // that the API server does not show
	for i := range facts.Containers {
		reported[facts.Containers[i].Name] = &facts.Containers[i].Facts
	}
	for i := range o.Containers {
		state := &o.Containers[i]
		c := Container{state.Name, state, reported[state.Name]}
		delete(reported, state.Name)
		if c.Facts == nil && state.Running || c.Facts != nil && !c.Facts.HasAmount {
			found = append(found, c)
		}
	}
	for i := range facts.Containers {
		if f := &facts.Containers[i]; !f.HasAmount && reported[f.Name] != nil {
			found = append(found, Container{Name: f.Name, Facts: &f.Facts})
		}
	}
	return found
}
