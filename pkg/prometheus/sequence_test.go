package prometheus

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// handlerTransport calls a handler without a network, which synctest cannot wait for.
type handlerTransport http.HandlerFunc

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	h(recorder, r)
	return recorder.Result(), nil
}

// world is a container whose kubelet, scrapers and engine do all that happens to real ones. It keeps
// every sample that the kubelet ever had: the slow model that served rates are compared with.
type world struct {
	*fixture
	*rand.Rand
	ahead   time.Duration // of the node's clock
	start   usage.Time
	quiet   time.Duration // since the last event has ended
	gap     time.Duration // the rest of the time in which nothing is scraped
	down    time.Duration // the rest of the time in which the engine does not respond
	counter float64       // core-seconds
	rate    float64       // cores
	current reading       // what the kubelet responds with
	all     []reading
	stored  [2][]point // by replica
	// labeled is set if the series of the replicas differ in a label, and their times by 4 s. Otherwise,
	// a load balancer selects one of them for each query.
	labeled bool
	// byScrape is set if the engine stores the times of scrapes. The samples of other containers then
	// have the same times.
	byScrape   bool
	recognized int // refreshes in a row in which that was known; before, there may be too few samples
}

// reading is a sample of the kubelet.
type reading struct {
	point
	incarnation int // of the container
	replica     int // that stores it so
}

const maxCores = 4

func newWorld(t *testing.T, seed uint64) *world {
	e := &engine{series: map[string][]point{}, byTime: true}
	now := time.Now()
	f := &fixture{T: t, engine: e, clock: usage.NewClock(now)}
	f.store = store.New(store.Config{MaxSampleAge: maxAge, MaxContainers: 100})
	f.Source = e.newSource(t, Config{
		Sink: f.store, Clock: f.clock,
		Started: func(node, _, _, _ string) (Start, bool) { return Start{IsRunning: true}, node == "n1" },
	})
	f.Set(newNode("n1", "10.0.0.1"))
	r := rand.New(rand.NewPCG(seed, 1))
	clocks := []time.Duration{0, 0, 4 * time.Minute, 20 * time.Second, -20 * time.Second, -40 * time.Second}
	return &world{
		fixture: f, Rand: r, ahead: clocks[r.IntN(len(clocks))], labeled: r.IntN(2) == 0,
		byScrape: seed%3 == 2, counter: r.Float64() * 1e5, start: usage.At(now),
	}
}

// second advances the world by a second.
func (w *world) second(i int) {
	time.Sleep(time.Second)
	if w.quiet += time.Second; w.gap > 0 || w.down > 0 {
		w.quiet = 0
	}
	w.gap, w.down = max(0, w.gap-time.Second), max(0, w.down-time.Second)
	w.counter += w.rate
	if w.IntN(20) == 0 {
		w.rate = w.Float64() * maxCores
	}
	now := usage.At(time.Now()).Add(w.ahead)
	if i%10 == 3 { // cAdvisor samples in intervals of its own
		w.current.point = point{At: now, Value: w.counter}
		for replica := range w.stored {
			if !w.byScrape {
				w.all = append(w.all, reading{w.storedBy(replica), w.current.incarnation, replica})
			}
		}
	}
	for replica := range w.stored {
		if i%15 == 4+7*replica && w.gap == 0 && w.IntN(20) > 0 && w.current.At != 0 {
			p := w.storedBy(replica)
			if w.byScrape {
				p.At = now
				w.all = append(w.all, reading{p, w.current.incarnation, replica})
			}
			if last(w.stored[replica]).At < p.At { // an engine rejects others
				w.stored[replica] = append(w.stored[replica], p)
			}
		}
	}
	switch w.IntN(400) {
	case 0, 1: // the container restarts
		w.restart()
	case 2: // and again within one interval
		w.restart()
		w.counter = w.Float64() * 2
	case 3:
		w.gap = 2 * time.Minute
	case 4:
		w.down = time.Duration(w.IntN(240)) * time.Second
	case 5: // another node with the same name, with another clock
		n := newNode("n1", "10.0.0.1")
		n.UID += "x"
		if w.nodes["n1"].object.UID == n.UID {
			n.UID = "n1"
		}
		w.Set(n)
		w.restart()
	}
}

