package engine

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
)

// cluster is a node with pods, its kubelet, an engine and an API server. Everything happens to them that
// happens to real ones. It remembers each sample with its true time and process: rates between two
// true samples of one process are the only ones that may be served.
type cluster struct {
	*testing.T
	*rand.Rand
	engine *engine
	source *Source
	view   view.View
	clock  usage.Clock
	start  usage.Time

	ahead    time.Duration // of the node's clock
	slots    []*slot       // the first one is the node
	pods     map[string]*inventory.Object
	tasks    []task
	node     int // number of the node
	lastID   int
	interval int // of scrapes, in seconds
	cached   bool
	keepsOld bool // the engine stores samples that are older than others
	scrapes
	partial    bool // the engine does not return all series
	gap        int  // seconds without scrapes by the engine
	down       int  // seconds without a response of the engine
	late       int  // how late refreshes are, in seconds
	future     int  // second of the last sample of the future
	stepped    int  // second of the last step
	disturbed  int  // second of the last event
	settled    int  // second since which the engine and the server have run without an interruption
	served     int  // rates
	recognized int  // refreshes in a row whose times were known to be those of scrapes
	replaced   int  // second when the node was replaced
	events     []string
}

// scrapes is how the engine's samples differ from those of one scraper with the times of the kubelet.
type scrapes struct {
	// replicas is the number of scrapers. Each misses scrapes. If they are labeled, their series differ in a label,
	// and their times by 4 s. Otherwise, a load balancer selects one of them for each refresh.
	replicas int
	labeled  bool
	byScrape bool // samples have the times of scrapes
}

func (s scrapes) isUsual() bool { return s == scrapes{replicas: 1} }

type task struct {
	second int
	run    func()
}

// slot is the name of a container, or the node.
type slot struct {
	pod, name              string
	live                   []*process // the kubelet reports any of them
	reading                truth
	next                   int        // second of the next reading
	stored, memory, starts [2][]point // by replica
	all                    []truth
	hadFuture              bool
	served                 int // second
}

// process is one run of a container.
type process struct {
	id            int // also its memory
	uid           inventory.UID
	startedAt     usage.NodeTime
	start         usage.Time // true
	counter, rate float64
}

// truth is a sample and its true time.
type truth struct {
	point
	when    usage.Time
	process *process
	replica int // that stores it so
}

const namespace = "ns"

// setOffset sets how far the clock of a new node is ahead.
func (w *cluster) setOffset() {
	clocks := []time.Duration{0, 0, 4 * time.Minute, 20 * time.Second, -20 * time.Second, -40 * time.Second}
	if w.ahead = clocks[w.IntN(len(clocks))]; w.byScrape { // else starts are by another clock than samples
		w.ahead = 0
	}
}

func newCluster(t *testing.T, seed uint64, scraped scrapes) *cluster {
	now := time.Now()
	w := &cluster{T: t, Rand: rand.New(rand.NewPCG(seed, 7)), clock: usage.NewClock(now), start: usage.At(now),
		engine: &engine{series: map[string][]point{}, byTime: true}, pods: map[string]*inventory.Object{}, scrapes: scraped}
	w.interval = []int{15, 15, 30, 20}[w.IntN(4)]
	w.cached, w.keepsOld = w.IntN(2) == 0, w.IntN(3) == 0
	w.setOffset()
	w.engine.duplicate = w.IntN(8) == 0
	if w.replicas > 1 {
		w.interval = 15
	}
	w.slots = []*slot{{}}
	for pod := range 2 + w.IntN(6) {
		for container := range 1 + w.IntN(2) {
			w.slots = append(w.slots, &slot{pod: fmt.Sprint("pod-", pod), name: fmt.Sprint("c", container)})
		}
	}
	w.startServer()
	w.startNode()
	return w
}

// startServer starts kube-vitals, possibly again.
func (w *cluster) startServer() {
	state := func(_, _, pod, container string) usage.ContainerState {
		o := w.pods[pod]
		if o == nil {
			return usage.ContainerState{}
		}
		c := o.Container(container)
		return usage.ContainerState{Accepted: o.StartedAt != 0 || o.Phase != inventory.PodPending, Running: c.Running,
			StartedAt: c.StartedAt, EarliestStart: o.EarliestStart(container), PodCreatedAt: o.CreatedAt}
	}
	w.view.Store = store.New(
		store.Config{MaxSampleAge: maxAge, MaxContainers: 100, RateWindow: 15 * time.Second, State: state})
	w.source = w.engine.newSource(w.T, Config{Sink: w.view.Store, Clock: w.clock, State: state})
	w.source.client.settings.Queries = map[kind]string{containerSwap: noQuery, nodeSwap: noQuery}
	w.settled = w.second()
	w.setNode()
}

