package store

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// simNode is a node that has long run one container with a load of 1 core.
type simNode struct {
	sampling
	ahead     func(real time.Duration) time.Duration // of its clock, by the time since t0
	startsAgo time.Duration                          // if not 0: the container's age at each sample
	lead      time.Duration                          // of the samples' times, ahead of the node's clock
	dateless  bool
	stuck     time.Duration // the time of the last samples, which it repeats; 0: never
	newStart  time.Duration // when a second container starts, with a load of 1 core; 0: never
	took      time.Duration // from the request to the response, which it sends at once
	bodyAfter time.Duration // from the headers to the body
}

// sampling is how often samples are taken, and how often they are scraped.
type sampling struct {
	every   time.Duration // 0: on demand
	scraped time.Duration // 0: every 15 s
}

// samplings are the configurations of kubelets.
var samplings = map[string]sampling{
	"on demand": {}, "every 10s": {every: 10 * time.Second}, "every 15s": {every: 15 * time.Second},
	"every 20s": {every: 20 * time.Second},
}

// denseSamplings are such that rates are computed from a history.
var denseSamplings = map[string]sampling{
	"scraped every 1.6s": {scraped: 1600 * time.Millisecond}, "scraped every 5s": {scraped: 5 * time.Second},
}

// clock returns what the node's clock shows at a time since t0.
func (n *simNode) clock(real time.Duration) usage.NodeTime {
	return usage.NodeTime(t0.Add(real + n.ahead(real)))
}

func (n *simNode) sample(real time.Duration) usage.Sample {
	if n.every != 0 {
		real = real.Truncate(n.every)
	}
	at := n.clock(real).Add(n.lead)
	s := usage.Sample{
		At: at, StartedAt: nodeAt(-3600),
		CPUSeconds: 1000 + real.Seconds(), Memory: 1 << 20, Has: usage.HasCPU | usage.HasMemory,
	}
	if n.startsAgo != 0 {
		s.StartedAt = s.At.Add(-n.startsAgo)
	}
	return s
}

// newSample returns a sample of the second container. It is first sampled when it starts.
func (n *simNode) newSample(real time.Duration) usage.Sample {
	age := real - n.newStart
	if n.every != 0 {
		age = age.Truncate(n.every)
	}
	return usage.Sample{
		At: n.clock(n.newStart + age), StartedAt: n.clock(n.newStart),
		CPUSeconds: age.Seconds(), Memory: 1 << 20, Has: usage.HasCPU | usage.HasMemory,
	}
}

func (n *simNode) scrape(real time.Duration) *usage.Scrape {
	sample := n.sample(real)
	if n.stuck != 0 && real > n.stuck {
		sample = n.sample(n.stuck)
	}
	s := &usage.Scrape{
		At: t0.Add(real), Sent: t0.Add(real - n.took - 20*time.Millisecond), Node: sample, Capacity: 1000e9,
		Containers: []usage.ContainerSample{of("p/a", sample)},
	}
	if n.newStart != 0 && real >= n.newStart {
		s.Containers = append(s.Containers, of("q/a", n.newSample(real)))
	}
	if !n.dateless {
		s.Date = cut(n.clock(real - n.bodyAfter - 10*time.Millisecond))
		s.Dated = t0.Add(real - n.bodyAfter)
	}
	return s
}

// run scrapes the node regularly, and early if something is missing. It calls read all the time.
func (n *simNode) run(until time.Duration, read func(s *Store, real time.Duration)) *Store {
	const tick = 200 * time.Millisecond
	s, regular, early := newStore(), tick, time.Duration(0)
	for real := tick; real < until; real += tick {
		if real >= regular || early != 0 && real >= early {
			early = earlyScrape(s.Put("n1", n.scrape(real)).Missing, real)
			if real >= regular {
				regular += cmp.Or(n.scraped, 15*time.Second)
			}
		}
		read(s, real)
	}
	return s
}

// constantly returns the offset of a clock that is always wrong by the same amount.
func constantly(ahead time.Duration) func(time.Duration) time.Duration {
	return func(time.Duration) time.Duration { return ahead }
}

