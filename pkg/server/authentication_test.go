package server

import (
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
)

// Request headers count only with a certificate that the front proxy's CA has signed for one of its
// names.
func TestRequestHeaders(t *testing.T) {
	cluster := newCluster(t)
	users, proxies, strangers := kubelettest.NewCA(), kubelettest.NewCA(), kubelettest.NewCA()
	cluster.setTrust(users, proxies)
	c, url := config(t, cluster)
	defer start(t, c)()
	newClient(t, url).until(http.StatusOK, "/readyz", "")

	for name, test := range map[string]struct {
		ca   *kubelettest.CA // nil: no certificate is shown
		user string
		want int
	}{
		"the front proxy":                        {proxies, "front-proxy", http.StatusOK},
		"nobody":                                 {nil, "", http.StatusUnauthorized},
		"a user, by his certificate's CA":        {users, "mallory", http.StatusForbidden},
		"a user with the front proxy's name":     {users, "front-proxy", http.StatusForbidden},
		"another name of the front proxy's CA":   {proxies, "mallory", http.StatusUnauthorized},
		"a stranger with the front proxy's name": {strangers, "front-proxy", http.StatusUnauthorized},
	} {
		client := newClient(t, url)
		client.header = http.Header{"X-Remote-User": {"alice"}, "X-Remote-Group": {"system:masters"}}
		if test.ca != nil {
			client.show(test.ca.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: test.user})))
		}
		response, body := client.get("/apis/metrics.k8s.io/v1/nodes", "")
		if response.StatusCode != test.want {
			t.Errorf("%s: %d, want %d: %s", name, response.StatusCode, test.want, body)
		}
	}
}

// The ConfigMap's CAs can be exchanged while the server runs.
func TestTrustChanges(t *testing.T) {
	cluster := newCluster(t)
	before, after := kubelettest.NewCA(), kubelettest.NewCA()
	cluster.setTrust(before, before)
	c, url := config(t, cluster)
	defer start(t, c)()
	asUser := func(ca *kubelettest.CA) *client {
		client := newClient(t, url)
		client.show(ca.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: "alice"})))
		return client
	}
	asProxy := func(ca *kubelettest.CA) *client {
		client := newClient(t, url)
		client.header = http.Header{"X-Remote-User": {"alice"}}
		client.show(ca.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: "front-proxy"})))
		return client
	}
	const path = "/apis/metrics.k8s.io/v1/nodes"
	asUser(before).until(http.StatusOK, path, "")
	asProxy(before).until(http.StatusOK, path, "")
	kept := asUser(before)
	kept.until(http.StatusOK, path, "")

	cluster.setTrust(after, after)
	asUser(after).until(http.StatusOK, path, "")
	asProxy(after).until(http.StatusOK, path, "")
	asUser(before).until(http.StatusUnauthorized, path, "")
	kept.until(http.StatusUnauthorized, path, "") // also on a connection of the time before
}

// TestAnonymous: without credentials only the probes and the paths of the flag are served, and
// nothing is asked of the API server.
func TestAnonymous(t *testing.T) {
	probes := []string{"/livez", "/livez/ping", "/readyz", "/readyz/nodes", "/readyz?verbose", "/healthz", "/healthz/ping"}
	others := []string{
		"/", "/apis", "/apis/metrics.k8s.io/v1/nodes", "/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/b",
		"/openapi/v2", "/openapi/v3", "/version", "/metrics", "/statusz", "/flagz", "/configz", "/debug/pprof/", "/debug/flags/v", "/livezz", "/nothing",
	}
	for name, test := range map[string]struct {
		flag []string
		open []string // by the flag
	}{
		"by default":   {[]string{"/healthz", "/readyz", "/livez"}, nil},
		"another path": {[]string{"/metrics"}, []string{"/metrics"}},
		"a prefix":     {[]string{"/vers*", "/metrics/*"}, []string{"/version"}},
		"none":         {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t)
			c, _ := config(t, cluster)
			c.Authorization.AlwaysAllowPaths = test.flag
			h := inProcess(t, c)
			want := map[string]int{}
			for _, path := range others {
				want[path] = http.StatusUnauthorized
			}
			for _, path := range append(probes, test.open...) {
				want[path] = http.StatusOK
			}
			for path, want := range want {
				if got := do(h, path, ""); got != want {
					t.Errorf("%s: %d, want %d", path, got, want)
				}
			}
			if v := &cluster.reviews; v.tokens.Load()+v.accesses.Load() != 0 {
				t.Errorf("%d token reviews and %d access reviews", v.tokens.Load(), v.accesses.Load())
			}
		})
	}
}

