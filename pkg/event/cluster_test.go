package event

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/kube-vitals/kube-vitals/internal/leaktest"
	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	interval = 15 * time.Second
	timeout  = 10 * time.Second // of a request to a kubelet
)

// theDeployment is that of kube-vitals.
var theDeployment = corev1.ObjectReference{
	APIVersion: "apps/v1", Kind: "Deployment", Namespace: "kube-system", Name: "kube-vitals", UID: "uid-kube-vitals",
}

const deploymentPath = "/apis/apps/v1/namespaces/kube-system/deployments/kube-vitals"

// cluster runs a Scraper, whose kubelets fail as configured, and a Reporter that reads its health, with
// that of an engine.
type cluster struct {
	*testing.T
	*Reporter
	api     *sim.API // its latency is 0
	scraper *scrape.Scraper
	log     func() []string // returns the lines
	stop    func()

	mu       sync.Mutex
	causes   map[string]reason.Reason // of nodes that fail
	slow     map[reason.Reason]bool   // failures that take until the timeout
	scrapes  int
	overall  health.Overall
	made     []health.Node           // in place of the Scraper's; nil: those
	refusals map[string]*sim.Refusal // by resource
	requests map[string]int          // by resource
}

func (c *cluster) Overall() health.Overall {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.overall
}

func (c *cluster) Node(name string) (health.Node, bool) { return c.scraper.Node(name) }

func (c *cluster) Nodes() []health.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made != nil {
		return slices.Clone(c.made)
	}
	return c.scraper.Nodes()
}

type scrapeError reason.Reason

func (e scrapeError) Error() string { return string(e) }

func (c *cluster) Fetch(ctx context.Context, node *corev1.Node, put func(*usage.Scrape)) (usage.Timing, error) {
	c.mu.Lock()
	cause := c.causes[node.Name]
	slow := c.slow[cause]
	c.scrapes++
	c.mu.Unlock()
	if cause == "" {
		put(&usage.Scrape{At: usage.At(time.Now())})
		return usage.Timing{}, nil
	}
	if slow {
		select {
		case <-time.After(timeout):
		case <-ctx.Done():
		}
	}
	return usage.Timing{}, &reason.Error{Reason: cause, Err: scrapeError(cause)}
}

func (*cluster) FetchSummary(context.Context, *corev1.Node, func(*usage.Scrape)) (usage.Timing, error) {
	return usage.Timing{}, nil
}

func (*cluster) FetchStorage(context.Context, *corev1.Node, func(*usage.Scrape)) (usage.Timing, error) {
	return usage.Timing{}, nil
}

func (*cluster) Scraped(scrape.Result)                            {}
func (*cluster) Summarized(error)                                 {}
func (*cluster) Address(*corev1.Node) string                      { return "" }
func (*cluster) Forget(string)                                    {}
func (*cluster) Put(string, *usage.Scrape) usage.Report           { return usage.Report{} }
func (*cluster) PutSummary(string, *usage.Scrape) []usage.Missing { return nil }

// run starts a cluster of n nodes, n1 and so on, in a bubble of fake time, calls f, and stops it.
// synctest fails if a goroutine is left.
func run(t *testing.T, n int, f func(*cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, n)
		f(c)
		c.stop()
	})
}

func newCluster(t *testing.T, n int) *cluster {
	c := &cluster{
		T: t, api: sim.NewAPI(), causes: map[string]reason.Reason{}, slow: map[reason.Reason]bool{},
		refusals: map[string]*sim.Refusal{}, requests: map[string]int{},
	}
	c.api.Latency = 0
	c.api.Put(deploymentPath, appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{UID: theDeployment.UID}})
	c.api.RefuseBy(func(_, path string) *sim.Refusal {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, object, _ := strings.Cut(path, "/namespaces/") // NAMESPACE/RESOURCE/…
		resource := strings.Split(object, "/")[1]
		c.requests[resource]++
		return c.refusals[resource]
	})
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	c.log = func() []string {
		text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		return slices.Collect(strings.Lines(text))
	}
	c.start(klog.NewContext(t.Context(), logger))
	for i := range n {
		c.scraper.Set(newNode(fmt.Sprint("n", i+1)))
	}
	synctest.Wait() // all first scrapes succeed, or the test would depend on which ones do
	return c
}

