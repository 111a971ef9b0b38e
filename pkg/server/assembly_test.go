package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestAfter checks that a loop starts as soon as its condition is met, and never if the context ends before.
func TestAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var started []time.Duration
		loop := after(
			func() bool { return time.Since(begin) >= time.Minute },
			func(context.Context) { started = append(started, time.Since(begin)) },
		)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if loop(ctx); len(started) > 0 || time.Since(begin) > 11*time.Second {
			t.Errorf("started after %v, ended after %v", started, time.Since(begin))
		}
		if loop(t.Context()); len(started) != 1 || started[0] > time.Minute+knownInterval {
			t.Errorf("started after %v, want a minute", started)
		}
	})
}
