// Package scrape decides when: it has every node fetched on a clock of its own and hands each
// answer on the moment it is there. No node waits for another one.
//
// A node that is new is scraped at once; then once in each interval, at an offset of its own, so
// that the load is even. A node that fails is asked again within the interval a few times, then
// once in each. A node whose figures lack something (it is new, or has a new container) is asked
// for its kubelet's own rates, which serve meanwhile, and is scraped early, at the moment when its
// kubelet is likely to have what is missing. How to fetch is the Fetcher's affair, what to do with
// the answer the Sink's.
package scrape

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Fetcher asks one kubelet what it knows.
type Fetcher interface {
	// Fetch fills dst, which it may reuse the memory of, or says in a sentence that names the node
	// why it cannot.
	Fetch(ctx context.Context, node *corev1.Node, dst *usage.Scrape) error
	// FetchSummary fills dst, as Fetch does, with what the kubelet itself has reckoned.
	FetchSummary(ctx context.Context, node *corev1.Node, dst *usage.Scrape) error
	// Forget drops what is kept for a node: it is gone.
	Forget(node string)
}

// Sink takes in what the kubelets said. Calls for the same node come one at a time.
type Sink interface {
	// Put stores a successful scrape, and returns what it found out from it. It must not retain s.
	Put(node string, s *usage.Scrape) usage.Report
	// PutSummary stores the kubelet-reported rates of a summary right after a scrape. It must not
	// retain s.
	PutSummary(node string, s *usage.Scrape) usage.Report
	// Forget drops a node: it is gone.
	Forget(node string)
}

// Observer is told what happens. Calls for different nodes come at the same time.
type Observer interface {
	Scraped(Result)
	Summarized(err error) // a summary was asked for
	Gone(node string)
}

// Result is the outcome of one scrape.
type Result struct {
	Node    string
	Late    time.Duration         // how long it waited for this server: from the moment when it was due to its start, and for its turn to connect and to read
	Took    time.Duration         // from its start to the last byte decoded, or to the error; without waits for its turn
	Early   bool                  // whether it came before its regular time, for figures that were missing
	Skipped [usage.NumReasons]int // lines left out, by reason
	Err     error                 // nil: success

	ClockOffset time.Duration // how far the node's clock is ahead of ours; below 0: behind
	ClockKnown  bool          // whether the offset is known
}

// Config says how to scrape. All fields are needed.
type Config struct {
	Fetcher  Fetcher
	Sink     Sink
	Observer Observer
	Reason   func(error) string // the class of an error of the Fetcher, for the log
	Interval time.Duration      // between two scrapes of a node
}

const (
	// fastRetries is how often a failing node is asked again before its regular time, until it is
	// asked once in each interval. That is a few times in each of the first two: where 3 of 10
	// scrapes fail, it takes 11 failures in a row for figures to become too old to be served.
	fastRetries = 8
	// slots is the number of moments in an interval at which regular scrapes begin. Where nodes
	// share one, the processor wakes up once for all of them, with its caches warm: that halves
	// what a scrape costs.
	slots = 60
	// maxSleep is the time after which the loop turns even if nothing is due, so that its standing
	// still can be told from its being idle.
	maxSleep = 5 * time.Second
	// stuckAfter is how long the loop may stand still until it is taken for dead.
	stuckAfter = time.Minute
)

// Scraper scrapes the nodes that it is told of.
type Scraper struct {
	Config
	started time.Time // every node's clock counts from here; monotonic, so that setting the time does no harm
	seed    maphash.Seed
	scrapes sync.Pool     // of *usage.Scrape
	wake    chan struct{} // has an element when the queue got a new first one
	clocks  *clockLog
	refused sync.Once    // done when it was said that there are no summaries
	turned  atomic.Int64 // when the loop turned last, as time since started

	unsettled atomic.Int64 // how many nodes may still get their first figures

	mu      sync.Mutex
	targets map[string]*target // by the node's name
	queue   queue              // those that are not being scraped
}

// New gives a Scraper that knows no node yet.
func New(config Config) *Scraper {
	return &Scraper{
		Config:  config,
		started: time.Now(),
		seed:    maphash.MakeSeed(),
		scrapes: sync.Pool{New: func() any { return new(usage.Scrape) }},
		wake:    make(chan struct{}, 1),
		clocks:  newClockLog(config.Interval),
		targets: map[string]*target{},
	}
}

