package scrape

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/kube-vitals/kube-vitals/internal/leaktest"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	interval  = 15 * time.Second
	slowAfter = 10 * time.Second
)

// cluster is a Fetcher, a Sink and an Observer that records all calls.
type cluster struct {
	start time.Time
	stop  func() // stops the Scraper and waits until it has
	lines func() []string

	mu                    sync.Mutex
	fetch                 fetchFunc
	queued                time.Duration                        // reported by Fetch
	clocks                map[string]usage.Report              // reported by Put, by node
	missing, stillMissing func(now usage.Time) []usage.Missing // reported by Put and PutSummary
	summaryErr            error
	summaryTakes          time.Duration
	scrapes               map[string][]time.Duration // when each node was scraped, since the start
	put                   map[string]int
	capacity              uint64 // of the node that was put last
	results               []Result
	fetchedSummaries      int
	putSummaries          int
	summarized            []error
	fetchStorage          fetchFunc
	storage               []time.Duration // when storage was requested, since the start
	storagePut            []string
	storageReasons        []reason.Reason
	forgotten             []string // "sink n1", …
}

type fetchFunc func(ctx context.Context, node string) error // nil: success

func (c *cluster) Fetch(ctx context.Context, node *corev1.Node, put func(*usage.Scrape)) (usage.Timing, error) {
	c.mu.Lock()
	c.scrapes[node.Name] = append(c.scrapes[node.Name], time.Since(c.start))
	fetch := c.fetch
	timing := usage.Timing{Queued: c.queued}
	c.mu.Unlock()
	start := time.Now()
	if fetch != nil {
		err := fetch(ctx, node.Name)
		timing.Took = time.Since(start) - timing.Queued
		timing.Slow = timing.Took >= slowAfter
		if err != nil {
			return timing, withReason(err)
		}
	}
	put(&usage.Scrape{At: usage.At(start)})
	return timing, nil
}

func (c *cluster) FetchSummary(_ context.Context, _ *corev1.Node, put func(*usage.Scrape)) (usage.Timing, error) {
	c.mu.Lock()
	c.fetchedSummaries++
	err, takes := c.summaryErr, c.summaryTakes
	c.mu.Unlock()
	time.Sleep(takes)
	if err == nil {
		put(&usage.Scrape{At: usage.At(time.Now())})
	}
	return usage.Timing{Took: takes}, err
}

func (c *cluster) FetchStorage(ctx context.Context, node *corev1.Node, put func(*usage.Scrape)) (usage.Timing, error) {
	c.mu.Lock()
	c.storage = append(c.storage, time.Since(c.start))
	fetch := c.fetchStorage
	c.mu.Unlock()
	start := time.Now()
	if fetch != nil {
		if err := fetch(ctx, node.Name); err != nil {
			return usage.Timing{Took: time.Since(start)}, withReason(err)
		}
	}
	put(&usage.Scrape{})
	return usage.Timing{Took: time.Since(start)}, nil
}

func (c *cluster) Put(node string, s *usage.Scrape) usage.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put[node]++
	c.capacity = s.Capacity
	report := c.clocks[node]
	if c.missing != nil {
		report.Missing = c.missing(s.At)
	}
	return report
}

func (c *cluster) PutSummary(_ string, s *usage.Scrape) []usage.Missing {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putSummaries++
	c.capacity = s.Capacity
	if c.stillMissing == nil {
		return nil
	}
	return c.stillMissing(s.At)
}

func (c *cluster) Scraped(r Result)     { c.set(func() { c.results = append(c.results, r) }) }
func (c *cluster) Summarized(err error) { c.set(func() { c.summarized = append(c.summarized, err) }) }
func (c *cluster) forget(who string)    { c.set(func() { c.forgotten = append(c.forgotten, who) }) }

// set changes the cluster while scrapes may run.
func (c *cluster) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// sink and fetcher have different methods Forget.
type sink struct{ *cluster }

