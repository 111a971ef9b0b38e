package api

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// nodes is the resource of NodeMetrics.
type nodes struct {
	usage      Usage
	extras     Extra
	fromEngine bool
}

func (nodes) New() runtime.Object     { return &metrics.NodeMetrics{} }
func (nodes) NewList() runtime.Object { return &metrics.NodeMetricsList{} }
func (nodes) NamespaceScoped() bool   { return false }
func (nodes) GetSingularName() string { return "nodemetrics" }
func (nodes) kind() encode.Kind       { return encode.NodeMetrics }
func (nodes) name() string            { return "nodes" }

func (n nodes) find(b *block, now usage.Time) {
	for i, o := range b.objects {
		b.found[i] = nil
		if node := n.usage.Node(o.Name, now); node != nil {
			b.found[i] = (*encode.Node)(node)
		}
	}
}

func (nodes) nodeOf(o *inventory.Object) string { return o.Name }

func (n nodes) extra(o *inventory.Object, _ encode.Usage, now usage.Time) encode.Extra {
	if n.extras == nil {
		return nil
	}
	if resources := n.extras.Node(o.Name, now); resources != nil {
		return encode.Extra{resources}
	}
	return nil
}

func (n nodes) missing(_, name string, known bool) string {
	switch {
	case known && n.fromEngine:
		return fmt.Sprintf("there are no current metrics of node %q in the engine that kube-vitals reads", name)
	case known:
		return fmt.Sprintf("there are no current metrics from the kubelet of node %q", name)
	}
	return fmt.Sprintf("node %q does not exist or is not selected for scraping", name)
}
