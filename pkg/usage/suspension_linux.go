package usage

import (
	"syscall"
	"time"
	"unsafe"
)

// The identifiers of two clocks of Linux, see clock_gettime(2).
const (
	clockMonotonic = 1 // as Go's monotonic time
	clockBoottime  = 7 // the same, with the time for which the machine was suspended
)

// timeSuspended returns for how long the machine has been suspended since it was started. If the
// process has to wait between the two readings, the result is too low by that time.
func timeSuspended() time.Duration { return readClock(clockBoottime) - readClock(clockMonotonic) }

// readClock returns the time of a clock of the kernel, or 0 if the kernel does not have it.
func readClock(id uintptr) time.Duration {
	var t syscall.Timespec
	//nolint:gosec // the standard library has no other way to read these clocks
	if _, _, err := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&t)), 0); err != 0 {
		return 0
	}
	return time.Duration(t.Nano())
}
