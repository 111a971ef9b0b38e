package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

var (
	seeds     = flag.Int("seeds", 10, "the number of soaks in virtual time")
	firstSeed = flag.Uint64("first-seed", 1, "the seed of the first of them")
)

// simulation is a soak in virtual time: the churn, the oracle and the kubelets of the real soak, and
// the scraper, the decoders, the store and the inventory of the server, without a network and an API
// server. It is an apiServer, a fleet, a scrape.Fetcher and a scrape.Observer.
type simulation struct {
	oracle  *oracle
	churn   *churn
	clock   usage.Clock
	view    *view.View
	scraper *scrape.Scraper
	work    sync.WaitGroup

	mu       sync.Mutex
	random   *rand.Rand
	kubelets map[string]*kubelettest.Kubelet // by node
}

const (
	simulatedNodes = 6
	simulatedPods  = 3 // per node
)

func newSimulation(seed uint64, resolution time.Duration, active scrape.Active) *simulation {
	// Start times before the year 2000 are not valid, and those of whole seconds look as if truncated.
	time.Sleep(26*365*24*time.Hour + 123*time.Millisecond)
	random := rand.New(rand.NewPCG(seed, 1))
	s := &simulation{
		oracle: newOracle(resolution), clock: usage.NewClock(time.Now()), random: random,
		kubelets: map[string]*kubelettest.Kubelet{},
	}
	s.churn = newChurn(s, s, s.oracle, seed)
	s.view = view.New(store.Config{MaxSampleAge: s.oracle.maxAge, RateWindow: rateWindow, MaxContainers: 1000}, s.clock)
	s.scraper = scrape.New(scrape.Config{
		Fetcher: s, Sink: s.view.Store, Observer: s, Interval: resolution,
		MinWindow: usage.ShortestWindow(rateWindow), Active: active,
	})
	return s
}

func (*simulation) CreateNamespace(context.Context, string) error { return nil }

func (s *simulation) CreateNode(_ context.Context, index int, port uint16, cores int) error {
	node := objects.Node(index, port, time.Now())
	objects.SetCores(node, cores)
	s.scraper.Set(node)
	return s.view.Nodes.Add(node)
}

func (s *simulation) DeleteNode(_ context.Context, index int) error {
	name := objects.NodeName(index)
	s.scraper.Delete(name)
	return s.view.Nodes.Delete(&inventory.Object{Name: name})
}

func (s *simulation) CreatePod(_ context.Context, p objects.Pod) error {
	object := p.Object(time.Now())
	object.Status = corev1.PodStatus{Phase: corev1.PodPending}
	return s.view.Pods.Add(object)
}

func (s *simulation) SetRunning(_ context.Context, p objects.Pod, startedAt time.Time) error {
	object := p.Object(startedAt.Truncate(time.Second))
	object.CreationTimestamp = metav1.NewTime(s.view.Pods.Get(p.Namespace, p.Name).CreatedAt.Time())
	return s.view.Pods.Add(object)
}

func (s *simulation) DeletePod(_ context.Context, p objects.Pod) error {
	return s.view.Pods.Delete(&inventory.Object{Namespace: p.Namespace, Name: p.Name})
}

func (s *simulation) Add(k *kubelettest.Kubelet, at netip.Addr) (netip.AddrPort, error) {
	s.update(func() { s.kubelets[k.Name()] = k })
	return netip.AddrPortFrom(at, 10250), nil
}

func (s *simulation) Remove(name string) { s.update(func() { delete(s.kubelets, name) }) }

func (s *simulation) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// delay sleeps for as long as the network and a busy machine need: mostly some milliseconds, and in
// one of 20 cases up to 300.
func (s *simulation) delay() {
	var d time.Duration
	s.update(func() {
		d = time.Millisecond + time.Duration(s.random.Int64N(int64(10*time.Millisecond)))
		if s.random.IntN(20) == 0 {
			d = time.Duration(1 + s.random.Int64N(int64(300*time.Millisecond)))
		}
	})
	time.Sleep(d)
}

func (*simulation) Forget(string)               {}
func (*simulation) Address(*corev1.Node) string { return "" }
func (*simulation) Scraped(scrape.Result)       {}
func (*simulation) Summarized(error)            {}

