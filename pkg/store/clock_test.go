package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// simNode is a node that runs one container with a load of 1 core since long ago.
type simNode struct {
	ahead     func(real time.Duration) time.Duration // of its clock, by the time since t0
	every     time.Duration                          // between two samples; 0: samples on demand
	startsAgo time.Duration                          // if not 0: how long before each sample the container seems to have started
	dateless  bool
}

// clock returns what the node's clock shows at a time since t0.
func (n *simNode) clock(real time.Duration) usage.Time { return t0.Add(real + n.ahead(real)) }

func (n *simNode) sample(real time.Duration) usage.Sample {
	if n.every != 0 {
		real = real.Truncate(n.every)
	}
	s := usage.Sample{
		At: n.clock(real), MemoryAt: n.clock(real), StartedAt: t0.Add(-time.Hour),
		CPUSeconds: 1000 + real.Seconds(), Memory: 1 << 20, Has: usage.HasCPU | usage.HasMemory,
	}
	if n.startsAgo != 0 {
		s.StartedAt = s.At.Add(-n.startsAgo)
	}
	return s
}

func (n *simNode) scrape(real time.Duration) *usage.Scrape {
	s := &usage.Scrape{At: t0.Add(real), Sent: t0.Add(real - 20*time.Millisecond), Node: n.sample(real), Capacity: 1000e9,
		Containers: []usage.ContainerSample{of("p/a", n.sample(real))}}
	if !n.dateless {
		s.Date = cut(n.clock(real - 10*time.Millisecond))
	}
	return s
}

// runtimes are the ways in which kubelets sample, by the time between two samples.
var runtimes = map[string]time.Duration{"on demand": 0, "every 10s": 10 * time.Second, "every 15s": 15 * time.Second, "every 20s": 20 * time.Second}

// TestClockSteps sets the node's clock, or our own, and reads the metrics of the node and of its
// pod each second: they must be there, and must show 1 core.
func TestClockSteps(t *testing.T) { // rule 3
	steps := []time.Duration{
		-time.Hour, -10 * time.Minute, -75 * time.Second, -61 * time.Second, -14500 * time.Millisecond, -13500 * time.Millisecond,
		-10 * time.Second, -5 * time.Second, -2500 * time.Millisecond, -time.Second, time.Second, 2500 * time.Millisecond, 5 * time.Second,
		14500 * time.Millisecond, 16 * time.Second, 61 * time.Second, 75 * time.Second, 10 * time.Minute, 25 * time.Hour,
	}
	for runtime, every := range runtimes {
		for _, step := range steps {
			t.Run(fmt.Sprint(runtime, "/", step), func(t *testing.T) {
				for after := 90 * time.Second; after < 105*time.Second; after += 700 * time.Millisecond {
					readAsOneCore(t, &simNode{every: every, ahead: func(real time.Duration) time.Duration {
						if real < after {
							return 0
						}
						return step
					}}, 5*time.Minute)
				}
			})
		}
	}
}

// TestWrongClocks has clocks that are wrong all the time: by much, by a drift, or by being slewed.
func TestWrongClocks(t *testing.T) { // rule 3
	for name, ahead := range map[string]func(time.Duration) time.Duration{
		"75s behind":    func(time.Duration) time.Duration { return -75 * time.Second },
		"61s ahead":     func(time.Duration) time.Duration { return 61 * time.Second },
		"a day ahead":   func(time.Duration) time.Duration { return 24 * time.Hour },
		"years behind":  func(time.Duration) time.Duration { return -1000 * 24 * time.Hour },
		"drift 100ppm":  func(real time.Duration) time.Duration { return real / 10_000 },
		"slewed by 1%":  func(real time.Duration) time.Duration { return real / 100 },
		"slewed by -8%": func(real time.Duration) time.Duration { return -real / 12 },
		"slewed by 8%":  func(real time.Duration) time.Duration { return real / 12 },
	} {
		for runtime, every := range runtimes {
			t.Run(name+"/"+runtime, func(t *testing.T) { readAsOneCore(t, &simNode{every: every, ahead: ahead}, 10*time.Minute) })
		}
	}
}