// start starts a Scraper and a Reporter.
func (c *cluster) start(ctx context.Context) {
	c.scraper = scrape.New(scrape.Config{Fetcher: c, Sink: c, Observer: c, Interval: interval})
	client := kubernetes.NewForConfigOrDie(c.api.Config())
	c.Reporter = New(Config{
		Events: client.CoreV1(), Deployments: client.AppsV1(), Namespace: "kube-system", Deployment: "kube-vitals",
		Interval: interval, Source: c,
	})
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { c.scraper.Run(klog.NewContext(ctx, klog.Logger{})) })
	running.Go(func() { c.Reporter.Run(ctx) })
	c.stop = func() { cancel(); running.Wait() }
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
}

// fail makes the nodes from n<first> to n<last> fail for a cause; empty: they recover.
func (c *cluster) fail(cause reason.Reason, first, last int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := first; i <= last; i++ {
		c.causes[fmt.Sprint("n", i)] = cause
	}
}

// setSlow sets whether failures for a cause take until the timeout.
func (c *cluster) setSlow(cause reason.Reason, slow bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slow[cause] = slow
}

// refuse sets how requests for a resource fail; nil: they do not.
func (c *cluster) refuse(resource string, r *sim.Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusals[resource] = r
}

// sent returns the number of requests to write events.
func (c *cluster) sent() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests["events"]
}

// countScrapes returns the number of scrapes so far.
func (c *cluster) countScrapes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.scrapes
}

// pass lets fake time pass, and waits until everything due has happened.
func (c *cluster) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// want fails unless the events are these, in any order: "OBJECT REASON CAUSE xCOUNT". The cause is
// missing if the message has none.
func (c *cluster) want(want ...string) {
	c.Helper()
	got := c.lines()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		c.Fatalf("got events\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// lines returns the events, sorted.
func (c *cluster) lines() []string {
	var lines []string
	for _, e := range c.recorded() {
		cause := ""
		if _, rest, ok := strings.Cut(e.Message, "("); ok {
			cause, _, _ = strings.Cut(rest, ")")
			cause += " "
		}
		lines = append(lines, fmt.Sprintf("%s %s %sx%d", e.InvolvedObject.Name, e.Reason, cause, e.Count))
	}
	slices.Sort(lines)
	return lines
}

// recorded returns the events in the order of their creation: a name ends with its time.
func (c *cluster) recorded() (events []*corev1.Event) {
	for _, object := range c.api.List("/api/v1/events") {
		e := &corev1.Event{}
		text, err := json.Marshal(object)
		if err = errors.Join(err, json.Unmarshal(text, e)); err != nil {
			c.Fatal(err)
		}
		if len(e.Message) > 1024 {
			c.Errorf("an API server rejects the message %q", e.Message)
		}
		events = append(events, e)
	}
	slices.SortStableFunc(events, func(a, b *corev1.Event) int {
		return strings.Compare(path.Ext(a.Name), path.Ext(b.Name))
	})
	return events
}

// deleteEvents deletes all events, as the API server does after an hour.
func (c *cluster) deleteEvents() {
	for _, e := range c.recorded() {
		c.api.Put(path.Join("/api/v1/namespaces", e.Namespace, "events", e.Name), nil)
	}
}

// latest returns the event that was recorded last.
func (c *cluster) latest() *corev1.Event {
	return slices.MaxFunc(c.recorded(), func(a, b *corev1.Event) int {
		return a.LastTimestamp.Compare(b.LastTimestamp.Time)
	})
}

// lastLog returns the last line of the log.
func (c *cluster) lastLog() string {
	lines := c.log()
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// tracked returns the number of nodes with state. The Reporter must have stopped.
func (c *cluster) tracked() int { return len(c.nodes) }
