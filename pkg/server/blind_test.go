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

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// rig is scraper, decoder and store as they work together, over fake kubelets, without a network
// and in fake time.
type rig struct {
	store   *store.Store
	scraper *scrape.Scraper

	mu       sync.Mutex
	kubelets map[string]*kubelettest.Kubelet
	fails    func(node string) bool // whether the next scrape of a node does
	scrapes  int
}

const (
	rigResolution = 15 * time.Second
	rigMaxAge     = 4 * rigResolution
)

// startRig runs in the bubble of a test until that ends.
func startRig(t *testing.T) *rig {
	r := &rig{
		store:    store.New(store.Config{MaxSampleAge: rigMaxAge, MaxContainers: maxContainers}),
		kubelets: map[string]*kubelettest.Kubelet{},
	}
	r.scraper = scrape.New(scrape.Config{Fetcher: r, Sink: r.store, Observer: r, Reason: error.Error, Interval: rigResolution})
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

// add starts a node that has been up for an hour.
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

func (r *rig) Fetch(_ context.Context, node *corev1.Node, dst *usage.Scrape) error {
	r.mu.Lock()
	k, fails := r.kubelets[node.Name], r.fails != nil && r.fails(node.Name)
	r.mu.Unlock()
	if fails {
		return errors.New("the connection broke")
	}
	answer := httptest.NewRecorder()
	k.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, kubelettest.ResourcePath, nil))
	return new(decode.Text).Decode(dst, answer.Body.Bytes(), decode.Times{At: usage.At(time.Now())})
}

func (r *rig) FetchSummary(context.Context, *corev1.Node, *usage.Scrape) error {
	return errors.New("status 403")
}

// asked gives how many scrapes there were.
func (r *rig) asked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.scrapes
}

func (r *rig) Forget(string)      {}
func (r *rig) NodeDeleted(string) {}
func (r *rig) Summarized(error)   {}

func (r *rig) Scraped(scrape.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scrapes++
}

// cached is a kubelet that takes samples every 10 seconds, as those do that have cAdvisor look
// after containers.
var cached = kubelettest.Config{Housekeeping: 10 * time.Second}

// onDemand is one that asks the container runtime when it is asked.
var onDemand = kubelettest.Config{Housekeeping: 10 * time.Second, ContainersOnDemand: true}

// TestFailingScrapesBlindNobody: with 30 % of all scrapes failing, every pod is served at every
// moment, and none too old.
//
// A node fails at most 8 times in a row. Without that bound, some node would fail 11 times in a row
// in about 2 % of the runs, which is enough for its metrics to expire: the order in which the nodes
// are scraped, and so what is random, differs from run to run.
func TestFailingScrapesBlindNobody(t *testing.T) {
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
					t.Fatalf("pod p%d is served as %+v", n, pod)
				}
				if r.store.Node(fmt.Sprint("n", n), now) == nil {
					t.Fatalf("node n%d is not served", n)
				}
				oldest = max(oldest, now.Sub(pod.At))
			}
		}
		if oldest > rigMaxAge {
			t.Errorf("a pod's figures were %v old", oldest)
		}
		if oldest < rigResolution {
			t.Errorf("no figures were older than %v: nothing failed", oldest)
		}
	})
}

// TestANodeThatIsAwayLosesItsFiguresAtTheirAge: not before, not after; and they are back within an
// interval.
func TestANodeThatIsAwayLosesItsFiguresAtTheirAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		k := r.add("n", onDemand)
		k.SetContainer("ns", "p", "a", kubelettest.Usage{CPU: 0.1, Memory: 1 << 20})
		time.Sleep(5 * rigResolution)
		r.mu.Lock()
		away := true
		r.fails = func(string) bool { return away }
		r.mu.Unlock()
		synctest.Wait()
		last := r.store.Pod("n", "ns", "p", usage.At(time.Now()))
		time.Sleep(time.Until(last.At.Time().Add(rigMaxAge)))
		synctest.Wait()
		if r.store.Pod("n", "ns", "p", usage.At(time.Now())) != last {
			t.Error("the last figures went before their time")
		}
		time.Sleep(time.Nanosecond)
		if r.store.Pod("n", "ns", "p", usage.At(time.Now())) != nil {
			t.Error("the last figures are served for longer than they may be")
		}
		time.Sleep(10 * rigResolution)
		r.mu.Lock()
		away = false
		r.mu.Unlock()
		before := r.asked()
		time.Sleep(rigResolution)
		synctest.Wait()
		if r.store.Pod("n", "ns", "p", usage.At(time.Now())) == nil {
			t.Errorf("no figures an interval after the node was back, in which it was asked %d times", r.asked()-before)
		}
	})
}

// TestNewPodsHaveFiguresSoon: 95 % of them within 20 seconds of their start, with kubelets of both
// kinds, at a bounded cost.
func TestNewPodsHaveFiguresSoon(t *testing.T) {
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
				regular := r.asked()

				random := rand.New(rand.NewPCG(3, 4))
				type newPod struct {
					node string
					at   time.Time // of the start
				}
				started := map[string]newPod{} // that have no metrics yet
				var waits []time.Duration
				const minutes = 10
				for tick := range minutes * 600 { // about one pod a second
					if tick%10 == 0 {
						pod := fmt.Sprint("new", tick)
						node := fmt.Sprint("n", random.IntN(nodes))
						started[pod] = newPod{node, time.Now()}
						r.kubelets[node].Run("ns", pod, "a", kubelettest.Usage{CPU: 0.2, Memory: 1 << 20}, time.Now())
					}
					time.Sleep(97 * time.Millisecond) // moments that have nothing to do with the scrapes'
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
				perNode := float64(r.asked()-regular) / nodes / minutes / float64(time.Minute/rigResolution)
				t.Logf("%d pods: median %v, p95 %v, worst %v; %.2f scrapes a node and interval", len(waits), waits[len(waits)/2], p95, waits[len(waits)-1], perNode)
				if len(waits) < minutes*60-30 {
					t.Errorf("only %d of %d pods had figures", len(waits), minutes*60)
				}
				if p95 > 20*time.Second {
					t.Errorf("5 %% of the pods had to wait for %v or more", p95)
				}
				if waits[0] < usage.MinAgeSinceStart {
					t.Errorf("a pod had figures at the age of %v: its start-up spike", waits[0])
				}
				if perNode > 2 {
					t.Errorf("%.2f scrapes a node and interval", perNode)
				}
			})
		})
	}
}
