package store

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestRandomOrdersOfTwoPods has worlds where pods of one name are deleted by force again and again, and run on
// beside the next ones. Scrapes fail, kube-vitals restarts, and the node's clock is set. A pod has its
// own usage or none, and has it soon when it is alone. docs/numbers.md has the exceptions.
func TestRandomOrdersOfTwoPods(t *testing.T) { // rule 9
	const seeds = 300
	served := 0
	for seed := range uint64(seeds) {
		w := newTwoPodsWorld(rand.New(rand.NewPCG(seed, 0)))
		if err := w.run(); err != nil {
			t.Fatalf("seed %d: after %.1f s: %v\n%s", seed, w.now, err, w.log.String())
		}
		served += w.served
	}
	if served < 50*seeds {
		t.Errorf("the pod was served %d times, want most of the time", served)
	}
}

// twoPodsWorld is a node, the API server and kube-vitals. Times are in seconds after t0, by our clock.
type twoPodsWorld struct {
	random     *rand.Rand
	store      *Store
	resolution float64
	pick       func(running int) int // which of the running containers of the name a response has

	now, ahead     float64
	lowest         float64 // time that the node's clock was set back to
	setBack        float64 // by how much it was, since the last scrape
	ambiguousUntil float64 // at most: it shows times for the second time
	failsUntil     float64 // scrapes
	lastEvent      float64 // that may cost metrics
	events         []twoPodsEvent
	running        []*runningPod
	shown          *runningPod // the pod in the API server; nil: there is none
	isKnown        bool        // whether kube-vitals has had a response
	isSetBack      bool
	isReplaced     bool // whether there was more than one pod
	isAmbiguous    bool // whether a start time that proves nothing was reported
	served         int
	log            strings.Builder
}

type twoPodsEvent struct {
	at   float64
	name string
	do   func()
}

// runningPod is a pod with one container.
type runningPod struct {
	cores              float64
	created, startedAt float64 // by our clock
	start              float64 // by the node's clock
	killed             float64
	isShown, isScraped bool // whether the API server shows its start, and a scrape was stored since
}

func newTwoPodsWorld(random *rand.Rand) *twoPodsWorld {
	w := &twoPodsWorld{random: random, resolution: oneOf(random, 2, 5, 15), lowest: math.Inf(1)}
	w.ahead = oneOf(random, 0, 0, 69, -100)
	scrapes := 0
	w.pick = []func(int) int{
		func(running int) int { scrapes++; return scrapes % running },
		func(int) int { return 0 },
		func(running int) int { return running - 1 },
		random.IntN,
	}[random.IntN(4)]
	w.restart()
	age := oneOf(random, 20, 60, 600, 5000, 100_000)
	w.shown = &runningPod{
		cores: 0.1, created: -age - 2, startedAt: -age, start: w.ahead - age, killed: math.Inf(1), isShown: true,
	}
	w.running = []*runningPod{w.shown}
	for range 1 + random.IntN(5) {
		at := 20 + random.Float64()*280
		switch random.IntN(5) {
		case 0, 1:
			w.add(at, "a pod is deleted by force", w.replace)
		case 2:
			by := oneOf(random, 5, 20, 69, 100, 600, 7200) * oneOf(random, 1, -1)
			w.add(at, fmt.Sprintf("the clock is set by %v s", by), func() { w.setClock(by) })
		case 3:
			w.add(at, "kube-vitals starts", w.restart)
		case 4:
			w.add(at, "scrapes fail", func() { w.failsUntil = w.now + 5 + 70*random.Float64() })
		}
	}
	return w
}

func oneOf(random *rand.Rand, values ...float64) float64 { return values[random.IntN(len(values))] }

func (w *twoPodsWorld) add(at float64, name string, do func()) {
	w.events = append(w.events, twoPodsEvent{at, name, do})
}

// restart starts kube-vitals. If that is after the clock was set back, it does not know that.
func (w *twoPodsWorld) restart() {
	if w.isSetBack {
		return
	}
	w.isKnown = false
	w.store = New(Config{MaxSampleAge: maxAge, RateWindow: rateWindow, MaxContainers: 100,
		State: func(_, _, _, _ string) usage.ContainerState {
			if w.shown == nil {
				return usage.ContainerState{}
			}
			state := usage.ContainerState{PodCreatedAt: cut(at(w.shown.created))}
			if w.shown.isShown {
				state.Running, state.EarliestStart = true, cut(nodeAt(w.shown.start))
			}
			return state
		}})
}

