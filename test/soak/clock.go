package main

import (
	"fmt"
	"time"
)

// clock is the history of the steps of a node's clock, oldest first. Without a step, the clock
// shows the true time.
type clock []clockStep

type clockStep struct {
	at     time.Time
	offset time.Duration // from the true time, since then
}

// offset returns the offset of the clock now.
func (c clock) offset() time.Duration {
	if len(c) == 0 {
		return 0
	}
	return c[len(c)-1].offset
}

// lastStep returns the time of the last step, or the zero time.
func (c clock) lastStep() time.Time {
	if len(c) == 0 {
		return time.Time{}
	}
	return c[len(c)-1].at
}

// describe returns the last steps, for messages.
func (c clock) describe(now time.Time) (text string) {
	for i := max(0, len(c)-3); i < len(c); i++ {
		text += fmt.Sprintf("; the offset of its clock was set from %s to %s %s ago",
			c[:i].offset(), c[i].offset, now.Sub(c[i].at).Round(time.Millisecond))
	}
	return text
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