func (w *cluster) setNode() {
	n := newNode("n1", "10.0.0.1")
	n.UID = types.UID(fmt.Sprint(w.node))
	n.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("16")}
	w.source.Set(n)
}

// startNode starts a node and all pods on it.
func (w *cluster) startNode() {
	w.node++
	w.setNode()
	w.slots[0].live = nil
	w.run(w.slots[0], inventory.UID{})
	done := map[string]bool{}
	for _, s := range w.slots[1:] {
		if !done[s.pod] {
			done[s.pod] = true
			w.replacePod(s.pod, 0)
		}
	}
}

func (w *cluster) now() usage.Time         { return usage.At(time.Now()) }
func (w *cluster) nodeNow() usage.NodeTime { return usage.NodeAt(time.Now()).Add(w.ahead) }

func (w *cluster) second() int { return int(w.now().Sub(w.start) / time.Second) }

func (w *cluster) after(seconds int, f func()) {
	w.tasks = append(w.tasks, task{w.second() + seconds, f})
}

// run starts a process of a slot.
func (w *cluster) run(s *slot, uid inventory.UID) *process {
	w.lastID++
	p := &process{id: w.lastID, uid: uid, startedAt: w.nodeNow(), start: w.now(), rate: w.Float64() * 2}
	if s.pod == "" {
		p.counter = w.Float64() * 1e5
		p.start = 0
	}
	s.live = append(s.live, p)
	return p
}

// update replaces the object of a pod, if it is still the pod with the UID.
func (w *cluster) update(pod string, uid inventory.UID, f func(o *inventory.Object)) {
	if o := w.pods[pod]; o != nil && o.UID == uid {
		next := *o
		next.Containers = slices.Clone(o.Containers)
		f(&next)
		slices.SortFunc(next.Containers, func(a, b inventory.ContainerState) int { return cmp.Compare(a.Name, b.Name) })
		w.pods[pod] = &next
	}
}

func wholeSecond(t usage.NodeTime) usage.NodeTime {
	return usage.NodeAt(t.Time().Truncate(time.Second))
}

// replacePod deletes a pod and creates another one of the name. The old one runs on for some seconds.
func (w *cluster) replacePod(pod string, runsOn int) {
	w.view.Store.RemovePod("n1", namespace, pod, w.clock.At(time.Now()))
	w.pods[pod] = nil
	for _, s := range w.slots {
		if s.pod != pod {
			continue
		}
		for _, old := range s.live {
			w.after(runsOn, func() {
				s.live = slices.DeleteFunc(s.live, func(p *process) bool { return p == old })
			})
		}
	}
	w.lastID++
	uid := inventory.UIDOf(newNode(fmt.Sprint(w.lastID), "").UID)
	w.after(w.IntN(3), func() {
		w.pods[pod] = &inventory.Object{Namespace: namespace, Name: pod, Node: "n1", UID: uid, Phase: inventory.PodPending,
			CreatedAt: usage.At(time.Now().Truncate(time.Second))}
		w.after(1+w.IntN(4), func() {
			at := wholeSecond(w.nodeNow())
			w.after(w.IntN(3), func() {
				w.update(pod, uid, func(o *inventory.Object) { o.StartedAt = at })
			})
			for _, s := range w.slots {
				if s.pod == pod {
					w.after(w.IntN(6), func() { w.startContainer(s, uid, false) })
				}
			}
		})
	})
}

func (w *cluster) startContainer(s *slot, uid inventory.UID, restarted bool) {
	if w.pods[s.pod] == nil || w.pods[s.pod].UID != uid {
		return
	}
	p := w.run(s, uid)
	w.after(w.IntN(6), func() {
		w.update(s.pod, uid, func(o *inventory.Object) {
			if o.StartedAt == 0 {
				o.StartedAt = wholeSecond(p.startedAt)
			}
			o.Phase = inventory.PodRunning
			o.Containers = slices.DeleteFunc(o.Containers, func(c inventory.ContainerState) bool { return c.Name == s.name })
			o.Containers = append(o.Containers, inventory.ContainerState{
				Name: s.name, Running: true, StartedAt: wholeSecond(p.startedAt), Restarted: restarted})
		})
	})
}

