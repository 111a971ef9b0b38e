package api

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func newPods(c Config, encodings *encodings) *collection[usage.Pod] {
	return &collection[usage.Pod]{
		kind: &kind[usage.Pod]{
			name:      "PodMetrics",
			encodings: encodings,
			object: func(e *entry[usage.Pod]) runtime.Object {
				pod := podMetrics(e)
				return &pod
			},
			list: func(l *entryList[usage.Pod]) runtime.Object {
				list := &metrics.PodMetricsList{ListMeta: l.ListMeta, Items: make([]metrics.PodMetrics, len(l.Items))}
				for i := range l.Items {
					list.Items[i] = podMetrics(&l.Items[i])
				}
				return list
			},
			period:          func(p *usage.Pod) (usage.Time, time.Duration) { return p.At, p.Window },
			asOf:            func(p *usage.Pod) usage.Time { return p.AsOf },
			total:           podTotal,
			figuresJSON:     podFiguresJSON,
			figuresProtobuf: podFiguresProtobuf,
			figuresSize:     podFiguresSize,
		},
		name:       "pods",
		singular:   "podmetrics",
		namespaced: true,
		inventory:  runningPods{c.Pods},
		now:        c.Now,
		clock:      c.Clock,
		answered:   c.Answered,
		newObject:  func() runtime.Object { return &metrics.PodMetrics{} },
		newList:    func() runtime.Object { return &metrics.PodMetricsList{} },
		find: func(o *inventory.Object, now usage.Time) *usage.Pod {
			pod := c.Usage.Pod(o.Node, o.Namespace, o.Name, now)
			if pod == nil || !isCurrent(o, pod) {
				return nil
			}
			return pod
		},
		absent: func(namespace, name string) string {
			return fmt.Sprintf("no pod %q is running in the namespace %q", name, namespace)
		},
		blank: func(namespace, name string) string {
			return fmt.Sprintf("the pod %q runs in the namespace %q, but there are no current figures of its node's kubelet for it",
				name, namespace)
		},
	}
}

const (
	// startDelay is how long after the start of a container its kubelet may report the pod without
	// it.
	startDelay = 30 * time.Second
	// maxLead bounds how far a start may be ahead of a sample. It is further ahead only where the
	// node's clock was set back in between; then the comparison proves nothing.
	maxLead = time.Minute
)

// isCurrent reports whether a pod was sampled while its present containers ran, as far as the API
// server knows them: samples from before they started for the first time are those of its init
// containers, of some of its containers alone, or of a predecessor of the same name. Both times are
// by the node's clock.
//
// A container that restarted does not count: while it has no metrics yet, those of the whole pod
// from before serve. As long as a clock that was set back shows times that it has shown before, the
// comparison proves nothing.
func isCurrent(o *inventory.Object, pod *usage.Pod) bool {
	if pod.At < pod.ClockShown {
		return true
	}
	for i := range o.Containers {
		c := &o.Containers[i]
		if !c.Running || c.Restarted || c.StartedAt == 0 {
			continue
		}
		needed := c.StartedAt
		sampledAt, ok := sampleTime(pod, c.Name)
		if !ok {
			sampledAt, needed = pod.At, needed.Add(startDelay)
		}
		if sampledAt < needed && c.StartedAt.Sub(sampledAt) < maxLead {
			return false
		}
	}
	return true
}

// sampleTime returns when a container was sampled. It reports false if the pod has no such
// container.
func sampleTime(pod *usage.Pod, container string) (usage.Time, bool) {
	for i := range pod.Containers {
		if pod.Containers[i].Name == container {
			return pod.Containers[i].At, true
		}
	}
	return 0, false
}

// runningPods is an inventory without the pods that do not run.
type runningPods struct{ Inventory }

// Get implements Inventory.
func (r runningPods) Get(namespace, name string) *inventory.Object {
	if o := r.Inventory.Get(namespace, name); o != nil && o.Phase == inventory.PodRunning {
		return o
	}
	return nil
}

// List implements Inventory.
func (r runningPods) List(namespace string, selector labels.Selector) []*inventory.Object {
	return slices.DeleteFunc(r.Inventory.List(namespace, selector), func(o *inventory.Object) bool { return o.Phase != inventory.PodRunning })
}

// podMetrics is the step from usage to the API's object.
func podMetrics(e *entry[usage.Pod]) metrics.PodMetrics {
	containers := make([]metrics.ContainerMetrics, len(e.usage.Containers))
	for i := range e.usage.Containers {
		c := &e.usage.Containers[i]
		containers[i] = metrics.ContainerMetrics{Name: c.Name, Usage: resourceList(&c.Amount)}
	}
	return metrics.PodMetrics{
		ObjectMeta: objectMeta(e.object, e.answer.now),
		Timestamp:  metav1.NewTime(e.usage.At.Time()),
		Window:     metav1.Duration{Duration: e.usage.Window},
		Containers: containers,
	}
}
