package usage

import "time"

// Clock converts the monotonic time of this process to Times that advance steadily, even if someone
// sets the wall clock of this machine. One Clock serves the whole process: "our clock". Ages are
// differences between its Times. The zero Clock is not valid; use NewClock.
type Clock struct{ start time.Time }

// NewClock returns a Clock that agrees with the wall clock at start, which must come from time.Now.
func NewClock(start time.Time) Clock { return Clock{start} }

// At converts t, which must come from time.Now: its monotonic reading counts.
func (c Clock) At(t time.Time) Time { return At(c.start).Add(t.Sub(c.start)) }