func (s sink) Forget(node string) { s.forget("sink " + node) }

type fetcher struct{ *cluster }

func (f fetcher) Forget(node string) { f.forget("fetcher " + node) }

func (f fetcher) Address(node *corev1.Node) string { return node.Name + ":10250" }

// What Put may report as missing.
var (
	// soon brings an early scrape after 1.2 s, without a summary.
	soon = func(now usage.Time) []usage.Missing { return []usage.Missing{{Since: now, SampledAt: now}} }
	// rates brings a summary, and an early scrape after 2 s.
	rates = func(now usage.Time) []usage.Missing {
		return []usage.Missing{{Since: now, SampledAt: now.Add(-14 * time.Second), KubeletRate: true}}
	}
)

// withReason returns an error with its text as reason, unless it has one.
func withReason(err error) error {
	if _, ok := errors.AsType[*reason.Error](err); ok {
		return err
	}
	return &reason.Error{Reason: reason.Reason(err.Error()), Err: err}
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
}

// run starts a Scraper with a Config of active nodes and storage in a bubble of fake time, calls f, and
// stops the Scraper.
func run(t *testing.T, config Config, fetch fetchFunc, f func(*testing.T, *cluster, *Scraper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{
			start: time.Now(), fetch: fetch,
			scrapes: map[string][]time.Duration{}, put: map[string]int{}, clocks: map[string]usage.Report{},
		}
		config.Fetcher, config.Sink, config.Observer = fetcher{c}, sink{c}, c
		config.Interval, config.MinWindow = interval, time.Second
		config.Storage.Sink = storageSink{c}
		config.Storage.Observe = func(_ time.Duration, r reason.Reason) {
			c.set(func() { c.storageReasons = append(c.storageReasons, r) })
		}
		s := New(config)
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		c.lines = func() []string {
			log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
			return slices.Collect(strings.Lines(log))
		}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		c.stop = func() { cancel(); <-done }
		f(t, c, s)
		c.stop()
	})
}

// pass lets fake time pass, and waits until everything due has happened.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func fails(context.Context, string) error { return errors.New(`node "n1": no`) }

func TestNodesAreScrapedAtTheirOffsets(t *testing.T) {
	run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		setNodes(s, 20)
		pass(10 * interval)
		offsets := map[time.Duration]bool{}
		for name, times := range c.scrapes {
			if times[0] != 0 || len(times) < 10 || len(times) > 11 {
				t.Errorf("%s was scraped first after %v, and %d times in 10 intervals", name, times[0], len(times))
			}
			for _, gap := range gaps(times[1:]) {
				if gap != interval {
					t.Errorf("%s: got %v between two scrapes, want %v", name, gap, interval)
				}
			}
			offsets[times[1]%interval] = true
		}
		if len(offsets) < 8 { // 17 on average
			t.Errorf("20 nodes share %d offsets", len(offsets))
		}
	})
}

func TestHangingNodesDelayNoOther(t *testing.T) {
	hang := func(_ context.Context, node string) error {
		if node == "healthy" {
			return nil
		}
		time.Sleep(10 * time.Second)
		return errors.New("timeout")
	}
	run(t, Config{}, hang, func(t *testing.T, c *cluster, s *Scraper) {
		setNodes(s, 8)
		s.Set(node("healthy"))
		pass(5 * interval)
		if times := c.times("healthy"); times[0] > 0 || slices.Max(gaps(times)) > interval {
			t.Errorf("the healthy node was scraped late: %v", times)
		}
	})
}

// TestWaitsForPermits checks that the time that a scrape waits for this process counts as
// lateness, not as duration.
func TestWaitsForPermits(t *testing.T) {
	slow := func(context.Context, string) error { time.Sleep(3 * time.Second); return nil }
	run(t, Config{}, slow, func(t *testing.T, c *cluster, s *Scraper) {
		c.set(func() { c.queued = 2 * time.Second })
		s.Set(node("n1"))
		pass(4 * time.Second)
		if r := c.results[0]; r.Late != 2*time.Second || r.Took != time.Second {
			t.Errorf("got late %v, took %v, want 2s and 1s", r.Late, r.Took)
		}
	})
}

