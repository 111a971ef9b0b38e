package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// simNode is a node that has long run one container with a load of 1 core.
type simNode struct {
	ahead     func(real time.Duration) time.Duration // of its clock, by the time since t0
	every     time.Duration                          // between two samples; 0: samples on demand
	startsAgo time.Duration                          // if not 0: the container's age at each sample
	lead      time.Duration                          // of the samples' times, ahead of the node's clock
	dateless  bool
}

// clock returns the time of the node's clock at a time since t0.
func (n *simNode) clock(real time.Duration) usage.Time { return t0.Add(real + n.ahead(real)) }

func (n *simNode) sample(real time.Duration) usage.Sample {
	if n.every != 0 {
		real = real.Truncate(n.every)
	}
	at := n.clock(real).Add(n.lead)
	s := usage.Sample{
		At: at, StartedAt: t0.Add(-time.Hour),
		CPUSeconds: 1000 + real.Seconds(), Memory: 1 << 20, Has: usage.HasCPU | usage.HasMemory,
	}
	if n.startsAgo != 0 {
		s.StartedAt = s.At.Add(-n.startsAgo)
	}
	return s
}

func (n *simNode) scrape(real time.Duration) *usage.Scrape {
	s := &usage.Scrape{
		At: t0.Add(real), Sent: t0.Add(real - 20*time.Millisecond), Node: n.sample(real), Capacity: 1000e9,
		Containers: []usage.ContainerSample{of("p/a", n.sample(real))},
	}
	if !n.dateless {
		s.Date = cut(n.clock(real - 10*time.Millisecond))
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

// runtimes are the ways in which kubelets sample, by the time between two samples.
var runtimes = map[string]time.Duration{
	"on demand": 0, "every 10s": 10 * time.Second, "every 15s": 15 * time.Second, "every 20s": 20 * time.Second,
}

// TestClockSteps sets the node's clock, or our own, and reads the metrics of the node and of its
// pod all the time: they must be served, and show 1 core.
func TestClockSteps(t *testing.T) { // rule 3
	for runtime, every := range runtimes {
		for _, step := range []float64{
			-3600, -600, -75, -61, -14.5, -13.5, -10, -5, -2.5, -1, 1, 2.5, 5, 14.5, 16, 61, 75, 600, 25 * 3600,
		} {
			t.Run(fmt.Sprint(runtime, "/", step), func(t *testing.T) {
				for after := 90 * time.Second; after < 105*time.Second; after += 700 * time.Millisecond {
					n := &simNode{every: every, ahead: stepsAt([]time.Duration{after}, seconds(step))}
					readAsOneCore(t, n, 65*time.Second, 5*time.Minute)
				}
			})
		}
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
		for runtime, every := range runtimes {
			t.Run(name+"/"+runtime, func(t *testing.T) {
				n.every = every
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

// readAsOneCore scrapes a node every 15 seconds, and early if something is missing. From a time on,
// its metrics must always be served and be right, except for steps of the clock that are too small
// to be noticed.
func readAsOneCore(t *testing.T, n *simNode, from, until time.Duration) *Store {
	t.Helper()
	s := newStore()
	absent, maxAbsent := time.Duration(0), time.Duration(0)
	if n.every > 15*time.Second { // the samples before and after the step are further apart than the maximum age
		maxAbsent = 3 * time.Second
	}
	regular, early := 200*time.Millisecond, time.Duration(0)
	for real := regular; real < until; real += 100 * time.Millisecond {
		if real >= regular || early != 0 && real >= early {
			early = earlyScrape(s.Put("n1", n.scrape(real)).Missing, real)
			if real >= regular {
				regular += 15 * time.Second
			}
		}
		if real < from {
			continue
		}
		pod, node := s.Pod("n1", "n", "p", t0.Add(real)), s.Node("n1", t0.Add(real))
		if pod == nil || node == nil {
			if absent += 100 * time.Millisecond; absent > maxAbsent {
				t.Fatalf("no metrics after %v: pod %v, node %v", real, show(pod), node)
			}
			continue
		}
		for _, a := range []usage.Amount{pod.Containers[0].Amount, node.Amount} {
			if !isAboutOneCore(a) {
				t.Fatalf("after %v: got %d nanocores over %v, want 1 core", real, a.CPUNanocores, a.Window)
			}
		}
	}
	return s
}

func isAboutOneCore(a usage.Amount) bool { return a.CPUNanocores >= 87e7 && a.CPUNanocores <= 115e7 }

// earlyScrape returns when pkg/scrape would scrape again, or 0.
func earlyScrape(missing []usage.Missing, real time.Duration) time.Duration {
	const minAge, period, overdue = 1200 * time.Millisecond, 10100 * time.Millisecond, 2 * time.Second
	var early time.Duration
	for _, m := range missing {
		wait := minAge
		if age := t0.Add(real).Sub(m.SampledAt); age >= minAge {
			wait = max(period-age, overdue)
		}
		if early == 0 || real+wait < early {
			early = real + wait
		}
	}
	return early
}

// TestTwoClockSteps sets a node's clock twice within a minute, in the same direction. The second
// step must not be mistaken for a slew: if metrics are served, they must show 1 core.
func TestTwoClockSteps(t *testing.T) { // rule 3
	for runtime, every := range runtimes {
		for _, by := range [][2]float64{{-600, -2}, {-600, -3}, {-3.5, -3.5}, {600, 2.5}, {3.5, 3}} {
			t.Run(fmt.Sprint(runtime, by), func(t *testing.T) {
				for between := 20 * time.Second; between < time.Minute; between += 7300 * time.Millisecond {
					at := []time.Duration{91750 * time.Millisecond, 91750*time.Millisecond + between}
					n := &simNode{every: every, ahead: stepsAt(at, seconds(by[0]), seconds(by[1]))}
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

// TestExpiryByOurClock stops the scrapes of nodes whose clocks are wrong: the last metrics must be
// served for exactly the maximum age.
func TestExpiryByOurClock(t *testing.T) { // rules 3, 8
	for _, ahead := range []float64{-3600, -75, -3, 0, 3, 600, 24 * 3600} {
		t.Run(fmt.Sprint(ahead), func(t *testing.T) {
			s, n, last := newStore(), &simNode{ahead: constantly(seconds(ahead))}, 45*time.Second
			for real := time.Duration(0); real <= last; real += 15 * time.Second {
				s.Put("n1", n.scrape(real))
			}
			if s.Pod("n1", "n", "p", t0.Add(last+maxAge-1100*time.Millisecond)) == nil {
				t.Error("expired more than 1.1s too early")
			}
			if s.Pod("n1", "n", "p", t0.Add(last+maxAge+time.Millisecond)) != nil {
				t.Error("served for longer than the maximum age")
			}
		})
	}
}

// TestStuckRuntime has a kubelet that repeats the same samples: they expire.
func TestStuckRuntime(t *testing.T) { // rules 2, 8
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		for _, dateless := range []bool{false, true} {
			t.Run(fmt.Sprint(ahead, dateless), func(t *testing.T) {
				s, n, last := newStore(), &simNode{dateless: dateless, ahead: constantly(ahead)}, 30*time.Second
				for real := time.Duration(0); real <= 5*time.Minute; real += 15 * time.Second {
					sc := n.scrape(real)
					if real > last {
						sc.Containers[0].Sample, sc.Node = n.sample(last), n.sample(last)
					}
					s.Put("n1", sc)
					got := s.Pod("n1", "n", "p", t0.Add(real))
					switch age := real - last; {
					case age > maxAge+time.Second && got != nil:
						t.Fatalf("after %v: got %s, want none", real, show(got))
					case real > 0 && age <= maxAge-time.Second && got == nil:
						t.Fatalf("after %v: got none", real)
					}
				}
			})
		}
	}
}

func TestReportOfTheClock(t *testing.T) {
	times := []time.Duration{-time.Hour, 40 * time.Second}
	s, n := newStore(), &simNode{ahead: stepsAt(times, 7*time.Second, -27*time.Second)}
	for real := time.Duration(0); real <= time.Minute; real += 15 * time.Second {
		got, want := s.Put("n1", n.scrape(real)), n.ahead(real)
		isNear := (got.ClockOffset - want).Abs() < 1100*time.Millisecond
		if !got.ClockKnown || !isNear || got.ClockJumped != (real == 45*time.Second) {
			t.Errorf("after %v: got %+v, want an offset of %v", real, got, want)
		}
		for _, m := range got.Missing { // a kubelet-reported rate may be from before the jump
			if m.KubeletRate != (real < 45*time.Second) {
				t.Errorf("after %v: got missing %+v", real, m)
			}
		}
	}
	if jumps := s.Counts().ClockJumps; jumps != 1 {
		t.Errorf("got %d jumps, want 1", jumps)
	}
	if got := s.Put("n2", scrape(0)); got.ClockKnown {
		t.Errorf("a scrape without any time: got %+v, want an unknown offset", got)
	}
}

// TestFirstScrapeAfterAClockStep has a first scrape with a sample from before the node's clock was
// set back.
func TestFirstScrapeAfterAClockStep(t *testing.T) { // rule 3
	s, n := newStore(), &simNode{ahead: stepsAt([]time.Duration{0}, -5*time.Minute)}
	before := n.sample(-3 * time.Second)
	first, summary := n.scrape(time.Second), n.scrape(time.Second)
	first.Containers[0].Sample, summary.Containers[0].Sample = before, rated(1000, before)
	s.Put("n1", first)
	s.PutSummary("n1", summary)
	expect(t, s, "p", 1, "none") // its age is unknown
	s.Put("n1", n.scrape(15*time.Second))
	s.Put("n1", n.scrape(30*time.Second))
	expect(t, s, "p", 30, "at -270 window 15: a=1000m")
}

// TestClockShown checks that snapshots after a step back have the latest time that the clock may
// have shown before.
func TestClockShown(t *testing.T) { // rules 3, 7
	s, n := newStore(), &simNode{ahead: stepsAt([]time.Duration{20 * time.Second}, -time.Minute)}
	for _, real := range []time.Duration{0, 15 * time.Second, 30 * time.Second, 45 * time.Second} {
		s.Put("n1", n.scrape(real))
		pod := s.Pod("n1", "n", "p", t0.Add(real))
		switch {
		case real == 15*time.Second && pod.MaxClockShown != 0:
			t.Errorf("before the step: got %s, want 0", pod.MaxClockShown.Sub(t0))
		case real == 45*time.Second && (pod.MaxClockShown < at(20) || pod.MaxClockShown > at(32)):
			t.Errorf("after the step: got %s, want 20s to 32s", pod.MaxClockShown.Sub(t0))
		}
	}
}

// TestContainerStartsBeforeAClockStep starts a container with a load of 1 core shortly before the
// node's clock is set. The first scrape that mentions it may show the step, with a sample from
// before.
func TestContainerStartsBeforeAClockStep(t *testing.T) { // rule 3
	const step = 100 * time.Second
	for runtime, every := range runtimes {
		for _, by := range []float64{-600, -61, -12, -9, -5, -2.5, 2.5, 5, 9, 12, 20, 61, 600} {
			t.Run(fmt.Sprint(runtime, "/", by), func(t *testing.T) {
				for start := step - 20*time.Second; start < step+2*time.Second; start += 700 * time.Millisecond {
					n := &simNode{every: every, ahead: stepsAt([]time.Duration{step}, seconds(by))}
					readNewContainer(t, n, start)
				}
			})
		}
	}
}

// readNewContainer scrapes a node on which a second container starts, and reads its metrics for 2
// minutes.
func readNewContainer(t *testing.T, n *simNode, start time.Duration) {
	t.Helper()
	s, served := newStore(), false
	regular, early := 200*time.Millisecond, time.Duration(0)
	for real := regular; real < start+2*time.Minute; real += 100 * time.Millisecond {
		if real >= regular || early != 0 && real >= early {
			scrape := n.scrape(real)
			if real >= start {
				scrape.Containers = append(scrape.Containers, of("q/a", n.newSample(real, start)))
			}
			early = earlyScrape(s.Put("n1", scrape).Missing, real)
			if real >= regular {
				regular += 15 * time.Second
			}
		}
		pod := s.Pod("n1", "n", "q", t0.Add(real))
		served = served || pod != nil
		if pod != nil && !isAboutOneCore(pod.Containers[0].Amount) {
			t.Fatalf("start after %v, %v later: got %d nanocores over %v, want 1 core",
				start, real-start, pod.Containers[0].CPUNanocores, pod.Containers[0].Window)
		}
	}
	if !served {
		t.Errorf("start after %v: no metrics", start)
	}
}

// newSample returns a sample of a container that started at a time since t0. It is first sampled
// when it starts.
func (n *simNode) newSample(real, start time.Duration) usage.Sample {
	if n.every != 0 {
		real = start + (real - start).Truncate(n.every)
	}
	at := n.clock(real)
	return usage.Sample{
		At: at, StartedAt: n.clock(start),
		CPUSeconds: (real - start).Seconds(), Memory: 1 << 20, Has: usage.HasCPU | usage.HasMemory,
	}
}
