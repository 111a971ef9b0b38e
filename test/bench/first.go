package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// First rates are those after a start of the server, a gap or a jump of a clock. Over a short window, a steady
// load of short requests looks like one that changes.
const (
	firstRuns     = 1000 // autoscalers
	firstPods     = 3    // of each
	firstDuration = 60.0 // seconds
	requestTime   = 0.05 // core-seconds of each request, one after the other on its own core
	requestRate   = 10.0 // per second and pod, at random times
	requestMean   = requestTime * requestRate
)

// requests has the times when the requests of a pod begin.
type requests []float64

func newRequests(random *rand.Rand) (r requests) {
	for t := -30.0; t < firstDuration; t += random.ExpFloat64() / requestRate {
		r = append(r, t)
	}
	return r
}

// used returns the CPU counter at a time.
func (r requests) used(t float64) float64 {
	done, _ := slices.BinarySearch(r, t-requestTime)
	sum := float64(done) * requestTime
	for _, begun := range r[done:] {
		if begun >= t {
			break
		}
		sum += t - begun
	}
	return sum
}

// sampling is how a kubelet samples containers.
type sampling struct {
	name         string
	housekeeping float64 // seconds; 0: at each scrape
	wholeSeconds bool    // of the timestamps
	hasRate      bool    // the summary has the rate between its last two samples
}

// sample returns the sample that a kubelet reports at a time, given the offset of its housekeeping.
func (s sampling) sample(r requests, t, offset float64) point {
	if s.housekeeping > 0 {
		t = math.Floor((t-offset)/s.housekeeping)*s.housekeeping + offset
	}
	p := point{t, r.used(t)}
	if s.wholeSeconds {
		p.at = math.Floor(p.at + 1000) // shifts all times, and keeps them positive
	}
	return p
}

// atLeast returns the rule of a policy: no window is shorter, and then it is as near to the rate window as
// samples allow.
func atLeast(shortest float64) func() rule {
	return func() rule {
		var points []point
		last := 0.0
		return func(p point) float64 {
			best := -1
			for i, q := range points {
				off := func(start float64) float64 { return math.Abs(p.at - start - ruleWindow.Seconds()) }
				isBetter := best < 0 || off(q.at) < off(points[best].at)
				if p.at-q.at >= shortest && isBetter {
					best = i
				}
			}
			if best >= 0 {
				last = points[best].rateTo(p)
			}
			points = append(points, p)
			return last
		}
	}
}

// start is what is served of a pod after a start of the server: its first rate, when that is served, and what
// the first autoscaler gets that reads it, which may have to read again.
type start struct{ first, at, read float64 }

// policy is a rule with the times of its early scrapes, until there is a rate, or all of them.
type policy struct {
	name    string
	newRule func() rule
	early   []float64
	all     bool
}

// start plays a start. A regular scrape follows each 15 s, from a random time on. The autoscaler first reads at
// that time.
func (s sampling) start(random *rand.Rand, p policy, read float64) (out start) {
	r, offset, apply, early := newRequests(random), random.Float64()*s.housekeeping, p.newRule(), p.early
	if s.housekeeping > 0 { // the early scrape is for the next sample
		early = []float64{0, offset + 0.1, offset + s.housekeeping + 0.1}
	}
	rate, seen, end := 0.0, math.Inf(-1), ruleWindow.Seconds()
	if s.hasRate {
		first := s.sample(r, 0, offset)
		rate = (first.used - r.used(first.at-s.housekeeping)) / s.housekeeping
		out.first = rate
	}
	for next := random.Float64() * end; out.read == 0; {
		t := next
		if (rate == 0 || p.all) && len(early) > 0 && early[0] < next {
			t, early = early[0], early[1:]
		} else {
			next += end
		}
		for ; read < t && out.read == 0; read += syncPeriod.Seconds() {
			out.read = rate
		}
		if sample := s.sample(r, t, offset); sample.at > seen {
			seen = sample.at
			if now := apply(sample); now > 0 {
				rate = now
			}
		}
		if out.first == 0 && rate > 0 {
			out.first, out.at = rate, t
		}
	}
	return out
}

// simulateFirst prints how far the first rates are off, by the policy of the first window.
func simulateFirst() {
	t := newTable(fmt.Sprintf("First rates of %g requests of %g ms per second", requestRate, requestTime*1000),
		"kubelet", "first window", "off by p50", "p95", "beyond 10 %: one pod", "mean of three",
		"pods have metrics after p50", "all")
	percent := func(x float64) string { return fmt.Sprintf("%.0f %%", 100*x) }
	for _, s := range []sampling{
		{name: "on demand"}, {name: "on demand, whole seconds", wholeSeconds: true},
		{name: "every 10 s, with its rate", housekeeping: 10, hasRate: true}, {name: "every 10 s", housekeeping: 10},
	} {
		for _, policy := range []policy{
			{"1.2 s", atLeast(1), []float64{0, 1.2, 2.4}, false}, {"3.75 s", atLeast(3.75), []float64{0, 3.95, 5}, false},
			{"7.5 s", atLeast(7.5), []float64{0, 7.7, 8.9}, false}, {"15 s", atLeast(15), []float64{0, 15.1, 16.3}, false},
			{"kube-vitals' store", stored, []float64{0, 3.95, 7.9, 11.85}, true}, // pkg/scrape/early.go
		} {
			random := rand.New(rand.NewPCG(5, 6))
			var off, after []float64
			var one, three float64
			for range firstRuns {
				read, sum := random.Float64()*syncPeriod.Seconds(), 0.0
				for range firstPods {
					got := s.start(random, policy, read)
					off, after = append(off, math.Abs(got.first/requestMean-1)), append(after, got.at)
					one += share(got.read)
					sum += got.read
				}
				three += share(sum / firstPods)
			}
			slices.Sort(off)
			slices.Sort(after)
			n := len(off)
			t.row(s.name, policy.name, percent(off[n/2]), percent(off[n*95/100]), percent(one/float64(n)),
				percent(three/firstRuns), fmt.Sprintf("%.1f s", after[n/2]), fmt.Sprintf("%.1f s", after[n-1]))
		}
	}
	t.print()
}

// share is 1 if a rate is beyond the tolerance of an autoscaler, else 0.
func share(rate float64) float64 {
	if math.Abs(rate/requestMean-1) > 0.1 {
		return 1
	}
	return 0
}
