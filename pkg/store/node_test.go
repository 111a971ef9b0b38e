package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestMeanSinceStartExpires(t *testing.T) { // rules 4, 5
	s := New(Config{MaxSampleAge: 30 * time.Second, MaxContainers: 100})
	q := func(now float64) usage.ContainerSample { return of("q/a", sample(now, now)) }
	s.Put("n1", scrape(10, q(10)))
	s.Put("n1", scrape(40, q(40), of("p/a", started(9, sample(40, 31))), of("r/a", started(11, sample(40, 29)))))
	expect(t, s, "p", 40, "none")
	expect(t, s, "r", 40, "at 40 window 29: a=1000m")
}

// TestNewContainers checks that only containers that were absent from the previous scrape are
// served their mean since the start.
func TestNewContainers(t *testing.T) { // rule 4
	other := func(now float64) *usage.Scrape { return scrape(now, of("q/a", sample(now, now))) }
	with := func(coreSeconds float64) *usage.Scrape { return scrape(0, of("p/a", sample(0, coreSeconds))) }
	partial := other(15)
	partial.Partial = true
	for _, tc := range []struct {
		name   string
		before []*usage.Scrape
		want   string
	}{
		{"a new container", []*usage.Scrape{other(0)}, "at 30 window 12: a=500m"},
		{"the first scrape of the node", nil, "none"},
		{"the previous scrape was partial", []*usage.Scrape{other(0), partial}, "none"},
		{"the previous scrape overlooked it", []*usage.Scrape{with(1), other(15)}, "none"},
		{"it ran before and restarted", []*usage.Scrape{with(900), other(15)}, "at 30 window 12: a=500m"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStore()
			for _, before := range tc.before {
				s.Put("n1", before)
			}
			s.Put("n1", scrape(30, of("p/a", started(18, sample(30, 6)))))
			expect(t, s, "p", 30, tc.want)
		})
	}
}

// TestContainersThatRanBefore puts containers that look new and young, but are neither.
func TestContainersThatRanBefore(t *testing.T) { // rule 4
	by := func(date float64, s *usage.Scrape) *usage.Scrape { // the node's clock
		s.Date = nodeAt(date)
		return s
	}
	q := func(now float64) usage.ContainerSample { return of("q/a", sample(now, now)) }
	withoutCPU := func(start float64) usage.ContainerSample {
		return of("p/a", usage.Sample{StartedAt: nodeAt(start), Memory: 1, Has: usage.HasMemory})
	}
	for name, scrapes := range map[string][]*usage.Scrape{
		"overlooked by the first scrape after an outage, and its start has moved": {
			scrape(0, q(0), of("p/a", sample(0, 100))), scrape(135, q(135)),
			scrape(150, q(150), of("p/a", started(120, sample(150, 101)))),
		},
		"it started before the clock was set back by 30 s, and was not reported for a minute": {
			by(-5, scrape(-5, q(-5))), by(-20, scrape(10, q(-20))),
			by(45, scrape(75, q(45), of("p/a", started(0, sample(43, 36.5))))),
		},
		"it started in an outage, and its start has moved": {
			scrape(0, q(0)), scrape(120, q(120), of("p/a", started(100, sample(120, 80)))),
		},
		"overlooked once, back without CPU, and its start has moved": {
			scrape(0, q(0), of("p/a", sample(0, 100))), scrape(15, q(15)), scrape(30, q(30), withoutCPU(20)),
			scrape(45, q(45), of("p/a", started(20, sample(45, 103)))),
		},
		"overlooked once before it had CPU, and its start has moved": {
			scrape(0, q(0), withoutCPU(-999)), scrape(15, q(15)), scrape(30, q(30), of("p/a", started(10, sample(30, 100)))),
		},
		"without CPU for a minute, and its start has moved": {
			scrape(0, q(0)), scrape(15, q(15), withoutCPU(10)), scrape(75, q(75), of("p/a", started(55, sample(75, 60)))),
		},
	} {
		s := newStore()
		for _, scrape := range scrapes {
			s.Put("n1", scrape)
		}
		if got := show(s.Pod("n1", "n", "p", scrapes[len(scrapes)-1].At)); got != "none" {
			t.Errorf("%s: got %s, want none", name, got)
		}
	}
}

