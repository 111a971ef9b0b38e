package api

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func newPods(c Config) *collection[usage.Pod] {
	return &collection[usage.Pod]{
		name:       "pods",
		singular:   "podmetrics",
		kind:       "PodMetrics",
		namespaced: true,
		inventory:  c.Pods,
		now:        c.Now,
		answered:   c.Answered,
		newObject:  func() runtime.Object { return &metrics.PodMetrics{} },
		newList:    func() runtime.Object { return &metrics.PodMetricsList{} },
		find: func(o *inventory.Object, now usage.Time) *usage.Pod {
			pod := c.Usage.Pod(o.Namespace, o.Name, now)
			if pod == nil || pod.At < o.CreatedAt {
				return nil // figures from before the pod was made are those of a predecessor with the same name
			}
			return pod
		},
		at: func(p *usage.Pod) usage.Time { return p.At },
		object: func(e entry[usage.Pod], now metav1.Time) runtime.Object {
			pod := podMetrics(e, now)
			return &pod
		},
		list: func(es []entry[usage.Pod], meta metav1.ListMeta, now metav1.Time) runtime.Object {
			list := &metrics.PodMetricsList{ListMeta: meta, Items: make([]metrics.PodMetrics, len(es))}
			for i, e := range es {
				list.Items[i] = podMetrics(e, now)
			}
			return list
		},
		table: podTable,
		absent: func(namespace, name string) string {
			return fmt.Sprintf("no pod %q is running in the namespace %q", name, namespace)
		},
		blank: func(namespace, name string) string {
			return fmt.Sprintf("the pod %q runs in the namespace %q, but there are no current figures of its node's kubelet for it",
				name, namespace)
		},
	}
}

// podMetrics is the step from usage to the API's object.
func podMetrics(e entry[usage.Pod], now metav1.Time) metrics.PodMetrics {
	containers := make([]metrics.ContainerMetrics, len(e.usage.Containers))
	for i := range e.usage.Containers {
		c := &e.usage.Containers[i]
		containers[i] = metrics.ContainerMetrics{Name: c.Name, Usage: resourceList(&c.Amount)}
	}
	return metrics.PodMetrics{
		ObjectMeta: objectMeta(e.object, now),
		Timestamp:  metav1.NewTime(e.usage.At.Time()),
		Window:     metav1.Duration{Duration: e.usage.Window},
		Containers: containers,
	}
}
