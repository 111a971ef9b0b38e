package scrape

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const interval = 15 * time.Second

// cluster is a Fetcher, a Sink and an Observer that notes what it is asked.
type cluster struct {
	start time.Time

	mu      sync.Mutex
	fetch   func(ctx context.Context, node string) error // nil: success
	asked   map[string][]time.Duration                   // when each node was asked, since the start
	put     map[string]int
	results []Result

	queued   time.Duration           // what Fetch reports
	clocks   map[string]usage.Report // what Put reports of nodes' clocks
	capacity uint64                  // of the node that was put last

	lacking, stillLacking usage.Lack // what Put and PutSummary report
	lent, summaries       map[string]int
	noSummary             error // what FetchSummary says
	summarized            []error

	gone []string // who forgot which node, in order
}

func (c *cluster) Fetch(ctx context.Context, node *corev1.Node, dst *usage.Scrape) error {
	c.mu.Lock()
	c.asked[node.Name] = append(c.asked[node.Name], time.Since(c.start))
	fetch := c.fetch
	dst.Queued = c.queued
	c.mu.Unlock()
	dst.At = usage.At(time.Now())
	if fetch == nil {
		return nil
	}
	return fetch(ctx, node.Name)
}

func (c *cluster) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = append(c.gone, fmt.Sprintf(format, args...))
}

func (c *cluster) Put(node string, s *usage.Scrape) usage.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put[node]++
	c.capacity = s.Capacity
	report := c.clocks[node]
	report.Missing = c.lacking
	return report
}

func (c *cluster) PutSummary(node string, _ *usage.Scrape) usage.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lent[node]++
	return usage.Report{Missing: c.stillLacking}
}

func (c *cluster) FetchSummary(_ context.Context, node *corev1.Node, _ *usage.Scrape) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.summaries[node.Name]++
	return c.noSummary
}

func (c *cluster) Summarized(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.summarized = append(c.summarized, err)
}

func (c *cluster) Scraped(r Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results = append(c.results, r)
}

func (c *cluster) Gone(node string) { c.note("observer %s", node) }

// sink and fetcher part the two methods called Forget.
type sink struct{ *cluster }

func (s sink) Forget(node string) { s.note("sink %s", node) }

type fetcher struct{ *cluster }

func (f fetcher) Forget(node string) { f.note("fetcher %s", node) }

func (c *cluster) timesAsked(node string) []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]time.Duration(nil), c.asked[node]...)
}

func (c *cluster) set(fetch func(ctx context.Context, node string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fetch = fetch
}

func newCluster(fetch func(ctx context.Context, node string) error) *cluster {
	return &cluster{
		start: time.Now(), fetch: fetch, asked: map[string][]time.Duration{}, put: map[string]int{},
		lent: map[string]int{}, summaries: map[string]int{}, clocks: map[string]usage.Report{},
	}
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
}

// run starts a Scraper in a bubble of fake time, calls f, and stops it.
func run(t *testing.T, fetch func(ctx context.Context, node string) error, f func(*testing.T, *cluster, *Scraper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(fetch)
		s := New(Config{Fetcher: fetcher{c}, Sink: sink{c}, Observer: c, Reason: error.Error, Interval: interval})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		f(t, c, s)
		cancel()
		<-done
	})
}

func TestEveryNodeHasItsOwnClock(t *testing.T) {
	run(t, nil, func(t *testing.T, c *cluster, s *Scraper) {
		offsets := map[time.Duration]bool{}
		for i := range 20 {
			s.Set(node(fmt.Sprint("n", i)))
		}
		time.Sleep(10 * interval)
		synctest.Wait()
		for i := range 20 {
			asked := c.timesAsked(fmt.Sprint("n", i))
			if asked[0] != 0 {
				t.Errorf("n%d was first asked after %v, not at once", i, asked[0])
			}
			if n := len(asked); n < 10 || n > 11 {
				t.Errorf("n%d was asked %d times in 10 intervals", i, n)
			}
			for j := 2; j < len(asked); j++ {
				if gap := asked[j] - asked[j-1]; gap != interval {
					t.Errorf("n%d: %v between two scrapes, want %v", i, gap, interval)
				}
			}
			offsets[asked[1]%interval] = true
		}
		if len(offsets) < 8 { // 17 on average
			t.Errorf("20 nodes share %d moments of the interval", len(offsets))
		}
	})
}

