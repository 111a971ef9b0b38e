package store

import (
	"math"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// unknown returns what a kubelet reports of a container of which it has no statistics.
func unknown(seconds float64) usage.Sample {
	s := sample(seconds, 0)
	s.Memory = 0
	return s
}

// step is a scrape of the containers of the pod p, and what is served of the pod then.
type step struct {
	at         float64
	containers []usage.ContainerSample
	want       string
}

// play plays the steps on a node of 2 CPUs that uses as many cores as given.
func (s *Store) play(t *testing.T, cores float64, steps []step) {
	t.Helper()
	for _, step := range steps {
		sc := scrape(step.at, step.containers...)
		sc.Node, sc.Capacity = sample(step.at, 1000+cores*step.at), 2_000_000_000
		sc.Node.StartedAt = 0
		sc.DropUnknown() // as the decoders do
		s.Put("n1", sc)
		expect(t, s, "p", step.at, step.want)
	}
}

func one(s usage.Sample) []usage.ContainerSample { return []usage.ContainerSample{of("p/a", s)} }

func two(a, b usage.Sample) []usage.ContainerSample {
	return []usage.ContainerSample{of("p/a", a), of("p/b", b)}
}

// TestUnknownUsage plays what kubelets write for usage that they do not know. The container uses 100m,
// after 1000 core-seconds.
func TestUnknownUsage(t *testing.T) { // rules 4, 6
	real := func(now float64) usage.Sample { return sample(now, 1000+now/10) }
	noCPU := func(now float64) usage.Sample { return sample(now, 0) }
	undated := func(of func(now float64) usage.Sample) func(now float64) usage.Sample {
		return func(now float64) usage.Sample { s := of(now); s.StartedAt = 0; return s }
	}
	fallen := func(now float64) usage.Sample { return sample(now, 5+now/10) }
	for name, tc := range map[string]struct {
		lie   func(now float64) usage.Sample // of the scrapes at 30 s and 45 s
		truth func(now float64) usage.Sample
		then  string // what is served after 45 s
	}{
		"neither CPU nor memory":                {unknown, real, "at 15 window 15: a=100m"},
		"no CPU":                                {noCPU, real, "at 15 window 15: a=100m"},
		"no CPU and no start time":              {undated(noCPU), real, "at 15 window 15: a=100m"},
		"no CPU, and never a start time":        {undated(noCPU), undated(real), "at 15 window 15: a=100m"},
		"a lower counter without a later start": {fallen, real, "at 15 window 15: a=100m"},
		"a lower counter with a later start": {func(now float64) usage.Sample { return started(20, sample(now, (now-20)/5)) },
			real, "at 45 window 15: a=200m"},
		"a lower counter, and never a start time": {undated(fallen), undated(real), "at 45 window 15: a=100m"},
		"a counter that stands still": {func(now float64) usage.Sample { return sample(now, real(15).CPUSeconds) },
			real, "at 45 window 15: a=0m"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStoreWith(&ContainerState{Running: true, Alive: true})
			s.play(t, 1, []step{
				{0, one(tc.truth(0)), "none"}, {15, one(tc.truth(15)), "at 15 window 15: a=100m"},
			})
			for _, now := range []float64{30, 45} {
				sc := scrape(now, one(tc.lie(now))...)
				sc.DropUnknown()
				s.Put("n1", sc)
			}
			expect(t, s, "p", 45, tc.then)
		})
	}
}

// TestUnknownUsageEnds checks that the true usage is served again after a lie of a minute or less, and that
// metrics expire during a longer one.
func TestUnknownUsageEnds(t *testing.T) { // rules 6, 8
	real := func(now float64) usage.Sample { return sample(now, 20+now/500) }
	s := newStoreWith(&ContainerState{Running: true, Alive: true})
	s.play(t, 1, []step{
		{0, one(real(0)), "none"}, {15, one(real(15)), "at 15 window 15: a=2m"},
		{30, one(unknown(30)), "at 15 window 15: a=2m"}, {31, one(real(31)), "at 31 window 16: a=2m"},
		{45, one(unknown(45)), "at 31 window 16: a=2m"}, {60, one(unknown(60)), "at 31 window 16: a=2m"},
		{90, one(unknown(90)), "at 31 window 16: a=2m"}, {92, one(unknown(92)), "none"},
		{105, one(real(105)), "none"}, {109, one(real(109)), "at 109 window 4: a=2m"},
	})
}

