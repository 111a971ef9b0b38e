package api

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// resourceSwap is the name under which swap is served; `kubectl top --show-swap` reads it.
const resourceSwap corev1.ResourceName = "swap"

// resourceList gives an Amount in the API's terms. CPU prints in nanocores ("1234567n"), memory in the largest binary unit
// that loses nothing, which is Ki for most sizes, as memory comes in pages.
func resourceList(a *usage.Amount) corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(clamp(a.CPUNanocores), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(clamp(a.Memory), resource.BinarySI),
	}
	if a.HasSwap {
		list[resourceSwap] = *resource.NewQuantity(clamp(a.Swap), resource.BinarySI)
	}
	return list
}

// clamp converts to the type that quantities are made from. No machine reaches its bound.
func clamp(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// objectMeta gives an object's identity. The labels are shared with the inventory; encoders only read them.
func objectMeta(o *inventory.Object, now metav1.Time) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, Labels: o.Labels, CreationTimestamp: now}
}