func TestANodeThatHangsDelaysNoOther(t *testing.T) {
	hang := func(ctx context.Context, node string) error {
		if strings.HasPrefix(node, "hangs") {
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Second):
			}
			return errors.New("timeout")
		}
		return nil
	}
	run(t, hang, func(t *testing.T, c *cluster, s *Scraper) {
		for i := range 8 {
			s.Set(node(fmt.Sprint("hangs", i)))
		}
		s.Set(node("well"))
		time.Sleep(5 * interval)
		synctest.Wait()
		asked := c.timesAsked("well")
		if asked[0] > 0 {
			t.Errorf("the well node was first asked after %v", asked[0])
		}
		for j := 2; j < len(asked); j++ {
			if gap := asked[j] - asked[j-1]; gap > interval {
				t.Errorf("the well node was kept waiting: asked at %v and %v", asked[j-1], asked[j])
			}
		}
	})
}

// TestWaitsForATurnAreNotTheKubelets: what a scrape waited for this server is part of its lateness,
// not of its duration.
func TestWaitsForATurnAreNotTheKubelets(t *testing.T) {
	slow := func(context.Context, string) error {
		time.Sleep(3 * time.Second)
		return nil
	}
	run(t, slow, func(t *testing.T, c *cluster, s *Scraper) {
		c.queued = 2 * time.Second
		s.Set(node("n1"))
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if r := c.results[0]; r.Late != 2*time.Second || r.Took != time.Second {
			t.Errorf("late by %v, took %v; want 2s and 1s", r.Late, r.Took)
		}
	})
}

func TestAFailingNodeIsRetriedThenAskedOncePerInterval(t *testing.T) {
	fail := func(context.Context, string) error { return errors.New(`node "n1": no`) }
	run(t, fail, func(t *testing.T, c *cluster, s *Scraper) {
		s.Set(node("n1"))
		time.Sleep(20 * interval)
		synctest.Wait()
		asked := c.timesAsked("n1")
		if n := len(asked); n < 20 || n > 21+fastRetries {
			t.Errorf("a dead node was asked %d times in 20 intervals", n)
		}
		if gap := asked[1] - asked[0]; gap > interval/4 {
			t.Errorf("the first retry came after %v", gap)
		}
		if len(c.put) != 0 {
			t.Error("a failed scrape was handed on")
		}

		c.set(nil)
		back := time.Since(c.start)
		time.Sleep(interval)
		synctest.Wait()
		if c.put["n1"] == 0 {
			t.Errorf("the node is not back an interval after %v; asked at %v", back, c.timesAsked("n1"))
		}
		// It is a fresh start: the next failure is retried soon again.
		c.set(fail)
		time.Sleep(3 * interval)
		synctest.Wait()
		if n := len(c.timesAsked("n1")) - len(asked); n < 4+1 {
			t.Errorf("asked %d times in the four intervals after the recovery: no retry", n)
		}
	})
}

func (c *cluster) lack(put, lend usage.Lack) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lacking, c.stillLacking = put, lend
}

func (c *cluster) reportClock(node string, r usage.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clocks[node] = r
}

func TestANodeThatLacksFiguresIsScrapedEarly(t *testing.T) {
	run(t, nil, func(t *testing.T, c *cluster, s *Scraper) {
		c.lack(usage.Lack{Wait: 700 * time.Millisecond}, usage.Lack{})
		s.Set(node("n1"))
		time.Sleep(time.Second)
		c.lack(usage.Lack{}, usage.Lack{})
		time.Sleep(10 * interval)
		synctest.Wait()
		asked := c.timesAsked("n1")
		if asked[1] > 700*time.Millisecond { // its regular time may come before that
			t.Errorf("scraped again after %v, want 700ms", asked[1])
		}
		// At 0, then at the regular time in the first second (0.25 s), 0.7 s after each of these,
		// then once in each interval.
		if n := len(asked); n > 10+4 {
			t.Errorf("asked %d times in 10 intervals, though nothing was lacking any more", n)
		}
		if !c.results[1].Early && asked[1] == 700*time.Millisecond || c.results[len(c.results)-1].Early {
			t.Errorf("told to be early: %v and %v, want true and false", c.results[1].Early, c.results[len(c.results)-1].Early)
		}
		if len(c.summaries) != 0 {
			t.Error("a summary was asked for, though no rates were missing")
		}
	})
}

