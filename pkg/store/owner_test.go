package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestForceDeletedPodRunsOn plays a force deletion: a pod p with 100 millicores was deleted by force and runs on.
// Another pod of that name runs from 20.3 s on, with 900 millicores. It has its own usage or none, as
// soon as the API server shows its start, whatever order the kubelet lists the two in. Other
// orders, steps of clocks and restarts are in TestRandomOrdersOfTwoPods.
func TestForceDeletedPodRunsOn(t *testing.T) { // rule 9
	for _, order := range []string{ // the old or the new one, a letter for each scrape
		"ooooooooooo", "nnnnnnnnnnn", "ononononono", "nononononon",
		"oonnoonnoon", "onnnnnnnnnn", "noooooooonn", "oooonnnnonn",
	} {
		for _, oldCounter := range []float64{0, 20, 5000} {
			for shownAfter := range 4 { // scrapes until the API server shows the start
				for _, isKnown := range []bool{false, true} { // whether kube-vitals ran before the pod was deleted
					name := fmt.Sprintf("%s/counter %v/shown after %d/%v", order, oldCounter, shownAfter, isKnown)
					t.Run(name, func(t *testing.T) { readTwoPods(t, order, oldCounter, shownAfter, isKnown) })
				}
			}
		}
	}
}

func readTwoPods(t *testing.T, order string, oldCounter float64, shownAfter int, isKnown bool) {
	state := usage.ContainerState{EarliestStart: nodeAt(-3600)}
	s := newStoreWith(&state)
	put := func(isNew bool, now float64) {
		c := of("p/a", sample(now, oldCounter+now*0.1))
		if isNew {
			c = of("p/a", started(20.3, sample(now, (now-20.3)*0.9)))
		}
		sc := scrape(now, c)
		sc.Sent, sc.Capacity = at(now), 8_000_000_000
		s.Put("n1", sc)
	}
	if isKnown {
		put(false, -10)
		put(false, 5)
		expect(t, s, "p", 5, "at 5 window 15: a=100m")
		s.RemovePod("n1", "n", "p", at(18))
	}
	state = usage.ContainerState{}
	own, last := 0, 0.0
	for i := range order {
		now, isNew := 35+15*float64(i), order[i] == 'n'
		if i == shownAfter {
			state = usage.ContainerState{Running: true, EarliestStart: nodeAt(20), PodCreatedAt: at(19)}
		}
		put(isNew, now)
		if i < shownAfter {
			continue // not served: its phase is not Running yet
		}
		if isNew {
			if now-last > maxAge.Seconds() {
				own = 0
			}
			own, last = own+1, now
		}
		switch p := s.Pod("n1", "n", "p", at(now)); {
		case p == nil && isNew && own >= 2:
			t.Errorf("after %v s: the new pod has no metrics, although it has %d samples", now, own)
		case p != nil && p.Containers[0].CPUNanocores != 900_000_000:
			t.Errorf("after %v s: got %s, want 900m", now, show(p))
		}
	}
}

// TestNextPodAfterAClockStep has a pod that follows another one of its name while the node's clock shows
// times for the second time. It has metrics when the clock has passed them.
func TestNextPodAfterAClockStep(t *testing.T) { // rule 9
	const end = 300
	for back, want := range map[float64]float64{2: 45, 40: 75, 100: 135, 200: 240} {
		var state usage.ContainerState
		s := newStoreWith(&state)
		first := end
		for now := 0.0; now < end; now += 15 {
			ahead, c := 0.0, of("p/a", sample(now, now/10))
			if now >= 15 {
				ahead = -back
			}
			if now == 30 {
				s.RemovePod("n1", "n", "p", at(20))
				state = usage.ContainerState{Running: true, PodCreatedAt: at(21), EarliestStart: nodeAt(22 + ahead)}
			}
			if now >= 30 {
				c = of("p/a", started(23+ahead, sample(now+ahead, (now-23)/5)))
			}
			sc := scrape(now, c)
			sc.Sent, sc.Date = at(now), nodeAt(now+ahead)
			s.Put("n1", sc)
			if p := s.Pod("n1", "n", "p", at(now)); p != nil && now >= 30 {
				first = min(first, int(now))
				expect(t, s, "p", now, fmt.Sprintf("at %v window 15: a=200m", now+ahead))
			}
		}
		if first != int(want) {
			t.Errorf("the clock was set back by %v s: served from %d s on, want %v s", back, first, want)
		}
	}
}

// TestSamplesAfterAClockStep has a container that started at 0 s, by the API server, and
// whose node's clock is set while kube-vitals runs.
func TestSamplesAfterAClockStep(t *testing.T) { // rules 4, 9
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
				s := newStoreWith(&usage.ContainerState{Running: true, PodCreatedAt: at(-1), EarliestStart: nodeAt(0)})
				for now := 0.0; now <= end; now += pace {
					ahead := tc.ahead(now)
					sc := scrape(now, of("p/a", started(tc.start(now), sample(now+ahead, now/10))))
					sc.Sent, sc.Date = at(now), nodeAt(now+ahead)
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

// TestPanicInAScrape checks that a panic while a scrape is stored, after a container of it was found to
// have ended, does not break the next scrapes of the node.
func TestPanicInAScrape(t *testing.T) {
	var start usage.NodeTime // of the pod p in the API server
	panics := false
	s := New(Config{MaxSampleAge: maxAge, MaxContainers: 100, State: func(_, _, pod, _ string) usage.ContainerState {
		if pod == "p" {
			return usage.ContainerState{EarliestStart: start}
		}
		if panics {
			panic("a bug")
		}
		return usage.ContainerState{Running: true}
	}})
	put := func(now float64) {
		s.Put("n1", scrape(now, of("p/a", started(-98, sample(now, now/10))), of("q/a", sample(now, now/10))))
	}
	put(0)
	start, panics = nodeAt(10), true
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

// TestCapacity checks that no rate is above the node's capacity, whatever it is computed from.
func TestCapacity(t *testing.T) { // rule 10
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
