// Package resource keeps the usage of further resources of nodes and containers, such as devices and
// ephemeral storage, apart from CPU and memory: nothing here changes when or with what CPU and memory
// a pod is served.
package resource

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// rememberFor is how long pods that were removed are remembered: no report takes longer to arrive.
const rememberFor = 2 * time.Minute

// Store keeps the reports of all sources. It is safe for concurrent use. There is nothing in a nil Store.
type Store struct {
	mu    sync.RWMutex
	nodes map[string]map[string]*report // by node and source

	// What has been reported of nodes and of containers, sorted by name, without values.
	ofNodes, ofContainers []usage.Resource

	// When the API server deleted pods, for reports that were requested before and arrive after that.
	removed     map[usage.PodKey]usage.Time
	forgottenAt usage.Time // when pods that had been removed long ago were last forgotten
}

type podKey struct{ namespace, name string }

// Report is what one source reports of one node.
type Report struct {
	At      usage.Time // when it was requested, or measured if that is known to be earlier
	Expires usage.Time // from when on it is not served

	Node       []usage.Resource
	Containers []ContainerResource
	// Whole is set if a pod must not be served with the values of only some of its containers. If it
	// is not set, a container without a value has 0 if another one of its pod has a value.
	Whole bool
}

// ContainerResource is the usage of a resource by a container. If a Report has several of one
// container and resource, they are added. If Container is empty, it is what the pod uses outside of
// its containers, which is served with the first container: only containers have usage in the API.
type ContainerResource struct {
	Namespace, Pod, Container string
	usage.Resource
}

// report is a Report, indexed by pod.
type report struct {
	Report
	pods map[podKey][]ContainerResource // of a pod sorted by resource, then by container
}

// New returns an empty Store.
func New() *Store {
	return &Store{nodes: map[string]map[string]*report{}, removed: map[usage.PodKey]usage.Time{}}
}

// Put replaces what a source has reported of a node. It keeps the slices of the report, and sorts
// them. Pods that were removed after the request are ignored.
func (s *Store) Put(nodeName, source string, r Report) {
	next := &report{r, map[podKey][]ContainerResource{}}
	slices.SortFunc(r.Node, func(a, b usage.Resource) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(r.Containers, func(a, b ContainerResource) int {
		return cmp.Or(
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod),
			strings.Compare(a.Name, b.Name), strings.Compare(a.Container, b.Container),
		)
	})
	next.Containers = nil
	for rest := r.Containers; len(rest) > 0; {
		key := podKey{rest[0].Namespace, rest[0].Pod}
		n := 1
		for n < len(rest) && rest[n].Namespace == key.namespace && rest[n].Pod == key.name {
			n++
		}
		next.pods[key], rest = rest[:n:n], rest[n:]
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range r.Node {
		s.ofNodes = addResource(s.ofNodes, usage.Resource{Name: v.Name, Unit: v.Unit})
	}
	for _, v := range r.Containers {
		s.ofContainers = addResource(s.ofContainers, usage.Resource{Name: v.Name, Unit: v.Unit})
	}
	maps.DeleteFunc(next.pods, func(key podKey, _ []ContainerResource) bool {
		return r.At <= s.removed[usage.PodKey{Node: nodeName, Namespace: key.namespace, Name: key.name}]
	})
	if s.nodes[nodeName] == nil {
		s.nodes[nodeName] = map[string]*report{}
	}
	s.nodes[nodeName][source] = next
}

// Resources returns the resources that have been reported of nodes and of containers, sorted by name, without
// values.
func (s *Store) Resources() (ofNodes, ofContainers []usage.Resource) {
	if s == nil {
		return nil, nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.ofNodes), slices.Clone(s.ofContainers)
}

// Remove drops what a source has reported of a node.
func (s *Store) Remove(nodeName, source string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes[nodeName], source)
	if len(s.nodes[nodeName]) == 0 {
		delete(s.nodes, nodeName)
	}
}

