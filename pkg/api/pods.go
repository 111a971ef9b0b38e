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

// pods is the resource of PodMetrics.
type pods struct{ view *view.View }

func (pods) New() runtime.Object     { return &metrics.PodMetrics{} }
func (pods) NewList() runtime.Object { return &metrics.PodMetricsList{} }
func (pods) NamespaceScoped() bool   { return true }
func (pods) GetSingularName() string { return "podmetrics" }
func (pods) kind() encode.Kind       { return encode.PodMetrics }
func (pods) name() string            { return "pods" }

func (p pods) get(namespace, name string) *inventory.Object {
	return p.view.RunningPod(namespace, name)
}

func (p pods) list(namespace string, selector labels.Selector) []*inventory.Object {
	return p.view.RunningPods(namespace, selector)
}

func (p pods) items(objects []*inventory.Object, now usage.Time) iter.Seq2[int, *encode.Item] {
	return func(yield func(int, *encode.Item) bool) {
		item := &encode.Item{}
		for i, pod := range p.view.PodUsages(objects, now) {
			o := objects[i]
			*item = encode.Item{Object: o}
			if pod != nil {
				item.Usage, item.Further = (*encode.Pod)(pod), p.view.PodResources(o, pod, now)
			}
			if !yield(i, item) {
				return
			}
		}
	}
}
