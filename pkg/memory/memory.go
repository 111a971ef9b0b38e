// Package memory reads the memory that this process uses and what it may use.
package memory

import "github.com/prometheus/procfs"

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