// tick advances the cluster by a second.
func (w *cluster) tick() {
	time.Sleep(time.Second)
	second := w.second()
	for i := 0; i < len(w.tasks); i++ {
		if w.tasks[i].second <= second {
			w.tasks[i].run()
			w.tasks = slices.Delete(w.tasks, i, i+1)
			i--
		}
	}
	w.gap, w.down = max(0, w.gap-1), max(0, w.down-1)
	for i, s := range w.slots {
		for _, p := range s.live {
			p.counter += p.rate
			if w.IntN(30) == 0 {
				p.rate = w.Float64() * 2
			}
		}
		if w.cached && second >= s.next || !w.cached && second%w.interval == 0 {
			s.next = second + 10 + w.IntN(6)
			s.reading = truth{}
			if len(s.live) > 0 {
				p := s.live[w.IntN(len(s.live))]
				at := w.nodeNow().Add(time.Duration(i) * 7 * time.Millisecond)
				s.reading = truth{point: point{At: at, Value: p.counter}, when: w.now(), process: p}
			}
		}
		if len(s.live) == 0 || s.reading.process != nil && !slices.Contains(s.live, s.reading.process) {
			s.reading = truth{}
		}
		for replica := range w.replicas {
			isMissed := w.replicas > 1 && w.IntN(20) == 0
			if second%w.interval == 7*replica && w.gap == 0 && s.reading.process != nil && !isMissed {
				w.ingest(s, replica)
			}
		}
	}
}

// shift returns how far the times that a replica stores are ahead.
func (w *cluster) shift(replica int) time.Duration {
	if w.labeled {
		return time.Duration(replica) * 4 * time.Second
	}
	return 0
}

// ingest stores the reading of a slot in the engine, and after it at times one of another process that the kubelet
// reports under the same labels: its start time is a duplicate, but its other values have a later time.
func (w *cluster) ingest(s *slot, replica int) {
	r := s.reading
	if r.replica = replica; w.byScrape {
		r.At, r.when = usage.NodeTime(w.now()), w.now()
	}
	r.At = r.At.Add(w.shift(replica))
	if r.At.AheadOf(w.now()) > 10*time.Minute {
		return
	}
	s.all = append(s.all, r)
	store := func(points *[]point, p point, keepsOld bool) {
		const keep = 80
		all := ingest(*points, p, keepsOld)
		*points = all[max(0, len(all)-keep):]
	}
	store(&s.stored[replica], r.point, w.keepsOld)
	store(&s.memory[replica], point{At: r.At, Value: float64(r.process.id)}, w.keepsOld)
	store(&s.starts[replica], point{At: usage.NodeTime(w.now()), Value: float64(r.process.startedAt) / 1e9}, false)
	if len(s.live) < 2 || w.byScrape || w.IntN(2) == 0 {
		return
	}
	p := s.live[w.IntN(len(s.live))]
	other := truth{point: point{At: w.nodeNow().Add(time.Second / 2), Value: p.counter}, when: w.now(), process: p}
	s.all = append(s.all, other)
	store(&s.stored[replica], other.point, w.keepsOld)
	store(&s.memory[replica], point{At: other.At, Value: float64(p.id)}, w.keepsOld)
}

func (w *cluster) event(format string, args ...any) {
	w.events = append(w.events, fmt.Sprintf("%d: ", w.second())+fmt.Sprintf(format, args...))
}