// TestOmittedContainers plays complete responses that do not mention a container.
func TestOmittedContainers(t *testing.T) { // rule 7
	a := func(now float64) usage.Sample { return sample(now, 1+now) }
	b := func(now float64) usage.Sample { return sample(now, 1+now/100) }
	onlyB := func(now float64) []usage.ContainerSample { return two(a(now), b(now))[1:] }
	const whole, expired = "at 15 window 15: a=1000m b=10m", 90
	for name, tc := range map[string]struct {
		state ContainerState // of a
		want  map[float64]string
	}{
		"it runs": {ContainerState{Running: true, Alive: true}, map[float64]string{
			30: whole, 75: whole, expired: "none"}},
		"it waits for its restart": {ContainerState{Alive: true}, map[float64]string{
			30: whole, 75: whole, expired: "at 90 window 15: b=10m"}},
		"it has ended": {ContainerState{}, map[float64]string{30: "at 30 window 15: b=10m", 75: "at 75 window 15: b=10m"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Config{MaxSampleAge: maxAge, RateWindow: rateWindow, MaxContainers: 100,
				State: func(_, _, _, container string) ContainerState {
					if container == "a" {
						return tc.state
					}
					return ContainerState{Running: true, Alive: true}
				}})
			s.play(t, 1, []step{{0, two(a(0), b(0)), "none"}, {15, two(a(15), b(15)), whole}})
			for now := 30.0; now <= expired; now += 15 {
				s.Put("n1", scrape(now, onlyB(now)...))
				if want, ok := tc.want[now]; ok {
					expect(t, s, "p", now, want)
				}
			}
		})
	}
	t.Run("the pod is not mentioned", func(t *testing.T) {
		s := newStoreWith(&ContainerState{Running: true, Alive: true})
		s.play(t, 1, []step{
			{0, one(a(0)), "none"}, {15, one(a(15)), "at 15 window 15: a=1000m"}, {30, nil, "at 15 window 15: a=1000m"},
			{45, one(a(45)), "at 45 window 30: a=1000m"},
		})
	})
	t.Run("the only one waits for its restart", func(t *testing.T) {
		s := newStoreWith(&ContainerState{Alive: true})
		s.play(t, 1, []step{
			{0, one(a(0)), "none"}, {15, one(a(15)), "at 15 window 15: a=1000m"}, {30, nil, "at 15 window 15: a=1000m"},
			{75, nil, "at 15 window 15: a=1000m"}, {76, nil, "none"},
		})
	})
	t.Run("it crashes before it has metrics", func(t *testing.T) {
		s := New(Config{MaxSampleAge: maxAge, RateWindow: rateWindow, MaxContainers: 100,
			State: func(_, _, _, container string) ContainerState {
				return ContainerState{Running: container == "b", Alive: true, EarliestStart: nodeAt(-3600), PodCreatedAt: at(-3600)}
			}})
		s.play(t, 1, []step{
			{0, two(started(-2, sample(0, 1)), b(0)), "none"}, {15, onlyB(15), "at 15 window 15: b=10m"},
			{30, onlyB(30), "at 30 window 15: b=10m"},
			{45, two(started(43, sample(45, 1)), b(45)), "at 30 window 15: b=10m"}, {60, onlyB(60), "at 60 window 15: b=10m"},
		})
	})
	t.Run("it was restarted meanwhile", func(t *testing.T) { // and its counter is higher already
		s := newStoreWith(&ContainerState{Running: true, Alive: true, EarliestStart: nodeAt(-10), PodCreatedAt: at(-11)})
		s.play(t, 1, []step{
			{0, one(started(-10, sample(0, 1))), "none"}, {15, one(started(-10, sample(15, 2))), "at 15 window 15: a=66m"},
			{30, nil, "at 15 window 15: a=66m"}, {45, one(started(25, sample(45, 20))), "at 15 window 15: a=66m"},
			{60, one(started(25, sample(60, 35))), "at 60 window 15: a=1000m"},
		})
	})
}

