package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// A pod p was deleted by force after an hour and runs on, with twoPodsOld millicores. Another pod
// of that name runs from twoPodsStart on, with twoPodsNew millicores.
const (
	twoPodsOld, twoPodsNew = 100, 900
	twoPodsStart           = 20.3
)

// twoPods returns what a kubelet reports of the container p/a: that of the old pod for 'o', that of
// the new one for 'n'.
func twoPods(which byte, now, oldCounter float64) usage.ContainerSample {
	if which == 'o' {
		return of("p/a", sample(now, oldCounter+now*twoPodsOld/1000))
	}
	return of("p/a", started(twoPodsStart, sample(now, (now-twoPodsStart)*twoPodsNew/1000)))
}

// orders are orders in which a kubelet lists two pods of one name, a letter for each scrape.
var orders = []string{
	"ooooooooooo", "nnnnnnnnnnn", "ononononono", "nononononon", "oonnoonnoon", "onnnnnnnnnn", "noooooooonn", "oooonnnnonn",
}

// TestForceDeletedPodRunsOn is rule 9: a new pod has its own usage or none, as soon as the API
// server shows its start, and in any order of the samples.
func TestForceDeletedPodRunsOn(t *testing.T) {
	for _, order := range orders {
		for _, oldCounter := range []float64{0, 20, 5000} {
			for shownAfter := range 4 { // scrapes until the API server shows the start
				name := fmt.Sprintf("%s, counter %v, shown after %d", order, oldCounter, shownAfter)
				t.Run(name, func(t *testing.T) { readTwoPods(t, order, oldCounter, shownAfter) })
			}
		}
	}
}

func readTwoPods(t *testing.T, order string, oldCounter float64, shownAfter int) {
	var state ContainerState
	s := newStoreWith(&state)
	put := func(which byte, now float64) {
		sc := scrape(now, twoPods(which, now, oldCounter))
		sc.Sent, sc.Capacity = at(now), 8_000_000_000
		s.Put("n1", sc)
	}
	state.EarliestStart = at(-3600)
	put('o', -10)
	put('o', 5)
	expect(t, s, "p", 5, "at 5 window 15: a=100m")
	s.RemovePod("n1", "n", "p", at(18))
	state = ContainerState{}
	own, last := 0, 0.0
	for i := range order {
		now := 35 + 15*float64(i)
		if i == shownAfter {
			state = ContainerState{Running: true, EarliestStart: at(20), PodCreatedAt: at(19)}
		}
		put(order[i], now)
		if order[i] == 'n' && i >= shownAfter {
			if now-last > maxAge.Seconds() {
				own = 0
			}
			own, last = own+1, now
		}
		got := show(s.Pod("n1", "n", "p", at(now)))
		switch {
		case i < shownAfter: // not served: its phase is not Running yet
		case got == "none" && (own < 2 || order[i] == 'o'):
		case got == "none":
			t.Errorf("after %v s: the new pod has no metrics, although it has %d samples", now, own)
		case got != "none" && s.Pod("n1", "n", "p", at(now)).Containers[0].CPUNanocores != twoPodsNew*1_000_000:
			t.Errorf("after %v s: got %s, want %dm", now, got, twoPodsNew)
		}
	}
}

// TestTwoPodsAtStartUp is rule 9 if kube-vitals starts after the pod was deleted by force, and before the
// API server shows the start of the next one: what was stored until then may be of either of them.
func TestTwoPodsAtStartUp(t *testing.T) {
	for _, order := range orders {
		for _, oldCounter := range []float64{0, 20, 5000} {
			for shownAfter := range 5 {
				var state ContainerState
				s := newStoreWith(&state)
				for i := range order {
					now := 25 + 5*float64(i)
					if i == shownAfter {
						state = ContainerState{Running: true, EarliestStart: at(20), PodCreatedAt: at(19)}
					}
					s.Put("n1", scrape(now, twoPods(order[i], now, oldCounter)))
					p := s.Pod("n1", "n", "p", at(now))
					if i >= shownAfter && p != nil && p.Containers[0].CPUNanocores != twoPodsNew*1_000_000 {
						t.Errorf("%s, counter %v, shown after %d, after %v s: got %s, want %dm",
							order, oldCounter, shownAfter, now, show(p), twoPodsNew)
					}
				}
			}
		}
	}
}