// TestSlowNodeGetsOneRequestAtATime checks that a slow node gets only scrapes: once in each interval, or one
// after the other, whatever is missing and whether it is active. Other requests begin when it is fast again.
func TestSlowNodeGetsOneRequestAtATime(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		12 * time.Second: interval, 25 * time.Second: 25 * time.Second,
	} {
		for name, active := range map[string]Active{"inactive": {}, "active": activeNodes} {
			t.Run(fmt.Sprint(name, took), func(t *testing.T) {
				config := withStorage(always)
				config.Active = active
				slow := func(ctx context.Context, _ string) error {
					select {
					case <-time.After(took):
					case <-ctx.Done():
					}
					return ctx.Err()
				}
				run(t, config, slow, func(t *testing.T, c *cluster, s *Scraper) {
					c.set(func() { c.missing = func(now usage.Time) []usage.Missing { return append(rates(now), soon(now)...) } })
					names := setNodes(s, 1)
					for range 20 {
						s.NoteRead(slices.Values(names))
						pass(interval)
					}
					for i, gap := range gaps(c.times("n0"))[1:] {
						if gap < want || gap > want+interval/slots {
							t.Errorf("got %v before scrape %d, want %v", gap, i+3, want)
						}
					}
					if c.fetchedSummaries != 0 || len(c.requests()) != 0 {
						t.Errorf("got %d summaries and %d requests for storage", c.fetchedSummaries, len(c.requests()))
					}
					if n, _ := s.Node("n0"); !n.Slow || !s.WarmedUp() {
						t.Errorf("got %+v, warmed up: %t", n, s.WarmedUp())
					}
					c.set(func() { c.fetch = nil })
					pass(2 * interval)
					if n, _ := s.Node("n0"); n.Slow || c.fetchedSummaries == 0 {
						t.Errorf("got %+v and %d summaries after it became fast", n, c.fetchedSummaries)
					}
					c.set(func() { c.missing = nil })
					pass(2 * interval)
					if len(c.requests()) == 0 {
						t.Error("got no request for storage after it became fast")
					}
				})
			})
		}
	}
}

// TestLateSummary checks that a node is scraped at once after a summary that took longer than an interval.
func TestLateSummary(t *testing.T) {
	run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		c.set(func() { c.missing, c.summaryTakes = rates, 25*time.Second })
		names := setNodes(s, 5)
		pass(4 * interval)
		for _, name := range names {
			if gap := gaps(c.times(name))[0]; gap != c.summaryTakes {
				t.Errorf("node %s: the second scrape is %v after the first one", name, gap)
			}
		}
	})
}

func TestFailingNodeIsRetried(t *testing.T) {
	run(t, Config{}, fails, func(t *testing.T, c *cluster, s *Scraper) {
		s.Set(node("n1"))
		pass(20 * interval)
		failed := c.scrapes["n1"]
		if n := len(failed); n < 20 || n > 21+fastRetries {
			t.Errorf("a failing node was scraped %d times in 20 intervals", n)
		}
		if gap := failed[1] - failed[0]; gap > interval/4 {
			t.Errorf("the first retry came after %v", gap)
		}
		if len(c.put) != 0 {
			t.Error("a failed scrape was stored")
		}

		c.set(func() { c.fetch = nil })
		pass(interval)
		if c.put["n1"] == 0 {
			t.Errorf("the node recovered, but was not scraped within an interval: %v", c.scrapes["n1"])
		}
		// The next failure is retried soon again.
		c.set(func() { c.fetch = fails })
		pass(3 * interval)
		if n := len(c.scrapes["n1"]) - len(failed); n < 4+1 {
			t.Errorf("got %d scrapes in the four intervals after the recovery, want retries", n)
		}
	})
}

