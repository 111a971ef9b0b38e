package server

import (
	"github.com/kube-vitals/kube-vitals/pkg/api"
	"github.com/kube-vitals/kube-vitals/pkg/memory"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
)

// responseMemory returns what responses may take, with a memory limit of the container in bytes; 0: none. The
// rest is for scrapes and for the cluster's objects.
func responseMemory(limit uint64) api.ResponseMemory {
	if limit == 0 {
		return api.ResponseMemory{Large: 128 << 20, Small: 64 << 20, Max: 1 << 30}
	}
	return api.ResponseMemory{Large: int64(limit / 8), Small: int64(limit / 16), Max: int64(limit / 2)}
}

// memoryReport returns the memory of this process and the limit of its container.
func memoryReport() *nodez.Memory {
	return &nodez.Memory{ResidentBytes: memory.Resident(), LimitBytes: memory.Limit()}
}

// registerMemory registers the memory limit. The library's process_resident_memory_bytes is what the
// server uses.
func (i *instruments) registerMemory() {
	i.registerGauge("memory_limit_bytes", "Memory limit of the container; 0: there is none, or it cannot be read.",
		func() float64 { return float64(memory.Limit()) })
}