func (*simulation) FetchStorage(context.Context, *corev1.Node, func(*usage.Scrape)) (usage.Timing, error) {
	return usage.Timing{}, errors.New("not simulated")
}

func (s *simulation) Fetch(ctx context.Context, node *corev1.Node, put func(*usage.Scrape)) (usage.Timing, error) {
	return s.fetch(ctx, node.Name, kubelettest.ResourcePath, put, (&decode.Text{MaxContainers: 1000}).Decode)
}

func (s *simulation) FetchSummary(
	ctx context.Context, node *corev1.Node, put func(*usage.Scrape),
) (usage.Timing, error) {
	const path = kubelettest.SummaryPath + "?only_cpu_and_memory=true"
	return s.fetch(ctx, node.Name, path, put, func(out *usage.Scrape, body []byte) error {
		return (&decode.Summary{MaxContainers: 1000}).Decode(out, body, node.Name)
	})
}

// fetch requests a path of a kubelet without a network, and decodes the response.
func (s *simulation) fetch(
	ctx context.Context, node, path string, put func(*usage.Scrape),
	decodeBody func(*usage.Scrape, []byte) error,
) (timing usage.Timing, err error) {
	start := time.Now()
	defer func() {
		timing.Took = time.Since(start)
		if p := recover(); p == http.ErrAbortHandler { //nolint:errorlint // a panic with this very value
			err = io.ErrUnexpectedEOF
		} else if p != nil {
			panic(p)
		}
	}()
	var k *kubelettest.Kubelet
	s.update(func() { k = s.kubelets[node] })
	if k == nil {
		return timing, errors.New("refused")
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	out := usage.Scrape{Sent: s.clock.At(time.Now())}
	s.delay()
	w := &responseWriter{ResponseRecorder: httptest.NewRecorder()}
	k.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
	if ctx.Err() != nil {
		return timing, ctx.Err()
	}
	s.delay()
	out.At = s.clock.At(w.arrived)
	if date, err := http.ParseTime(w.Header().Get("Date")); err == nil {
		out.Date = usage.NodeAt(date)
	}
	if w.Code != http.StatusOK || w.Header().Get("Content-Encoding") != "" || w.Body.Len() > maxSimulatedResponse ||
		strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
		return timing, fmt.Errorf("status %d, %v", w.Code, w.Header())
	}
	if err = decodeBody(&out, w.Body.Bytes()); err == nil {
		put(&out)
	}
	return timing, err
}

// responseWriter keeps a response of limited size.
type responseWriter struct {
	*httptest.ResponseRecorder
	arrived time.Time
}

const maxSimulatedResponse = 1 << 18

func (w *responseWriter) WriteHeader(status int) {
	w.arrived = time.Now()
	w.ResponseRecorder.WriteHeader(status)
}

func (w *responseWriter) Write(b []byte) (int, error) {
	if w.Body.Len() > maxSimulatedResponse {
		return 0, errors.New("the client is gone")
	}
	return w.ResponseRecorder.Write(b)
}

// lists returns the metrics of all pods and nodes, as the server would.
func (s *simulation) lists() (pods, nodes []served) {
	now := s.clock.At(time.Now())
	add := func(list *[]served, name string, at usage.NodeTime, window time.Duration) *served {
		*list = append(*list, served{name: name, timestamp: at.Time().Truncate(timestampUnit), window: window})
		return &(*list)[len(*list)-1]
	}
	addUsage := func(to *served, container string, a usage.Amount) {
		to.usages = append(to.usages, containerUsage{container, float64(a.CPUNanocores) / 1e9, int64(a.Memory >> 10)})
	}
	for _, u := range s.view.PodUsages(s.view.RunningPods("", labels.Everything()), now) {
		if u != nil {
			to := add(&pods, podName(u.Namespace, u.Name), u.At, u.Window)
			for _, c := range u.Containers {
				addUsage(to, c.Name, c.Amount)
			}
		}
	}
	for _, n := range s.view.Nodes.List("", labels.Everything()) {
		if u := s.view.Store.Node(n.Name, now); u != nil {
			addUsage(add(&nodes, nodeName(n.Name), u.At, u.Window), "", u.Amount)
		}
	}
	return pods, nodes
}