func TestEarlyScrapesAreBounded(t *testing.T) {
	run(t, nil, func(t *testing.T, c *cluster, s *Scraper) {
		c.lack(usage.Lack{Wait: time.Second}, usage.Lack{}) // for ever: a container starts every second
		s.Set(node("n1"))
		time.Sleep(100 * interval)
		synctest.Wait()
		if n, most := len(c.timesAsked("n1")), 1+2*100+maxEarly; n < 2*100 || n > most {
			t.Errorf("asked %d times in 100 intervals, want some %d", n, most)
		}
	})
}

func TestRatesAreBorrowedOnceAsLongAsTheyAreMissing(t *testing.T) {
	run(t, nil, func(t *testing.T, c *cluster, s *Scraper) {
		if !s.Settled() {
			t.Error("not settled without any node")
		}
		missing := usage.Lack{Rates: true, Wait: 2 * time.Second}
		c.lack(missing, missing)
		s.Set(node("n1"))
		synctest.Wait()
		if s.Settled() {
			t.Error("settled, though rates are missing that may still come")
		}
		time.Sleep(3 * interval)
		synctest.Wait()
		if c.summaries["n1"] != 1 || c.lent["n1"] != 1 || len(c.summarized) != 1 || c.summarized[0] != nil {
			t.Errorf("asked for %d summaries, %d of them handed on, %v observed; want one of each", c.summaries["n1"], c.lent["n1"], c.summarized)
		}
		c.lack(usage.Lack{}, usage.Lack{})
		time.Sleep(interval)
		synctest.Wait()
		if !s.Settled() {
			t.Error("not settled, though nothing is missing")
		}
		c.lack(missing, usage.Lack{}) // as after a time in which the node did not answer
		time.Sleep(3 * interval)
		synctest.Wait()
		if c.summaries["n1"] != 2 {
			t.Errorf("asked for %d summaries, want another one when rates are missing again", c.summaries["n1"])
		}
	})
}

// TestAfterAGapRatesAreFetchedAndTheNodeIsScrapedEarly: a node whose rates are missing since the
// start fails for a while. When it is back, the store reports that rates are missing again, or
// still: the summary of the time before does not serve.
func TestAfterAGapRatesAreFetchedAndTheNodeIsScrapedEarly(t *testing.T) {
	for name, gap := range map[string]func(c *cluster){
		"the node failed": func(c *cluster) {
			c.set(func(context.Context, string) error { return errors.New("no") })
			time.Sleep(3 * interval)
			c.set(nil)
		},
		"its clock jumped": func(c *cluster) { c.reportClock("n1", usage.Report{ClockKnown: true, ClockJumped: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, nil, func(t *testing.T, c *cluster, s *Scraper) {
				never := usage.Lack{Rates: true} // an early scrape would not bring them
				c.lack(never, never)
				s.Set(node("n1"))
				time.Sleep(5 * interval)
				synctest.Wait()
				if n := c.summaries["n1"]; n != 1 {
					t.Fatalf("%d summaries before the gap, want 1", n)
				}
				missing := usage.Lack{Rates: true, Wait: 2 * time.Second}
				c.lack(missing, missing)
				gap(c)
				scrapes := len(c.timesAsked("n1"))
				time.Sleep(2 * interval)
				synctest.Wait()
				if n := c.summaries["n1"]; n < 2 {
					t.Errorf("%d summaries after the gap, want another one", n)
				}
				back := slices.IndexFunc(c.results[scrapes:], func(r Result) bool { return r.Err == nil })
				asked := c.timesAsked("n1")[scrapes:]
				if wait := asked[back+1] - asked[back]; wait > missing.Wait {
					t.Errorf("scraped again %v after the gap, want at most %v", wait, missing.Wait)
				}
			})
		})
	}
}