// TestTwoClockSteps sets a node's clock twice within a minute, in the same direction. The second
// step must not be taken for a slew: while metrics are there, they must show 1 core.
func TestTwoClockSteps(t *testing.T) { // rule 3
	for runtime, every := range runtimes {
		for _, steps := range [][2]time.Duration{
			{-10 * time.Minute, -2 * time.Second}, {-10 * time.Minute, -3 * time.Second}, {-3500 * time.Millisecond, -3500 * time.Millisecond},
			{10 * time.Minute, 2500 * time.Millisecond}, {3500 * time.Millisecond, 3 * time.Second},
		} {
			t.Run(fmt.Sprint(runtime, steps), func(t *testing.T) {
				for between := 20 * time.Second; between < time.Minute; between += 7300 * time.Millisecond {
					n := &simNode{every: every, ahead: func(real time.Duration) time.Duration {
						switch since := real - 91750*time.Millisecond; {
						case since < 0:
							return 0
						case since < between:
							return steps[0]
						}
						return steps[0] + steps[1]
					}}
					s := newStore()
					for real := 200 * time.Millisecond; real < 4*time.Minute; real += 15 * time.Second {
						s.Put("n1", n.scrape(real))
						p := s.Pod("n1", "n", "p", t0.Add(real))
						if p != nil && (p.Containers[0].CPUNanocores < 87e7 || p.Containers[0].CPUNanocores > 115e7) {
							t.Fatalf("%v between the steps, after %v: %s", between, real, show(p))
						}
					}
				}
			})
		}
	}
}

// TestSamplesAheadOfTheirNode has a kubelet whose samples are ahead of its own clock, as those of a
// virtual kubelet may be.
func TestSamplesAheadOfTheirNode(t *testing.T) { // rule 3
	for _, lead := range []time.Duration{300 * time.Millisecond, 900 * time.Millisecond, 2 * time.Second, 10 * time.Second, 50 * time.Second} {
		t.Run(lead.String(), func(t *testing.T) {
			s, n := newStore(), &simNode{ahead: func(time.Duration) time.Duration { return 0 }}
			regular, early := 200*time.Millisecond, time.Duration(0)
			for real := regular; real < 10*time.Minute; real += 100 * time.Millisecond {
				if real >= regular || early != 0 && real >= early {
					sc := n.scrape(real)
					for _, s := range []*usage.Sample{&sc.Node, &sc.Containers[0].Sample} {
						s.At = s.At.Add(lead)
					}
					report := s.Put("n1", sc)
					early = earlyScrape(report.Missing, real)
					if real >= regular {
						regular += 15 * time.Second
					}
				}
				p := s.Pod("n1", "n", "p", t0.Add(real))
				if real > 35*time.Second && (p == nil || p.Containers[0].CPUNanocores != 1e9 || s.Node("n1", t0.Add(real)) == nil) {
					t.Fatalf("after %v: %s", real, show(p))
				}
			}
			if jumps := s.Counts().ClockJumps; jumps > 1 {
				t.Errorf("%d jumps of the clock were noticed", jumps)
			}
		})
	}
}

// TestMovingStartTimes is issue google/cadvisor#2905: start times move on running containers.
func TestMovingStartTimes(t *testing.T) { // rule 4
	for _, ago := range []time.Duration{time.Second, 5 * time.Second, 9 * time.Second, 12 * time.Second, 30 * time.Second, 59 * time.Second} {
		for runtime, every := range runtimes {
			t.Run(fmt.Sprint(ago, "/", runtime), func(t *testing.T) {
				readAsOneCore(t, &simNode{every: every, startsAgo: ago, ahead: func(time.Duration) time.Duration { return 0 }}, 5*time.Minute)
			})
		}
	}
}