// happen makes something happen, rarely.
func (w *cluster) happen() {
	const kinds = "rrPFsSSgdRNpfl"
	kind := kinds[w.IntN(len(kinds))]
	s := w.slots[1+w.IntN(len(w.slots)-1)]
	// A pod that runs on while responses are missing, and a sample of the future that no refresh saw while
	// it was one, cannot be noticed.
	isForced := kind == 'F' && (w.down > 0 || w.gap > 0)
	isOutage := slices.Contains([]byte("gdp"), kind) && (len(w.tasks) > 0 || w.second()-w.future < 480)
	if isForced || isOutage || !w.isUsual() && strings.ContainsRune("FsSf", rune(kind)) {
		return
	}
	w.disturbed = w.second()
	switch kind {
	case 'r':
		o := w.pods[s.pod]
		if o == nil || len(s.live) != 1 || o.UID != s.live[0].uid {
			return
		}
		w.event("restart of %s/%s", s.pod, s.name)
		s.live = nil
		w.after(w.IntN(3), func() { w.startContainer(s, o.UID, true) })
	case 'P':
		w.event("replacement of %s", s.pod)
		w.replacePod(s.pod, 0)
	case 'F':
		runsOn := w.IntN(60)
		w.event("forced replacement of %s, runs on for %d s", s.pod, runsOn)
		w.replacePod(s.pod, runsOn)
	case 's', 'S':
		steps := []int{4, 5, 10, 25, 60, 120, 300, 400, 420, 440, 600}
		by := steps[w.IntN(len(steps))]
		if w.second()-w.stepped < 240 { // else a rate may span two of them
			return
		}
		if kind == 'S' {
			by = -by
		}
		if next := w.ahead + time.Duration(by)*time.Second; next < maxAhead && next > -maxAhead {
			w.event("step by %d s", by)
			w.ahead, w.stepped = next, w.second()
		}
	case 'g':
		w.gap = w.IntN(120)
		w.settled = w.second() + w.gap
		w.event("no scrapes for %d s", w.gap)
	case 'd':
		w.down = w.IntN(200)
		w.settled = w.second() + w.down
		w.event("engine down for %d s", w.down)
	case 'R':
		// A server that has just started does not know that samples in the engine are by another clock.
		if w.second()-max(w.replaced, w.stepped, w.future) < 480 {
			return
		}
		w.event("restart of the server")
		w.startServer()
	case 'N':
		if w.second()-w.replaced < 120 || w.second()-w.future < 480 {
			return
		}
		w.replaced, w.settled = w.second(), w.second()
		w.disturbed += 300 // the clock of the node before may have been ahead by as much
		w.event("node replaced")
		w.setOffset()
		w.startNode()
	case 'p':
		w.partial, w.settled = true, w.second()
		w.event("partial response")
	case 'f':
		ahead := time.Duration(110+w.IntN(175)) * time.Second
		if len(s.live) > 0 && w.ahead+ahead < maxAhead && w.second()-w.settled > 120 {
			w.event("future sample of %s/%s", s.pod, s.name)
			p, at := s.live[0], w.nodeNow().Add(ahead)
			w.future = w.second()
			s.hadFuture = true // queries for memory return the latest sample, whatever its time is
			s.reading = truth{point: point{At: at, Value: p.counter}, when: w.now(), process: p}
			w.ingest(s, 0)
		}
	case 'l':
		w.late, w.settled = w.IntN(15), w.second()
		w.event("refreshes come at another phase: %d", w.late)
	}
}

// refresh refreshes and checks what is served.
func (w *cluster) refresh() {
	w.engine.set(func() {
		w.engine.respond = nil
		if w.down > 0 {
			w.engine.respond = func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusServiceUnavailable) }
		}
		clear(w.engine.series)
		chosen := 0
		if w.replicas > 1 {
			chosen = w.IntN(w.replicas)
		}
		for _, s := range w.slots {
			if w.partial && w.IntN(2) == 0 {
				continue
			}
			for replica, stored := range s.stored {
				if len(stored) == 0 || !w.labeled && replica != chosen {
					continue
				}
				label := ""
				if w.labeled {
					label = fmt.Sprintf(`,replica="%d"`, replica)
				}
				kind, labels := "node", `{node="n1"`+label+`}`
				if s.pod != "" {
					kind, labels = "container", containerLabels(s.pod+"/"+s.name, label)
					w.engine.series["container_start_time_seconds"+labels] = s.starts[replica]
				}
				w.engine.series[kind+"_cpu_usage_seconds_total"+labels] = stored
				w.engine.series[kind+"_memory_working_set_bytes"+labels] = s.memory[replica]
			}
		}
		w.partial = false
	})
	w.source.refresh(context.Background())
	if w.recognized++; w.source.nodes["n1"].stamped <= 0 {
		w.recognized = 0
	} else if !w.byScrape {
		w.Fatal("took the times of the kubelet for those of scrapes")
	}
	w.check()
}

func (w *cluster) check() {
	now := w.clock.At(time.Now())
	for _, s := range w.slots {
		if s.pod == "" {
			if n := w.view.Store.Node("n1", now); n != nil {
				w.verify(s, &n.Amount, inventory.UID{})
			}
		} else if o := w.pods[s.pod]; o != nil && o.Phase == inventory.PodRunning {
			for _, p := range w.view.PodUsages([]*inventory.Object{o}, now) {
				for i := 0; p != nil && i < len(p.Containers); i++ {
					if c := &p.Containers[i]; c.Name == s.name {
						w.verify(s, &c.Amount, o.UID)
					}
				}
			}
		}
		if quiet := w.second() - max(w.disturbed, w.settled, s.served); !w.isUsual() && quiet > 150 {
			w.Fatalf("%s/%s has no metrics, %d s after the last event", s.pod, s.name, quiet)
		}
	}
}