// setClock sets the clock, but not back while kube-vitals does not know it.
func (w *twoPodsWorld) setClock(by float64) {
	if by < 0 && !w.isKnown {
		return
	}
	w.ahead += by
	if by < 0 {
		w.isSetBack, w.lowest, w.setBack = true, min(w.lowest, w.now+w.ahead), w.setBack-by
	}
}

// replace deletes the pod, which may run on, and creates another one.
func (w *twoPodsWorld) replace() {
	old := w.shown
	if old == nil || !old.isShown || w.now-old.startedAt < 15 {
		return
	}
	old.killed = w.now + oneOf(w.random, 0, 10, 30, 120, math.Inf(1))
	w.shown, w.isReplaced = nil, true
	w.store.RemovePod("n1", "n", "p", at(w.now))
	next := &runningPod{cores: old.cores*2.5 + 0.1, created: w.now + 3*w.random.Float64(), killed: math.Inf(1)}
	if next.cores > 4 {
		next.cores = 0.15
	}
	start := next.created + 0.5 + oneOf(w.random, 1, 5, 40)*w.random.Float64()
	w.add(next.created, "the next pod is created", func() { w.shown = next })
	w.add(start, "it starts", func() {
		next.startedAt, next.start = w.now, w.now+w.ahead
		w.running = append(w.running, next)
	})
	w.add(start+oneOf(w.random, 0.5, 3, 20)*w.random.Float64(), "the API server shows it", func() { next.isShown = true })
}

func (w *twoPodsWorld) run() error {
	for scrape := w.random.Float64() * w.resolution; scrape < 500; {
		slices.SortStableFunc(w.events, func(a, b twoPodsEvent) int { return int(math.Copysign(1, a.at-b.at)) })
		if len(w.events) > 0 && w.events[0].at <= scrape {
			e := w.events[0]
			w.events = w.events[1:]
			w.now = max(w.now, e.at)
			w.lastEvent = w.now
			e.do()
			fmt.Fprintf(&w.log, "%.1f: %s\n", w.now, e.name)
			continue
		}
		w.now = scrape
		scrape += w.resolution * (0.97 + 0.06*w.random.Float64())
		w.running = slices.DeleteFunc(w.running, func(p *runningPod) bool { return p.killed <= w.now })
		if w.now < w.failsUntil || len(w.running) != 1 {
			w.lastEvent = w.now
		}
		if w.now >= w.failsUntil && len(w.running) > 0 {
			w.scrape()
		}
		if err := w.check(); err != nil {
			return err
		}
	}
	return nil
}

func (w *twoPodsWorld) scrape() {
	p := w.running[w.pick(len(w.running))]
	s := sample(w.now+w.ahead, p.cores*(w.now-p.startedAt))
	s.StartedAt = nodeAt(p.start)
	sc := scrape(w.now, of("p/a", s))
	sc.Node, sc.Capacity = sample(w.now+w.ahead, w.now), 8_000_000_000
	sc.Sent, sc.Date = at(w.now-0.1), cut(nodeAt(w.now+w.ahead))
	w.store.Put("n1", sc)
	w.isKnown = true
	if w.setBack > 0 { // the store may overestimate a step by the error of the offsets
		w.ambiguousUntil, w.setBack = min(max(w.ambiguousUntil, w.now)+w.setBack+5, w.now+maxAmbiguity.Seconds()), 0
	}
	if w.shown != nil {
		w.shown.isScraped = w.shown.isShown
	}
	mayHaveMoved := w.now < w.ambiguousUntil && p.start > w.now+w.ahead-maxAmbiguity.Seconds()-15
	if w.isSetBack && p != w.shown && (p.start > w.lowest-90 || mayHaveMoved) {
		w.isAmbiguous = true
	}
	fmt.Fprintf(&w.log, "%.1f: the kubelet reports %+v\n", w.now, *p)
}

func (w *twoPodsWorld) check() error {
	if w.shown == nil || !w.shown.isScraped || w.isAmbiguous {
		return nil
	}
	got := w.store.Pod("n1", "n", "p", at(w.now))
	since := w.lastEvent
	if w.isReplaced {
		since = max(since, w.ambiguousUntil)
	}
	switch {
	case got != nil:
		w.served++
		if cores := float64(got.Containers[0].CPUNanocores) / 1e9; math.Abs(cores/w.shown.cores-1) > 0.01 {
			return fmt.Errorf("the pod is served with %v cores, want %v", cores, w.shown.cores)
		}
	case w.now-since > 2*w.resolution+12:
		return errors.New("the pod is not served")
	}
	return nil
}