// run runs churn for a time while readers call check with the lists, and then calm.
func (s *simulation) run(t *testing.T, duration time.Duration, check func(e exchange, pods, nodes []served)) {
	ctx := s.start(t, simulatedNodes, simulatedPods)
	s.work.Go(func() {
		for reader := uint64(1); program.Sleep(ctx, 770*time.Millisecond) == nil; reader = reader%5 + 1 {
			s.scraper.NoteRead(s.someNodes(reader))
			sent := time.Now()
			pods, nodes := s.lists()
			check(exchange{sent, sent}, pods, nodes)
		}
	})
	if err := s.churn.run(ctx, 0.8, duration); err != nil {
		t.Fatal(err)
	}
	if err := program.Sleep(ctx, 2*s.oracle.settle); err != nil {
		t.Fatal(err)
	}
}

// start fills the cluster and runs the scraper until the test ends.
func (s *simulation) start(t *testing.T, nodes, pods int) context.Context {
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	t.Cleanup(func() { stop(); s.work.Wait() })
	if err := s.churn.fill(ctx, nodes, pods); err != nil {
		t.Fatal(err)
	}
	s.oracle.setServerStart(time.Now())
	s.work.Go(func() { s.scraper.Run(ctx) })
	return ctx
}

// someNodes returns the nodes that a reader reads.
func (s *simulation) someNodes(reader uint64) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i, n := range s.view.Nodes.List("", labels.Everything()) {
			if uint64(i)%5 < reader && !yield(n.Name) {
				return
			}
		}
	}
}

// forEachSeed runs simulations of several minutes each.
func forEachSeed(t *testing.T, run func(t *testing.T, s *simulation)) {
	for i := range *seeds {
		seed := *firstSeed + uint64(i)
		synctest.Test(t, func(t *testing.T) {
			resolution, active := 5*time.Second, scrape.Active{Resolution: 2 * time.Second, Budget: 2}
			switch seed % 4 {
			case 1:
				active = scrape.Active{}
			case 2:
				resolution, active.Resolution = 15*time.Second, 5*time.Second
			}
			defer func() {
				if t.Failed() {
					t.Logf("the seed is %d", seed)
				}
			}()
			run(t, newSimulation(seed, resolution, active))
		})
	}
}

// TestSimulation runs soaks in virtual time. No response may have a violation.
func TestSimulation(t *testing.T) {
	responses, steps := 0, 0
	forEachSeed(t, func(t *testing.T, s *simulation) {
		s.run(t, 4*time.Minute, func(e exchange, pods, nodes []served) {
			responses++
			for _, v := range append(s.oracle.check(pods, e, podKind), s.oracle.check(nodes, e, nodeKind)...) {
				t.Error(v)
			}
		})
		steps += s.churn.events["clock steps"]
	})
	t.Logf("%d responses, %d clock steps", responses, steps)
	if responses == 0 || steps == 0 {
		t.Error("this proves nothing")
	}
}

// TestStartsMoveWhileAClockIsAhead checks pods whose start times moved behind times that their node's
// clock shows twice: it was 69 s ahead, and was set back while the node was unreachable.
func TestStartsMoveWhileAClockIsAhead(t *testing.T) {
	for by := 100 * time.Second; by <= 195*time.Second; by += 5 * time.Second {
		synctest.Test(t, func(t *testing.T) {
			s := newSimulation(1, 5*time.Second, scrape.Active{})
			s.start(t, 1, 2)
			n := s.churn.nodes[0]
			check := func(d time.Duration) {
				for range d / time.Second {
					time.Sleep(time.Second)
					now := time.Now()
					pods, _ := s.lists()
					for _, v := range s.oracle.check(pods, exchange{now, now}, podKind) {
						t.Errorf("start times moved by %s: %s", by, v)
					}
				}
			}
			s.churn.moveStarts(n, kubelettest.MoveStarts(by))
			s.churn.setFaults(n)
			check(100 * time.Second)
			s.oracle.stepClock(n, time.Now(), 69*time.Second)
			check(9 * time.Second)
			outage := kubelettest.NamedFault{Name: unreachable, Fault: kubelettest.Refuse}
			s.churn.fail(n, outage, time.Now(), time.Now().Add(time.Minute))
			check(20 * time.Second)
			s.oracle.stepClock(n, time.Now(), 0)
			check(12 * time.Second)
			s.churn.clearFaults(func(*node) bool { return true })
			check(2 * time.Minute)
		})
	}
}