// verify checks that a rate is that between two samples of one process. Across a step of the node's clock, it is
// wrong by the step.
func (w *cluster) verify(s *slot, a *usage.Amount, uid inventory.UID) {
	w.served++
	s.served = w.second()
	served, begin := float64(a.CPUNanocores)/1e9, a.At.Add(-a.Window)
	isAt := func(t, other usage.NodeTime, margin time.Duration) bool { return t.Sub(other).Abs() <= margin }
	step := w.start.Add(time.Duration(w.stepped) * time.Second)
	isServed := func(t *truth, value float64, since usage.Time) bool {
		used, window := t.Value-value, t.when.Sub(since).Seconds()
		if w.stepped != 0 && since <= step && step <= t.when {
			window = a.Window.Seconds()
		}
		return served >= used/(window+2.1)-1e-3 && served <= used/max(0.01, window-2.1)+1e-3
	}
	isTooShort := w.recognized > int(maxAge/interval) && a.Window < minStampedWindow // between times of scrapes
	problems := []string{"no sample at its end"}
	for i := range s.all {
		t := &s.all[i]
		if !isAt(t.At, a.At, time.Millisecond) {
			continue
		}
		switch age := w.now().Sub(t.when); {
		case t.process.uid != uid:
			problems = append(problems, "its end is of another pod")
			continue
		case age > maxAge+45*time.Second+max(0, t.At.AheadOf(t.when)-maxAhead):
			problems = append(problems, fmt.Sprint("age ", age))
			continue
		case a.Memory != uint64(t.process.id) && !s.hadFuture:
			problems = append(problems, fmt.Sprintf("memory of %d, want %d", a.Memory, t.process.id))
			continue
		}
		isBegin := func(f truth) bool {
			return f.process == t.process && (f.replica == t.replica || !w.labeled) && !isTooShort && f.when < t.when &&
				isAt(f.At, begin, time.Millisecond) && isServed(t, f.Value, f.when)
		}
		isSinceStart := t.process.start != 0 && isAt(t.process.startedAt, begin, 1100*time.Millisecond) &&
			isServed(t, 0, t.process.start.Add(-w.shift(t.replica)))
		if isSinceStart || slices.ContainsFunc(s.all, isBegin) {
			return
		}
		problems = append(problems, fmt.Sprintf("no rate up to %.3f of process %d", t.Value, t.process.id))
	}
	w.Fatalf("after %d s: %s/%s: %.3f cores in %v before %v (%v before now): %q\n"+
		"cached %v, interval %d, ahead %v, keeps old %v, slots %d\n%v",
		w.second(), s.pod, s.name, served, a.Window, a.At.AheadOf(w.start), -a.At.AheadOf(w.now()), problems,
		w.cached, w.interval, w.ahead, w.keepsOld, len(w.slots), w.events[max(0, len(w.events)-8):])
}

// seeds returns the number of random clusters: ENGINE_SEEDS, or else a few.
func seeds(few int) int {
	n, _ := strconv.Atoi(os.Getenv("ENGINE_SEEDS"))
	return cmp.Or(n, few)
}

// TestCluster runs random clusters for half an hour each.
func TestCluster(t *testing.T) { runClusters(t, seeds(8), scrapes{replicas: 1}) }

// TestScrapes runs random clusters with replicas of the scraper, and with times of scrapes.
func TestScrapes(t *testing.T) {
	for _, s := range []scrapes{
		{replicas: 1, byScrape: true}, {replicas: 2}, {replicas: 2, labeled: true}, {replicas: 2, byScrape: true},
		{replicas: 2, labeled: true, byScrape: true},
	} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) { runClusters(t, seeds(1), s) })
	}
}

func runClusters(t *testing.T, count int, s scrapes) {
	served, ran := 0, 0
	for seed := range count {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Hour) // else a clock that is behind shows a time before usage.OldestStart
				w := newCluster(t, uint64(seed), s)
				defer func() { served, ran = served+w.served, ran+1 }()
				phase := w.IntN(15)
				for i := range 1800 {
					w.tick()
					if i > 30 && w.IntN(100) == 0 {
						w.happen()
					}
					if w.late > 0 {
						w.late--
						phase = (phase + 1) % 15
					}
					if i%15 == phase {
						w.refresh()
					}
				}
			})
		})
	}
	if want := ran * 1800 / 15 * 3; served < want {
		t.Errorf("got %d rates, want at least %d", served, want)
	}
}
