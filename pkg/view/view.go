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
// The fields are for the parts that fill them, and for readers of only one of them. A snapshot of a pod needs both:
// PodUsages returns it only if it is of the pod that the API server shows.
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