// TestEndedInitContainer checks that a container which a kubelet reports with zeros after its end does not
// withhold its pod.
func TestEndedInitContainer(t *testing.T) { // rule 7
	s := New(Config{MaxSampleAge: maxAge, RateWindow: rateWindow, MaxContainers: 100,
		State: func(_, _, _, container string) ContainerState {
			return ContainerState{Running: container == "b", Alive: container == "b"}
		}})
	s.play(t, 1, []step{
		{0, two(unknown(0), sample(0, 0)), "none"},
		{15, two(unknown(15), sample(15, 3)), "none"}, // a counter of 0 was not known
		{30, two(unknown(30), sample(30, 6)), "at 30 window 15: b=200m"},
	})
}

// TestCapacityInStatus plays rates above the capacity of 2 CPUs in the node's status.
func TestCapacityInStatus(t *testing.T) { // rule 10
	steady := func(cores float64) func(now float64) usage.Sample {
		return func(now float64) usage.Sample { return sample(now, 100+cores*now) }
	}
	for name, tc := range map[string]struct {
		node  float64 // cores
		usage func(now float64) usage.Sample
		want  []string // after 15 s, 30 s, …
	}{
		"the status is too low": {6, steady(5),
			[]string{"none", "none", "at 45 window 45: a=5000m", "at 60 window 15: a=5000m"}},
		"the node does not use that much": {1, steady(5), []string{"none", "none", "none", "none"}},
		"the counter jumps once": {1, func(now float64) usage.Sample {
			s := steady(0.1)(now)
			if now >= 30 {
				s.CPUSeconds += 1e6
			}
			return s
		}, []string{"at 15 window 15: a=100m", "at 15 window 15: a=100m", "at 45 window 15: a=100m",
			"at 60 window 15: a=100m"}},
		"one counter is wrong": {1, func(now float64) usage.Sample {
			s := steady(0.1)(now)
			if now == 30 {
				s.CPUSeconds += 1e6
			}
			return s
		}, []string{"at 15 window 15: a=100m", "at 15 window 15: a=100m", "at 45 window 30: a=100m",
			"at 60 window 15: a=100m"}},
		"one counter is wrong, and repeated": {1, func(now float64) usage.Sample {
			if now == 45 {
				now = 30
			}
			s := steady(0.1)(now)
			if now == 30 {
				s.CPUSeconds += 1e6
			}
			return s
		}, []string{"at 15 window 15: a=100m", "at 15 window 15: a=100m", "at 15 window 15: a=100m",
			"at 60 window 45: a=100m"}},
		"the largest integer stands for an unknown counter": {1, func(now float64) usage.Sample {
			s := steady(0.1)(now)
			if now == 30 || now == 45 {
				s.CPUSeconds = math.MaxUint64 / 1e9
			}
			return s
		}, []string{"at 15 window 15: a=100m", "at 15 window 15: a=100m", "at 15 window 15: a=100m",
			"at 60 window 45: a=100m"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStoreWith(&ContainerState{Running: true, Alive: true, EarliestStart: nodeAt(-3600), PodCreatedAt: at(-3600)})
			steps := []step{{0, one(tc.usage(0)), "none"}}
			for i, want := range tc.want {
				now := float64(15 * (i + 1))
				steps = append(steps, step{now, one(tc.usage(now)), want})
			}
			s.play(t, tc.node, steps)
		})
	}
}

// TestLowCapacityOfDenseSamples checks that a status which is too low is found although the margin of short
// windows hides it now and then.
func TestLowCapacityOfDenseSamples(t *testing.T) { // rule 10
	for _, interval := range []float64{1, 2, 2.5, 3, 4, 5, 7} {
		for _, cores := range []float64{1.2, 1.3, 1.4, 1.6, 1.8, 2, 3} {
			s := newStore()
			for i := range 60 {
				now := interval * float64(i)
				sampled := math.Floor(now/3) * 3
				sc := scrape(now)
				sc.Node, sc.Capacity = sample(sampled, 1000+cores*sampled), 1_000_000_000
				s.Put("n1", sc)
				if n := s.Node("n1", at(now)); n == nil && now >= 8*max(interval, 3) {
					t.Errorf("%v cores, every %v s: not served after %v s", cores, interval, now)
				}
			}
		}
	}
}

