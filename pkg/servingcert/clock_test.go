package servingcert

import (
	"testing"
	"time"
)

func TestClock(t *testing.T) {
	t.Parallel()
	sent := epoch.Add(700 * time.Millisecond)
	for name, c := range map[string]struct {
		date string
		took time.Duration
		want time.Duration
	}{
		"the same second":       {"12:00:00", 0, 0},
		"within the precision":  {"12:00:01", 0, 0},
		"within a slow request": {"12:00:05", 10 * time.Second, 0},
		"ahead":                 {"12:10:00", 0, 10 * time.Minute},
		"behind":                {"11:00:00", 0, -time.Hour},
		"invalid":               {"noon", 0, 42},
	} {
		var clock clock
		clock.ahead.Store(42)
		clock.set("Thu, 01 Oct 2026 "+c.date+" GMT", sent, sent.Add(c.took))
		if got := time.Duration(clock.ahead.Load()); got != c.want {
			t.Errorf("%s: got a clock ahead by %v, want %v", name, got, c.want)
		}
	}
}
