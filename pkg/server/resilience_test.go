package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// rig connects scraper, decoder and store with fake kubelets, without a network and in fake time.
type rig struct {
	store   *store.Store
	scraper *scrape.Scraper

	mu       sync.Mutex
	kubelets map[string]*kubelettest.Kubelet
	fails    func(node string) bool // reports whether the next scrape of the node fails
	scrapes  int                    // number of scrapes
}

const (
	rigResolution = 15 * time.Second
	rigMaxAge     = 4 * rigResolution
)

// startRig starts a rig in the bubble of synctest.Test. It runs until the test ends.
func startRig(t *testing.T) *rig {
	r := &rig{
		store:    store.New(store.Config{MaxSampleAge: rigMaxAge, MaxContainers: maxContainers}),
		kubelets: map[string]*kubelettest.Kubelet{},
	}
	r.scraper = scrape.New(scrape.Config{
		Fetcher: r, Sink: r.store, Observer: r, Interval: rigResolution,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.scraper.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// add adds a node that has been up for an hour.
func (r *rig) add(name string, config kubelettest.Config) *kubelettest.Kubelet {
	config.Boot = time.Now().Add(-time.Hour)
	k := kubelettest.New(name, config)
	k.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
	r.mu.Lock()
	r.kubelets[name] = k
	r.mu.Unlock()
	r.scraper.Set(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}})
	return k
}

func (r *rig) Fetch(_ context.Context, node *corev1.Node, put func(*usage.Scrape)) (usage.Timing, error) {
	r.mu.Lock()
	k, fails := r.kubelets[node.Name], r.fails != nil && r.fails(node.Name)
	r.mu.Unlock()
	if fails {
		return usage.Timing{}, errors.New("connection reset")
	}
	response := httptest.NewRecorder()
	k.ServeHTTP(response, httptest.NewRequest(http.MethodGet, kubelettest.ResourcePath, nil))
	s := usage.Scrape{At: usage.At(time.Now())}
	err := new(decode.Text).Decode(&s, response.Body.Bytes())
	if err == nil {
		put(&s)
	}
	return usage.Timing{}, err
}

func (r *rig) FetchSummary(context.Context, *corev1.Node, func(*usage.Scrape)) (usage.Timing, error) {
	return usage.Timing{}, errors.New("status 403")
}

func (r *rig) FetchStorage(context.Context, *corev1.Node, func(*usage.Scrape)) (usage.Timing, error) {
	return usage.Timing{}, errors.New("status 403")
}

func (r *rig) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.scrapes
}

func (r *rig) Forget(string) {}

func (r *rig) Address(*corev1.Node) string { return "" }
func (r *rig) Summarized(error)            {}

func (r *rig) Scraped(scrape.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scrapes++
}

// cached configures a kubelet that samples containers every 10 seconds, with cAdvisor.
var cached = kubelettest.Config{Housekeeping: 10 * time.Second}

// onDemand configures a kubelet that samples containers at each request, with the container
// runtime.
var onDemand = kubelettest.Config{Housekeeping: 10 * time.Second, ContainersOnDemand: true}

// TestMetricsDuringFailingScrapes checks that all pods are served at any time while 30 % of all
// scrapes fail, with no sample older than the maximum age.
//
// A node fails at most 8 times in a row. Otherwise, in about 2 % of the runs some node would fail
// 11 times in a row, and its metrics would expire: the order of scrapes differs between runs.
func TestMetricsDuringFailingScrapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		random := rand.New(rand.NewPCG(1, 2))
		const maxInRow = 8
		inRow := map[string]int{} // failures, by node
		r.fails = func(node string) bool {
			if random.Float64() >= 0.3 || inRow[node] == maxInRow {
				inRow[node] = 0
				return false
			}
			inRow[node]++
			return true
		}
		const nodes = 100
		for n := range nodes {
			config := cached
			if n%2 == 0 {
				config = onDemand
			}
			k := r.add(fmt.Sprint("n", n), config)
			for _, container := range []string{"a", "b"} {
				k.SetContainer("ns", fmt.Sprint("p", n), container, kubelettest.Usage{CPU: 0.1, Memory: 1 << 20})
			}
		}
		time.Sleep(2 * time.Minute)
		var oldest time.Duration
		for range 1200 { // twenty minutes
			time.Sleep(time.Second)
			synctest.Wait()
			now := usage.At(time.Now())
			for n := range nodes {
				pod := r.store.Pod(fmt.Sprint("n", n), "ns", fmt.Sprint("p", n), now)
				if pod == nil || len(pod.Containers) != 2 {
					t.Fatalf("pod p%d: got %+v", n, pod)
				}
				if r.store.Node(fmt.Sprint("n", n), now) == nil {
					t.Fatalf("node n%d: got nil", n)
				}
				oldest = max(oldest, now.Sub(pod.At))
			}
		}
		if oldest > rigMaxAge {
			t.Errorf("got a sample with the age %v, want at most %v", oldest, rigMaxAge)
		}
		if oldest < rigResolution {
			t.Errorf("got no sample older than %v: no scrape has failed", oldest)
		}
	})
}