// Set tells of a node that is new or has changed. The node must not be changed afterwards. Calls to
// Set and Delete for the same node must not overlap.
func (s *Scraper) Set(node *corev1.Node) {
	s.mu.Lock()
	known := s.targets[node.Name]
	if known != nil && known.node.Load().UID == node.UID {
		known.node.Store(node)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	if known != nil { // another node of the same name
		s.Delete(node.Name)
	}

	t := &target{due: time.Now(), offset: s.offset(node.Name), early: newBudget(s.Interval)}
	t.node.Store(node)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets[node.Name] = t
	s.unsettled.Add(1)
	s.enqueue(t)
}

// Delete tells that a node is gone. When it returns, nothing of the node is kept, and nothing more
// comes of it.
func (s *Scraper) Delete(name string) {
	s.mu.Lock()
	t := s.targets[name]
	if t == nil {
		s.mu.Unlock()
		return
	}
	delete(s.targets, name)
	s.queue.remove(t)
	s.mu.Unlock()

	s.settle(t)
	t.leave(func() {
		s.Sink.Forget(name)
		s.Fetcher.Forget(name)
		s.Observer.Gone(name)
		s.clocks.forget(name)
	})
}

// count returns the number of nodes.
func (s *Scraper) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.targets)
}

// Alive gives an error if the loop stands still.
func (s *Scraper) Alive() error {
	if still := time.Since(s.started) - time.Duration(s.turned.Load()); still > stuckAfter {
		return fmt.Errorf("the scrape loop has stood still for %v", still.Round(time.Second))
	}
	return nil
}

// Run scrapes until the context ends, and returns when the last scrape has.
func (s *Scraper) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		s.turned.Store(int64(now.Sub(s.started)))
		t, sleep := s.next(now)
		if t == nil {
			timer.Reset(sleep)
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
			case <-timer.C:
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		running.Go(func() { s.scrape(ctx, t) })
	}
}

// next takes the target that is due out of the queue, or says how long there is none.
func (s *Scraper) next(now time.Time) (*target, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return nil, maxSleep
	}
	if sleep := s.queue[0].due.Sub(now); sleep > 0 {
		return nil, min(sleep, maxSleep)
	}
	return s.queue.pop(), 0
}

// scrape fetches one node once, hands the answer on, and puts the target back into the queue.
func (s *Scraper) scrape(ctx context.Context, t *target) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !t.begin(cancel) {
		return
	}
	answer := s.scrapes.Get().(*usage.Scrape)
	defer s.scrapes.Put(answer)

	node, start := t.node.Load(), time.Now()
	result := Result{Node: node.Name, Early: t.hurried}
	answer.Queued = 0
	result.Err = s.fetch(func() error { return s.Fetcher.Fetch(ctx, node, answer) })
	result.Late = start.Sub(t.due) + answer.Queued
	result.Took = time.Since(start) - answer.Queued
	if result.Err == nil {
		result.Skipped = answer.Skipped
		answer.Capacity = capacity(node)
	}
	if ctx.Err() != nil { // the program stops, or the node is gone
		s.Fetcher.Forget(node.Name) // the fetch may have begun anew what Delete had it drop
		return
	}
	var report usage.Report
	stays := t.whileThere(func() {
		if result.Err == nil {
			report = s.Sink.Put(node.Name, answer)
			result.ClockOffset, result.ClockKnown = report.ClockOffset, report.ClockKnown
			s.clocks.observe(klog.FromContext(ctx), node.Name, report, s.count())
		}
		s.Observer.Scraped(result)
	})
	if !stays {
		return
	}
	s.log(ctx, t, result)
	missing := report.Missing
	if result.Err != nil || report.ClockJumped {
		t.borrowed = false // the rates that the kubelet reported then are not of the time from now on
	}
	if result.Err == nil {
		missing = s.borrow(ctx, t, node, answer, missing)
	}
	s.again(t, result.Err == nil, missing)
}

// capacity returns the CPU capacity of a node in nanocores, or 0 if its status does not report it.
func capacity(node *corev1.Node) uint64 {
	return uint64(max(0, node.Status.Capacity.Cpu().ScaledValue(resource.Nano)))
}

