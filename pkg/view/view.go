// Package view joins the known pods and nodes with their usage.
//
// What it returns is what the API serves. The page of nodes counts the same pods, and explanations
// of what is missing use the same containers.
package view

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/store"
)

// View is the join of an inventory and a store. It keeps no state.
type View struct {
	Pods, Nodes *inventory.Index // pods that have not ended; only running ones have usage
	Store       *store.Store
}

// RunningPod returns the running pod of that name, or nil.
func (v *View) RunningPod(namespace, name string) *inventory.Object {
	if o := v.Pods.Get(namespace, name); o != nil && o.Phase == inventory.PodRunning {
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