func noSummary(r *kubelettest.Response) { r.Abort = r.Request.URL.Path == kubelettest.SummaryPath }

// forEachRuntime runs a test at the default resolution with 20 kubelets without summaries, which sample
// containers every 10 seconds or on demand. The container ns/old/a of each has metrics.
func forEachRuntime(t *testing.T, run func(t *testing.T, s *simulation, kubelets []*kubelettest.Kubelet)) {
	for _, onDemand := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, kubelets := newSimulation(1, 15*time.Second, scrape.Active{}), make([]*kubelettest.Kubelet, 20)
			ctx := s.start(t, 0, 0)
			for i := range kubelets {
				k := kubelettest.New(objects.NodeName(i), kubelettest.Config{
					Boot: time.Now().Add(-time.Hour), Housekeeping: 10 * time.Second, ContainersOnDemand: onDemand,
				})
				k.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
				k.SetContainer("ns", "old", "a", kubelettest.Usage{CPU: 0.1, Memory: 1 << 20})
				k.SetFaults(noSummary)
				kubelets[i] = k
				s.update(func() { s.kubelets[k.Name()] = k })
				if err := s.CreateNode(ctx, i, 0, objects.NodeCores); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(2 * time.Minute)
			run(t, s, kubelets)
		})
	}
}

// pod returns what is served of a pod.
func (s *simulation) pod(k *kubelettest.Kubelet, name string) *usage.Pod {
	return s.view.Store.Pod(k.Name(), "ns", name, s.clock.At(time.Now()))
}

// TestMetricsDuringFailingScrapes checks that all pods are served at any time while 30 % of all scrapes
// fail.
func TestMetricsDuringFailingScrapes(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, s *simulation, kubelets []*kubelettest.Kubelet) {
		for i, k := range kubelets {
			k.SetFaults(noSummary, kubelettest.Sometimes(0.3, uint64(i), kubelettest.Refuse))
		}
		for second := range 600 {
			time.Sleep(time.Second)
			for _, k := range kubelets {
				if s.pod(k, "old") == nil {
					t.Fatalf("after %d s, the pod of %s is not served", second, k.Name())
				}
			}
		}
	})
}

// TestNewPodsGetMetricsSoon checks that new pods have no metrics while they are too young, and that 95 % have some
// 10 seconds later, with at most 2 scrapes per node and interval.
func TestNewPodsGetMetricsSoon(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, s *simulation, kubelets []*kubelettest.Kubelet) {
		scrapes := func() (n int) {
			for _, k := range kubelets {
				n += k.Requests(kubelettest.ResourcePath)
			}
			return n
		}
		random, before, late := rand.New(rand.NewPCG(3, 4)), scrapes(), 0
		const pods, pace = 250, 2400 * time.Millisecond
		const soon = minContainerAge + 10*time.Second // the kubelets sample every 10 seconds
		var checks sync.WaitGroup
		for i := range pods {
			k, name := kubelets[random.IntN(len(kubelets))], fmt.Sprint("new", i)
			k.Run("ns", name, "a", kubelettest.Usage{CPU: 0.2, Memory: 1 << 20}, time.Now())
			checks.Go(func() {
				time.Sleep(minContainerAge - time.Nanosecond)
				if s.pod(k, name) != nil {
					t.Errorf("%s has metrics too early: its start-up spike", name)
				}
				time.Sleep(soon - minContainerAge + time.Nanosecond)
				if s.pod(k, name) == nil {
					s.update(func() { late++ })
				}
			})
			time.Sleep(pace)
		}
		checks.Wait()
		perNode := float64(scrapes()-before) / float64(len(kubelets)) / (pods*pace + soon).Seconds() * 15
		if perNode > 2 || late > pods/20 {
			t.Errorf("got %.2f scrapes per node and interval, and %d of %d pods waited over %v", perNode, late, pods, soon)
		}
	})
}