func TestNodeIsScrapedEarlyForMissingMetrics(t *testing.T) {
	run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		const wait = 1200 * time.Millisecond
		c.set(func() { c.missing = soon })
		s.Set(node("n1"))
		pass(wait + wait/2)
		c.set(func() { c.missing = nil })
		pass(10 * interval)
		times := c.scrapes["n1"]
		if times[1] > wait { // the regular time may come before
			t.Errorf("the second scrape came after %v, want %v", times[1], wait)
		}
		// At 0, at a regular time soon after, early after each of these, then once in each
		// interval.
		if n := len(times); n > 10+4 {
			t.Errorf("got %d scrapes in 10 intervals, although nothing was missing any more", n)
		}
		second, last := c.results[1].Kind, c.results[len(c.results)-1].Kind
		if second != Early && times[1] == wait || last == Early {
			t.Errorf("got kinds %v and %v, want early and another one", second, last)
		}
		if c.fetchedSummaries != 0 {
			t.Error("a summary was fetched, although no rates were missing")
		}
	})
}

func TestEarlyScrapesAreLimited(t *testing.T) {
	run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		c.set(func() { c.missing = soon }) // always: containers start all the time
		s.Set(node("n1"))
		pass(100 * interval)
		if n, most := len(c.scrapes["n1"]), 1+2*100+maxEarly; n < 2*100 || n > most {
			t.Errorf("got %d scrapes in 100 intervals, want about %d", n, most)
		}
	})
}

func TestSummaryIsFetchedOnceWhileRatesAreMissing(t *testing.T) {
	run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		if !s.WarmedUp() {
			t.Error("not warmed up without any node")
		}
		c.set(func() { c.missing, c.stillMissing = rates, rates })
		s.Set(node("n1"))
		synctest.Wait()
		if s.WarmedUp() {
			t.Error("warmed up, although rates are missing")
		}
		pass(3 * interval)
		if c.fetchedSummaries != 1 || c.putSummaries != 1 || len(c.summarized) != 1 || c.summarized[0] != nil {
			t.Errorf("got %d summaries, %d stored, %v observed, want one of each",
				c.fetchedSummaries, c.putSummaries, c.summarized)
		}
		c.set(func() { c.missing, c.stillMissing = nil, nil })
		pass(interval)
		if !s.WarmedUp() {
			t.Error("not warmed up, although nothing is missing")
		}
		c.set(func() { c.missing = rates }) // as after an outage of the node
		pass(3 * interval)
		if c.fetchedSummaries != 2 {
			t.Errorf("got %d summaries, want another one when rates are missing again", c.fetchedSummaries)
		}
	})
}

// TestSummaryIsFetchedAgainAfterAGap has a node whose rates have been missing since the start.
// After a gap, the rates of the first summary do not serve any more.
func TestSummaryIsFetchedAgainAfterAGap(t *testing.T) {
	for name, gap := range map[string]func(c *cluster){
		"failures": func(c *cluster) {
			c.set(func() { c.fetch = fails })
			pass(3 * interval)
			c.set(func() { c.fetch = nil })
		},
		"no rate could be served meanwhile, as after a jump of the clock": func(c *cluster) {
			c.set(func() {
				c.missing = func(now usage.Time) []usage.Missing {
					return []usage.Missing{{Since: now, SampledAt: now.Add(-14 * time.Second)}}
				}
			})
			pass(5 * time.Second)
			c.set(func() { c.missing = rates })
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
				c.set(func() { c.missing, c.stillMissing = rates, rates })
				s.Set(node("n1"))
				pass(interval / 2)
				if c.fetchedSummaries != 1 {
					t.Fatalf("got %d summaries before the gap, want 1", c.fetchedSummaries)
				}
				gap(c)
				var before int
				c.set(func() { before = len(c.results) })
				pass(2 * interval)
				if c.fetchedSummaries < 2 {
					t.Errorf("got %d summaries after the gap, want another one", c.fetchedSummaries)
				}
				back := before + slices.IndexFunc(c.results[before:], func(r Result) bool { return r.Err == nil })
				times := c.scrapes["n1"]
				if wait := times[back+1] - times[back]; wait > 2*time.Second {
					t.Errorf("scraped again %v after the gap, want at most 2s", wait)
				}
			})
		})
	}
}

