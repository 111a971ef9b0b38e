package event

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	interval = 15 * time.Second
	timeout  = 10 * time.Second // of a request to a kubelet
)

// theDeployment is that of kube-vitals.
var theDeployment = corev1.ObjectReference{
	APIVersion: "apps/v1", Kind: "Deployment", Namespace: "kube-system", Name: "kube-vitals", UID: "uid-kube-vitals",
}

// fakeAPI has the events and the Deployment of a cluster.
type fakeAPI struct {
	mu            sync.Mutex
	events        []*corev1.Event
	requests      int           // to write events
	err           error         // of the requests to write events
	deploymentErr error         // of the requests for the Deployment
	delay         time.Duration // of the requests to write events
}

func (f *fakeAPI) Events(namespace string) corev1client.EventInterface {
	return &fakeEvents{fakeAPI: f, namespace: namespace}
}

func (f *fakeAPI) Deployments(namespace string) appsv1client.DeploymentInterface {
	return &fakeDeployments{fakeAPI: f, namespace: namespace}
}

func (f *fakeAPI) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// recorded returns copies of the events. Tests must not read the events without the lock: that they
// wait for everything due to have happened does not order their reads before later writes.
func (f *fakeAPI) recorded() []*corev1.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	var events []*corev1.Event
	for _, e := range f.events {
		events = append(events, e.DeepCopy())
	}
	return events
}

// sent returns the number of requests to write events.
func (f *fakeAPI) sent() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests
}

type fakeEvents struct {
	corev1client.EventInterface
	*fakeAPI
	namespace string
}

// begin counts a request and returns its error.
func (f *fakeEvents) begin(ctx context.Context) error {
	f.mu.Lock()
	delay := f.delay
	f.mu.Unlock()
	// A timer of 0 s crashes now and then: in a bubble of synctest, the race detector takes the
	// goroutines that receive from timers that are due for one (golang/go#78156).
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	return f.err
}

func (f *fakeEvents) Create(ctx context.Context, e *corev1.Event, _ metav1.CreateOptions) (*corev1.Event, error) {
	if err := f.begin(ctx); err != nil {
		return nil, err
	}
	if e.Namespace != f.namespace || len(e.Message) > 1024 {
		return nil, apierrors.NewBadRequest("invalid event")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e.DeepCopy())
	return e.DeepCopy(), nil
}

func (f *fakeEvents) Patch(
	ctx context.Context, name string, _ types.PatchType, patch []byte, _ metav1.PatchOptions, _ ...string,
) (*corev1.Event, error) {
	if err := f.begin(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if e.Name == name {
			err := json.Unmarshal(patch, e)
			return e.DeepCopy(), err
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("events"), name)
}

type fakeDeployments struct {
	appsv1client.DeploymentInterface
	*fakeAPI
	namespace string
}

func (f *fakeDeployments) Get(_ context.Context, name string, _ metav1.GetOptions) (*appsv1.Deployment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name, UID: "uid-" + types.UID(name)},
	}, f.deploymentErr
}

// cluster runs a Scraper, whose kubelets fail as configured, and a Reporter that reads its health, with
// that of an engine.
type cluster struct {
	*testing.T
	*fakeAPI
	*Reporter
	scraper *scrape.Scraper
	log     func() []string // returns the lines
	stop    func()

	mu      sync.Mutex
	causes  map[string]reason.Reason // of nodes that fail
	slow    map[reason.Reason]bool   // failures that take until the timeout
	scrapes int
	overall health.Overall
	made    []health.Node // in place of the Scraper's; nil: those
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
	c := &cluster{T: t, fakeAPI: &fakeAPI{}, causes: map[string]reason.Reason{}, slow: map[reason.Reason]bool{}}
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
	c.Reporter = New(Config{
		Events: c.fakeAPI, Deployments: c.fakeAPI, Namespace: "kube-system", Deployment: "kube-vitals",
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
	c.fakeAPI.mu.Lock()
	defer c.fakeAPI.mu.Unlock()
	var lines []string
	for _, e := range c.events {
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

// latest returns the event that was recorded last.
func (c *cluster) latest() *corev1.Event {
	c.fakeAPI.mu.Lock()
	defer c.fakeAPI.mu.Unlock()
	return slices.MaxFunc(c.events, func(a, b *corev1.Event) int {
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