// TestTwoPodsOfOneName is rule 4: without the start in the API server, no rate is computed between
// samples of two containers once the start time has fallen.
func TestTwoPodsOfOneName(t *testing.T) {
	for _, order := range []string{"nonononono", "noonnoonno", "nnoonnoonn", "nooooonnnn"} {
		for _, oldCounter := range []float64{0, 20, 5000} {
			s := newStore()
			for i := range order {
				now := 35 + 15*float64(i)
				s.Put("n1", scrape(now, twoPods(order[i], now, oldCounter)))
				p := s.Pod("n1", "n", "p", at(now))
				if p == nil {
					continue
				}
				if got := p.Containers[0].CPUNanocores / 1_000_000; got != twoPodsOld && got != twoPodsNew {
					t.Errorf("%s, counter %v, after %v s: got %dm, want %dm or %dm", order, oldCounter, now, got,
						twoPodsOld, twoPodsNew)
				}
			}
		}
	}
}

// TestStartFallsForGood is rule 4: a start time that falls once costs one interval.
func TestStartFallsForGood(t *testing.T) {
	s := newStore()
	for now := 0.0; now <= 30; now += 15 {
		s.Put("n1", scrape(now, of("p/a", started(-60, sample(now, 100+now/10)))))
	}
	expect(t, s, "p", 30, "at 30 window 15: a=100m")
	for now := 45.0; now <= 75; now += 15 {
		s.Put("n1", scrape(now, of("p/a", started(-3600, sample(now, 100+now/10)))))
	}
	expect(t, s, "p", 75, "at 75 window 15: a=100m")
	// It follows the samples from then on.
	for now := 90.0; now <= 120; now += 15 {
		s.Put("n1", scrape(now, of("p/a", started(now-12, sample(now, 100+now/10)))))
	}
	expect(t, s, "p", 120, "at 120 window 15: a=100m")
}

// TestStartsInTheAPIServer checks which start times belong to the pod in the API server.
func TestStartsInTheAPIServer(t *testing.T) {
	const own, other = "at 30 window 15: a=100m", "none"
	for _, tc := range []struct {
		name  string
		start float64 // in the samples
		shown float64 // in the API server
		want  string
	}{
		{"shown in whole seconds, after the container was created", -100, -91, own},
		{"moved by cAdvisor", -5, -100, own},
		{"of another pod", -100, -80, other},
		{"of another pod that the API server shows early", -3600, 10, other},
		{"from before the clock was set back, for all we know", -100, 300, own},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := New(Config{MaxSampleAge: maxAge, MaxContainers: 100, State: func(node, _, _, _ string) ContainerState {
				if node != "n1" {
					t.Errorf("got node %q", node)
				}
				return ContainerState{Running: true, EarliestStart: at(tc.shown)}
			}})
			for now := 0.0; now <= 30; now += 15 {
				s.Put("n1", scrape(now, of("p/a", started(tc.start, sample(now, 100+now/10)))))
			}
			expect(t, s, "p", 30, tc.want)
		})
	}
}