// storedBy returns the sample that a replica stores. One with labels of its own stores times of its
// own, too.
func (w *world) storedBy(replica int) point {
	p := w.current.point
	if w.labeled {
		p.At = p.At.Add(time.Duration(replica) * 4 * time.Second)
	}
	return p
}

func (w *world) restart() {
	w.counter, w.quiet = 0, 0
	w.current.incarnation++
	w.current.At = 0
}

// refreshAndCheck refreshes and compares what is served with the model.
func (w *world) refreshAndCheck() error {
	w.set(func() {
		w.respond = nil
		if w.down > 0 {
			w.respond = func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusServiceUnavailable) }
		}
		clear(w.series)
		chosen := w.IntN(2)
		for replica, points := range w.stored {
			labels := `{container="app",namespace="ns",node="n1",pod="web"}`
			if w.labeled {
				labels = fmt.Sprintf(`{container="app",namespace="ns",node="n1",pod="web",replica="%d"}`, replica)
			} else if replica != chosen {
				continue
			}
			w.series["container_cpu_usage_seconds_total"+labels] = points
			memory := make([]point, len(points))
			for i, p := range points {
				memory[i] = point{At: p.At, Value: 7}
			}
			w.series["container_memory_working_set_bytes"+labels] = memory
			for other := range 3 {
				if w.byScrape {
					others := strings.Replace(labels, "web", fmt.Sprint("other-", other), 1)
					w.series["container_cpu_usage_seconds_total"+others] = memory
				}
			}
		}
	})
	w.refresh(context.Background())
	if w.recognized++; w.nodes["n1"].stamped <= 0 {
		w.recognized = 0
	}
	p := w.store.Pod("n1", "ns", "web", w.clock.At(time.Now()))
	if p == nil {
		if w.quiet > 150*time.Second {
			return fmt.Errorf("no metrics, %v after the last event", w.quiet)
		}
		return nil
	}
	c := p.Containers[0]
	if w.recognized > int(maxAge/interval) && c.Window < minStampedWindow {
		return fmt.Errorf("the window between times of scrapes is %v", c.Window)
	}
	newest := max(last(w.stored[0]).At, last(w.stored[1]).At)
	if late := newest.Sub(c.At); w.quiet > 150*time.Second && late > 50*time.Second {
		return fmt.Errorf("the metrics are %v older than the newest sample of the engine", late)
	}
	return w.checkRate(c.At, c.Window, float64(c.CPUNanocores)/1e9)
}

func last(points []point) point {
	if len(points) == 0 {
		return point{}
	}
	return points[len(points)-1]
}

// checkRate returns an error if a rate is not that between two samples of one container. If the
// container was restarted in between, and its counter has passed its former value already, nothing
// shows that; the rate is then too low, but not too high.
func (w *world) checkRate(at usage.Time, window time.Duration, cores float64) error {
	var from, to []reading
	for _, r := range w.all {
		if absolute(r.At.Sub(at)) < time.Millisecond {
			to = append(to, r)
		}
		if absolute(r.At.Sub(at.Add(-window))) < time.Millisecond {
			from = append(from, r)
		}
	}
	for _, f := range from {
		for _, t := range to {
			// The times of scrapes are by the clock of the engine, also with several replicas.
			isComparable := f.replica == t.replica || w.byScrape && !w.labeled
			rate := (t.Value - f.Value) / t.At.Sub(f.At).Seconds()
			if isComparable && math.Abs(rate-cores) < 1e-3 && (rate <= maxCores || w.byScrape) {
				return nil
			}
		}
	}
	return fmt.Errorf("%.3f cores in the %v before %v are no rate between two of %v and %v", cores, window,
		at.Sub(w.start), from, to)
}

func absolute(d time.Duration) time.Duration { return max(d, -d) }

// TestSequences runs random worlds for an hour each.
func TestSequences(t *testing.T) {
	const worlds = 6
	served := 0
	for seed := range uint64(worlds) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed)
			for i := range 3600 {
				w.second(i)
				if i%15 != 0 {
					continue
				}
				if err := w.refreshAndCheck(); err != nil {
					t.Errorf("seed %d, after %d s, clock ahead by %v, labeled %v, by scrape %v: %v", seed, i, w.ahead,
						w.labeled, w.byScrape, err)
					return
				}
				if w.pod() != "" {
					served++
				}
			}
		})
	}
	if served < worlds*3600/15/2 {
		t.Errorf("metrics were served after %d refreshes only", served)
	}
}
