// Package backoff waits between attempts.
package backoff

import (
	"context"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// New returns the waits between attempts that fail: first, and then twice the last one, up to longest. Each
// is up to half longer, at random, so that replicas do not act at the same time.
func New(first, longest time.Duration) *wait.Backoff {
	return &wait.Backoff{Duration: first, Factor: 2, Jitter: 0.5, Steps: math.MaxInt, Cap: longest}
}

// Sleep returns after the time, when wake receives or is closed, or at the end of the context. It reports
// whether the context has not ended. wake may be nil.
func Sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
	return ctx.Err() == nil
}
