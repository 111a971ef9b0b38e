package usage

import (
	"testing"
	"time"
)

func TestTime(t *testing.T) {
	at := time.Date(2026, 11, 20, 20, 16, 7, 486_000_000, time.UTC)
	if got := At(at).Time(); !got.Equal(at) {
		t.Errorf("got %v, want %v", got, at)
	}
	if At(time.Time{}) != 0 || !Time(0).Time().IsZero() {
		t.Error("the zero time is not preserved")
	}
	if got := At(at).Add(time.Second).Sub(At(at)); got != time.Second {
		t.Errorf("got %v, want 1s", got)
	}
	if got := NodeAt(at.Add(time.Minute)).AheadOf(At(at)); got != time.Minute {
		t.Errorf("got %v, want 1m", got)
	}
}

func TestClock(t *testing.T) {
	start := time.Now()
	clock := NewClock(start)
	if got := clock.At(start); got != At(start) {
		t.Errorf("at the start: got %v, want the wall clock's %v", got.Time(), start)
	}
	if got := clock.At(start.Add(time.Hour)).Sub(At(start)); got != time.Hour {
		t.Errorf("got %v after an hour", got)
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range SkipReason(NumSkipReasons) {
		name := r.String()
		if name == "" || seen[name] {
			t.Errorf("reason %d: got %q, want a unique name", r, name)
		}
		seen[name] = true
	}
}
