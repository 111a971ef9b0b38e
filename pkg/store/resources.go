package store

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Resources keeps what all sources report of further resources of nodes and containers, such as devices and
// ephemeral storage. Nothing here changes when or with what CPU and memory a pod is served. Resources are safe
// for concurrent use. nil has none, and none can be put into it.
type Resources struct {
	mu    sync.RWMutex
	nodes map[string]map[string]*resourceReport // by node and source

	// What has been reported of nodes and of containers, sorted by name, without values.
	ofNodes, ofContainers []usage.Resource

	// When the API server deleted pods, for reports that were requested before and arrive after that. The
	// removals that a node remembers would not do: a node may have reports before its first scrape.
	removed     map[usage.PodKey]usage.Time
	forgottenAt usage.Time // when old removals were last forgotten
}

// resourceReport is a ResourceReport, indexed by pod.
type resourceReport struct {
	usage.ResourceReport
	pods map[podKey][]usage.ContainerResource // of a pod sorted by resource, then by container
}

// NewResources returns empty Resources.
func NewResources() *Resources {
	return &Resources{nodes: map[string]map[string]*resourceReport{}, removed: map[usage.PodKey]usage.Time{}}
}

// Put replaces what a source has reported of a node. It keeps the slices of the report, and sorts
// them. Pods that were removed after the request are ignored.
func (rs *Resources) Put(nodeName, source string, r usage.ResourceReport) {
	next := &resourceReport{r, map[podKey][]usage.ContainerResource{}}
	slices.SortFunc(r.Node, func(a, b usage.Resource) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(r.Containers, func(a, b usage.ContainerResource) int {
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

	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, v := range r.Node {
		rs.ofNodes = addResource(rs.ofNodes, usage.Resource{Name: v.Name, Unit: v.Unit})
	}
	for _, v := range r.Containers {
		rs.ofContainers = addResource(rs.ofContainers, usage.Resource{Name: v.Name, Unit: v.Unit})
	}
	maps.DeleteFunc(next.pods, func(key podKey, _ []usage.ContainerResource) bool {
		return r.At <= rs.removed[usage.PodKey{Node: nodeName, Namespace: key.namespace, Name: key.name}]
	})
	if rs.nodes[nodeName] == nil {
		rs.nodes[nodeName] = map[string]*resourceReport{}
	}
	rs.nodes[nodeName][source] = next
}

// Names returns the resources that have been reported of nodes and of containers, sorted by name, without
// values.
func (rs *Resources) Names() (ofNodes, ofContainers []usage.Resource) {
	if rs == nil {
		return nil, nil
	}
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	return slices.Clone(rs.ofNodes), slices.Clone(rs.ofContainers)
}

// Remove drops what a source has reported of a node.
func (rs *Resources) Remove(nodeName, source string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.nodes[nodeName], source)
	if len(rs.nodes[nodeName]) == 0 {
		delete(rs.nodes, nodeName)
	}
}

// forget drops what all sources have reported of a node.
func (rs *Resources) forget(nodeName string) {
	if rs == nil {
		return
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.nodes, nodeName)
}

// removePod drops the values of a pod that the API server deleted, at the time now. Reports that
// were requested before are ignored for a later pod of the same name.
func (rs *Resources) removePod(key usage.PodKey, now usage.Time) {
	if rs == nil || key.Node == "" { // no node reports it
		return
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if now.Sub(rs.forgottenAt) > rememberFor {
		forgetBefore(rs.removed, now.Add(-rememberFor))
		rs.forgottenAt = now
	}
	rs.removed[key] = now
	for _, r := range rs.nodes[key.Node] {
		delete(r.pods, podKey{key.Namespace, key.Name})
	}
}

// Node returns the further resources of a node, sorted by name, or nil. The caller must not change
// them.
func (rs *Resources) Node(nodeName string, now usage.Time) []usage.Resource {
	if rs == nil {
		return nil
	}
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	var sum []usage.Resource
	for _, r := range rs.nodes[nodeName] {
		if !r.IsExpired(now) {
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
func (rs *Resources) Pod(nodeName string, pod *usage.Pod, now usage.Time) [][]usage.Resource {
	if rs == nil {
		return nil
	}
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	var sum [][]usage.Resource
	key := podKey{pod.Namespace, pod.Name}
	for _, r := range rs.nodes[nodeName] {
		if r.IsExpired(now) {
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

// addToContainers adds the values of one resource, sorted by container, to those of a pod's containers. The pod does
// not have containers without metrics. If the report is whole, their values are added to those of the first container,
// so that the sum is right. Otherwise, they are ignored.
func addToContainers(
	sum [][]usage.Resource, pod *usage.Pod, values []usage.ContainerResource, whole bool,
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
		if i == 0 && whole {
			total.Value = usage.Sum(total.Value, restOf(values, pod))
		}
		sum[i] = addResource(sum[i], total)
	}
	return sum
}

// valueOf returns the sum of the values of a container, and whether it has any.
func valueOf(values []usage.ContainerResource, container string) (sum uint64, found bool) {
	at, found := slices.BinarySearchFunc(values, container, func(v usage.ContainerResource, name string) int {
		return strings.Compare(v.Container, name)
	})
	for ; at < len(values) && values[at].Container == container; at++ {
		sum = usage.Sum(sum, values[at].Value)
	}
	return sum, found
}

// restOf returns the sum of the values that are not of a container of the pod.
func restOf(values []usage.ContainerResource, pod *usage.Pod) (sum uint64) {
	for _, v := range values {
		_, found := slices.BinarySearchFunc(pod.Containers, v.Container, func(c usage.Container, name string) int {
			return strings.Compare(c.Name, name)
		})
		if !found {
			sum = usage.Sum(sum, v.Value)
		}
	}
	return sum
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
