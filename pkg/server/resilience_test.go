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
	"sync/atomic"
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
	scrape.Fetcher // nil; FetchStorage is not called

	store   *store.Store
	scraper *scrape.Scraper
	scrapes atomic.Int64 // number of scrapes

	mu       sync.Mutex
	kubelets map[string]*kubelettest.Kubelet
	fails    func(node string) bool // reports whether the next scrape of the node fails
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
	r.scraper = scrape.New(scrape.Config{Fetcher: r, Sink: r.store, Observer: r, Interval: rigResolution})
	var running sync.WaitGroup
	running.Go(func() { r.scraper.Run(t.Context()) })
	t.Cleanup(running.Wait)
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

func (r *rig) Forget(string)               {}
func (r *rig) Address(*corev1.Node) string { return "" }
func (r *rig) Summarized(error)            {}
func (r *rig) Scraped(scrape.Result)       { r.scrapes.Add(1) }

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
		const nodes = 40
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
		for range 600 { // ten minutes
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
		fail := func(fails bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.fails = func(string) bool { return fails }
		}
		pod := func() *usage.Pod { return r.store.Pod("n", "ns", "p", usage.At(time.Now())) }
		fail(true)
		synctest.Wait()
		last := pod()
		time.Sleep(time.Until(last.At.Time().Add(rigMaxAge)))
		synctest.Wait()
		if pod() != last {
			t.Error("the last metrics have expired early")
		}
		time.Sleep(time.Nanosecond)
		if pod() != nil {
			t.Error("the last metrics are served after the maximum age")
		}
		time.Sleep(10 * rigResolution)
		fail(false)
		before := r.scrapes.Load()
		time.Sleep(rigResolution)
		synctest.Wait()
		if pod() == nil {
			t.Errorf("got no metrics within an interval after the node was back, with %d scrapes", r.scrapes.Load()-before)
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
				const nodes = 20
				for n := range nodes {
					r.add(fmt.Sprint("n", n), config).SetContainer("ns", fmt.Sprint("old", n), "a", kubelettest.Usage{CPU: 0.1})
				}
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				regular := r.scrapes.Load()

				random := rand.New(rand.NewPCG(3, 4))
				type newPod struct {
					node string
					at   time.Time // of its start
				}
				started := map[string]newPod{} // without metrics
				var waits []time.Duration
				const minutes, perPod = 10, 12 // so about one pod in 2.4 seconds
				for tick := range minutes * 300 {
					if tick%perPod == 0 {
						pod := fmt.Sprint("new", tick)
						node := fmt.Sprint("n", random.IntN(nodes))
						started[pod] = newPod{node, time.Now()}
						r.kubelets[node].Run("ns", pod, "a", kubelettest.Usage{CPU: 0.2, Memory: 1 << 20}, time.Now())
					}
					time.Sleep(197 * time.Millisecond) // not in step with scrapes
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
				perNode := float64(r.scrapes.Load()-regular) / nodes / minutes / float64(time.Minute/rigResolution)
				if len(started) > 20 {
					t.Errorf("%d pods have no metrics, %d have", len(started), len(waits))
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