// TestMetricsOfUnreachableNodeExpire checks that metrics expire exactly at the maximum age, and
// that they return within an interval after the node.
func TestMetricsOfUnreachableNodeExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		k := r.add("n", onDemand)
		k.SetContainer("ns", "p", "a", kubelettest.Usage{CPU: 0.1, Memory: 1 << 20})
		time.Sleep(5 * rigResolution)
		r.mu.Lock()
		unreachable := true
		r.fails = func(string) bool { return unreachable }
		r.mu.Unlock()
		synctest.Wait()
		last := r.store.Pod("n", "ns", "p", usage.At(time.Now()))
		time.Sleep(time.Until(last.At.Time().Add(rigMaxAge)))
		synctest.Wait()
		if r.store.Pod("n", "ns", "p", usage.At(time.Now())) != last {
			t.Error("the last metrics have expired early")
		}
		time.Sleep(time.Nanosecond)
		if r.store.Pod("n", "ns", "p", usage.At(time.Now())) != nil {
			t.Error("the last metrics are served after the maximum age")
		}
		time.Sleep(10 * rigResolution)
		r.mu.Lock()
		unreachable = false
		r.mu.Unlock()
		before := r.count()
		time.Sleep(rigResolution)
		synctest.Wait()
		if r.store.Pod("n", "ns", "p", usage.At(time.Now())) == nil {
			t.Errorf("got no metrics within an interval after the node was back, with %d scrapes", r.count()-before)
		}
	})
}

// TestNewPodsGetMetricsSoon checks that 95 % of new pods have metrics within 20 seconds of their
// start, with a bounded number of scrapes.
func TestNewPodsGetMetricsSoon(t *testing.T) {
	for name, config := range map[string]kubelettest.Config{"cached": cached, "on demand": onDemand} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startRig(t)
				const nodes = 50
				for n := range nodes {
					r.add(fmt.Sprint("n", n), config).SetContainer("ns", fmt.Sprint("old", n), "a", kubelettest.Usage{CPU: 0.1})
				}
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				regular := r.count()

				random := rand.New(rand.NewPCG(3, 4))
				type newPod struct {
					node string
					at   time.Time // of its start
				}
				started := map[string]newPod{} // without metrics
				var waits []time.Duration
				const minutes = 10
				for tick := range minutes * 600 { // about one pod a second
					if tick%10 == 0 {
						pod := fmt.Sprint("new", tick)
						node := fmt.Sprint("n", random.IntN(nodes))
						started[pod] = newPod{node, time.Now()}
						r.kubelets[node].Run("ns", pod, "a", kubelettest.Usage{CPU: 0.2, Memory: 1 << 20}, time.Now())
					}
					time.Sleep(97 * time.Millisecond) // not in step with scrapes
					synctest.Wait()
					for pod, start := range started {
						if r.store.Pod(start.node, "ns", pod, usage.At(time.Now())) != nil {
							waits = append(waits, time.Since(start.at))
							delete(started, pod)
						}
					}
				}
				slices.Sort(waits)
				p95 := waits[len(waits)*95/100]
				perNode := float64(r.count()-regular) / nodes / minutes / float64(time.Minute/rigResolution)
				t.Logf("%d pods: median %v, p95 %v, maximum %v; %.2f scrapes per node and interval",
					len(waits), waits[len(waits)/2], p95, waits[len(waits)-1], perNode)
				if len(waits) < minutes*60-30 {
					t.Errorf("got metrics of %d of %d pods", len(waits), minutes*60)
				}
				if p95 > 20*time.Second {
					t.Errorf("5 %% of the pods waited %v or longer", p95)
				}
				if waits[0] < usage.MinAgeSinceStart {
					t.Errorf("got metrics of a pod at the age of %v: its start-up spike", waits[0])
				}
				if perNode > 2 {
					t.Errorf("got %.2f scrapes per node and interval, want at most 2", perNode)
				}
			})
		})
	}
}