func TestTheStoreLearnsTheCapacityOfTheNode(t *testing.T) {
	run(t, nil, func(t *testing.T, c *cluster, s *Scraper) {
		n := node("n1")
		n.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3920m")}
		s.Set(n)
		synctest.Wait()
		if c.capacity != 3_920_000_000 {
			t.Errorf("the capacity is %d nanocores, want 3.92 cores", c.capacity)
		}
		s.Set(node("unknown"))
		synctest.Wait()
		if c.capacity != 0 {
			t.Errorf("the capacity is %d nanocores, want 0 for a node that does not report it", c.capacity)
		}
	})
}

func TestGoesOnWithoutSummaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(nil)
		c.noSummary = errors.New("status 403")
		c.lack(usage.Lack{Rates: true, Wait: 2 * time.Second}, usage.Lack{})
		s := New(Config{Fetcher: fetcher{c}, Sink: sink{c}, Observer: c, Reason: error.Error, Interval: interval})
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		for i := range 5 {
			s.Set(node(fmt.Sprint("n", i)))
		}
		time.Sleep(3 * interval)
		cancel()
		<-done
		if c.put["n0"] < 4 || len(c.lent) != 0 || len(c.summarized) != 5 || c.summarized[0] == nil {
			t.Errorf("%d scrapes, %d loans, %v observed; want scrapes only, and five refusals", c.put["n0"], len(c.lent), c.summarized)
		}
		log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if n := strings.Count(log, "\n"); n != 1 || !strings.Contains(log, "status 403") {
			t.Errorf("%d lines, want one:\n%s", n, log)
		}
	})
}

func TestSettledWhenEachNodeWasAskedOrIsGone(t *testing.T) {
	fail := func(_ context.Context, node string) error {
		if node == "dead" {
			return errors.New("no")
		}
		return nil
	}
	run(t, fail, func(t *testing.T, c *cluster, s *Scraper) {
		missing := usage.Lack{Rates: true, Wait: 2 * time.Second}
		c.lack(missing, missing)
		s.Set(node("dead"))
		synctest.Wait()
		if !s.Settled() {
			t.Error("not settled: waits for a node that fails")
		}
		s.Set(node("goes"))
		synctest.Wait()
		if s.Settled() {
			t.Error("settled, though a node lacks figures")
		}
		s.Delete("goes")
		if !s.Settled() {
			t.Error("not settled: waits for a node that is gone")
		}
	})
}

func TestANodeThatGoesIsForgotten(t *testing.T) {
	run(t, nil, func(t *testing.T, c *cluster, s *Scraper) {
		block := make(chan struct{})
		s.Set(node("n1"))
		synctest.Wait()
		c.set(func(ctx context.Context, _ string) error {
			select {
			case <-block:
			case <-ctx.Done():
			}
			return nil
		})
		time.Sleep(interval) // now a scrape is under way
		synctest.Wait()
		put := c.put["n1"]
		s.Delete("n1")
		close(block)
		time.Sleep(3 * interval)
		synctest.Wait()
		slices.Sort(c.gone) // the scrape that was under way forgets at the same time
		if got := strings.Join(c.gone, ", "); got != "fetcher n1, fetcher n1, observer n1, sink n1" {
			t.Errorf("forgotten by %q", got)
		}
		if c.put["n1"] != put {
			t.Error("an answer was handed on after the node was gone")
		}
		if n := len(c.timesAsked("n1")); n != 2 {
			t.Errorf("asked %d times, want 2", n)
		}
		s.Delete("n1") // one that is not known
	})
}

func TestANodeMayChangeOrComeAgain(t *testing.T) {
	run(t, nil, func(t *testing.T, c *cluster, s *Scraper) {
		s.Set(node("n1"))
		time.Sleep(interval)
		synctest.Wait()
		changed := node("n1")
		changed.Labels = map[string]string{"a": "b"}
		s.Set(changed)
		synctest.Wait()
		if len(c.gone) != 0 {
			t.Errorf("a changed node was forgotten: %v", c.gone)
		}
		again := node("n1")
		again.UID = "another"
		s.Set(again)
		synctest.Wait()
		if len(c.gone) != 3 {
			t.Errorf("another node of the same name: forgotten by %v", c.gone)
		}
		asked := c.timesAsked("n1")
		if asked[len(asked)-1] != time.Since(c.start) {
			t.Error("the new node was not scraped at once")
		}
	})
}

