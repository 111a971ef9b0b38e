package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
)

// t0 is the start of the readings.
var t0 = time.Unix(1_800_000_000, 0)

// A point is a reading some seconds after t0. Its container started at t0, or at restarted.
type point struct {
	at, restarted, ahead, coreSeconds float64
	startAhead                        float64 // of the clock at the start
	isUncertain                       bool
	rate                              uint64 // nanocores; 0: not known
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func seriesOf(points []point) series {
	r := readings{}
	for _, p := range points {
		started := t0.Add(seconds(p.restarted))
		at := t0.Add(seconds(p.at))
		r.record([]kubelettest.Reading{{
			At: at, Stamp: at.Add(seconds(p.ahead)), Started: started, StartStamp: started.Add(seconds(p.startAhead)),
			CPU: p.coreSeconds, Memory: 1 << 20, Rate: p.rate, HasRate: p.rate > 0,
		}}, at, !p.isUncertain, time.Hour)
	}
	return r[seriesKey{}]
}

// TestExplanations checks with which ends and windows a usage may be served.
func TestExplanations(t *testing.T) {
	const maxAge = 30 * time.Second
	steady := []point{{at: 100, coreSeconds: 50}, {at: 106, coreSeconds: 53}, {at: 112, coreSeconds: 56}}
	restarted := []point{{at: 100, coreSeconds: 50}, {at: 114, restarted: 103, coreSeconds: 4}}
	stepped := func(ahead float64) []point {
		return []point{{at: 100, coreSeconds: 30}, {at: 112, ahead: ahead, coreSeconds: 33.6}}
	}
	rated := func(restarted float64) []point {
		return []point{{at: 112, restarted: restarted, coreSeconds: 6, rate: 123456789}}
	}
	young := func(clock, clockAtStart float64) []point {
		return []point{{at: 114, ahead: clock, startAhead: clockAtStart, restarted: 103, coreSeconds: 4}}
	}
	for _, tt := range []struct {
		name       string
		points     []point
		cores      float64
		startsMove bool
		node       []point  // of the node
		want       []string // end and windows, in seconds
	}{
		{"all pairs", steady, 0.5, false, nil, []string{"112: 6-6", "112: 12-12", "106: 6-6"}},
		{"no pair", steady, 0.55, false, nil, nil},
		{"rounded to nanocores", []point{{at: 100}, {at: 103, coreSeconds: 1}}, 0.333333333, false, nil,
			[]string{"103: 3-3"}},
		{"not rounded", []point{{at: 100}, {at: 103, coreSeconds: 1}}, 0.333333331, false, nil, nil},
		{"another load", []point{{at: 100, coreSeconds: 50}, {at: 110, coreSeconds: 55}, {at: 120, coreSeconds: 65}},
			0.75, false, nil, []string{"120: 20-20"}},
		{"too close", []point{{at: 100, coreSeconds: 50}, {at: 100.9, coreSeconds: 50.45}}, 0.5, false, nil, nil},
		{"longer than the maximum age", []point{{at: 100, coreSeconds: 50}, {at: 130.1, coreSeconds: 65.05}}, 0.5,
			false, nil, nil},
		{"small step ahead", stepped(0.793), 3.6 / 12.793, false, nil, []string{"112: 12.793-12.793"}},
		// The window of the pod was that of the other container, 17.207 s.
		{"small step back", stepped(-0.793), 0.321227804, false, nil, []string{"112: 11.207-11.207"}},
		{"true rate across a small step", stepped(0.793), 0.3, false, nil, nil},
		{"large step", stepped(2), 3.6 / 14, false, nil, nil},
		{"large step and back", []point{
			{at: 100, coreSeconds: 50}, {at: 106, ahead: 2, coreSeconds: 53}, {at: 112, coreSeconds: 56},
		}, 0.5, false, nil, nil},
		{"large step and back, of which the server may know nothing", []point{
			{at: 100, coreSeconds: 50}, {at: 106, ahead: 2, coreSeconds: 53, isUncertain: true}, {at: 112, coreSeconds: 56},
		}, 0.5, false, nil, []string{"112: 12-12"}},
		{"restart", restarted, 4. / 14, false, nil, nil},
		{"since the start", restarted, 4. / 11, false, nil, []string{"114: 11-11"}},
		{"since the start, across a small step", young(-1, 0), 0.4, false, nil, []string{"114: 10-10"}},
		{"since the start, across a jump", young(5, 0), 0.25, false, []point{{at: 102}, {at: 114, ahead: 5}}, nil},
		{"since the start, across a jump and back", young(0, -5), 0.25, false,
			[]point{{at: 102}, {at: 108, ahead: -5}, {at: 114}}, nil},
		{"since the start, across a jump and back that the server cannot know", young(0, -5), 0.25, false,
			[]point{{at: 90, ahead: 7}, {at: 102}, {at: 108, ahead: -5, isUncertain: true}, {at: 114}},
			[]string{"114: 16-16"}},
		{"since the start, with a wrong clock", young(5, 5), 4. / 11, false, nil, []string{"114: 11-11"}},
		{"too young for the mean since the start", young(-1.1, 0), 4. / 9.9, false, nil, nil},
		{"too old for the mean since the start", []point{{at: 112, restarted: 81, coreSeconds: 4}}, 4. / 31, false, nil,
			nil},
		{"restart that cannot be noticed", []point{{at: 100, coreSeconds: 1}, {at: 112, restarted: 103, coreSeconds: 4}},
			0.25, false, nil, []string{"112: 12-12"}},
		{"restart that a reading in between shows", []point{
			{at: 100, coreSeconds: 1}, {at: 102, coreSeconds: 3}, {at: 112, restarted: 110, coreSeconds: 2},
		}, 1. / 12, false, nil, nil},
		{"restart that a reading in between may not show", []point{
			{at: 100, coreSeconds: 1}, {at: 102, coreSeconds: 3, isUncertain: true}, {at: 112, restarted: 110, coreSeconds: 2},
		}, 1. / 12, false, nil, []string{"112: 12-12"}},
		{"kubelet-reported", rated(0), 0.123456789, false, nil, []string{"112: 15-15"}},
		{"kubelet-reported, young", rated(100), 0.123456789, false, nil, []string{"112: 11-13"}},
		{"kubelet-reported, wrong start", rated(0), 0.123456789, true, nil, []string{"112: 0-15"}},
		{"kubelet-reported, wrong", rated(0), 0.123456786, false, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := facts{maxAge, tt.startsMove, seriesOf(tt.node)}
			any := func(*reading) bool { return true }
			var got []string
			for x := range seriesOf(tt.points).explanations(value{tt.cores, 1024}, f, any) {
				got = append(got, fmt.Sprintf("%g: %g-%g", x.end.At.Sub(t0).Seconds(),
					x.shortest.Round(time.Millisecond).Seconds(), x.longest.Round(time.Millisecond).Seconds()))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			for x := range seriesOf(tt.points).explanations(value{tt.cores, 1023}, f, any) {
				t.Errorf("got %+v with another memory", x)
			}
		})
	}
}
