package api

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func newNodes(c Config) *collection[usage.Node] {
	return &collection[usage.Node]{
		name:      "nodes",
		singular:  "nodemetrics",
		kind:      "NodeMetrics",
		inventory: c.Nodes,
		now:       c.Now,
		answered:  c.Answered,
		newObject: func() runtime.Object { return &metrics.NodeMetrics{} },
		newList:   func() runtime.Object { return &metrics.NodeMetricsList{} },
		find: func(o *inventory.Object, now usage.Time) *usage.Node {
			return c.Usage.Node(o.Name, now)
		},
		at: func(n *usage.Node) usage.Time { return n.At },
		object: func(e entry[usage.Node], now metav1.Time) runtime.Object {
			node := nodeMetrics(e, now)
			return &node
		},
		list: func(es []entry[usage.Node], meta metav1.ListMeta, now metav1.Time) runtime.Object {
			list := &metrics.NodeMetricsList{ListMeta: meta, Items: make([]metrics.NodeMetrics, len(es))}
			for i, e := range es {
				list.Items[i] = nodeMetrics(e, now)
			}
			return list
		},
		table: nodeTable,
		absent: func(_, name string) string {
			return fmt.Sprintf("there is no node %q among those that are scraped", name)
		},
		blank: func(_, name string) string {
			return fmt.Sprintf("there are no current figures of the kubelet of node %q", name)
		},
	}
}

// nodeMetrics is the step from usage to the API's object.
func nodeMetrics(e entry[usage.Node], now metav1.Time) metrics.NodeMetrics {
	return metrics.NodeMetrics{
		ObjectMeta: objectMeta(e.object, now),
		Timestamp:  metav1.NewTime(e.usage.At.Time()),
		Window:     metav1.Duration{Duration: e.usage.Window},
		Usage:      resourceList(&e.usage.Amount),
	}
}
