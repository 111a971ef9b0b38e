package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestRules compares the rows of rules that are not the product's with docs/dev/measurements.md: they
// depend on the loads, on the decisions of autoscalers, and on how these are analyzed.
func TestRules(t *testing.T) {
	text, err := os.ReadFile("../../docs/dev/measurements.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []ruleRow{
		{"15 s, a sample every 15 s (metrics-server)", windowOf(ruleWindow), sparse},
		{"5 s", windowOf(5 * time.Second), dense},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			c := r.cells() // the page does not have the p95 of the first decision and noise of 10 s
			want := "| " + strings.Join(slices.Concat(c[:2], c[3:9], c[10:]), " | ") + " |\n"
			if !strings.Contains(string(text), want) {
				t.Errorf("the page does not have this row:\n%s", want)
			}
		})
	}
}

// TestPlay checks that each change is made on time and recorded, until the context ends.
func TestPlay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loads := []load{{{0, 1}, {time.Minute, 2}, {2 * time.Minute, 3}}, {{0, 5}, {30 * time.Second, 6}}}
		var last atomic.Int64
		played, err := play(t.Context(), loads, 100*time.Second, func(i int, _ float64) { last.Store(int64(i)) })
		if want := []load{loads[0][:2], loads[1]}; err != nil || fmt.Sprint(played) != fmt.Sprint(want) || last.Load() != 0 {
			t.Errorf("got %v, %v, want %v; the last change is of load %d", played, err, want, last.Load())
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 90*time.Second, io.ErrClosedPipe)
		defer cancel()
		if _, err := play(ctx, loads, time.Hour, func(int, float64) {}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("got %v, want the cause", err)
		}
	})
}

// decide returns decisions at some seconds.
func decide(pairs ...int) (d decisions) {
	for i := 0; i < len(pairs); i += 2 {
		d.add(time.Duration(pairs[i])*time.Second, pairs[i+1])
	}
	return d
}

func TestDelaysOfSteps(t *testing.T) {
	l := load{
		{0, stepLow},
		{20 * time.Second, stepHigh}, {80 * time.Second, stepLow},
		{120 * time.Second, stepHigh}, {180 * time.Second, stepLow},
		{220 * time.Second, stepHigh}, {280 * time.Second, stepLow},
	}
	var s delays
	// The second step up never leads to the right number, and the third one comes while the
	// autoscaler still wants more than the minimum.
	s.addSteps(l, decide(-60, 2, 30, 4, 45, 6, 100, 2, 150, 5, 230, 6, 290, 2), 300*time.Second)
	inf := math.Inf(1)
	want := delays{first: []float64{10, 30}, right: []float64{25, inf}, down: []float64{20, inf}}
	if got := fmt.Sprintf("%+v", s); got != fmt.Sprintf("%+v", want) {
		t.Errorf("got\n%s, want\n%+v", got, want)
	}
}
