// Package scrape decides when to scrape each node, and runs the scrapes.
//
// A new node is scraped at once, then once in each interval. The offsets of the nodes differ, so
// that the load is even. No node waits for another. A node whose scrape fails is retried a few
// times before its regular scrapes, then scraped once in each interval.
//
// A node whose metrics are read by name or by label selector is scraped more often, within a budget
// (active.go).
//
// After each scrape, the Sink reports what has no usage yet, or a rate over a short time: the node or
// some of its containers, for example because they are new. The Scraper then fetches the kubelet's
// summary, whose rates are served meanwhile, and scrapes the node early, at the moment when its
// kubelet is likely to have the next sample (early.go). The Fetcher decides how to fetch, and the
// Sink what to store.
package scrape

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Fetcher fetches the metrics of one node. Its errors do not name the node. reason.Of returns their reasons.
type Fetcher interface {
	// Fetch requests the node's samples, and calls receive with them unless that fails. The Fetcher owns the
	// scrape and reuses it, and the names in it, when receive returns.
	Fetch(ctx context.Context, node *corev1.Node, receive func(*usage.Scrape)) (usage.Timing, error)
	// FetchSummary requests the rates that the kubelet computes itself, as Fetch does.
	FetchSummary(ctx context.Context, node *corev1.Node, receive func(*usage.Scrape)) (usage.Timing, error)
	// FetchStorage requests the ephemeral storage that the node uses, as Fetch does. It may be called
	// during a Fetch for the same node.
	FetchStorage(ctx context.Context, node *corev1.Node, receive func(*usage.Scrape)) (usage.Timing, error)
	// Forget drops what is kept for a node. The contexts of its requests have ended.
	Forget(node string)
	// Address returns the host and port that the requests for a node go to. It is empty if the node
	// has no valid address.
	Address(node *corev1.Node) string
}

// Sink stores metrics. Calls for the same node never overlap.
type Sink interface {
	// Put stores a successful scrape. It must not retain s.
	Put(node string, s *usage.Scrape) usage.Report
	// PutSummary stores the kubelet-reported rates of a summary right after a scrape, and returns
	// what is missing then. It must not retain s.
	PutSummary(node string, s *usage.Scrape) []usage.Missing
	// Forget drops a node, and what the StorageSink stored of it.
	Forget(node string)
}

// Observer is notified of events. Calls for different nodes may overlap.
type Observer interface {
	Scraped(Result)
	Summarized(err error) // a summary was fetched; err is not nil if that failed
}

// Result is the outcome of one scrape.
type Result struct {
	Node string
	// Late is the time spent waiting for this process: from the due time to the start, and for
	// permits to connect and to read (usage.Timing.Queued).
	Late time.Duration
	usage.Timing
	Kind    Kind
	Skipped [usage.NumSkipReasons]int // lines that were skipped, by reason
	Err     error                     // nil: success

	Containers int    // in the response
	Capacity   uint64 // of the node in its status, in nanocores; 0: not known
}

// Kind is why a node was scraped at that time.
type Kind uint8

// The kinds of scrapes.
const (
	Regular  Kind = iota // once in each interval, or a retry
	Early                // for missing metrics
	OfActive             // of an active node, once in its resolution
)

// Config configures a Scraper. All fields but Active and Storage are required.
type Config struct {
	Fetcher  Fetcher
	Sink     Sink
	Observer Observer
	Interval time.Duration // between two scrapes of a node
	// MinWindow is the shortest window of a first rate, a quarter of the rate window: two samples closer to each
	// other give none.
	MinWindow time.Duration
	Active    Active
	Storage   Storage
}

const (
	// fastRetries is the number of consecutive failures after which a node is no longer retried before its
	// next regular scrape: a few times in each of the first two intervals. Metrics then expire only
	// after 11 failures in a row, which is rare even if 3 of 10 scrapes fail.
	fastRetries = 8
	// slots is the number of moments in an interval when regular scrapes start. If nodes share
	// a moment, the processor wakes up once for all of them, with warm caches: that halves the cost
	// of a scrape.
	slots = 60
	// stuckAfter is how long a scrape may be due until it is reported as stuck.
	stuckAfter = time.Minute
)

// Scraper scrapes a set of nodes.
type Scraper struct {
	Config
	started        time.Time // when the first interval began; has a monotonic reading
	seed           maphash.Seed
	nodeLines      *rate.Limiter // see maxNodeLines
	logSummaryOnce sync.Once
	storing        atomic.Bool // see storageReady

	running sync.WaitGroup // of scrapes

	mu      sync.Mutex
	ctx     context.Context    //nolint:containedctx // of Run; nil while it does not run
	targets map[string]*target // by node name
	active  int                // number of targets that are active
}

// New returns a Scraper without nodes.
func New(config Config) *Scraper {
	return &Scraper{
		Config:    config,
		started:   time.Now(),
		seed:      maphash.MakeSeed(),
		nodeLines: rate.NewLimiter(rate.Every(config.Interval), maxNodeLines),
		targets:   map[string]*target{},
	}
}

// Set adds or updates a node, which must not be modified afterwards. Calls to Set and Delete for
// the same node must not overlap.
func (s *Scraper) Set(node *corev1.Node) {
	s.mu.Lock()
	known := s.targets[node.Name]
	s.mu.Unlock()
	if known != nil && known.node.Load().UID == node.UID {
		known.node.Store(node)
		return
	}
	s.Delete(node.Name) // another node with the same name

	now := time.Since(s.started)
	t := &target{
		since: now, due: now, lastDue: -s.Interval, offset: s.offset(node.Name),
		early: rate.NewLimiter(rate.Every(s.Interval), maxEarly), log: newLog(),
		storage: storageState{log: newLog()},
	}
	t.node.Store(node)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets[node.Name] = t
	s.schedule(t)
}