func TestAPanicCostsOnlyItsNode(t *testing.T) {
	boom := func(_ context.Context, node string) error {
		if node == "bad" {
			panic("boom")
		}
		return nil
	}
	run(t, boom, func(t *testing.T, c *cluster, s *Scraper) {
		s.Set(node("bad"))
		s.Set(node("good"))
		time.Sleep(3 * interval)
		synctest.Wait()
		if c.put["good"] < 3 || c.put["bad"] != 0 {
			t.Errorf("handed on: %v", c.put)
		}
		for _, r := range c.results {
			if r.Node == "bad" && (r.Err == nil || !strings.Contains(r.Err.Error(), "boom")) {
				t.Errorf("the panic was reported as %v", r.Err)
			}
		}
	})
}

func TestLogsOnceWhenANodeFailsAndOnceWhenItIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(nil)
		c.fetch = func(context.Context, string) error { return errors.New(`node "n1": no`) }
		s := New(Config{Fetcher: fetcher{c}, Sink: sink{c}, Observer: c, Reason: error.Error, Interval: interval})
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		s.Set(node("n1"))
		time.Sleep(10 * interval)
		c.set(nil)
		time.Sleep(10 * interval)
		cancel()
		<-done
		log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if n := strings.Count(log, "\n"); n != 2 || !strings.Contains(log, `node "n1": no`) && !strings.Contains(log, "works again") {
			t.Errorf("%d lines:\n%s", n, log)
		}
	})
}

func TestLogsAnotherReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(func(context.Context, string) error { return errors.New("refused") })
		s := New(Config{Fetcher: fetcher{c}, Sink: sink{c}, Observer: c, Reason: error.Error, Interval: interval})
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		s.Set(node("n1"))
		time.Sleep(10 * interval)
		c.set(func(context.Context, string) error { return errors.New("forbidden") })
		time.Sleep(10 * interval)
		cancel()
		<-done
		log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if n := strings.Count(log, "\n"); n != 2 || !strings.Contains(log, "refused") || !strings.Contains(log, "forbidden") {
			t.Errorf("%d lines, want one for each reason:\n%s", n, log)
		}
	})
}

// TestANodeMayStayDeadForDays: however often it failed, the next scrape has a time.
func TestANodeMayStayDeadForDays(t *testing.T) {
	for failures := 1; failures < 100_000; failures++ {
		if d := retryDelay(interval, failures); d <= 0 || d > interval {
			t.Fatalf("after %d failures, the next retry is after %v", failures, d)
		}
	}
}

func TestAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(nil)
		s := New(Config{Fetcher: fetcher{c}, Sink: sink{c}, Observer: c, Reason: error.Error, Interval: interval})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		c.set(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
		s.Set(node("hangs"))
		time.Sleep(10 * time.Minute)
		if err := s.Alive(); err != nil {
			t.Errorf("an idle loop with a slow kubelet is taken for dead: %v", err)
		}
		cancel()
		<-done
		// Nothing turns the loop any more, as in a deadlock.
		time.Sleep(stuckAfter + time.Second)
		if err := s.Alive(); err == nil {
			t.Error("a loop that stands still is taken for alive")
		}
	})
}

func TestRegularKeepsToTheOffset(t *testing.T) {
	s := New(Config{Interval: interval})
	target := &target{offset: 4 * time.Second}
	for _, tc := range []struct{ now, want time.Duration }{
		{0, 4 * time.Second}, {4 * time.Second, 19 * time.Second}, {3 * time.Second, 4 * time.Second},
		{18 * time.Second, 19 * time.Second}, {29 * time.Second, 34 * time.Second},
	} {
		if got := s.regular(target, s.started.Add(tc.now)).Sub(s.started); got != tc.want {
			t.Errorf("regular(%v) = %v, want %v", tc.now, got, tc.want)
		}
	}
}

// BenchmarkTurn is the cost of a scrape without the fetch, the answer or the network: what the
// schedule itself takes.
func BenchmarkTurn(b *testing.B) {
	s := New(Config{Interval: interval})
	for i := range 5000 {
		s.Set(node(fmt.Sprint("n", i)))
	}
	b.ReportAllocs()
	for b.Loop() {
		t, _ := s.next(time.Now().Add(interval))
		s.again(t, true, usage.Lack{})
	}
}
