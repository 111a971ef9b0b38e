package api

import (
	"math"
	"math/bits"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// resourceSwap is the name under which swap is served; `kubectl top --show-swap` reads it.
const resourceSwap corev1.ResourceName = "swap"

// resourceList gives an Amount in the API's terms. CPU prints in nanocores ("1234567n"), memory in
// the largest binary unit that loses nothing, which is Ki for most sizes, as memory comes in pages.
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

// quantity is what a resource.Quantity prints as: the canonical form is the number, then the
// suffix.
type quantity struct {
	number uint64
	suffix string
}

// cpuQuantity is the canonical form of nanocores: in the largest of n, u, m … that leaves a whole
// number.
func cpuQuantity(nanocores uint64) quantity {
	n := uint64(clamp(nanocores))
	if n == 0 {
		return quantity{}
	}
	const suffixes = "numkMG"
	unit := 0
	for n%1000 == 0 {
		n /= 1000
		unit++
	}
	switch {
	case unit < 3:
		return quantity{n, suffixes[unit : unit+1]}
	case unit == 3: // whole cores
		return quantity{number: n}
	}
	return quantity{n, suffixes[unit-1 : unit]}
}

// bytesQuantity is the canonical form of bytes: in the largest of Ki, Mi, Gi … that leaves a whole
// number. Below 1024 it is decimal, so that 1000 bytes are "1k".
func bytesQuantity(bytes uint64) quantity {
	n := uint64(clamp(bytes))
	switch {
	case n == 1000:
		return quantity{1, "k"}
	case n < 1024:
		return quantity{number: n}
	}
	const suffixes = "KiMiGiTiPiEi"
	unit := bits.TrailingZeros64(n) / 10
	return quantity{n >> (10 * unit), suffixes[max(0, 2*unit-2) : 2*unit]}
}

func (q quantity) append(b []byte) []byte {
	return append(strconv.AppendUint(b, q.number, 10), q.suffix...)
}

// len gives how many bytes append appends.
func (q quantity) len() int { return digits(q.number) + len(q.suffix) }

// digits gives the number of n's decimal digits.
func digits(n uint64) int {
	count := 0
	for n >= 10_000 {
		n /= 10_000
		count += 4
	}
	switch {
	case n >= 1000:
		return count + 4
	case n >= 100:
		return count + 3
	case n >= 10:
		return count + 2
	}
	return count + 1
}

// objectMeta gives an object's identity. The labels are shared with the inventory; encoders only
// read them.
func objectMeta(o *inventory.Object, now metav1.Time) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, Labels: o.Labels, CreationTimestamp: now}
}
