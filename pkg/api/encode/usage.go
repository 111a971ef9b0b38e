package encode

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Usage is the usage of an Item: a *Node or a *Pod.
type Usage interface {
	// Total returns the usage of a node, or the sum over the containers of a pod. No number is
	// greater than a quantity can hold.
	Total() usage.Amount
	// SampledAt returns when the oldest sample was taken.
	SampledAt() usage.Time
	// NumContainers returns the number of containers; of a node, 0.
	NumContainers() int

	// period returns the timestamp and the window.
	period() (end usage.NodeTime, window time.Duration)
	// typed returns the typed object with this metadata.
	typed(meta metav1.ObjectMeta, further Further) runtime.Object

	// What follows timestamp and window: the resources of a node, the containers of a pod.
	appendJSON(b []byte, further Further) []byte
	appendProtobuf(b []byte, further Further) []byte
	sizeProtobuf(further Further) int // of what appendProtobuf appends, in bytes
}

// Node is the usage of a NodeMetrics.
type Node usage.Node

// Total implements Usage.
func (n *Node) Total() usage.Amount {
	total := usage.Amount{At: n.At, Window: n.Window}
	add(&total, &n.Amount)
	return total
}

// SampledAt implements Usage.
func (n *Node) SampledAt() usage.Time { return n.AsOf }

// NumContainers implements Usage.
func (n *Node) NumContainers() int { return 0 }

func (n *Node) period() (end usage.NodeTime, window time.Duration) { return n.At, n.Window }

func (n *Node) typed(meta metav1.ObjectMeta, further Further) runtime.Object {
	return &metrics.NodeMetrics{
		ObjectMeta: meta,
		Timestamp:  metav1.NewTime(n.At.Time()),
		Window:     metav1.Duration{Duration: n.Window},
		Usage:      resourceList(&n.Amount, further.of(0)),
	}
}

// Pod is the usage of a PodMetrics.
type Pod usage.Pod

// Total implements Usage.
func (p *Pod) Total() usage.Amount {
	total := usage.Amount{At: p.At, Window: p.Window}
	for i := range p.Containers {
		add(&total, &p.Containers[i].Amount)
	}
	return total
}

// SampledAt implements Usage.
func (p *Pod) SampledAt() usage.Time { return p.AsOf }

// NumContainers implements Usage.
func (p *Pod) NumContainers() int { return len(p.Containers) }

func (p *Pod) period() (end usage.NodeTime, window time.Duration) { return p.At, p.Window }

func (p *Pod) typed(meta metav1.ObjectMeta, further Further) runtime.Object {
	containers := make([]metrics.ContainerMetrics, len(p.Containers))
	for i := range p.Containers {
		c := &p.Containers[i]
		containers[i] = metrics.ContainerMetrics{Name: c.Name, Usage: resourceList(&c.Amount, further.of(i))}
	}
	return &metrics.PodMetrics{
		ObjectMeta: meta,
		Timestamp:  metav1.NewTime(p.At.Time()),
		Window:     metav1.Duration{Duration: p.Window},
		Containers: containers,
	}
}

// resourceSwap is the name under which swap is served; `kubectl top --show-swap` reads it.
const resourceSwap corev1.ResourceName = "swap"

// resourceList returns an Amount as the API's type. CPU is printed in the largest of n, u, m … that keeps
// every nanocore ("1234567n", "153m"), memory in the largest binary unit that keeps every byte, usually Ki.
func resourceList(a *usage.Amount, further []usage.Resource) corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(clamp(a.CPUNanocores), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(clamp(a.Memory), resource.BinarySI),
	}
	if a.HasSwap {
		list[resourceSwap] = *resource.NewQuantity(clamp(a.Swap), resource.BinarySI)
	}
	for _, r := range further {
		if r.Unit == usage.Milli {
			list[corev1.ResourceName(r.Name)] = *resource.NewMilliQuantity(clamp(r.Value), resource.DecimalSI)
		} else {
			list[corev1.ResourceName(r.Name)] = *resource.NewQuantity(clamp(r.Value), resource.BinarySI)
		}
	}
	return list
}

// clamp converts n to the type of a quantity's number. No real usage reaches its limit.
func clamp(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// add adds an Amount to a total.
func add(total, a *usage.Amount) {
	total.CPUNanocores = usage.Sum(total.CPUNanocores, a.CPUNanocores)
	total.Memory = usage.Sum(total.Memory, a.Memory)
	if a.HasSwap {
		total.Swap, total.HasSwap = usage.Sum(total.Swap, a.Swap), true
	}
}
