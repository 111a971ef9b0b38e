package main

import (
	"math"
	"testing"
)

// TestRequests checks the counter of two requests; the second begins before the first has ended.
func TestRequests(t *testing.T) {
	r := requests{1, 1.02}
	for at, want := range map[float64]float64{0: 0, 1: 0, 1.01: 0.01, 1.03: 0.04, 1.06: 0.09, 1.08: 0.1, 9: 0.1} {
		if got := r.used(at); math.Abs(got-want) > 1e-9 {
			t.Errorf("at %g: got %g, want %g", at, got, want)
		}
	}
}