// TestStartsAfterAClockStep is rule 9 on a node whose clock was set back by two hours, to -7185: a
// start time proves something unless the clock may have shown it twice since the pod was created.
func TestStartsAfterAClockStep(t *testing.T) {
	const hour, own, other = 3600.0, true, false
	for _, tc := range []struct {
		name    string
		created float64
		shown   float64 // in the API server
		start   float64 // in the samples
		isOwn   bool
	}{
		{"own", -hour, -hour, -hour, own},
		{"own, moved since the step", -hour, -hour, -6900, own},
		{"own, moved since the step to a time that the clock had shown before the start", -hour, -6950, -7100, own},
		{"own, follows the samples since the step", -hour, -6950, -7190, own},
		{"own, started after the step", 100, -6950, -6952, own},
		{"of an older pod from before the time that the clock was set back to", -hour, -6950, -8000, other},
		{"of an older pod, at a time that the clock has not shown since", -hour, -30, -60, other},
		{"of an older pod, while the pod is from after the step", 100, -6950, -7100, other},
		{"of an older pod from before the step, which the pod is not", 100, -6950, -60, other},
	} {
		test := func(t *testing.T, ahead float64, want string) {
			s := newStoreWith(&ContainerState{Running: true, EarliestStart: at(tc.shown), PodCreatedAt: at(tc.created)})
			put := func(now, ahead float64, containers ...usage.ContainerSample) {
				sc := scrape(now, containers...)
				sc.Sent, sc.Date = at(now), at(now+ahead)
				s.Put("n1", sc)
			}
			put(0, 0)
			put(15, -2*hour)
			for now := 300.0; now <= 330; now += 15 {
				put(now, ahead, of("p/a", started(tc.start, sample(now+ahead, 100+now/10))))
			}
			if !tc.isOwn {
				want = "none"
			}
			expect(t, s, "p", 330, want)
		}
		t.Run(tc.name, func(t *testing.T) { test(t, -2*hour, "at -6870 window 15: a=100m") })
		t.Run(tc.name+", and the clock is set forwards later", func(t *testing.T) {
			test(t, 20-2*hour, "at -6850 window 15: a=100m")
		})
	}
}

// TestContainerOfTheOtherPodOnly is rule 7: what only the other pod of the name has is not a part
// of the pod.
func TestContainerOfTheOtherPodOnly(t *testing.T) {
	s := New(Config{MaxSampleAge: maxAge, MaxContainers: 100, State: func(_, _, _, container string) ContainerState {
		return ContainerState{Running: container == "a", EarliestStart: at(-100)}
	}})
	for now := 0.0; now <= 45; now += 15 {
		s.Put("n1", scrape(now, of("p/a", started(-98, sample(now, now/10))), of("p/old", sample(now, now))))
	}
	expect(t, s, "p", 45, "at 45 window 15: a=100m")
}

// TestPanicInAScrape checks that a panic while a scrape is stored, after a container of it was found to
// have ended, does not break the next scrapes of the node.
func TestPanicInAScrape(t *testing.T) {
	var start usage.Time // of the pod p in the API server
	panics := false
	s := New(Config{MaxSampleAge: maxAge, MaxContainers: 100, State: func(_, _, pod, _ string) ContainerState {
		if pod == "p" {
			return ContainerState{EarliestStart: start}
		}
		if panics {
			panic("a bug")
		}
		return ContainerState{Running: true}
	}})
	put := func(now float64) {
		s.Put("n1", scrape(now, of("p/a", started(-98, sample(now, now/10))), of("q/a", sample(now, now/10))))
	}
	put(0)
	start, panics = at(10), true
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		put(15)
	}()
	panics = false
	put(30)
	put(45)
	s.RemovePod("n1", "n", "p", at(45))
	expect(t, s, "q", 45, "at 45 window 15: a=100m")
}