// TestNextPodWithoutCPU deletes a pod and creates one of the same name, of which a container once has no CPU: that
// does not make it a container of the removed pod, without which the pod would be whole.
func TestNextPodWithoutCPU(t *testing.T) { // rule 7
	s := newStore()
	put := func(now float64, b usage.Sample) {
		s.Put("n1", scrape(now, of("p/a", started(5, sample(now, now/10))), of("p/b", b)))
	}
	put(0, sample(0, 100))
	s.RemovePod("n1", "n", "p", at(3))
	for _, now := range []float64{20, 35, 50} {
		put(now, started(5, sample(now, now/5)))
	}
	put(65, usage.Sample{StartedAt: nodeAt(5), Memory: 1, Has: usage.HasMemory})
	expect(t, s, "p", 65, "at 50 window 15: a=100m b=200m")
}

// TestNewContainersBesideEndedOnes puts the start time of a container that ended beside a new one.
func TestNewContainersBesideEndedOnes(t *testing.T) { // rule 4
	isRunning := func(_, pod, _ string) bool { return pod != "job" }
	s := New(Config{MaxSampleAge: maxAge, MaxContainers: 100, State: running(isRunning)})
	job := of("job/a", usage.Sample{StartedAt: nodeAt(-100)})
	s.Put("n1", scrape(0, of("q/a", sample(0, 0)), job))
	s.Put("n1", scrape(30, of("q/a", sample(30, 30)), job, of("p/a", started(18, sample(30, 6)))))
	expect(t, s, "p", 30, "at 30 window 12: a=500m")
}

// TestRatesNeverSpanAnOutage is rule 5: after a gap, a kubelet-reported rate serves until there are
// two new samples.
func TestRatesNeverSpanAnOutage(t *testing.T) {
	for _, outage := range []float64{115, 3600} {
		s := newStore()
		s.Put("n1", scrape(0, of("p/a", sample(0, 100))))
		s.Put("n1", scrape(15, of("p/a", sample(15, 101.5))))
		back := 15 + outage
		if got := s.Put("n1", scrape(back, of("p/a", sample(back, 500)))).Missing; len(got) != 1 {
			t.Errorf("after %v s: got missing %+v, want the container", outage, got)
		}
		expect(t, s, "p", back, "none")
		s.PutSummary("n1", scrape(back, of("p/a", rated(4000, sample(back, 500)))))
		expect(t, s, "p", back, fmt.Sprintf("at %v window 15: a=4000m", back))
		s.Put("n1", scrape(back+15, of("p/a", sample(back+15, 560))))
		expect(t, s, "p", back+15, fmt.Sprintf("at %v window 15: a=4000m", back+15))
	}
}

