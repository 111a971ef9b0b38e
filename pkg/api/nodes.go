package api

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func newNodes(c Config, encodings *encodings) *collection[usage.Node] {
	return &collection[usage.Node]{
		kind: &kind[usage.Node]{
			name:      "NodeMetrics",
			encodings: encodings,
			object: func(e *entry[usage.Node]) runtime.Object {
				node := nodeMetrics(e)
				return &node
			},
			list: func(l *entryList[usage.Node]) runtime.Object {
				list := &metrics.NodeMetricsList{ListMeta: l.ListMeta, Items: make([]metrics.NodeMetrics, len(l.Items))}
				for i := range l.Items {
					list.Items[i] = nodeMetrics(&l.Items[i])
				}
				return list
			},
			period:          func(n *usage.Node) (usage.Time, time.Duration) { return n.At, n.Window },
			asOf:            func(n *usage.Node) usage.Time { return n.AsOf },
			total:           func(n *usage.Node) total { return total{}.plus(&n.Amount) },
			figuresJSON:     nodeFiguresJSON,
			figuresProtobuf: nodeFiguresProtobuf,
			figuresSize:     nodeFiguresSize,
		},
		name:      "nodes",
		singular:  "nodemetrics",
		inventory: c.Nodes,
		now:       c.Now,
		clock:     c.Clock,
		answered:  c.Answered,
		newObject: func() runtime.Object { return &metrics.NodeMetrics{} },
		newList:   func() runtime.Object { return &metrics.NodeMetricsList{} },
		find: func(o *inventory.Object, now usage.Time) *usage.Node {
			return c.Usage.Node(o.Name, now)
		},
		absent: func(_, name string) string {
			return fmt.Sprintf("there is no node %q among those that are scraped", name)
		},
		blank: func(_, name string) string {
			return fmt.Sprintf("there are no current figures of the kubelet of node %q", name)
		},
	}
}

// nodeMetrics is the step from usage to the API's object.
func nodeMetrics(e *entry[usage.Node]) metrics.NodeMetrics {
	return metrics.NodeMetrics{
		ObjectMeta: objectMeta(e.object, e.answer.now),
		Timestamp:  metav1.NewTime(e.usage.At.Time()),
		Window:     metav1.Duration{Duration: e.usage.Window},
		Usage:      resourceList(&e.usage.Amount),
	}
}