// TestCapacity is rule 1: no rate is above the node's capacity, whatever it is computed from.
func TestCapacity(t *testing.T) {
	const capacity = 8_000_000_000
	for _, pace := range []float64{1, 2.5, 5, 15, 60} {
		s := newStore()
		jump := 0.0
		for i := range 58 {
			now := float64(i) * pace
			if i%7 == 3 {
				jump += 5000
			}
			sc := scrape(now, of("p/a", sample(now, now+jump)))
			sc.Node, sc.Capacity = sample(now, now+jump), capacity
			s.Put("n1", sc)
			summary := scrape(now, of("p/a", rated(3_333_000, sample(now, now+jump))))
			summary.Node, summary.Capacity = rated(3_333_000, sample(now, now+jump)), capacity
			s.PutSummary("n1", summary)
			check := func(what string, a usage.Amount) {
				if a.CPUNanocores != 1_000_000_000 {
					t.Errorf("every %v s, after %v s: got %d nanocores of the %s, want one core", pace, now, a.CPUNanocores, what)
				}
			}
			if p := s.Pod("n1", "n", "p", at(now)); p != nil {
				check("pod", p.Containers[0].Amount)
			}
			if n := s.Node("n1", at(now)); n != nil {
				check("node", n.Amount)
			}
		}
		if end := at(58 * pace).Add(-time.Second); s.Node("n1", end) == nil || s.Pod("n1", "n", "p", end) == nil {
			t.Errorf("every %v s: there are no metrics at the end", pace)
		}
	}
}

// TestMixedSamples is rule 9: a response has the start time of the new pod's container, which has
// no CPU yet, and the counter of the old one. More than the node can have used since is of another
// pod.
func TestMixedSamples(t *testing.T) {
	s := newStoreWith(&ContainerState{Running: true, EarliestStart: at(20)})
	put := func(now, coreSeconds float64) {
		sc := scrape(now, of("p/a", started(21, sample(now, coreSeconds))))
		sc.Capacity = 8_000_000_000
		s.Put("n1", sc)
		if p := s.Pod("n1", "n", "p", at(now)); p != nil && p.Containers[0].CPUNanocores != 900_000_000 {
			t.Errorf("after %v s: got %s, want 900m", now, show(p))
		}
	}
	for now := 35.0; now <= 330; now += 15 {
		if int(now)%75 > 30 {
			put(now, 5000+now/10)
		} else {
			put(now, (now-21)*0.9)
		}
	}
	expect(t, s, "p", 320, "at 320 window 15: a=900m")
}

// TestRemovedPodRunsOn is rule 9: what a kubelet reports of a name after its pod was removed, and
// before the next pod of the name has started, is of the removed pod. It is not served when the API
// server shows the next one.
func TestRemovedPodRunsOn(t *testing.T) {
	state := ContainerState{Running: true, EarliestStart: at(-3600)}
	s := newStoreWith(&state)
	s.Put("n1", scrape(0, twoPods('o', 0, 5000)))
	s.RemovePod("n1", "n", "p", at(5))
	state = ContainerState{}
	for now := 10.0; now <= 25; now += 5 {
		report := scrape(now, twoPods('o', now, 5000))
		report.Sent = at(now)
		if missing := s.Put("n1", report).Missing; len(missing) != 0 {
			t.Errorf("after %v s: got %d missing rates, want none of the removed pod", now, len(missing))
		}
	}
	expect(t, s, "p", 25, "none")
	state = ContainerState{Running: true, EarliestStart: at(20)}
	for now := 30.0; now <= 40; now += 5 {
		s.Put("n1", scrape(now, twoPods('n', now, 0)))
	}
	expect(t, s, "p", 40, "at 40 window 5: a=900m")
}

// TestOtherPodWithoutStartTime is rule 9 for a kubelet that reports no start times: a counter above
// what the node can have used since the start of the pod is of another one.
func TestOtherPodWithoutStartTime(t *testing.T) {
	for _, order := range orders {
		s := newStoreWith(&ContainerState{Running: true, EarliestStart: at(20)})
		for i := range order {
			now := 35 + 15*float64(i)
			c := twoPods(order[i], now, 5000)
			c.StartedAt = 0
			sc := scrape(now, c)
			sc.Capacity = 8_000_000_000
			s.Put("n1", sc)
			if p := s.Pod("n1", "n", "p", at(now)); p != nil && p.Containers[0].CPUNanocores != twoPodsNew*1_000_000 {
				t.Errorf("%s, after %v s: got %s, want %dm", order, now, show(p), twoPodsNew)
			}
		}
	}
}