// TestBase puts samples of which the source knows from which reading their rates must be computed.
func TestBase(t *testing.T) { // rule 4
	from := func(second, coreSeconds float64, s usage.Sample) usage.Sample {
		s.Base = usage.Reading{At: nodeAt(second), CPUSeconds: coreSeconds}
		return s
	}
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 100))))
	s.Put("n1", scrape(15, of("p/a", sample(15, 101.5))))
	expect(t, s, "p", 15, "at 15 window 15: a=100m")
	s.Put("n1", scrape(45, of("p/a", from(30, 200, sample(30, 200))))) // another counter: not 6.6 cores
	expect(t, s, "p", 45, "at 15 window 15: a=100m")
	s.Put("n1", scrape(45, of("p/a", sample(45, 203))))
	expect(t, s, "p", 45, "at 45 window 15: a=200m")
	s.Put("n1", scrape(60, of("p/a", from(40, 7, sample(55, 13))))) // the other replica of a scraper
	expect(t, s, "p", 60, "at 55 window 15: a=400m")
	s.Put("n1", scrape(70, of("p/a", from(10, 4, sample(70, 22))))) // times of scrapes
	expect(t, s, "p", 70, "at 70 window 60: a=300m")
	s.Put("n2", scrape(0, of("p/a", from(0, 1, sample(0, 1))))) // the first of a container
	s.Put("n2", scrape(15, of("p/a", sample(15, 4)), of("p/b", from(0, 0.5, sample(15, 2)))))
	if got, want := show(s.Pod("n2", "n", "p", at(15))), "at 15 window 15: a=200m b=100m"; got != want {
		t.Errorf("got %s, want %s", got, want)
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
				sc := scrape(arrived, of("p/a", p))
				sc.Sent, sc.Date = at(sent), cut(nodeAt(arrived).Add(ahead))
				s.Put("n1", sc)
			}
			put(0, 0, sample(0, 100))
			put(15, 15, sample(15, 115))
			if s.Pod("n1", "n", "p", at(16)) == nil {
				t.Fatal("not served before its deletion")
			}
			s.RemovePod("n1", "n", "p", at(20))
			expect(t, s, "p", 20, "none")
			put(19, 21, sample(19, 119)) // a scrape that was running
			put(22, 22, sample(19, 119)) // the kubelet repeats the last sample
			expect(t, s, "p", 22, "none")
			// The counter of the new pod soon exceeds that of the deleted one.
			put(37, 37, started(24, sample(37, 130)))
			expect(t, s, "p", 37, "none")
			put(52, 52, started(24, sample(52, 280)))
			expect(t, s, "p", 52, fmt.Sprintf("at %v window 15: a=10000m", 52+ahead.Seconds()))
		})
	}
}

func TestPartialScrapes(t *testing.T) { // rule 7
	both := func(now float64) []usage.ContainerSample {
		return []usage.ContainerSample{of("p/a", sample(now, now/10)), of("p/b", sample(now, now/10))}
	}
	for _, tc := range []struct {
		name      string
		isRunning func(namespace, pod, container string) bool
		rest      func(now float64) []usage.ContainerSample // what scrapes after 15 s mention
		until     float64                                   // when the pod is last served with both containers
		then      string
	}{
		{
			"b does not run: it has ended", func(_, _, _ string) bool { return false },
			func(now float64) []usage.ContainerSample { return both(now)[:1] }, 15, "at %v window 15: a=100m",
		},
		{
			"b runs: its lines cannot be read", func(_, _, _ string) bool { return true },
			func(now float64) []usage.ContainerSample { return both(now)[:1] }, 75, "none",
		},
		{
			"the API server is unknown", nil,
			func(now float64) []usage.ContainerSample { return both(now)[:1] }, 75, "at %v window 15: a=100m",
		},
		{
			"the pod is not mentioned: its containers expire together", func(_, _, _ string) bool { return true },
			func(now float64) []usage.ContainerSample {
				if now == 30 {
					return both(now)[:1]
				}
				return []usage.ContainerSample{of("q/a", sample(now, 1))}
			}, 75, "none",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := New(Config{MaxSampleAge: maxAge, MaxContainers: 100, State: running(tc.isRunning)})
			s.Put("n1", scrape(0, both(0)...))
			s.Put("n1", scrape(15, both(15)...))
			for now := 30.0; now <= 300; now += 15 {
				sc := scrape(now, tc.rest(now)...)
				sc.Partial = true
				s.Put("n1", sc)
				want := "at 15 window 15: a=100m b=100m"
				if now > tc.until {
					want = tc.then
				}
				if want != "none" && now > tc.until {
					want = fmt.Sprintf(want, now)
				}
				expect(t, s, "p", now, want)
			}
		})
	}
}

