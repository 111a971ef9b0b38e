package api

import (
	"fmt"
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
type pods struct {
	view       *view.View
	fromEngine bool
}

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

func (p pods) usage(o *inventory.Object, now usage.Time) encode.Usage {
	if pod := p.view.Pod(o, now); pod != nil {
		return (*encode.Pod)(pod)
	}
	return nil
}

func (p pods) usages(objects []*inventory.Object, now usage.Time) iter.Seq2[int, encode.Usage] {
	return func(yield func(int, encode.Usage) bool) {
		for i, pod := range p.view.PodUsages(objects, now) {
			var u encode.Usage
			if pod != nil {
				u = (*encode.Pod)(pod)
			}
			if !yield(i, u) {
				return
			}
		}
	}
}

func (pods) nodeOf(o *inventory.Object) string { return o.Node }

func (p pods) extra(o *inventory.Object, u encode.Usage, now usage.Time) encode.Extra {
	return p.view.Extra.Pod(o.Node, (*usage.Pod)(u.(*encode.Pod)), now)
}

func (p pods) missing(namespace, name string, known bool) string {
	if known {
		source := "from its node's kubelet"
		if p.fromEngine {
			source = "in the engine that kube-vitals reads"
		}
		return fmt.Sprintf("pod %q is running in namespace %q, but there are no current metrics of it %s",
			name, namespace, source)
	}
	return fmt.Sprintf("pod %q is not running in namespace %q", name, namespace)
}