func TestMetricsWithoutSummaries(t *testing.T) {
	run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		c.set(func() { c.summaryErr, c.missing = errors.New("status 403"), rates })
		setNodes(s, 5)
		pass(3 * interval)
		if c.put["n0"] < 4 || c.putSummaries != 0 || len(c.summarized) != 5 || c.summarized[0] == nil {
			t.Errorf("got %d scrapes, %d summaries, %v observed, want scrapes only and five errors",
				c.put["n0"], c.putSummaries, c.summarized)
		}
		if lines := c.lines(); len(lines) != 1 || !strings.Contains(lines[0], "status 403") {
			t.Errorf("got log %q, want one line", lines)
		}
	})
}

// TestSummaryThatFailsDelaysNoScrape checks that the second scrape of a node does not wait for as long again as
// its summary took to fail. A regular scrape may be earlier.
func TestSummaryThatFailsDelaysNoScrape(t *testing.T) {
	for takes, want := range map[time.Duration]time.Duration{time.Second: overdueDelay, 5 * time.Second: 5 * time.Second} {
		run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
			c.set(func() { c.summaryErr, c.summaryTakes, c.missing = errors.New("status 500"), takes, rates })
			setNodes(s, 20)
			pass(interval)
			for node, times := range c.scrapes {
				if wait := times[1] - times[0]; wait > want+time.Millisecond {
					t.Errorf("the second scrape of %s is %v after the first one, want at most %v", node, wait, want)
				}
			}
		})
	}
}

func TestWarmedUpDoesNotWaitForFailingOrDeletedNodes(t *testing.T) {
	failDead := func(ctx context.Context, node string) error {
		if node == "dead" {
			return fails(ctx, node)
		}
		return nil
	}
	run(t, Config{}, failDead, func(t *testing.T, c *cluster, s *Scraper) {
		c.set(func() { c.missing, c.stillMissing = rates, rates })
		s.Set(node("dead"))
		synctest.Wait()
		if !s.WarmedUp() {
			t.Error("waits for a failing node")
		}
		s.Set(node("deleted"))
		synctest.Wait()
		if s.WarmedUp() {
			t.Error("warmed up, although a node has no metrics")
		}
		s.Delete("deleted")
		if !s.WarmedUp() {
			t.Error("waits for a deleted node")
		}
	})
}

func TestSinkReceivesTheCapacity(t *testing.T) {
	run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		n := node("n1")
		n.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3920m")}
		for n, want := range map[*corev1.Node]uint64{n: 3_920_000_000, node("unknown"): 0} {
			s.Set(n)
			synctest.Wait()
			if c.capacity != want {
				t.Errorf("node %s: got %d nanocores, want %d", n.Name, c.capacity, want)
			}
		}
	})
}

func TestDelete(t *testing.T) {
	run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		s.Set(node("n1"))
		synctest.Wait()
		c.set(func() { c.fetch = func(ctx context.Context, _ string) error { <-ctx.Done(); return nil } })
		pass(interval) // now a scrape is running
		put := c.put["n1"]
		s.Delete("n1")
		pass(3 * interval)
		if got := strings.Join(c.forgotten, ", "); got != "sink n1, fetcher n1" {
			t.Errorf("forgotten: %s", got)
		}
		if c.put["n1"] != put {
			t.Error("a scrape was stored after the node was deleted")
		}
		if n := len(c.scrapes["n1"]); n != 2 {
			t.Errorf("got %d scrapes, want 2", n)
		}
		s.Delete("n1") // an unknown one
	})
}

