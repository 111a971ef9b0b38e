package simulation

import (
	"fmt"
	"hash/fnv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
)

// The annotations with the usage.
const (
	CPUAnnotation    = "simulation.kube-vitals/cpu"    // of a pod: cores
	MemoryAnnotation = "simulation.kube-vitals/memory" // of a pod: bytes of the working set
	swapAnnotation   = "simulation.kube-vitals/swap"   // of a pod: bytes
	loadAnnotation   = "simulation.kube-vitals/load"   // of a Deployment: cores, shared by its running pods

	storageAnnotation = "simulation.kube-vitals/ephemeral-storage" // of a pod: bytes on disk
	volumesAnnotation = "simulation.kube-vitals/volumes"           // of a pod: bytes in all volumes together
)

// quantities has the amounts in an annotation by container name. The name "" is for all other
// containers.
type quantities map[string]float64

// parseQuantities parses quantities such as "250m" or "app=250m,proxy=5m".
func parseQuantities(text string) (quantities, error) {
	q := make(quantities)
	for entry := range strings.SplitSeq(text, ",") {
		name, amount, named := strings.Cut(entry, "=")
		if !named {
			name, amount = "", entry
		}
		quantity, err := resource.ParseQuantity(strings.TrimSpace(amount))
		if err != nil {
			return nil, fmt.Errorf("%q is not a quantity such as 250m or app=250m: %w", entry, err)
		}
		if quantity.Sign() < 0 {
			return nil, fmt.Errorf("%q is negative", entry)
		}
		q[strings.TrimSpace(name)] = quantity.AsApproximateFloat64()
	}
	return q, nil
}

// of returns the amount of a container, if there is one.
func (q quantities) of(container string) (amount float64, ok bool) {
	if amount, ok = q[container]; !ok {
		amount, ok = q[""]
	}
	return amount, ok
}

// defaultUsage returns the usage of a container without annotations: 5m to 100m of CPU and 16 to
// 143 MiB, which depend on the names only.
func defaultUsage(namespace, pod, container string) kubelettest.Usage {
	h := fnv.New32a()
	h.Write([]byte(namespace + "/" + pod + "/" + container))
	n := h.Sum32()
	return kubelettest.Usage{CPU: float64(5+n%96) / 1000, Memory: uint64(16+n/96%128) << 20}
}