// RemovePod drops the values of a pod that the API server deleted, at the time now. Reports that
// were requested before are ignored for a later pod of the same name.
func (s *Store) RemovePod(nodeName, namespace, name string, now usage.Time) {
	if s == nil || nodeName == "" { // no node reports it
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.forgottenAt) > rememberFor {
		maps.DeleteFunc(s.removed, func(_ usage.PodKey, at usage.Time) bool { return now.Sub(at) > rememberFor })
		s.forgottenAt = now
	}
	s.removed[usage.PodKey{Node: nodeName, Namespace: namespace, Name: name}] = now
	for _, r := range s.nodes[nodeName] {
		delete(r.pods, podKey{namespace, name})
	}
}

func (r *report) isExpired(now usage.Time) bool { return now >= r.Expires }

// Node returns the further resources of a node, sorted by name, or nil. The caller must not change
// them.
func (s *Store) Node(nodeName string, now usage.Time) []usage.Resource {
	if s == nil {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	var sum []usage.Resource
	for _, r := range s.nodes[nodeName] {
		if !r.isExpired(now) {
			for _, v := range r.Node {
				sum = addResource(sum, v)
			}
		}
	}
	return sum
}

// Pod returns the further resources of a pod that is bound to a node: for each container of the
// pod, in their order, its resources sorted by name. It returns nil if the pod has none. Each
// container has the same resources, because the HPA takes a container without one for a pod without
// metrics.
func (s *Store) Pod(nodeName string, pod *usage.Pod, now usage.Time) [][]usage.Resource {
	if s == nil {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	var sum [][]usage.Resource
	key := podKey{pod.Namespace, pod.Name}
	for _, r := range s.nodes[nodeName] {
		if r.isExpired(now) {
			continue
		}
		for rest := r.pods[key]; len(rest) > 0; {
			k := 1
			for k < len(rest) && rest[k].Name == rest[0].Name {
				k++
			}
			sum = addToContainers(sum, pod, rest[:k], r.Whole)
			rest = rest[k:]
		}
	}
	return sum
}

// addToContainers adds the values of one resource, sorted by container, to those of a pod's
// containers. Values of containers that the pod does not have are ignored.
func addToContainers(
	sum [][]usage.Resource, pod *usage.Pod, values []ContainerResource, whole bool,
) [][]usage.Resource {
	found := 0
	for _, c := range pod.Containers {
		if _, ok := valueOf(values, c.Name); ok {
			found++
		}
	}
	if found == 0 || whole && found < len(pod.Containers) {
		return sum
	}
	if sum == nil {
		sum = make([][]usage.Resource, len(pod.Containers))
	}
	for i, c := range pod.Containers {
		total := usage.Resource{Name: values[0].Name, Unit: values[0].Unit}
		total.Value, _ = valueOf(values, c.Name)
		if i == 0 {
			rest, _ := valueOf(values, "")
			total.Value = usage.Sum(total.Value, rest)
		}
		sum[i] = addResource(sum[i], total)
	}
	return sum
}

// valueOf returns the sum of the values of a container, and whether it has any.
func valueOf(values []ContainerResource, container string) (sum uint64, found bool) {
	at, found := slices.BinarySearchFunc(values, container, func(v ContainerResource, name string) int {
		return strings.Compare(v.Container, name)
	})
	for ; at < len(values) && values[at].Container == container; at++ {
		sum = usage.Sum(sum, values[at].Value)
	}
	return sum, found
}

// addResource adds a value to a list of resources that is sorted by name.
func addResource(list []usage.Resource, v usage.Resource) []usage.Resource {
	i, found := slices.BinarySearchFunc(list, v.Name, func(r usage.Resource, name string) int {
		return strings.Compare(r.Name, name)
	})
	if !found {
		return slices.Insert(list, i, v)
	}
	list[i].Value = usage.Sum(list[i].Value, v.Value)
	return list
}