func TestSet(t *testing.T) {
	run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		s.Set(node("n1"))
		pass(interval)
		changed := node("n1")
		changed.Labels = map[string]string{"a": "b"}
		s.Set(changed)
		synctest.Wait()
		if len(c.forgotten) != 0 {
			t.Errorf("a changed node was forgotten: %v", c.forgotten)
		}
		replaced := node("n1")
		replaced.UID = "another"
		s.Set(replaced)
		synctest.Wait()
		if len(c.forgotten) != 2 {
			t.Errorf("the node was replaced, but forgotten by %v only", c.forgotten)
		}
		if times := c.scrapes["n1"]; times[len(times)-1] != time.Since(c.start) {
			t.Error("the new node was not scraped at once")
		}
	})
}

func TestPanicAffectsOneNode(t *testing.T) {
	boom := func(_ context.Context, node string) error {
		if node == "bad" {
			panic("boom")
		}
		return nil
	}
	run(t, Config{}, boom, func(t *testing.T, c *cluster, s *Scraper) {
		s.Set(node("bad"))
		s.Set(node("good"))
		pass(3 * interval)
		if c.put["good"] < 3 || c.put["bad"] != 0 {
			t.Errorf("stored: %v", c.put)
		}
		for _, r := range c.results {
			if r.Node == "bad" && (r.Err == nil || !strings.Contains(r.Err.Error(), "boom")) {
				t.Errorf("the panic was reported as %v", r.Err)
			}
		}
	})
}

// TestLogOfFailures checks when a failure is logged: with the node, the problem, the error and, once, the cure.
func TestLogOfFailures(t *testing.T) {
	forbidden := func(context.Context, string) error { return errors.New("forbidden") }
	var scrapes atomic.Int32
	keys := func(context.Context, string) error {
		return &reason.Error{Reason: reason.TLSKeyChanged, Err: fmt.Errorf("key %d", scrapes.Add(1)/6), Command: "accept"}
	}
	explained := func(err string) string {
		d := reason.TLSKeyChanged.Describe()
		return fmt.Sprintf(`err="%s: %s (%s; the command: accept)" node="n1"`, d.Problem, err, d.Cure)
	}
	for name, tc := range map[string]struct {
		then fetchFunc
		want []string
	}{
		"recovers":       {nil, []string{"Scraping failed", "works again"}},
		"another reason": {forbidden, []string{"Scraping failed", "forbidden"}},
		"another key":    {keys, []string{"Scraping failed", explained("key 0"), explained("key 1")}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, Config{}, fails, func(t *testing.T, c *cluster, s *Scraper) {
				s.Set(node("n1"))
				pass(10 * interval)
				c.set(func() { c.fetch = tc.then })
				pass(10 * interval)
				contains := func(line, want string) bool { return strings.Contains(line, want) }
				if lines := c.lines(); !slices.EqualFunc(lines, tc.want, contains) {
					t.Errorf("got log %q, want %q", lines, tc.want)
				}
			})
		})
	}
}

func TestAlive(t *testing.T) {
	hang := func(ctx context.Context, node string) error {
		if node == "hangs" {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	run(t, Config{}, hang, func(t *testing.T, c *cluster, s *Scraper) {
		s.Set(node("hangs"))
		s.Set(node("n1"))
		pass(10*time.Minute + time.Millisecond) // between two scrapes of n1
		if err := s.Alive(); err != nil {
			t.Errorf("with a slow kubelet: got %v, want nil", err)
		}
		c.stop() // as in a deadlock, no scrape starts any more
		time.Sleep(interval + time.Minute + time.Second)
		if err := s.Alive(); err == nil {
			t.Error("stuck scrapes: got nil, want an error")
		}
	})
}