// stepsAt returns the offset of a clock that is set by each step at its time since t0.
func stepsAt(at []time.Duration, by ...time.Duration) func(time.Duration) time.Duration {
	return func(real time.Duration) time.Duration {
		var ahead time.Duration
		for i := range at {
			if real >= at[i] {
				ahead += by[i]
			}
		}
		return ahead
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// earlyScrape returns when pkg/scrape would scrape again (newPlan), or 0.
func earlyScrape(missing []usage.Missing, real time.Duration) time.Duration {
	const onDemandAge, period, overdue = 1200 * time.Millisecond, 10100 * time.Millisecond, 2 * time.Second
	var early time.Duration
	for _, m := range missing {
		if t0.Add(real).Sub(m.Since) > 30*time.Second {
			continue
		}
		wait := rateWindow/4 + 200*time.Millisecond
		if age := t0.Add(real).Sub(m.SampledAt); age >= onDemandAge {
			wait = max(period-age, overdue)
		}
		if m.StartedAt != 0 {
			wait = max(wait, m.StartedAt.Add(minAge).Sub(t0.Add(real))+100*time.Millisecond)
		}
		if early == 0 || real+wait < early {
			early = real + wait
		}
	}
	return early
}

// readAsOneCore runs a node. From a time on, its metrics and those of its pod must always be served and
// be right, except for steps of the clock that are too small to be noticed.
func readAsOneCore(t *testing.T, n *simNode, from, until time.Duration) *Store {
	t.Helper()
	absent := 0
	return n.run(until, func(s *Store, real time.Duration) {
		if real < from {
			return
		}
		pod, node := s.Pod("n1", "n", "p", t0.Add(real)), s.Node("n1", t0.Add(real))
		if pod == nil || node == nil {
			// Samples every 20 s that are before and after a step are further apart than the maximum age.
			if absent++; n.every <= 15*time.Second || absent > 15 {
				t.Fatalf("no metrics after %v: pod %v, node %v", real, show(pod), node)
			}
			return
		}
		for _, a := range []usage.Amount{pod.Containers[0].Amount, node.Amount} {
			if !isAboutOneCore(a) {
				t.Fatalf("after %v: got %d nanocores over %v, want 1 core", real, a.CPUNanocores, a.Window)
			}
		}
	})
}

func isAboutOneCore(a usage.Amount) bool { return a.CPUNanocores >= 87e7 && a.CPUNanocores <= 115e7 }

// TestClockSteps sets the node's clock, or our own.
func TestClockSteps(t *testing.T) { // rule 3
	test := func(name string, by sampling, steps ...float64) {
		for _, step := range steps {
			t.Run(fmt.Sprint(name, "/", step), func(t *testing.T) {
				for after := 90 * time.Second; after < 105*time.Second; after += 1900 * time.Millisecond {
					n := &simNode{sampling: by, ahead: stepsAt([]time.Duration{after}, seconds(step))}
					readAsOneCore(t, n, 65*time.Second, 210*time.Second)
				}
			})
		}
	}
	for name, by := range samplings {
		test(name, by, -3600, -600, -75, -61, -14.5, -13.5, -10, -5, -2.5, -1, 1, 2.5, 5, 14.5, 16, 61, 75, 600, 25*3600)
	}
	for name, by := range denseSamplings {
		test(name, by, -3600, -61, -14, -5, -2.5, 2.5, 5, 14, 61, 3600)
	}
}

// TestWrongClocks has clocks that are always wrong: by much, by a drift, or because they are slewed. It
// also has start times that move on running containers (google/cadvisor#2905).
func TestWrongClocks(t *testing.T) { // rules 3, 4
	nodes := map[string]simNode{
		"75s behind":    {ahead: constantly(-75 * time.Second)},
		"61s ahead":     {ahead: constantly(61 * time.Second)},
		"a day ahead":   {ahead: constantly(24 * time.Hour)},
		"years behind":  {ahead: constantly(-1000 * 24 * time.Hour)},
		"drift 100ppm":  {ahead: func(real time.Duration) time.Duration { return real / 10_000 }},
		"slewed by 1%":  {ahead: func(real time.Duration) time.Duration { return real / 100 }},
		"slewed by -8%": {ahead: func(real time.Duration) time.Duration { return -real / 12 }},
		"slewed by 8%":  {ahead: func(real time.Duration) time.Duration { return real / 12 }},
	}
	for _, ago := range []float64{1, 5, 9, 12, 30, 59} {
		nodes[fmt.Sprintf("starts %vs ago", ago)] = simNode{startsAgo: seconds(ago), ahead: constantly(0)}
	}
	for name, n := range nodes {
		for sampled, by := range samplings {
			t.Run(name+"/"+sampled, func(t *testing.T) {
				n.sampling = by
				readAsOneCore(t, &n, 65*time.Second, 10*time.Minute)
			})
		}
	}
}

// TestSamplesAheadOfTheirNode has a kubelet whose samples are ahead of its own clock, as those of a
// virtual kubelet may be.
func TestSamplesAheadOfTheirNode(t *testing.T) { // rule 3
	for _, lead := range []float64{0.3, 0.9, 2, 10, 50} {
		t.Run(fmt.Sprint(lead), func(t *testing.T) {
			n := &simNode{lead: seconds(lead), ahead: constantly(0)}
			s := readAsOneCore(t, n, 35*time.Second, 10*time.Minute)
			if jumps := s.Counts().ClockJumps; jumps > 1 {
				t.Errorf("got %d jumps of the clock, want at most 1", jumps)
			}
		})
	}
}

// TestTwoClockSteps sets a node's clock twice within a minute, in the same direction. The second
// step must not be mistaken for a slew: if metrics are served, they must show 1 core.
func TestTwoClockSteps(t *testing.T) { // rule 3
	const first = 91750 * time.Millisecond
	for name, by := range samplings {
		for _, steps := range [][2]float64{{-600, -2}, {-600, -3}, {-3.5, -3.5}, {600, 2.5}, {3.5, 3}} {
			t.Run(fmt.Sprint(name, steps), func(t *testing.T) {
				for between := 20 * time.Second; between < time.Minute; between += 7300 * time.Millisecond {
					at := []time.Duration{first, first + between}
					n := &simNode{sampling: by, ahead: stepsAt(at, seconds(steps[0]), seconds(steps[1]))}
					s := newStore()
					for real := 200 * time.Millisecond; real < 4*time.Minute; real += 15 * time.Second {
						s.Put("n1", n.scrape(real))
						if p := s.Pod("n1", "n", "p", t0.Add(real)); p != nil && !isAboutOneCore(p.Containers[0].Amount) {
							t.Fatalf("%v between the steps, after %v: got %s, want 1 core", between, real, show(p))
						}
					}
				}
			})
		}
	}
}

// TestExpiryByOurClock stops the scrapes of nodes whose clocks are wrong, or has their kubelets repeat
// the same samples: the last metrics must be served for exactly the maximum age.
func TestExpiryByOurClock(t *testing.T) { // rules 2, 3, 8
	const last = 45 * time.Second
	for _, ahead := range []float64{-3600, -75, -20, -3, 0, 3, 20, 600, 24 * 3600} {
		for kubelet, n := range map[string]simNode{
			"": {}, "dateless": {dateless: true}, "slow": {took: 25 * time.Second},
			"headers first": {took: 25 * time.Second, bodyAfter: 20 * time.Second},
		} {
			tooEarly := 1100 * time.Millisecond
			if n.took > 0 {
				tooEarly = 3100 * time.Millisecond
			}
			if n.dateless && ahead == -20 {
				continue // the clocks may agree, and the samples be older
			}
			n.stuck, n.ahead = last, constantly(seconds(ahead))
			for name, until := range map[string]time.Duration{"scrapes fail": last, "samples are repeated": 5 * time.Minute} {
				t.Run(fmt.Sprint(ahead, kubelet, name), func(t *testing.T) {
					s := newStore()
					for real := time.Duration(0); real <= until; real += 15 * time.Second {
						s.Put("n1", n.scrape(real))
						age := max(0, real-last)
						if got := s.Pod("n1", "n", "p", t0.Add(real)); (got != nil) != (real > 0 && age < maxAge) && age != maxAge {
							t.Errorf("after %v: got %s", real, show(got))
						}
					}
					if until > last {
						return
					}
					if s.Pod("n1", "n", "p", t0.Add(last+maxAge-tooEarly)) == nil && !n.dateless {
						t.Errorf("expired more than %v too early", tooEarly)
					}
					if s.Pod("n1", "n", "p", t0.Add(last+maxAge+time.Millisecond)) != nil {
						t.Error("served for longer than the maximum age")
					}
				})
			}
		}
	}
}

// TestContainerStartsBeforeAClockStep starts a container with a load of 1 core shortly before the
// node's clock is set. The first scrape that mentions it may show the step, with a sample from
// before.
func TestContainerStartsBeforeAClockStep(t *testing.T) { // rule 3
	const step = 100 * time.Second
	for name, by := range samplings {
		for _, ahead := range []float64{-600, -61, -12, -9, -5, -2.5, 2.5, 5, 9, 12, 20, 61, 600} {
			t.Run(fmt.Sprint(name, "/", ahead), func(t *testing.T) {
				for start := step - 20*time.Second; start < step+2*time.Second; start += 1700 * time.Millisecond {
					n := &simNode{sampling: by, newStart: start, ahead: stepsAt([]time.Duration{step}, seconds(ahead))}
					served := false
					n.run(start+2*time.Minute, func(s *Store, real time.Duration) {
						pod := s.Pod("n1", "n", "q", t0.Add(real))
						served = served || pod != nil
						if pod != nil && !isAboutOneCore(pod.Containers[0].Amount) {
							t.Fatalf("start after %v, %v later: got %s, want 1 core", start, real-start, show(pod))
						}
					})
					if !served {
						t.Errorf("start after %v: no metrics", start)
					}
				}
			})
		}
	}
}
