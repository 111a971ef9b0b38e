package health

import (
	"errors"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// TestAttempts follows something that is read once in a second.
func TestAttempts(t *testing.T) {
	start := time.Now()
	at := func(seconds int) time.Time {
		if seconds < 0 {
			return time.Time{}
		}
		return start.Add(time.Duration(seconds) * time.Second)
	}
	refused := errors.New("connection refused")
	a := Attempts{Next: at(0)}
	for i, step := range []struct {
		reason reason.Reason // empty: success

		lastSuccess, succeedingSince, failingSince int // -1: never
		failures, repeated                         int
	}{
		{reason.ConnectRefused, -1, -1, 0, 1, 1},
		{"", 1, 1, -1, 0, 0},
		{"", 2, 1, -1, 0, 0},
		{reason.ConnectRefused, 2, -1, 3, 1, 1},
		{reason.ConnectRefused, 2, -1, 3, 2, 2},
		{reason.Timeout, 2, -1, 3, 3, 1},
		{"", 6, 6, -1, 0, 0},
	} {
		var err error
		if step.reason != "" {
			err = refused
		}
		a.Add(at(i), time.Millisecond, step.reason, err)
		want := Attempts{
			Last: at(i), LastSuccess: at(step.lastSuccess), Next: at(0), SucceedingSince: at(step.succeedingSince),
			Took: time.Millisecond, Failures: step.failures, Repeated: step.repeated, FailingSince: at(step.failingSince),
			Err: err, Reason: step.reason,
		}
		if a != want {
			t.Errorf("step %d: got %+v, want %+v", i, a, want)
		}
	}
}
