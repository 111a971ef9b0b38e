// Package memory forecasts the memory that the server needs for a cluster, and reads what it uses and
// what it may use.
package memory

import "github.com/prometheus/procfs"

// Objects are the numbers of objects of a cluster.
type Objects struct {
	Nodes      int // that are scraped
	Pods       int // that have not ended
	Containers int // that run
}

// The forecast is a linear function, fitted to the highest RSS (VmHWM) that the command in test/bench
// measures: a start, scrapes, and LISTs of all pods one after the other. docs/performance.md has the
// measurements. Bytes of Go's heap include the garbage that the server's default GOGC allows; the
// environment variable GOGC changes what is needed, and GOMEMLIMIT may reduce it.
const (
	// baseBytes is what an empty cluster needs. The mapped part of the binary is 49 MiB of it.
	baseBytes = 72 << 20
	// nodeBytes is a TLS connection and its handshake, the state of the scraper, telemetry, and the
	// node as the API server sends it.
	nodeBytes = 50 << 10
	// podBytes is a pod in the inventory and in the store, and its row in a table of all pods, the
	// response that takes the most memory.
	podBytes = 4600
	// containerBytes is a container in the inventory and in the store.
	containerBytes = 400
)

// Forecast returns the highest RSS that the server needs for the objects, in bytes.
func Forecast(o Objects) uint64 {
	return baseBytes + nodeBytes*uint64(o.Nodes) + podBytes*uint64(o.Pods) + containerBytes*uint64(o.Containers)
}

// Resident returns the resident memory (RSS) of this process in bytes, and 0 if it cannot be read.
func Resident() uint64 {
	self, err := procfs.Self()
	if err != nil {
		return 0
	}
	stat, err := self.Stat()
	if err != nil {
		return 0
	}
	return uint64(stat.ResidentMemory())
}
