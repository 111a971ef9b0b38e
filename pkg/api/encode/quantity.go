package encode

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// quantity is the canonical form of a resource.Quantity: a number and a suffix.
type quantity struct {
	number uint64
	suffix string
}

// resourceQuantity is the canonical form of one resource.
type resourceQuantity struct {
	name string
	quantity
}

// resources returns an Amount and further resources, sorted by name, as the encoders of the library
// sort a map.
func resources(a *usage.Amount, further []usage.Resource) []resourceQuantity {
	all := make([]resourceQuantity, 0, 3+len(further))
	all = append(all, resourceQuantity{"cpu", cpuQuantity(a.CPUNanocores)},
		resourceQuantity{"memory", bytesQuantity(a.Memory)})
	if a.HasSwap {
		all = append(all, resourceQuantity{"swap", bytesQuantity(a.Swap)})
	}
	for _, r := range further {
		q := bytesQuantity(r.Value)
		if r.Unit == usage.Milli {
			q = decimalQuantity(r.Value, milli)
		}
		all = append(all, resourceQuantity{r.Name, q})
	}
	slices.SortFunc(all, func(a, b resourceQuantity) int { return strings.Compare(a.name, b.name) })
	return all
}

// cpuQuantity returns the canonical form of nanocores.
func cpuQuantity(nanocores uint64) quantity { return decimalQuantity(nanocores, nano) }

// The units of decimalQuantity: indexes into its suffixes.
const (
	nano  = 0
	milli = 2
)

// decimalQuantity returns the canonical form of a number in a unit, in the largest of n, u, m … that
// keeps the number whole.
func decimalQuantity(number uint64, unit int) quantity {
	n := uint64(clamp(number))
	if n == 0 {
		return quantity{}
	}
	const suffixes = "numkMGTP"
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

// bytesQuantity returns the canonical form of bytes, in the largest of Ki, Mi, Gi … that keeps the
// number whole. Below 1024 it is decimal: 1000 bytes are "1k".
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

// len returns the number of bytes that append appends.
func (q quantity) len() int { return digits(q.number) + len(q.suffix) }

// digits returns the number of decimal digits of n.
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