// TestEndedContainers is rule 7: a container of which only the start time is reported, and that
// does not run according to the API server, has ended.
func TestEndedContainers(t *testing.T) {
	for runs, want := range map[bool]string{
		false: "at 120 window 15: a=100m",
		true:  "none", // the pod is incomplete
	} {
		s := New(Config{MaxSampleAge: maxAge, MaxContainers: 100, State: running(func(namespace, pod, container string) bool {
			if namespace != "n" || pod != "p" {
				t.Errorf("State was called for %s/%s/%s", namespace, pod, container)
			}
			return runs || container != "b"
		})})
		for now := 0.0; now <= 120; now += 15 {
			b := sample(now, now/10)
			if now >= 45 {
				b = usage.Sample{StartedAt: b.StartedAt}
			}
			s.Put("n1", scrape(now, of("p/a", sample(now, now/10)), of("p/b", b)))
		}
		expect(t, s, "p", 120, want)
	}
}

func TestContainersThatPartialScrapesDoNotMention(t *testing.T) {
	s := New(Config{MaxSampleAge: maxAge, MaxContainers: 10})
	for i := range 100 { // their number is limited
		now := float64(i) / 10
		partial := scrape(now, of(fmt.Sprintf("p%d/a", i), started(now-20, sample(now, 1))))
		partial.Partial = true
		s.Put("n1", partial)
	}
	if n := len(s.nodes["n1"].containers); n > 10 {
		t.Errorf("got %d containers, want at most 10", n)
	}
	late := scrape(200, of("p/a", sample(200, 1))) // they expire
	late.Partial = true
	s.Put("n1", late)
	if n := len(s.nodes["n1"].containers); n != 1 {
		t.Errorf("got %d containers after the maximum age, want 1", n)
	}
}

// TestOnePodWithManyContainers has a hostile kubelet that reports one pod with the largest number
// of containers, with new names each time and in reverse order. The CPU time must not grow with the
// square of their number: four times the containers would then take sixteen times as long.
func TestOnePodWithManyContainers(t *testing.T) { // rule 12
	testenv.CheckLinear(t, func(containers int, start func()) {
		start()
		s := New(Config{MaxSampleAge: maxAge, MaxContainers: containers})
		for i := range 3 {
			sc := scrape(float64(15 * i))
			for c := range containers {
				sc.Containers = append(sc.Containers, of(fmt.Sprintf("p/%d-%d", i, 99999-c), sample(float64(15*i), 1)))
			}
			s.Put("n1", sc)
		}
	})
}

// TestMemoryOfRemovedPods has pods come and go for days on a node whose scrapes all fail, or are
// all partial.
func TestMemoryOfRemovedPods(t *testing.T) { // rule 12
	const pods = 3 * maxRemoved
	t.Run("failing", func(t *testing.T) {
		s := newStore()
		s.Put("n1", scrape(0, of("p/a", sample(0, 100))))
		for i := range pods {
			s.RemovePod("n1", "n", fmt.Sprint("job", i), at(float64(10*i)))
		}
		if n := len(s.node("n1").removed); n > maxRemoved {
			t.Errorf("%d removed pods are remembered", n)
		}
	})
	t.Run("partial", func(t *testing.T) {
		s := New(Config{MaxSampleAge: maxAge, MaxContainers: pods})
		for i := range pods {
			now, job := float64(15*i), fmt.Sprint("job", i)
			sc := scrape(now, of(job+"/a", sample(now, 1)))
			sc.Partial = true
			s.Put("n1", sc)
			s.RemovePod("n1", "m", job, at(now))
		}
		if n := s.node("n1"); len(n.removed) > 20 || len(n.ended) > 20 {
			t.Errorf("%d removed pods and %d ended containers are remembered", len(n.removed), len(n.ended))
		}
	})
}

// TestManyRecentRemovals checks that many removals within rememberFor forget nothing: new pods do not look as if
// they had been overlooked.
func TestManyRecentRemovals(t *testing.T) {
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 100))))
	for i := range 3 * maxRemoved {
		s.RemovePod("n1", "n", fmt.Sprint("job", i), at(float64(i)/100))
	}
	if n := s.node("n1"); n.completeAt == 0 || len(n.removed) != 3*maxRemoved {
		t.Errorf("%d of %d removals are remembered", len(n.removed), 3*maxRemoved)
	}
}