// borrow asks a kubelet for its own rates, once as long as some are missing, and gives what is then
// still lacking.
func (s *Scraper) borrow(ctx context.Context, t *target, node *corev1.Node, answer *usage.Scrape, lack usage.Lack) usage.Lack {
	if !lack.Rates || t.borrowed {
		t.borrowed = lack.Rates
		return lack
	}
	t.borrowed = true
	err := s.fetch(func() error { return s.Fetcher.FetchSummary(ctx, node, answer) })
	if ctx.Err() != nil {
		s.Fetcher.Forget(node.Name)
		return lack
	}
	t.whileThere(func() {
		if err == nil {
			lack = s.Sink.PutSummary(node.Name, answer).Missing
		}
		s.Observer.Summarized(err)
	})
	if err != nil {
		s.refused.Do(func() {
			klog.FromContext(ctx).Info("A kubelet does not tell its own rates; figures begin with the second sample instead. "+
				"This is said once, for the first such node", "node", node.Name, "err", err)
		})
	}
	return lack
}

// fetch calls f, which asks a kubelet. A panic in there is a mistake of ours that a kubelet has
// found; it must not cost more than that node.
func (s *Scraper) fetch(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the kubelet's answer made kube-vitals panic, which is a bug to be reported: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// log says when a node begins to fail, when it fails for another reason, and when it is back, not
// what each scrape did.
func (s *Scraper) log(ctx context.Context, t *target, r Result) {
	logger := klog.FromContext(ctx)
	if r.Err == nil {
		if t.failures > 0 {
			logger.Info("Scraping works again", "node", r.Node, "failures", t.failures)
		}
		return
	}
	if reason := s.Reason(r.Err); t.failures == 0 || reason != t.reason {
		t.reason = reason
		logger.Error(r.Err, "Scraping fails; the last figures are served until they are too old", "node", r.Node)
	}
}

// again decides when the target is due next and puts it back into the queue.
func (s *Scraper) again(t *target, success bool, lack usage.Lack) {
	now := time.Now()
	t.due, t.hurried = s.regular(t, now), false
	if success {
		t.failures = 0
		if early := now.Add(lack.Wait); lack.Wait > 0 && early.Before(t.due) && t.early.take(now) {
			t.due, t.hurried = early, true
		}
	} else {
		t.failures++
		if retry := now.Add(retryDelay(s.Interval, t.failures)); t.failures <= fastRetries && retry.Before(t.due) {
			t.due = retry
		}
	}
	if !success || !lack.Rates || lack.Wait == 0 {
		s.settle(t)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.targets[t.node.Load().Name] == t {
		s.enqueue(t)
	}
}

// settle notes that a node has its first figures, or will not have them soon.
func (s *Scraper) settle(t *target) {
	if !t.settled.Swap(true) {
		s.unsettled.Add(-1)
	}
}

// Settled says whether every node that is known has been asked, and has those figures that its
// kubelet could give.
func (s *Scraper) Settled() bool { return s.unsettled.Load() == 0 }

// regular gives the next moment after now at which the target's own clock strikes.
func (s *Scraper) regular(t *target, now time.Time) time.Time {
	since := now.Sub(s.started)
	due := since.Truncate(s.Interval) + t.offset
	if due <= since {
		due += s.Interval
	}
	return s.started.Add(due)
}

// retryDelay is an eighth of the interval after the first failure and a quarter after each further
// one, give or take a quarter of that.
func retryDelay(interval time.Duration, failures int) time.Duration {
	delay := interval / 4
	if failures == 1 {
		delay = interval / 8
	}
	return delay*3/4 + rand.N(delay/2) //nolint:gosec // spreads retries, which needs no secrecy
}

// offset is the node's place in the interval. It differs from process to process, so that replicas
// do not ask a kubelet at the same moment.
func (s *Scraper) offset(node string) time.Duration {
	return time.Duration(maphash.String(s.seed, node)%slots) * s.Interval / slots
}

// enqueue puts a target into the queue. s.mu is held.
func (s *Scraper) enqueue(t *target) {
	s.queue.push(t)
	if s.queue[0] == t {
		select {
		case s.wake <- struct{}{}:
		default: // the loop is awake already
		}
	}
}