// readAsOneCore scrapes a node each 15 seconds, and early where something is missing, and reads it
// all the time. Once it has had the time for two samples, its metrics must be there at each moment,
// and be right but for steps of the clock that are too small to be noticed.
func readAsOneCore(t *testing.T, n *simNode, until time.Duration) {
	t.Helper()
	s := newStore()
	absent, mayBeAbsent := time.Duration(0), time.Duration(0)
	if n.every > 15*time.Second { // a sample before the step, and two after it, are further apart than the maximum age
		mayBeAbsent = 3 * time.Second
	}
	regular, early := 200*time.Millisecond, time.Duration(0)
	for real := regular; real < until; real += 100 * time.Millisecond {
		if real >= regular || early != 0 && real >= early {
			report := s.Put("n1", n.scrape(real))
			early = earlyScrape(report.Missing, real)
			if real >= regular {
				regular += 15 * time.Second
			}
		}
		pod, node := s.Pod("n1", "n", "p", t0.Add(real)), s.Node("n1", t0.Add(real))
		if real < 65*time.Second {
			continue
		}
		if pod == nil || node == nil {
			if absent += 100 * time.Millisecond; absent > mayBeAbsent {
				t.Fatalf("no metrics after %v: pod %v, node %v", real, show(pod), node)
			}
			continue
		}
		for _, a := range []usage.Amount{pod.Containers[0].Amount, node.Amount} {
			if cores := float64(a.CPUNanocores) / 1e9; cores < 0.87 || cores > 1.15 {
				t.Fatalf("%.3f cores over %v after %v, want 1", cores, a.Window, real)
			}
		}
	}
}

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

// TestExpiryByOurClock stops the scrapes of nodes whose clocks are wrong: the last metrics must be
// served for just the maximum age, whatever the node's clock shows.
func TestExpiryByOurClock(t *testing.T) { // rules 3, 8
	for _, ahead := range []time.Duration{-time.Hour, -75 * time.Second, -3 * time.Second, 0, 3 * time.Second, 600 * time.Second, 24 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			s := newStore()
			n := &simNode{ahead: func(time.Duration) time.Duration { return ahead }}
			for real := time.Duration(0); real <= 45*time.Second; real += 15 * time.Second {
				s.Put("n1", n.scrape(real))
			}
			last := 45 * time.Second
			if s.Pod("n1", "n", "p", t0.Add(last+maxAge-1100*time.Millisecond)) == nil {
				t.Error("it expired more than 1.1s too soon")
			}
			if s.Pod("n1", "n", "p", t0.Add(last+maxAge+time.Millisecond)) != nil {
				t.Error("it is served for longer than the maximum age")
			}
		})
	}
}

// TestStuckRuntime has a kubelet that answers with the same samples again and again: they expire.
func TestStuckRuntime(t *testing.T) { // rules 2, 8
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		for _, dateless := range []bool{false, true} {
			t.Run(fmt.Sprint(ahead, dateless), func(t *testing.T) {
				s := newStore()
				n := &simNode{dateless: dateless, ahead: func(time.Duration) time.Duration { return ahead }}
				for real := time.Duration(0); real <= 30*time.Second; real += 15 * time.Second {
					s.Put("n1", n.scrape(real))
				}
				for real := 45 * time.Second; real <= 5*time.Minute; real += 15 * time.Second {
					stuck := n.scrape(real)
					stuck.Containers[0].Sample = n.sample(30 * time.Second)
					stuck.Node = n.sample(30 * time.Second)
					s.Put("n1", stuck)
					got := s.Pod("n1", "n", "p", t0.Add(real))
					if isCurrent := real <= 30*time.Second+maxAge-time.Second; real > 31*time.Second+maxAge && got != nil || isCurrent && got == nil {
						t.Fatalf("after %v: %s", real, show(got))
					}
				}
			})
		}
	}
}

// TestReportOfTheClock checks what Put returns of the clock.
func TestReportOfTheClock(t *testing.T) {
	s := newStore()
	n := &simNode{ahead: func(real time.Duration) time.Duration {
		if real < 40*time.Second {
			return 7 * time.Second
		}
		return -20 * time.Second
	}}
	near := func(got, want time.Duration) bool { return (got - want).Abs() < 1100*time.Millisecond }
	for real := time.Duration(0); real <= time.Minute; real += 15 * time.Second {
		got := s.Put("n1", n.scrape(real))
		want := n.ahead(real)
		if !got.ClockKnown || !near(got.ClockOffset, want) || got.ClockJumped != (real == 45*time.Second) {
			t.Errorf("after %v: %+v, want an offset of %v", real, got, want)
		}
	}
	if jumps := s.Counts().ClockJumps; jumps != 1 {
		t.Errorf("%d jumps are counted", jumps)
	}
	if got := s.Put("n2", scrape(0)); got.ClockKnown {
		t.Errorf("the offset of a clock of which nothing was reported: %+v", got)
	}
}