// BenchmarkRemovePod removes pods of a node on which many pods were removed, and many containers have ended, within
// two minutes.
func BenchmarkRemovePod(b *testing.B) {
	s := New(Config{MaxSampleAge: maxAge, MaxContainers: 20_000})
	sc := scrape(0, of("p/a", sample(0, 100)))
	for i := range 20_000 {
		sc.Containers = append(sc.Containers, of(fmt.Sprintf("pod%d/a", i), sample(0, 1)))
	}
	s.Put("n1", sc)
	s.Put("n1", scrape(15, of("p/a", sample(15, 101))))
	names := make([]string, 20_000)
	for i := range names {
		names[i] = fmt.Sprint("job", i)
	}
	for i := 0; b.Loop(); i++ {
		s.RemovePod("n1", "n", names[i%len(names)], at(20))
	}
}

func TestKubeletRatesServeUntilThereAreTwoSamples(t *testing.T) {
	s := newStore()
	first := scrape(0.4, of("p/a", sample(0.4, 10)), of("p/b", sample(0.3, 20)))
	first.Node = sample(-3.5, 100)
	s.Put("n1", first)

	summary := scrape(0.5,
		of("p/a", rated(100, sample(0, 10))), of("p/b", rated(7, sample(0, 20))), of("q/new", rated(5, sample(0, 1))))
	summary.Node = rated(300, sample(-4, 100))
	s.PutSummary("n1", summary)
	expect(t, s, "p", 1, "at 0 window 15: a=100m b=7m")
	expect(t, s, "q", 1, "none") // a summary starts no series
	n := s.Node("n1", at(1))
	if n == nil || n.CPUNanocores != 300_000_000 || n.At != nodeAt(-4) || n.Window != kubeletRateWindow {
		t.Errorf("got node %+v, want 300m at -4 s", n)
	}

	// The first rate of two samples is as if there had been no summary.
	s.Put("n1", scrape(10.4, of("p/a", sample(10.4, 12)), of("p/b", sample(10.3, 20.5))))
	expect(t, s, "p", 11, "at 10.3 window 10: a=200m b=50m")
	s.PutSummary("n1", scrape(10.5, of("p/a", rated(900, sample(10, 12)))))
	expect(t, s, "p", 11, "at 10.3 window 10: a=200m b=50m")
}

// empty returns a sample with memory of 0.
func empty(s usage.Sample) usage.Sample { s.Memory = 0; return s }

// TestKubeletRates checks which rates of a summary are served. The other container has 10 core-seconds.
func TestKubeletRates(t *testing.T) { // rule 6
	no := usage.Sample{}
	for _, tc := range []struct {
		name                    string
		scraped, summary, other usage.Sample
		want                    string
	}{
		{"the same sample, with a truncated time", sample(0.9, 10), rated(100, sample(0, 10)), no, "at 0 window 15: a=100m"},
		{"younger than the window", started(-61, sample(0, 10)), rated(100, started(-12, sample(-1, 10))), no,
			"at -1 window 11: a=100m"},
		{"another sample: the window is unknown", sample(0, 10), rated(270, sample(0, 10.01)), no, "none"},
		{"no rate", sample(0, 10), sample(0, 10), no, "none"},
		{"another container has no rate", sample(0, 10), rated(100, sample(0, 10)), sample(0, 10), "none"},
		{"a placeholder", sample(0, 10), rated(0, sample(0, 10)), no, "none"},
		{"zero beside a counter of 0", sample(0, 0), rated(0, sample(0, 0)), no, "none"},
		{"zero, and another rate is known", sample(0, 3), rated(0, sample(0, 3)), rated(100, sample(0, 10)), "none"},
		{"no memory", sample(0, 3), empty(rated(100, sample(0, 3))), no, "none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, first, summary := newStore(), scrape(1, of("p/a", tc.scraped)), scrape(1, of("p/a", tc.summary))
			if tc.other != no {
				first.Containers = append(first.Containers, of("p/b", sample(0, 10)))
				summary.Containers = append(summary.Containers, of("p/b", tc.other))
			}
			s.Put("n1", first)
			s.PutSummary("n1", summary)
			expect(t, s, "p", 1, tc.want)
		})
	}
}