// TestLimitAboveStatus checks that impossible rates are refused although the capacity in the status was
// shown to be too low, and that another status is believed.
func TestLimitAboveStatus(t *testing.T) { // rule 10
	s, counter := newStore(), 0.0
	put := func(now, cores float64, capacity uint64) usage.Report {
		counter += 15 * cores
		sc := scrape(now)
		sc.Node, sc.Capacity = sample(now, 1000+counter), capacity
		return s.Put("n1", sc)
	}
	for i, tc := range []struct {
		cores    float64
		capacity uint64
		exceeded uint64 // in the report
		want     uint64 // millicores that are served of the node
	}{
		{1, 2e9, 0, 0}, {1, 2e9, 0, 1000}, {6, 2e9, 0, 1000}, {1, 2e9, 0, 1000}, // not in a row
		{6, 2e9, 0, 1000}, {7, 2e9, 0, 1000}, {8, 2e9, 6e9, 7000}, // the mean of three
		{12, 2e9, 6e9, 12000}, {100, 2e9, 6e9, 12000}, {1, 2e9, 6e9, 1000},
		{1, 2e9, 6e9, 1000}, {6, 8e9, 0, 6000}, {12, 8e9, 0, 6000},
	} {
		now := float64(15 * i)
		report := put(now, tc.cores, tc.capacity)
		var got uint64
		if n := s.Node("n1", at(now)); n != nil {
			got = n.CPUNanocores / 1e6
		}
		if report.Exceeded != tc.exceeded || got != tc.want {
			t.Errorf("after %v s: got %dm, exceeded %d; want %dm, %d", now, got, report.Exceeded, tc.want, tc.exceeded)
		}
	}
}

// TestStartIsCreation checks the pods of a kubelet that reports the creation of a pod as the start of its
// containers. The pod was created at −100 s, and bound 40 s later.
func TestStartIsCreation(t *testing.T) { // rule 9
	state := ContainerState{Running: true, Alive: true, EarliestStart: nodeAt(-60), PodCreatedAt: at(-100)}
	own := func(now float64) []usage.ContainerSample { return one(started(-100, sample(now, 1+now/10))) }
	other := func(now float64) []usage.ContainerSample { return one(started(-500, sample(now, 50+now))) }
	late := func(now float64) []usage.ContainerSample { return one(started(-59, sample(now, 1+now/10))) }
	t.Run("no other pod is known", func(t *testing.T) {
		newStoreWith(&state).play(t, 1, []step{{0, own(0), "none"}, {15, own(15), "at 15 window 15: a=100m"}})
	})
	t.Run("from before the creation", func(t *testing.T) {
		newStoreWith(&state).play(t, 1, []step{{0, other(0), "none"}, {15, other(15), "none"}})
	})
	t.Run("from before the creation of an old pod", func(t *testing.T) {
		old := ContainerState{Running: true, Alive: true, EarliestStart: nodeAt(-4000), PodCreatedAt: at(-4000)}
		sampled := func(now float64) []usage.ContainerSample { return one(started(-9000, sample(now, 1+now/10))) }
		newStoreWith(&old).play(t, 1, []step{{0, sampled(0), "none"}, {15, sampled(15), "at 15 window 15: a=100m"}})
	})
	t.Run("another pod was removed", func(t *testing.T) {
		s := newStoreWith(&state)
		s.play(t, 1, []step{{-120, nil, "none"}})
		s.RemovePod("n1", "n", "p", at(-101))
		s.play(t, 1, []step{
			{0, own(0), "none"}, {15, own(15), "none"},
			{30, late(30), "none"}, {45, late(45), "at 45 window 15: a=100m"},
		})
	})
	t.Run("another pod has been reported", func(t *testing.T) {
		newStoreWith(&state).play(t, 1, []step{
			{0, late(0), "none"}, {15, late(15), "at 15 window 15: a=100m"}, {30, own(30), "at 15 window 15: a=100m"},
			{45, own(45), "at 15 window 15: a=100m"},
		})
	})
}