// TestFirstScrapeAfterAClockStep starts when the kubelet still reports a sample from before its
// clock was set back.
func TestFirstScrapeAfterAClockStep(t *testing.T) { // rule 3
	step := func(real time.Duration) time.Duration {
		if real < 0 {
			return 0
		}
		return -5 * time.Minute
	}
	now := &simNode{ahead: step}
	before := now.sample(-3 * time.Second) // by the clock of then
	s := newStore()
	first := now.scrape(time.Second)
	first.Containers[0].Sample = before
	s.Put("n1", first)
	rates := now.scrape(time.Second)
	rates.Containers[0].Sample = rated(1000, before)
	s.PutSummary("n1", rates)
	expect(t, s, "p", 1, "none") // nobody knows how old it is
	for _, real := range []time.Duration{15 * time.Second, 30 * time.Second} {
		s.Put("n1", now.scrape(real))
	}
	expect(t, s, "p", 30, "at -270 window 15: a=1000m")
}

// TestMeanSinceStartAcrossAJump has a container start before its node's clock is set back by 10 s,
// and be scraped first after it.
func TestMeanSinceStartAcrossAJump(t *testing.T) { // rules 3, 4
	s := newStore()
	put := func(real float64, ahead float64, containers ...usage.ContainerSample) {
		s.Put("n1", &usage.Scrape{At: at(real), Sent: at(real), Date: cut(at(real + ahead)), Containers: containers})
	}
	put(0, 0, of("q/a", sample(0, 1)))
	put(15, 0, of("q/a", sample(15, 2)))
	// It started at 17 s. At 20 s the clock is set back by 10 s: at 40 s it seems to be 13 s old,
	// but is 23.
	put(40, -10, of("q/a", sample(30, 3)), of("p/a", started(17, sample(30, 23))))
	expect(t, s, "p", 40, "none")
	put(55, -10, of("q/a", sample(45, 4)), of("p/a", started(17, sample(45, 38))))
	put(70, -10, of("q/a", sample(60, 5)), of("p/a", started(17, sample(60, 53))))
	expect(t, s, "p", 70, "at 60 window 15: a=1000m")
}

// TestMeanSinceStartOfUntimedSamples has a kubelet without timestamps, whose clock is 20 s ahead: a
// container seems to be 10 s old, but is 30.
func TestMeanSinceStartOfUntimedSamples(t *testing.T) { // rule 4
	s := newStore()
	for now := 0.0; now <= 45; now += 15 {
		sc := &usage.Scrape{At: at(now), Sent: at(now), Date: cut(at(now + 20)), Containers: []usage.ContainerSample{of("q/a", sample(now, now))}}
		if now >= 30 {
			sc.Containers = append(sc.Containers, of("p/a", started(20, sample(now, now/4))))
		}
		for i := range sc.Containers {
			sc.Containers[i].Untimed = true
		}
		s.Put("n1", sc)
		if now == 30 {
			expect(t, s, "p", now, "none")
		}
	}
	expect(t, s, "p", 45, "at 45 window 15: a=250m")
}

// TestWhatAClockHasShown checks that a snapshot from after a step back knows which times the clock
// has shown before.
func TestWhatAClockHasShown(t *testing.T) { // rules 3, 7
	s, n := newStore(), &simNode{ahead: func(real time.Duration) time.Duration {
		if real < 20*time.Second {
			return 0
		}
		return -time.Minute
	}}
	for _, real := range []time.Duration{0, 15 * time.Second, 30 * time.Second, 45 * time.Second} {
		s.Put("n1", n.scrape(real))
		pod := s.Pod("n1", "n", "p", t0.Add(real))
		switch {
		case real < 30*time.Second:
			if pod != nil && pod.ClockShown != 0 {
				t.Errorf("at %s, the clock is taken to have been set", real)
			}
		case pod == nil:
			t.Errorf("at %s, the pod is not served", real)
		case real == 45*time.Second && (pod.ClockShown < t0.Add(20*time.Second) || pod.ClockShown > t0.Add(32*time.Second)):
			t.Errorf("the clock showed up to 20 s, and is taken to have shown up to %s", pod.ClockShown.Sub(t0))
		}
	}
}

