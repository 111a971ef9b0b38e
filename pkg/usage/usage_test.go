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
}

func TestClock(t *testing.T) {
	start, suspended := time.Now(), 3*time.Hour // before the start
	elapsed := time.Duration(0)
	clock := newClock(start, func() time.Duration { return suspended })
	if got := NewClock(start).At(start); got != At(start) {
		t.Errorf("at the start: got %v, want the wall clock's %v", got.Time(), start)
	}
	for _, step := range []struct {
		suspended, want time.Duration // since the start
	}{
		{0, 0},
		{-5 * time.Millisecond, 0}, // the process waited between the two readings
		{900 * time.Millisecond, 0},
		{time.Hour, time.Hour},
		{time.Hour - 20*time.Millisecond, time.Hour},
		{time.Hour + 20*time.Millisecond, time.Hour},
		{time.Hour + 2*time.Second, time.Hour + 2*time.Second},
		{2 * time.Hour, 2 * time.Hour},
	} {
		elapsed += time.Minute
		suspended = 3*time.Hour + step.suspended
		if got := clock.At(start.Add(elapsed)).Sub(At(start)); got != elapsed+step.want {
			t.Errorf("after a suspension of %v: got %v in %v, want %v", step.suspended, got, elapsed, elapsed+step.want)
		}
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