// TestRightsAreNeeded: what the library serves beside the API needs the right to its path.
func TestRightsAreNeeded(t *testing.T) {
	c, _ := config(t, newCluster(t))
	h := inProcess(t, c)
	for path, allowed := range map[string]int{
		"/metrics":       http.StatusOK,
		"/statusz":       http.StatusOK,
		"/flagz":         http.StatusNotFound, // not served
		"/version":       http.StatusOK,
		"/debug/pprof/":  http.StatusOK,
		"/debug/flags/v": http.StatusNotAcceptable, // GET
	} {
		if code := do(h, path, "mallory"); code != http.StatusForbidden {
			t.Errorf("%s without the right: %d", path, code)
		}
		if code := do(h, path, "alice"); code != allowed {
			t.Errorf("%s with the right: %d, want %d", path, code, allowed)
		}
	}
}

// TestLongRequestsLeaveNothing: what clients write into their requests does not stay in memory.
func TestLongRequestsLeaveNothing(t *testing.T) {
	c, _ := config(t, newCluster(t))
	h := inProcess(t, c)
	long := strings.Repeat("x", 512<<10)
	var values strings.Builder
	for n := range 8 << 10 {
		fmt.Fprintf(&values, ",v%d", n)
	}
	for name, test := range map[string]struct {
		user     string
		requests int
		path     func(n int) string
		want     int
	}{
		"paths without credentials": {"", 500, func(n int) string {
			return fmt.Sprintf("/%d%s", n, long)
		}, http.StatusUnauthorized},
		"paths of a tenant": {"mallory", 500, func(n int) string {
			return fmt.Sprintf("/%d%s", n, long)
		}, http.StatusForbidden},
		"paths of a tenant that the library would remember": {"mallory", 2000, func(n int) string {
			return fmt.Sprintf("/%d%s", n, long[:9000])
		}, http.StatusForbidden},
		"names of a tenant": {"mallory", 2000, func(n int) string {
			return fmt.Sprintf("/apis/metrics.k8s.io/v1/nodes/%d%s", n, long[:9000])
		}, http.StatusForbidden},
		"selectors of a tenant": {"mallory", 100, func(n int) string {
			return fmt.Sprintf("/apis/metrics.k8s.io/v1/nodes?labelSelector=k+in+(w%d%s)", n, values.String())
		}, http.StatusForbidden},
		"short paths of a tenant": {"mallory", 500, func(n int) string { return fmt.Sprintf("/%d", n) }, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			do(h, test.path(-1), test.user)
			before := liveHeap()
			for n := range test.requests {
				if code := do(h, test.path(n), test.user); code != test.want {
					t.Fatalf("%d, want %d", code, test.want)
				}
			}
			if grown := liveHeap() - before; grown > 5<<20 {
				t.Errorf("%d requests leave %.1f MiB", test.requests, float64(grown)/(1<<20))
			}
		})
	}
}