// TestTimesInWholeSeconds checks that no window between truncated times is so short that it is wrong by more
// than a tenth.
func TestTimesInWholeSeconds(t *testing.T) { // rule 1
	s := newStore()
	for _, tc := range []struct{ at, window float64 }{
		{0, 0}, {4, 0}, {9, 0}, {10, 10}, {14, 14}, {19, 15}, {24, 15},
	} {
		truncated := sample(tc.at, tc.at)
		truncated.At -= truncated.At % 1e9
		s.Put("n1", scrape(tc.at, one(truncated)...))
		window := 0.0
		if p := s.Pod("n1", "n", "p", at(tc.at)); p != nil {
			window = p.Window.Seconds()
		}
		if window != tc.window {
			t.Errorf("after %v s: got a window of %v s, want %v s", tc.at, window, tc.window)
		}
	}
	for rateWindow := 1; rateWindow <= 15; rateWindow++ { // of any length, there are metrics
		for interval := 1.0; interval <= 5; interval++ {
			s := newWideStore(time.Duration(rateWindow) * time.Second)
			for i := range 30 {
				now := interval * float64(i)
				truncated := sample(now, now)
				truncated.At -= truncated.At % 1e9
				s.Put("n1", scrape(now, one(truncated)...))
				if now >= 20 && s.Pod("n1", "n", "p", at(now)) == nil {
					t.Fatalf("--rate-window=%ds, every %v s: no metrics after %v s", rateWindow, interval, now)
				}
			}
		}
	}
}

// TestMeanSinceWrongStart checks that no mean covers the time before a container started. The container uses a
// core, and its kubelet reports the creation of the pod as its start, at −45 s.
func TestMeanSinceWrongStart(t *testing.T) { // rule 4
	reported := func(now, ran float64) []usage.ContainerSample { return one(started(-45, sample(now, ran))) }
	t.Run("the pod was bound later", func(t *testing.T) {
		s := newStoreWith(&ContainerState{Running: true, Alive: true, EarliestStart: nodeAt(-5), PodCreatedAt: at(-45)})
		s.play(t, 1, []step{
			{-20, nil, "none"}, {-5, nil, "none"}, {10, reported(10, 15), "none"},
			{25, reported(25, 30), "at 25 window 15: a=1000m"},
		})
	})
	t.Run("the container was restarted", func(t *testing.T) {
		s := newStoreWith(&ContainerState{Running: true, Alive: true, EarliestStart: nodeAt(-45), PodCreatedAt: at(-45)})
		s.play(t, 1, []step{
			{-50, nil, "none"}, {-30, reported(-30, 15), "at -30 window 15: a=1000m"},
			{-15, nil, "at -30 window 15: a=1000m"}, {0, reported(0, 5), "at -30 window 15: a=1000m"},
			{15, reported(15, 20), "at 15 window 15: a=1000m"},
		})
	})
}

// TestLostContainer checks that the loss of a pod is that of the container whose value is the oldest: the pod
// has no metrics because of b, while a has lost one sample only.
func TestLostContainer(t *testing.T) {
	s := newStoreWith(&ContainerState{Running: true, Alive: true})
	real := func(now float64) usage.Sample { return sample(now, 100+now/10) }
	for now := 0.0; now < 90; now += 15 {
		b := real(now)
		if now >= 30 {
			b = unknown(now)
		}
		sc := scrape(now, two(real(now), b)...)
		sc.DropUnknown()
		s.Put("n1", sc)
	}
	fallen := two(sample(90, 1), unknown(90))
	for _, containers := range [][]usage.ContainerSample{fallen, {fallen[1], fallen[0]}} {
		sc := scrape(90, containers...)
		sc.DropUnknown()
		s.Put("n1", sc)
		if f, _ := s.PodFacts("n1", "n", "p"); f.Lost != usage.LostZero || f.LostContainer != "b" {
			t.Errorf("got the loss %d of %q, want that of b", f.Lost, f.LostContainer)
		}
	}
}