// Delete removes a node. When it returns, everything kept for the node is dropped, and no scrape of
// it will be stored.
func (s *Scraper) Delete(name string) {
	s.mu.Lock()
	t := s.targets[name]
	if t == nil {
		s.mu.Unlock()
		return
	}
	delete(s.targets, name)
	if t.timer != nil {
		t.timer.Stop()
		t.cancel()
	}
	s.deactivate(t)
	s.mu.Unlock()

	t.mu.Lock()
	defer t.mu.Unlock()
	t.deleted = true
	s.Sink.Forget(name)
	s.Fetcher.Forget(name)
}

// Alive returns an error if a scrape does not start although it is due.
func (s *Scraper) Alive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, t := range s.targets {
		if late := time.Since(s.started) - t.due; t.waiting && late > stuckAfter {
			return fmt.Errorf("the scrape of node %q has been due for %v", name, late.Round(time.Second))
		}
	}
	return nil
}

// WarmedUp reports whether every node has been scraped, and has the first metrics that its kubelet
// can provide in a short time: one whose kubelet is slow or fails need not have any.
func (s *Scraper) WarmedUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.targets {
		if !t.warm {
			return false
		}
	}
	return true
}

// Run scrapes until ctx is done, and returns after the last scrape.
func (s *Scraper) Run(ctx context.Context) {
	s.mu.Lock()
	s.ctx = ctx
	for _, t := range s.targets {
		s.schedule(t)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.ctx = nil
	for _, t := range s.targets {
		if t.timer != nil {
			t.timer.Stop()
		}
	}
	s.mu.Unlock()
	s.running.Wait()
}

// scrape scrapes one node, stores the result, and determines when the target is due next.
func (s *Scraper) scrape(ctx context.Context, t *target) {
	name, start := t.node.Load().Name, time.Since(s.started)
	result := Result{Node: name, Kind: t.kind}
	var report usage.Report
	var arrived usage.Time
	timing, err := s.fetchAndPut(ctx, t, s.Fetcher.Fetch, func(r *usage.Scrape) {
		report, arrived = s.Sink.Put(name, r), r.At
		result.Skipped, result.Containers, result.Capacity = r.Skipped, len(r.Containers), r.Capacity
	})
	if ctx.Err() != nil {
		return
	}
	result.Err, result.Late, result.Timing = err, start-t.due+timing.Queued, timing
	var now health.Attempts
	exists := t.unlessDeleted(func() {
		if err == nil {
			s.logClock(klog.FromContext(ctx), name, &report, t.health.ClockKnown)
			s.logCapacity(klog.FromContext(ctx), &result, report.Exceeded, t.health.Exceeded)
		}
		add(&t.health, &result, &report)
		now = t.health.Attempts
		s.Observer.Scraped(result)
	})
	if !exists {
		return
	}
	logChange(klog.FromContext(ctx), &t.log, name, &now)
	if err != nil {
		t.summaryFetched = false // the rates of an earlier summary do not cover the time from now on
	}
	var p plan
	took := timing.Took
	if err == nil {
		p = newPlan(report.Missing, arrived, s.MinWindow)
		p.missesKubeletRate = p.missesKubeletRate && !timing.Slow // a late summary does not repeat the samples
		if p.missesKubeletRate && !t.summaryFetched {
			t.summaryFetched = true
			var more time.Duration
			p, more = s.fetchSummary(ctx, t, p)
			took += more
		} else {
			t.summaryFetched = p.missesKubeletRate
		}
	}
	s.reschedule(t, took, now.Failures, p)
	if err == nil && !timing.Slow { // a slow node gets one request at a time: CPU and memory come first
		s.fetchStorage(ctx, t, result.Kind)
	}
}

// fetchSummary fetches and stores the kubelet-reported rates of a node. It returns the plan for
// what is still missing then, and how long the request took; if there is no summary, p and 0.
func (s *Scraper) fetchSummary(ctx context.Context, t *target, p plan) (plan, time.Duration) {
	name, start := t.node.Load().Name, time.Now()
	timing, err := s.fetchAndPut(ctx, t, s.Fetcher.FetchSummary, func(r *usage.Scrape) {
		p = newPlan(s.Sink.PutSummary(name, r), r.At, s.MinWindow)
	})
	if ctx.Err() != nil {
		return p, 0
	}
	t.unlessDeleted(func() { s.Observer.Summarized(err) })
	if err != nil {
		timing.Took = 0 // the next scrape does not wait for it once more
		if p.wait > 0 { // since the samples arrived, before the summary was requested
			p.wait = max(1, p.wait-time.Since(start))
		}
		s.logSummaryOnce.Do(func() {
			klog.FromContext(ctx).Info("The kubelet's summary is not available; metrics start with the second sample "+
				"(logged once, for the first such node)", "node", name, "err", reason.Of(err).Describe().Explain(err))
		})
	}
	return p, timing.Took
}

// fetchAndPut calls a method of the Fetcher. It sets the node's capacity in the response and passes it to put,
// unless the target was deleted. If the response makes them panic, which is a bug, only that node is
// affected.
func (s *Scraper) fetchAndPut(
	ctx context.Context, t *target,
	method func(context.Context, *corev1.Node, func(*usage.Scrape)) (usage.Timing, error), put func(*usage.Scrape),
) (timing usage.Timing, err error) {
	node := t.node.Load()
	defer reason.Recover(&err, "the kubelet's response")
	return method(ctx, node, func(r *usage.Scrape) {
		t.unlessDeleted(func() {
			r.Capacity = health.CapacityOf(node)
			put(r)
		})
	})
}
