package usage

import (
	"time"

	"golang.org/x/sys/unix"
)

// timeSuspended returns for how long the machine has been suspended since it was started. If the
// process has to wait between the two readings, the result is too low by that time. Go's monotonic
// time is CLOCK_MONOTONIC; CLOCK_BOOTTIME also has the time for which the machine was suspended.
func timeSuspended() time.Duration {
	return readClock(unix.CLOCK_BOOTTIME) - readClock(unix.CLOCK_MONOTONIC)
}

// readClock returns the time of a clock of the kernel, or 0 if the kernel does not have it.
func readClock(id int32) time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(id, &t) // leaves t as it is
	return time.Duration(t.Nano())
}
