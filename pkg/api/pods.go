package api

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// pods is the resource of PodMetrics.
type pods struct {
	usage      Usage
	extras     Extra
	fromEngine bool
}

func (pods) New() runtime.Object     { return &metrics.PodMetrics{} }
func (pods) NewList() runtime.Object { return &metrics.PodMetricsList{} }
func (pods) NamespaceScoped() bool   { return true }
func (pods) GetSingularName() string { return "podmetrics" }
func (pods) kind() encode.Kind       { return encode.PodMetrics }
func (pods) name() string            { return "pods" }

func (p pods) find(b *block, now usage.Time) {
	for i, o := range b.objects {
		b.keys[i] = usage.PodKey{Node: o.Node, Namespace: o.Namespace, Name: o.Name}
	}
	found := b.pods[:len(b.objects)]
	p.usage.Pods(found, b.keys[:len(b.objects)], now)
	b.readContainers()
	for i, pod := range found {
		b.found[i] = nil
		if pod != nil && isCurrent(b.objects[i], pod) {
			b.found[i] = (*encode.Pod)(pod)
		}
	}
}

func (pods) nodeOf(o *inventory.Object) string { return o.Node }

func (p pods) extra(o *inventory.Object, u encode.Usage, now usage.Time) encode.Extra {
	if p.extras == nil {
		return nil
	}
	return p.extras.Pod(o.Node, (*usage.Pod)(u.(*encode.Pod)), now)
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

const (
	// startDelay is how long a kubelet may report a pod without a container that has started.
	startDelay = 30 * time.Second
	// maxLead is how far a container's start may be ahead of its sample. A start that is further
	// ahead shows that the node's clock was set back in between, and proves nothing.
	maxLead = time.Minute
)

// isCurrent reports whether the snapshot of a pod is that of the containers that the API server
// shows: it has at least one of them, and was sampled after all of them had started. Other
// snapshots are those of its init containers, of only some of its containers, or of a deleted pod
// of the same name. Both times are by the node's clock. A pod without container statuses counts as
// current.
//
// Restarted containers are ignored: until they have metrics, the last metrics of the whole pod are
// served. While a clock that was set back shows times that it has shown before, the times of pods
// that were created before cannot be compared.
func isCurrent(o *inventory.Object, pod *usage.Pod) bool {
	isRepeated := pod.At < pod.MaxClockShown && o.CreatedAt <= pod.ClockJumpedAt
	hasOne := len(o.Containers) == 0
	for i := range o.Containers {
		c := &o.Containers[i]
		needed := c.StartedAt
		sampledAt, ok := sampleTime(pod, c.Name)
		if !ok {
			sampledAt, needed = pod.At, needed.Add(startDelay)
		}
		hasOne = hasOne || ok
		if !c.Running || c.Restarted || c.StartedAt == 0 || isRepeated {
			continue
		}
		if sampledAt < needed && c.StartedAt.Sub(sampledAt) < maxLead {
			return false
		}
	}
	return hasOne
}

// sampleTime returns when a container was sampled, and whether the pod has such a container.
func sampleTime(pod *usage.Pod, container string) (usage.Time, bool) {
	for i := range pod.Containers {
		if pod.Containers[i].Name == container {
			return pod.Containers[i].At, true
		}
	}
	return 0, false
}

// runningPods is an Inventory of the running pods of another.
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
	return slices.DeleteFunc(r.Inventory.List(namespace, selector), func(o *inventory.Object) bool {
		return o.Phase != inventory.PodRunning
	})
}
