// Package view joins the known pods and nodes with their usage.
//
// What it returns is what the API serves: pkg/api encodes it, and pkg/nodez counts it. pkg/explain explains
// what is missing from the same objects, and from what the store knows of their samples.
package view

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// View is the join of an inventory and a store. It keeps no state.
//
// The fields are for the parts that fill them. Readers call the methods, except for lists of nodes, which
// are those of the inventory.
type View struct {
	Pods, Nodes *inventory.Index // pods that have not ended; only running ones have usage
	Store       *store.Store
}

// New returns a View with a new, empty store and inventories, and connects them: the store looks up what the
// API server shows of a container, and removes a pod before the inventory does, since a new pod of the same name
// must not get the usage of the old one. It sets State in the Config of the store.
func New(c store.Config, clock usage.Clock) *View {
	v := &View{Nodes: inventory.New()}
	v.Pods = inventory.NewNotifying(func(old *inventory.Object) {
		v.Store.RemovePod(old.Node, old.Namespace, old.Name, clock.At(time.Now()))
	})
	c.State = v.ContainerState
	v.Store = store.New(c)
	return v
}

// Node returns the node of that name, or nil.
func (v *View) Node(name string) *inventory.Object { return v.Nodes.Get("", name) }

// Pod returns the pod of that name, in any phase, or nil.
func (v *View) Pod(namespace, name string) *inventory.Object { return v.Pods.Get(namespace, name) }

// BoundPod returns the pod of that name if it is bound to the node, or nil.
func (v *View) BoundPod(node, namespace, name string) *inventory.Object {
	if o := v.Pod(namespace, name); o != nil && o.Node == node {
		return o
	}
	return nil
}

// ContainerState returns what the API server shows of a container of a pod, if that is bound to the node.
func (v *View) ContainerState(node, namespace, pod, container string) usage.ContainerState {
	o := v.BoundPod(node, namespace, pod)
	if o == nil {
		return usage.ContainerState{}
	}
	c := o.Container(container)
	return usage.ContainerState{
		Accepted: o.StartedAt != 0 || o.Phase != inventory.PodPending,
		Running:  c.Running, Alive: c.Alive, StartedAt: c.StartedAt, EarliestStart: o.EarliestStart(container),
		PodCreatedAt: o.CreatedAt,
	}
}

// RunningPod returns the running pod of that name, or nil.
func (v *View) RunningPod(namespace, name string) *inventory.Object {
	if o := v.Pod(namespace, name); o != nil && o.Phase == inventory.PodRunning {
		return o
	}
	return nil
}

// RunningPods returns the running pods in a namespace (in all if it is "") that match the selector,
// sorted by namespace and name. The slice belongs to the caller.
func (v *View) RunningPods(namespace string, selector labels.Selector) []*inventory.Object {
	return slices.DeleteFunc(v.Pods.List(namespace, selector), func(o *inventory.Object) bool {
		return o.Phase != inventory.PodRunning
	})
}

// NodeUsage returns the usage of a node at that time, or nil if there is none to serve.
func (v *View) NodeUsage(name string, now usage.Time) *usage.Node { return v.Store.Node(name, now) }

// NodeResources returns the further resources of a node that has usage, sorted by name, or nil if it has
// none. The caller must not change them.
func (v *View) NodeResources(name string, now usage.Time) []usage.Resource {
	return v.Store.Resources.Node(name, now)
}

// PodResources returns the further resources of a pod with that usage, or nil if it has none: for each of
// its containers, the resources sorted by name.
func (v *View) PodResources(pod *inventory.Object, of *usage.Pod, now usage.Time) [][]usage.Resource {
	return v.Store.Resources.Pod(pod.Node, of, now)
}

// ResourceNames returns the further resources that nodes and containers have had, sorted by name, without
// values.
func (v *View) ResourceNames() (ofNodes, ofContainers []usage.Resource) {
	return v.Store.Resources.Names()
}

// NodeFacts describes the samples of a node. It reports false if the node was never scraped.
func (v *View) NodeFacts(name string) (store.Facts, bool) { return v.Store.NodeFacts(name) }

// OurTime converts a time by the clock of a node. Without a known offset, the clocks agree.
func (v *View) OurTime(node string, t usage.NodeTime) usage.Time { return v.Store.OurTime(node, t) }

// PodFacts describes the samples of a pod on its node. It reports false if there are none.
func (v *View) PodFacts(pod *inventory.Object) (store.PodFacts, bool) {
	return v.Store.PodFacts(pod.Node, pod.Namespace, pod.Name)
}