// TestMeanSinceStartExpires checks that no mean since the start spans more than the maximum age.
func TestMeanSinceStartExpires(t *testing.T) { // rules 4, 5
	s := New(Config{MaxSampleAge: 30 * time.Second, MaxContainers: 100})
	s.Put("n1", scrape(0, of("q/a", sample(0, 0))))
	s.Put("n1", scrape(40, of("q/a", sample(40, 40)), of("p/a", started(9, sample(40, 31))), of("r/a", started(11, sample(40, 29)))))
	expect(t, s, "p", 40, "none")
	expect(t, s, "r", 40, "at 40 window 29: a=1000m")
}

// TestNewContainers checks which containers are served their mean since the start: those that the
// scrape before did not have.
func TestNewContainers(t *testing.T) { // rule 4
	young := func(now float64) usage.ContainerSample { return of("p/a", started(now-12, sample(now, 6))) }
	other := func(now float64) usage.ContainerSample { return of("q/a", sample(now, now)) }
	partial := func(s *usage.Scrape) *usage.Scrape { s.Partial = true; return s }
	for _, tc := range []struct {
		name   string
		before []*usage.Scrape
		want   string
	}{
		{"a new container", []*usage.Scrape{scrape(0, other(0))}, "at 30 window 12: a=500m"},
		{"the first scrape of the node", nil, "none"},
		{"the scrape before was partial", []*usage.Scrape{scrape(0, other(0)), partial(scrape(15, other(15)))}, "none"},
		{"a scrape overlooked it", []*usage.Scrape{scrape(0, of("p/a", sample(0, 1))), scrape(15, other(15))}, "none"},
		{"it ran before, and restarted", []*usage.Scrape{scrape(0, of("p/a", sample(0, 900))), scrape(15, other(15))}, "at 30 window 12: a=500m"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStore()
			for _, before := range tc.before {
				s.Put("n1", before)
			}
			s.Put("n1", scrape(30, young(30)))
			expect(t, s, "p", 30, tc.want)
		})
	}
}

// TestRatesNeverSpanAnOutage is rule 5: after a gap, a kubelet-reported rate serves until there are
// two new samples.
func TestRatesNeverSpanAnOutage(t *testing.T) {
	for _, away := range []float64{115, 3600} {
		s := newStore()
		s.Put("n1", scrape(0, of("p/a", sample(0, 100))))
		s.Put("n1", scrape(15, of("p/a", sample(15, 101.5))))
		back := 15 + away
		report := s.Put("n1", scrape(back, of("p/a", sample(back, 500))))
		expect(t, s, "p", back, "none")
		if want := []usage.Missing{{Since: at(back), SampledAt: at(back), StartedAt: t0.Add(-time.Hour), KubeletRate: true}}; !slices.Equal(report.Missing, want) {
			t.Errorf("after %v s: missing %+v, want %+v", away, report.Missing, want)
		}
		s.PutSummary("n1", scrape(back, of("p/a", rated(4000, sample(back, 500)))))
		expect(t, s, "p", back, fmt.Sprintf("at %v window 15: a=4000m", back))
		s.Put("n1", scrape(back+15, of("p/a", sample(back+15, 560))))
		expect(t, s, "p", back+15, fmt.Sprintf("at %v window 15: a=4000m", back+15))
	}
}

