package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestKinds checks the properties of the loads on which the measurement relies.
func TestKinds(t *testing.T) {
	const duration = 5 * time.Minute
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(3, 4))
			mean, highest := 0.0, 0.0
			for range 20 {
				loads := k.generate(random, duration)
				if len(loads) != podsPerAutoscaler {
					t.Fatalf("got loads of %d pods, want %d", len(loads), podsPerAutoscaler)
				}
				for _, l := range loads {
					sorted := slices.IsSortedFunc(l, func(a, b change) int { return int(a.at - b.at) })
					if !sorted || l[0].at != 0 || l[len(l)-1].at >= duration {
						t.Fatalf("not in order, from 0 and within %s: %v", duration, l)
					}
					for i, c := range l {
						end := duration
						if i+1 < len(l) {
							end = l[i+1].at
						}
						mean += c.cores * (end - c.at).Seconds() / duration.Seconds() / float64(20*len(loads))
						highest = max(highest, c.cores)
					}
				}
			}
			switch k.name {
			case stepKind:
				want := stepLow + (stepHigh-stepLow)*3*stepDuration.Seconds()/duration.Seconds()
				if math.Abs(mean-want) > 1e-9 || highest != stepHigh || replicasFor(stepHigh) != stepReplicas {
					t.Errorf("got mean %g and maximum %g, want %g and %g", mean, highest, want, stepHigh)
				}
			case rampKind:
				if math.Abs(highest-rampHigh) > 1e-9 || replicasFor(highest) >= maxReplicas {
					t.Errorf("got maximum %g, want %g, for which there are enough replicas", highest, rampHigh)
				}
			case spikeKind:
				// Over a minute, spikes need no more replicas than the minimum.
				if mean > target/1.1 || highest > spikeMax || highest < 2*target {
					t.Errorf("got mean %g and maximum %g", mean, highest)
				}
			case noiseKind:
				if math.Abs(mean-noiseMean) > 0.05*noiseMean || highest < 2*target {
					t.Errorf("got mean %g and maximum %g, want a mean of %g", mean, highest, noiseMean)
				}
			}
		})
	}
}

// TestPlay checks that each change is made on time and recorded, until the context ends.
func TestPlay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loads := []load{{{0, 1}, {time.Minute, 2}, {2 * time.Minute, 3}}, {{0, 5}, {30 * time.Second, 6}}}
		start := time.Now()
		var made []string
		set := func(i int, cores float64) { made = append(made, fmt.Sprint(i, time.Since(start), cores)) }
		played, err := play(t.Context(), loads, 100*time.Second, set)
		if want := []load{loads[0][:2], loads[1]}; err != nil || fmt.Sprint(played) != fmt.Sprint(want) {
			t.Errorf("got %v, %v, want %v", played, err, want)
		}
		if want := []string{"0 0s 1", "1 0s 5", "1 30s 6", "0 1m0s 2"}; !slices.Equal(made, want) {
			t.Errorf("got changes %v, want %v", made, want)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 90*time.Second, io.ErrClosedPipe)
		defer cancel()
		if _, err := play(ctx, loads, time.Hour, set); !errors.Is(err, io.ErrClosedPipe) {
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

func TestDecisions(t *testing.T) {
	d := decide(-20, 2, -10, 4, 5, 4, 10, 2, 20, 2, 30, 3)
	if want := decide(-20, 2, -10, 4, 10, 2, 30, 3); !slices.Equal(d, want) {
		t.Errorf("got %v, want %v without repetitions", d, want)
	}
	for second, want := range map[int]int{-30: 2, -20: 2, -10: 4, 0: 4, 9: 4, 10: 2, 29: 2, 30: 3, 99: 3} {
		if got := d.at(time.Duration(second) * time.Second); got != want {
			t.Errorf("after %d s: got %d replicas, want %d", second, got, want)
		}
	}
	if got := d.changes(29 * time.Second); got != 1 {
		t.Errorf("got %d changes in 29 s, want 1: those before the start do not count", got)
	}
	if got := d.changes(30 * time.Second); got != 2 {
		t.Errorf("got %d changes in 30 s, want 2", got)
	}
	if got := d.since(10 * time.Second); got[2].at != 0 || got[3].at != 20*time.Second || d[2].at == 0 {
		t.Errorf("got %v of %v", got, d)
	}
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

func TestDelaysOfRamp(t *testing.T) {
	l := load{
		{0, 0.05}, {10 * time.Second, 0.15}, {20 * time.Second, 0.16}, {30 * time.Second, 0.30}, {60 * time.Second, 0.05},
	}
	var s delays
	s.addRamp(l, decide(-60, 2, 15, 3, 35, 5, 55, 6, 70, 2), 100*time.Second)
	// Four replicas are needed after 20 s, five and six after 30 s.
	if want := []float64{15, 5, 25}; !slices.Equal(s.ramp, want) {
		t.Errorf("got %v, want %v", s.ramp, want)
	}
}