func liveHeap() int64 {
	var stats runtime.MemStats
	for range 2 { // the second collection empties the pools
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// TestAnonymousRequestsEvictNothing: the library remembers 8192 access reviews. Requests without
// credentials take no place.
func TestAnonymousRequestsEvictNothing(t *testing.T) {
	cluster := newCluster(t)
	c, _ := config(t, cluster)
	c.Authentication.CacheTTL, c.Authorization.AllowCacheTTL = time.Hour, time.Hour
	h := inProcess(t, c)
	const path = "/apis/metrics.k8s.io/v1/nodes"
	if code := do(h, path, "alice"); code != http.StatusOK {
		t.Fatal(code)
	}
	for n := range 8202 {
		if code := do(h, fmt.Sprint("/", n), ""); code != http.StatusUnauthorized {
			t.Fatal(code)
		}
	}
	if code := do(h, path, "alice"); code != http.StatusOK {
		t.Fatal(code)
	}
	if v := &cluster.reviews; v.tokens.Load() != 1 || v.accesses.Load() != 1 {
		t.Errorf("%d token reviews and %d access reviews, want one of each", v.tokens.Load(), v.accesses.Load())
	}
}

// TestSelectorsShareAReview: the autoscalers of a namespace, each with a selector of its own, cost
// one access review.
func TestSelectorsShareAReview(t *testing.T) {
	cluster := newCluster(t)
	c, _ := config(t, cluster)
	c.Authentication.CacheTTL, c.Authorization.AllowCacheTTL = time.Hour, time.Hour
	h := inProcess(t, c)
	for n := range 10 {
		path := fmt.Sprintf("/apis/metrics.k8s.io/v1beta1/namespaces/a/pods?labelSelector=app%%3D%d", n)
		if code := do(h, path, "alice"); code != http.StatusOK {
			t.Fatal(code)
		}
	}
	if n := cluster.reviews.accesses.Load(); n != 1 {
		t.Errorf("%d access reviews", n)
	}
}

// TestTokenReviewsAreBounded: clients with made-up tokens cannot pass on more reviews to the API
// server than the library allows.
func TestTokenReviewsAreBounded(t *testing.T) {
	cluster := newCluster(t)
	c, _ := config(t, cluster)
	h := inProcess(t, c)
	const clients, requests = 40, 20 // of each
	began := time.Now()
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			for n := range requests {
				token := fmt.Sprintf("%s-%d-%d", madeUp, client, n)
				if code := do(h, "/metrics", token); code != http.StatusUnauthorized {
					t.Errorf("status %d", code)
				}
			}
		})
	}
	all.Wait()
	took, reviews := time.Since(began), cluster.reviews.tokens.Load()
	most := tokenReviewBurst + int64(tokenReviewQPS*took.Seconds()) + 1
	if reviews != clients*requests || reviews > most {
		t.Errorf("%d token reviews in %v, want %d, and at most %d in that time", reviews, took, clients*requests, most)
	}
}

// TestABusyAPIServerExtendsNothing: while the API server answers 429, a client is served for as
// long as the library remembers its reviews, and then gets an error that does not claim that the
// client has no rights.
func TestABusyAPIServerExtendsNothing(t *testing.T) {
	cluster := newCluster(t)
	users := kubelettest.NewCA()
	cluster.setTrust(users, users)
	c, url := config(t, cluster)
	c.Authentication.CacheTTL, c.Authorization.AllowCacheTTL = time.Second, time.Second
	c.Authentication.WebhookRetryBackoff = &wait.Backoff{Steps: 1}
	c.Authorization.WebhookRetryBackoff = &wait.Backoff{Steps: 1}
	defer start(t, c)()
	const path = "/apis/metrics.k8s.io/v1/nodes"
	byToken, byCertificate := newClient(t, url), newClient(t, url)
	byCertificate.show(users.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: "alice"})))
	byToken.until(http.StatusOK, path, "alice")
	byCertificate.until(http.StatusOK, path, "")

	cluster.reviews.busy.Store(true)
	forgotten := time.Now().Add(time.Second) // both flags
	for _, test := range []struct {
		client *client
		user   string
		want   int
	}{{byToken, "alice", http.StatusUnauthorized}, {byCertificate, "", http.StatusInternalServerError}} {
		served := true
		for served {
			asked := time.Now()
			response, body := test.client.get(path, test.user)
			served = response.StatusCode == http.StatusOK
			if response.StatusCode == http.StatusForbidden {
				t.Errorf("its rights are denied: %s", body)
			}
			if served && asked.After(forgotten) {
				t.Fatalf("served %v after its reviews expired", asked.Sub(forgotten))
			}
		}
		test.client.until(test.want, path, test.user)
	}

	cluster.reviews.busy.Store(false)
	byToken.until(http.StatusOK, path, "alice")
	byCertificate.until(http.StatusOK, path, "")
}