// TestReplacedPods deletes a pod and creates one of the same name on the same node, whose clock is
// wrong.
func TestReplacedPods(t *testing.T) { // rule 9
	for _, ahead := range []time.Duration{-75 * time.Second, 0, 75 * time.Second} {
		t.Run(ahead.String(), func(t *testing.T) {
			s := newStore()
			put := func(sent, arrived float64, p usage.Sample) {
				p.At, p.StartedAt = p.At.Add(ahead), p.StartedAt.Add(ahead)
				s.Put("n1", &usage.Scrape{Sent: at(sent), At: at(arrived), Date: cut(at(arrived).Add(ahead)), Containers: []usage.ContainerSample{of("p/a", p)}})
			}
			put(0, 0, sample(0, 100))
			put(15, 15, sample(15, 115))
			if s.Pod("n1", "n", "p", at(16)) == nil {
				t.Fatal("not served before it was deleted")
			}
			s.RemovePod("n1", "n", "p", at(20))
			expect(t, s, "p", 20, "none")
			put(19, 21, sample(19, 119)) // a scrape that was under way
			put(22, 22, sample(19, 119)) // the kubelet still has the last sample
			expect(t, s, "p", 22, "none")
			// The new pod's counter soon exceeds what the old one's was.
			put(37, 37, started(24, sample(37, 130)))
			expect(t, s, "p", 37, "none")
			put(52, 52, started(24, sample(52, 280)))
			want := fmt.Sprintf("at %v window 15: a=10000m", 52+ahead.Seconds())
			expect(t, s, "p", 52, want)
		})
	}
}

// TestEndedContainersInPartialScrapes is rule 7: a container that ended never takes a running pod
// away, also where scrapes cannot be read in full.
func TestEndedContainersInPartialScrapes(t *testing.T) {
	for _, runs := range []bool{false, true} {
		s := New(Config{MaxSampleAge: maxAge, MaxContainers: 100, IsRunning: func(namespace, pod, container string) bool {
			if namespace != "n" || pod != "p" || container != "b" {
				t.Errorf("asked for %s/%s/%s", namespace, pod, container)
			}
			return runs
		}})
		for now := 0.0; now <= 300; now += 15 {
			sc := scrape(now, of("p/a", sample(now, now/10)), of("p/b", sample(now, now/10)))
			if now >= 45 { // a line of some container is damaged in each response
				sc.Containers, sc.Partial = sc.Containers[:1], true
			}
			s.Put("n1", sc)
			want := fmt.Sprintf("at %v window 15: a=100m", now)
			switch {
			case now == 0:
				want = "none"
			case now < 45:
				want += " b=100m"
			case runs && now <= 90: // it may be b's line: the pod cannot be served without it
				want = "at 30 window 15: a=100m b=100m"
			case runs:
				want = "none"
			}
			expect(t, s, "p", now, want)
		}
	}
}

// TestPodsThatPartialScrapesDoNotMention has one container of a pod mentioned later than the other,
// and then neither: the pod must not be served with the one alone.
func TestPodsThatPartialScrapesDoNotMention(t *testing.T) { // rule 7
	s := New(Config{MaxSampleAge: maxAge, MaxContainers: 100, IsRunning: func(string, string, string) bool { return true }})
	both := func(now float64) []usage.ContainerSample {
		return []usage.ContainerSample{of("p/a", sample(now, now/10)), of("p/b", sample(now, now/10))}
	}
	s.Put("n1", scrape(0, both(0)...))
	s.Put("n1", scrape(15, both(15)...))
	for now := 30.0; now <= 180; now += 15 {
		partial := scrape(now, of("q/a", sample(now, 1)))
		if now == 30 {
			partial.Containers = append(partial.Containers, both(now)[0])
		}
		partial.Partial = true
		s.Put("n1", partial)
		want := "none"
		if now <= 75 {
			want = "at 15 window 15: a=100m b=100m"
		}
		expect(t, s, "p", now, want)
	}
}

// TestContainersWithAStartTimeOnly is rule 7: a container of which only the start time is reported,
// and that the API server does not have as running, has ended.
func TestContainersWithAStartTimeOnly(t *testing.T) {
	for _, runs := range []bool{false, true} {
		s := New(Config{MaxSampleAge: maxAge, MaxContainers: 100, IsRunning: func(_, _, _ string) bool { return runs }})
		for now := 0.0; now <= 120; now += 15 {
			b := sample(now, now/10)
			if now >= 45 {
				b = usage.Sample{StartedAt: b.StartedAt}
			}
			s.Put("n1", scrape(now, of("p/a", sample(now, now/10)), of("p/b", b)))
		}
		want := "at 120 window 15: a=100m"
		if runs {
			want = "none" // the pod cannot be served whole
		}
		expect(t, s, "p", 120, want)
	}
}