// TestOtherPodAfterAClockStep is rule 9 on a node whose clock was set back by a minute: once it has
// caught up, the other pod that was reported in the meantime is noticed.
func TestOtherPodAfterAClockStep(t *testing.T) {
	s := newStoreWith(&ContainerState{Running: true, EarliestStart: at(20), PodCreatedAt: at(19)})
	for now := 30.0; now <= 180; now += 15 {
		ahead := 0.0
		if now >= 60 {
			ahead = -60
		}
		c := twoPods('o', now, 50)
		c.At, c.StartedAt = c.At.Add(time.Duration(ahead)*time.Second), at(-3600)
		sc := scrape(now, c)
		sc.Sent, sc.Date = at(now), at(now+ahead)
		s.Put("n1", sc)
	}
	expect(t, s, "p", 180, "none")
}

// TestCounterOfAWholeLife checks that a counter is not too high for the start in the API server
// where that start, or the capacity, does not bound it: the container is the pod's.
func TestCounterOfAWholeLife(t *testing.T) {
	const hour = 3600.0
	for _, tc := range []struct {
		name           string
		cpus           uint64
		age, clockBack float64 // of the pod; by how much the clock was set back after its start
	}{
		{"the node had more CPUs before", 2, 10 * hour, 0},
		{"the clock was ahead when the container started", 8, 10*hour + 90, 10 * hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			state := ContainerState{Running: true, EarliestStart: at(-tc.age + tc.clockBack), PodCreatedAt: at(-tc.age)}
			s := newStoreWith(&state)
			for now := 0.0; now <= 30; now += 15 {
				sc := scrape(now, of("p/a", started(-tc.age+tc.clockBack, sample(now, 5*tc.age+now/10))))
				sc.Sent, sc.Capacity = at(now), tc.cpus*1_000_000_000
				s.Put("n1", sc)
			}
			expect(t, s, "p", 30, "at 30 window 15: a=100m")
		})
	}
}

// TestSamplesAfterAClockStep is rules 4 and 9 for a container that started at 0 s, by the API server, and
// whose node's clock is set while kube-vitals runs.
func TestSamplesAfterAClockStep(t *testing.T) {
	during := func(from, until, value float64) func(now float64) float64 {
		return func(now float64) float64 {
			if now < from || now >= until {
				return 0
			}
			return value
		}
	}
	const end = 300
	setBack := during(60, end+1, -100)
	for _, tc := range []struct {
		name  string
		ahead func(now float64) float64 // of the clock
		start func(now float64) float64 // in the samples, by that clock
		// From when on the pod is served, and a rate follows from each sample.
		served, fresh float64
	}{
		{"cAdvisor takes a start from a file that was touched before the clock has caught up",
			setBack, during(90, end+1, -10.5), 135, 135},
		{"the start moves with every sample",
			during(60, end+1, -600), func(now float64) float64 { return now + during(60, end+1, -600)(now) - 12 }, 30, 75},
		{"the start moves forwards after the clock was ahead for a while",
			during(60, 100, 69), during(130, end+1, 90), 120, 120},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, pace := range []float64{5, 15} {
				s := newStoreWith(&ContainerState{Running: true, PodCreatedAt: at(-1), EarliestStart: at(0)})
				for now := 0.0; now <= end; now += pace {
					ahead := tc.ahead(now)
					sc := scrape(now, of("p/a", started(tc.start(now), sample(now+ahead, now/10))))
					sc.Sent, sc.Date = at(now), at(now+ahead)
					s.Put("n1", sc)
					if now >= tc.served && s.Pod("n1", "n", "p", at(now)) == nil {
						t.Errorf("after %v s: the pod is not served", now)
					}
					if now >= tc.fresh {
						expect(t, s, "p", now, fmt.Sprintf("at %v window %v: a=100m", now+ahead, pace))
					}
				}
			}
		})
	}
}
