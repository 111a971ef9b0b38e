package api

import (
	"iter"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
)

// nodes is the resource of NodeMetrics.
type nodes struct{ view *view.View }

func (nodes) New() runtime.Object     { return &metrics.NodeMetrics{} }
func (nodes) NewList() runtime.Object { return &metrics.NodeMetricsList{} }
func (nodes) NamespaceScoped() bool   { return false }
func (nodes) GetSingularName() string { return "nodemetrics" }
func (nodes) kind() encode.Kind       { return encode.NodeMetrics }
func (nodes) name() string            { return "nodes" }

func (n nodes) get(_, name string) *inventory.Object { return n.view.Node(name) }

func (n nodes) list(namespace string, selector labels.Selector) []*inventory.Object {
	return n.view.Nodes.List(namespace, selector)
}

func (n nodes) items(objects []*inventory.Object, now usage.Time) iter.Seq2[int, *encode.Item] {
	return func(yield func(int, *encode.Item) bool) {
		item := &encode.Item{}
		for i, o := range objects {
			*item = encode.Item{Object: o}
			if node := n.view.NodeUsage(o.Name, now); node != nil {
				item.Usage = (*encode.Node)(node)
				if resources := n.view.NodeResources(o.Name, now); resources != nil {
					item.Further = encode.Further{resources}
				}
			}
			if !yield(i, item) {
				return
			}
		}
	}
}
