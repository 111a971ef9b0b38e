package api

import (
	"context"
	"hash/maphash"
	"iter"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// fakeReads is a Reads that records all calls.
type fakeReads struct {
	mu        sync.Mutex
	readers   []uint64
	sizes     []int
	nodes     []string // of the last read
	refreshed []string
	refresh   func(node string)
}

func (f *fakeReads) Read(reader uint64, size int, nodes iter.Seq[string]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers, f.sizes, f.nodes = append(f.readers, reader), append(f.sizes, size), slices.Collect(nodes)
}

func (f *fakeReads) Refresh(_ context.Context, node string) {
	f.mu.Lock()
	f.refreshed = append(f.refreshed, node)
	f.mu.Unlock()
	if f.refresh != nil {
		f.refresh(node)
	}
}

// onNodes returns newConfig, with the pods on nodes.
func onNodes() (Config, *fakeReads) {
	c, reads := newConfig(), &fakeReads{}
	c.Reads = reads
	for i, o := range c.Pods.(fakeInventory) {
		o.Node = []string{"node-a", "node-b"}[i/4] // web-1 and web-2 in apps are on different nodes
	}
	return c, reads
}

func TestReadsAreReported(t *testing.T) {
	const pods = "/apis/metrics.k8s.io/v1beta1/namespaces/apps/pods"
	for _, tc := range []struct {
		path, accept string
		nodes        string // that count as read; "": none
		size         int
	}{
		{pods, jsonType, "", 0},
		{"/apis/metrics.k8s.io/v1beta1/pods", jsonType, "", 0},
		{"/apis/metrics.k8s.io/v1beta1/nodes", jsonType, "", 0},
		{pods + "?limit=1", jsonType, "", 0},
		{pods + "?labelSelector=app%3Dweb", jsonType, "node-a,node-b", 2},
		{pods + "?labelSelector=app%3Dweb", protobufType, "node-a,node-b", 2},
		{pods + "?labelSelector=app%3Dweb", tableType, "node-a,node-b", 2},
		{pods + "?labelSelector=app%3Dweb&limit=1", jsonType, "node-a", 1},
		{pods + "?labelSelector=app%3Dnone", jsonType, "", 0},
		{"/apis/metrics.k8s.io/v1beta1/pods?labelSelector=app%3Dweb", jsonType, "node-a,node-b", 3},
		{"/apis/metrics.k8s.io/v1beta1/nodes?labelSelector=zone%3Da", jsonType, "node-a,node-no-metrics", 2},
		{"/apis/metrics.k8s.io/v1beta1/nodes/node-b", jsonType, "node-b", 1},
		{pods + "/idle", jsonType, "node-a", 1},
		{pods + "/idle", tableType, "node-a", 1},
		{pods + "?fieldSelector=metadata.name%3Didle", jsonType, "node-a", 1},
		{"/apis/metrics.k8s.io/v1beta1/pods?fieldSelector=metadata.name%3Ddb", jsonType, "node-b", 1},
		{"/apis/metrics.k8s.io/v1beta1/pods?fieldSelector=metadata.namespace%3Dapps", jsonType, "", 0},
		{pods + "?fieldSelector=metadata.name%21%3Didle", jsonType, "", 0},
		{pods + "/no-metrics", jsonType, "node-a", 1},
		{pods + "/unknown", jsonType, "", 0},
	} {
		for _, watch := range []bool{false, true} {
			c, reads := onNodes()
			c.Watch = watch
			do(serve(t, c), http.MethodGet, tc.path, tc.accept)
			got := strings.Join(reads.nodes, ",")
			if tc.nodes == "node-a,node-b" && got == "node-b,node-a" {
				got = tc.nodes
			}
			if tc.nodes == "" && len(reads.readers) > 0 || got != tc.nodes {
				t.Errorf("%s: %d reads of %q, want %q", tc.path, len(reads.readers), got, tc.nodes)
			} else if tc.nodes != "" && (len(reads.readers) != 1 || reads.sizes[0] != tc.size || reads.readers[0] == 0) {
				t.Errorf("%s: got readers %v with sizes %v, want one with size %d", tc.path, reads.readers, reads.sizes, tc.size)
			}
			wantRefresh := strings.Contains(tc.path, "pods/") || strings.Contains(tc.path, "nodes/")
			wantRefresh = wantRefresh && tc.nodes != ""
			if got := len(reads.refreshed) == 1; got != wantRefresh || len(reads.refreshed) > 1 {
				t.Errorf("%s: got refreshes %v, want one: %v", tc.path, reads.refreshed, wantRefresh)
			}
		}
	}
}

// TestReaders checks which reads count as those of the same reader.
func TestReaders(t *testing.T) {
	c, reads := onNodes()
	h := serve(t, c)
	as := func(name, path string) uint64 {
		r, err := http.NewRequestWithContext(request.WithUser(t.Context(), &user.DefaultInfo{Name: name}), http.MethodGet,
			"/apis/metrics.k8s.io/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		h.ServeHTTP(&discardWriter{header: http.Header{}}, r)
		return reads.readers[len(reads.readers)-1]
	}
	const list = "v1beta1/namespaces/apps/pods?labelSelector=app%3Dweb"
	first := as("hpa", list)
	for _, same := range []string{list, "v1/namespaces/apps/pods?labelSelector=app%3Dweb", list + "&limit=1",
		"v1/namespaces/apps/pods?labelSelector=app+in+%28web%29"} {
		if got := as("hpa", same); (got == first) != !strings.Contains(same, "in") {
			t.Errorf("%s: got another reader", same)
		}
	}
	seen := map[uint64]string{first: list}
	for _, other := range []string{
		"v1/namespaces/data/pods?labelSelector=app%3Dweb", "v1/namespaces/apps/pods?labelSelector=app%21%3Dweb",
		"v1/pods?labelSelector=app%3Dweb", "v1/nodes?labelSelector=zone", "v1/nodes/node-a", "v1/namespaces/apps/pods/web-1",
		"v1/namespaces/apps/pods/web-2", "v1/namespaces/data/pods/web-1",
		list + "&fieldSelector=metadata.name%3Dweb-1",
	} {
		reader := as("hpa", other)
		if seen[reader] != "" {
			t.Errorf("%s: the same reader as %s", other, seen[reader])
		}
		seen[reader] = other
	}
	if as("alice", list) == first {
		t.Error("another user is the same reader")
	}
}

// TestWatchReports checks that each event of a watch with a selector counts as a read.
func TestWatchReports(t *testing.T) {
	for selector, want := range map[string]bool{
		"": false, "&labelSelector=app%3Dweb": true, "&fieldSelector=metadata.name%3Dweb-1": true,
	} {
		reads := &fakeReads{}
		w := serveWatched(t, func(c *Config) { c.Reads = reads })
		w.events(t, "/apis/metrics.k8s.io/v1beta1/namespaces/apps/pods?watch=true"+selector, jsonType)()
		reads.mu.Lock()
		if got := len(reads.readers) > 0; got != want {
			t.Errorf("%q: reads were reported: %v, want %v", selector, got, want)
		}
		for _, reader := range reads.readers {
			if reader != 0 {
				t.Errorf("%q: got reader %d: each event is caused by a scrape, which must not follow it", selector, reader)
			}
		}
		reads.mu.Unlock()
	}
}

// kubelets is a Fetcher and a Sink of kubelets that are slow or fail, and a Usage of what they sent.
type kubelets struct {
	fetch func(ctx context.Context) error

	mu   sync.Mutex
	node *usage.Node // nil: nothing was scraped
}

func (k *kubelets) Fetch(ctx context.Context, _ *corev1.Node, dst *usage.Scrape) error {
	dst.At = usage.At(time.Now())
	k.mu.Lock()
	fetch := k.fetch
	k.mu.Unlock()
	return fetch(ctx)
}
func (k *kubelets) FetchSummary(context.Context, *corev1.Node, *usage.Scrape) error { return nil }
func (k *kubelets) Address(*corev1.Node) string                                     { return "" }
func (k *kubelets) Forget(string)                                                   {}
func (k *kubelets) PutSummary(string, *usage.Scrape) []usage.Missing                { return nil }
func (k *kubelets) Scraped(scrape.Result)                                           {}
func (k *kubelets) Summarized(error)                                                {}
func (k *kubelets) NodeDeleted(string)                                              {}

func (k *kubelets) Put(_ string, s *usage.Scrape) (r usage.Report) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.node = &usage.Node{Name: "node-a", Amount: usage.Amount{At: s.At, Window: 15 * time.Second}, AsOf: s.At}
	return r
}

func (k *kubelets) Node(string, usage.Time) *usage.Node {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.node
}
func (k *kubelets) Pods(found []*usage.Pod, _ []usage.PodKey, _ usage.Time) { clear(found) }

// TestGetWaits checks, with a real Scraper, that a GET returns metrics of this moment if the kubelet
// answers in time, and that it is never late.
func TestGetWaits(t *testing.T) {
	takes := func(d time.Duration, err error) func(context.Context) error {
		return func(ctx context.Context) error {
			select {
			case <-time.After(d):
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		k := &kubelets{fetch: takes(20*time.Millisecond, nil)}
		s := scrape.New(scrape.Config{
			Fetcher: k, Sink: k, Observer: k, Interval: 15 * time.Second,
			Reason:  func(error) reason.Reason { return "" },
			Watched: scrape.Watched{Resolution: 5 * time.Second, Budget: 4},
		})
		c := &collection{
			resource:  nodes{usage: k},
			inventory: fakeInventory{object("", "node-a", "zone=a")},
			seed:      maphash.MakeSeed(),
			config:    Config{Reads: s, Now: time.Now, Clock: usage.NewClock(time.Now())},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		s.Set(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: types.UID("a")}})
		time.Sleep(14 * time.Second)
		for c.config.Clock.At(time.Now()).Sub(k.Node("", 0).AsOf) < 14*time.Second {
			time.Sleep(time.Second / 10)
		}

		// check checks the age of the metrics that a GET returns (below 0: at least), and how long it takes.
		check := func(what string, wantAge, wantWait time.Duration) {
			t.Helper()
			start := time.Now()
			o, u := c.lookUp(t.Context(), "node-a", start)
			if c.refresh(t.Context(), o, u, start) {
				o, u = c.lookUp(t.Context(), "node-a", time.Now())
			}
			if o == nil || u == nil {
				t.Fatalf("%s: got object %v, usage %v", what, o, u)
			}
			age, wait := c.config.Clock.At(time.Now()).Sub(u.SampledAt()), time.Since(start)
			if wait != wantWait || wantAge >= 0 && age != wantAge || wantAge < 0 && age < -wantAge {
				t.Errorf("%s: got metrics of %v ago after %v, want %v after %v", what, age, wait, wantAge, wantWait)
			}
		}
		const never = 250 * time.Millisecond
		check("old metrics", 20*time.Millisecond, 20*time.Millisecond)
		time.Sleep(2 * time.Second)
		check("young metrics", 2020*time.Millisecond, 0)
		time.Sleep(2 * time.Second)
		check("metrics that the pace does not renew", 4020*time.Millisecond, 0)
		k.mu.Lock()
		k.fetch = takes(time.Hour, nil)
		k.mu.Unlock()
		time.Sleep(time.Second / 2)
		check("hanging kubelet", -4*time.Second, never)
		check("hanging kubelet, again", -4*time.Second, 0)
		list := func() time.Duration {
			start := time.Now()
			q, err := newQuery("", nil)
			if err != nil {
				t.Fatal(err)
			}
			q.labels = labels.SelectorFromSet(labels.Set{"zone": "a"})
			c.noteList(t.Context(), q, []*inventory.Object{object("", "node-a", "zone=a")})
			return time.Since(start)
		}
		if wait := list(); wait != 0 {
			t.Errorf("a LIST waited %v", wait)
		}
		s.Delete("node-a")
		check("deleted node", -4*time.Second, 0)
		cancel()
		<-done
	})
}
