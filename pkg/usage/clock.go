package usage

import (
	"sync/atomic"
	"time"
)

// minSuspension is the shortest time that is counted as a suspension. It is far above the error of
// timeSuspended, so a Clock advances steadily while the machine runs.
const minSuspension = time.Second

// Clock converts the monotonic time of this process to Times that advance steadily, even if someone
// sets the wall clock of this machine. They also advance while the machine is suspended, unlike
// Go's monotonic time. One Clock serves the whole process; comments call it "our clock". Ages are
// differences between its Times. The zero Clock is not valid; use NewClock.
type Clock struct {
	start     time.Time
	suspended *suspensions
}

// suspensions is the time for which this machine has been suspended.
type suspensions struct {
	read    func() time.Duration // returns the sum since the Clock was created
	counted atomic.Int64         // the sum that the Clock contains
}

// NewClock returns a Clock that agrees with the wall clock at start, which must come from time.Now.
func NewClock(start time.Time) Clock { return newClock(start, timeSuspended) }

func newClock(start time.Time, timeSuspended func() time.Duration) Clock {
	before := timeSuspended()
	return Clock{start, &suspensions{read: func() time.Duration { return timeSuspended() - before }}}
}

// At converts t, which must come from time.Now: its monotonic reading counts. It must be called
// soon after that: the result contains every suspension so far, also one after t.
func (c Clock) At(t time.Time) Time {
	s := c.suspended
	counted := s.counted.Load()
	if now := int64(s.read()); now-counted >= int64(minSuspension) {
		s.counted.CompareAndSwap(counted, now)
	}
	return At(c.start).Add(t.Sub(c.start) + time.Duration(s.counted.Load()))
}
