package usage

import (
	"testing"
	"time"
)

func TestClockFollowsTheMonotonicReading(t *testing.T) {
	start := time.Now()
	clock := NewClock(start)
	if got := clock.At(start); got != At(start) {
		t.Errorf("at the start it is %v, want the wall clock's %v", got.Time(), start)
	}
	later := start.Add(15 * time.Second)
	if got := clock.At(later).Sub(clock.At(start)); got != 15*time.Second {
		t.Errorf("15s later it has advanced by %v", got)
	}
}
