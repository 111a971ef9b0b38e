package server

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
)

// TestRequestHeaders checks that request headers need a certificate of the request-header CA with
// an allowed name.
func TestRequestHeaders(t *testing.T) {
	cluster := newCluster(t)
	clients, proxies, other := kubelettest.NewCA(), kubelettest.NewCA(), kubelettest.NewCA()
	cluster.setCAs(clients, proxies)
	c, url := cluster.config(t)
	start(t, c)
	newClient(t, url).await(http.StatusOK, "/readyz", "")

	for name, test := range map[string]struct {
		ca   *kubelettest.CA // of the client certificate; nil: none
		user string
		want int
	}{
		"front proxy, anonymous user":            {proxies, "front-proxy", http.StatusForbidden},
		"front proxy, no user":                   {proxies, "front-proxy", http.StatusUnauthorized},
		"other CA, anonymous user":               {other, "front-proxy", http.StatusUnauthorized},
		"no certificate, anonymous user":         {nil, "", http.StatusUnauthorized},
		"front proxy":                            {proxies, "front-proxy", http.StatusOK},
		"no certificate":                         {nil, "", http.StatusUnauthorized},
		"client certificate":                     {clients, "mallory", http.StatusForbidden},
		"client certificate, front proxy's name": {clients, "front-proxy", http.StatusForbidden},
		"request-header CA, other name":          {proxies, "mallory", http.StatusUnauthorized},
		"other CA, front proxy's name":           {other, "front-proxy", http.StatusUnauthorized},
	} {
		client := newClient(t, url)
		client.header = http.Header{"X-Remote-User": {"alice"}, "X-Remote-Group": {"system:masters"}}
		if strings.HasSuffix(name, "no user") {
			client.header = nil
		}
		if strings.HasSuffix(name, "anonymous user") {
			client.header = http.Header{"X-Remote-User": {"system:anonymous"}, "X-Remote-Group": {"system:unauthenticated"}}
		}
		if test.ca != nil {
			client.withCertificate(test.ca, test.user)
		}
		if response, body := client.get(nodesPath, ""); response.StatusCode != test.want {
			t.Errorf("%s: got status %d, want %d: %s", name, response.StatusCode, test.want, body)
		}
	}
}

// TestCARotation changes the CAs in the ConfigMap while the server runs.
func TestCARotation(t *testing.T) {
	cluster := newCluster(t)
	before, after := kubelettest.NewCA(), kubelettest.NewCA()
	cluster.setCAs(before, before)
	c, url := cluster.config(t)
	start(t, c)
	asUser := func(ca *kubelettest.CA) *client { return newClient(t, url).withCertificate(ca, "alice") }
	asProxy := func(ca *kubelettest.CA) *client {
		client := newClient(t, url).withCertificate(ca, "front-proxy")
		client.header = http.Header{"X-Remote-User": {"alice"}}
		return client
	}
	asUser(before).await(http.StatusOK, nodesPath, "")
	asProxy(before).await(http.StatusOK, nodesPath, "")
	connected := asUser(before)
	connected.await(http.StatusOK, nodesPath, "")

	cluster.setCAs(after, after)
	asUser(after).await(http.StatusOK, nodesPath, "")
	asProxy(after).await(http.StatusOK, nodesPath, "")
	asUser(before).await(http.StatusUnauthorized, nodesPath, "")
	connected.await(http.StatusUnauthorized, nodesPath, "")
}

// TestAnonymous checks that without credentials only the probes and the paths of the flag are
// served, and that such requests cause no requests to the API server, whose cached responses would evict
// others from the library's cache of 8192 entries.
func TestAnonymous(t *testing.T) {
	probes := []string{"/livez", "/livez/ping", "/readyz", "/readyz/nodes", "/readyz?verbose", "/healthz", "/healthz/ping"}
	others := []string{
		"/", "/apis", "/apis/metrics.k8s.io/v1/nodes", "/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/b",
		"/openapi/v2", "/openapi/v3", "/version", "/metrics", "/nodez", "/statusz", "/flagz", "/configz", "/debug/pprof/",
		"/debug/flags/v", "/livezz", "/nothing",
	}
	for name, test := range map[string]struct {
		flag []string
		open []string // paths that the flag makes public
	}{
		"default":    {[]string{"/healthz", "/readyz", "/livez"}, nil},
		"other path": {[]string{"/metrics"}, []string{"/metrics"}},
		"a prefix":   {[]string{"/vers*", "/metrics/*"}, []string{"/version"}},
		"none":       {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t)
			c, _ := cluster.config(t)
			c.Authorization.AlwaysAllowPaths = test.flag
			h := startHandler(t, c)
			want := map[string]int{}
			for _, path := range others {
				want[path] = http.StatusUnauthorized
			}
			for _, path := range append(probes, test.open...) {
				want[path] = http.StatusOK
			}
			for path, want := range want {
				if got := serve(h, path, ""); got != want {
					t.Errorf("%s: got status %d, want %d", path, got, want)
				}
			}
			if n, m := cluster.tokenReviews.Load(), cluster.accessReviews.Load(); n+m != 0 {
				t.Errorf("got %d token reviews and %d access reviews, want none", n, m)
			}
		})
	}
}

// TestPathsNeedPermission checks that the paths which the library serves need the permission for
// the path.
func TestPathsNeedPermission(t *testing.T) {
	c, _ := newCluster(t).config(t)
	h := startHandler(t, c)
	for path, allowed := range map[string]int{
		"/metrics":       http.StatusOK,
		"/statusz":       http.StatusOK,
		"/flagz":         http.StatusOK,
		"/nodez":         http.StatusOK,
		"/version":       http.StatusOK,
		"/debug/pprof/":  http.StatusOK,
		"/debug/flags/v": http.StatusNotAcceptable, // GET
	} {
		if code := serve(h, path, "mallory"); code != http.StatusForbidden {
			t.Errorf("%s without permission: got status %d", path, code)
		}
		if code := serve(h, path, "alice"); code != allowed {
			t.Errorf("%s with permission: got status %d, want %d", path, code, allowed)
		}
	}
}

// TestLongRequestsAreNotKept checks that the server does not keep the content of requests in
// memory.
func TestLongRequestsAreNotKept(t *testing.T) {
	c, _ := newCluster(t).config(t)
	h := startHandler(t, c)
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
		"paths without credentials": {"", 50, func(n int) string {
			return fmt.Sprintf("/%d%s", n, long)
		}, http.StatusUnauthorized},
		"paths": {"mallory", 50, func(n int) string {
			return fmt.Sprintf("/%d%s", n, long)
		}, http.StatusForbidden},
		"paths that the library would cache": {"mallory", 500, func(n int) string {
			return fmt.Sprintf("/%d%s", n, long[:9000])
		}, http.StatusForbidden},
		"names": {"mallory", 500, func(n int) string {
			return fmt.Sprintf(nodesPath+"/%d%s", n, long[:9000])
		}, http.StatusForbidden},
		"selectors": {"mallory", 50, func(n int) string {
			return fmt.Sprintf(nodesPath+"?labelSelector=k+in+(w%d%s)", n, values.String())
		}, http.StatusForbidden},
		"short paths": {"mallory", 500, func(n int) string { return fmt.Sprintf("/%d", n) }, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			serve(h, test.path(-1), test.user)
			before := liveHeap()
			sent := 0
			for n := range test.requests {
				path := test.path(n)
				sent += len(path)
				if code := serve(h, path, test.user); code != test.want {
					t.Fatalf("got status %d, want %d", code, test.want)
				}
			}
			if grown := liveHeap() - before; grown > int64(sent/2+1<<20) {
				t.Errorf("%d requests of %.1f MiB: the heap has grown by %.1f MiB",
					test.requests, float64(sent)/(1<<20), float64(grown)/(1<<20))
			}
		})
	}
}

func liveHeap() int64 {
	var stats runtime.MemStats
	for range 2 { // the second collection empties sync.Pools
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// TestSelectorsShareOneReview checks that the autoscalers of a namespace, which have different
// selectors, need one access review.
func TestSelectorsShareOneReview(t *testing.T) {
	cluster := newCluster(t)
	c, _ := cluster.config(t)
	c.Authentication.CacheTTL, c.Authorization.AllowCacheTTL = time.Hour, time.Hour
	h := startHandler(t, c)
	for n := range 10 {
		selected := fmt.Sprintf("/apis/metrics.k8s.io/v1beta1/namespaces/a/pods?labelSelector=app%%3D%d", n)
		if code := serve(h, selected, "alice"); code != http.StatusOK {
			t.Fatal(code)
		}
	}
	if n := cluster.accessReviews.Load(); n != 1 {
		t.Errorf("got %d access reviews, want 1", n)
	}
}

// TestTokenReviewsAreBounded checks that clients with invalid tokens cannot cause more token
// reviews than the library's rate limit.
func TestTokenReviewsAreBounded(t *testing.T) {
	cluster := newCluster(t)
	c, _ := cluster.config(t)
	h := startHandler(t, c)
	const clients, requests = 40, 20 // of each
	started := time.Now()
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			for n := range requests {
				token := fmt.Sprintf("%s-%d-%d", invalidToken, client, n)
				if code := serve(h, "/metrics", token); code != http.StatusUnauthorized {
					t.Errorf("got status %d", code)
				}
			}
		})
	}
	all.Wait()
	took, reviews := time.Since(started), cluster.tokenReviews.Load()
	most := int64(1.02 * (400 + 200*took.Seconds())) // burst and rate of pkg/filter; timers may fire early
	if reviews != clients*requests || reviews > most {
		t.Errorf("got %d token reviews in %v, want %d, and at most %d in this time", reviews, took, clients*requests, most)
	}
}

// TestBusyAPIServer checks that while reviews get status 429, a client is served until the cached
// reviews expire. Then it gets an error, but not that it has no permission.
func TestBusyAPIServer(t *testing.T) {
	cluster := newCluster(t)
	clients := kubelettest.NewCA()
	cluster.setCAs(clients, clients)
	c, url := cluster.config(t)
	c.Authentication.CacheTTL, c.Authorization.AllowCacheTTL = time.Second, time.Second
	c.Authentication.WebhookRetryBackoff = &wait.Backoff{Steps: 1}
	c.Authorization.WebhookRetryBackoff = &wait.Backoff{Steps: 1}
	start(t, c)
	byToken, byCertificate := newClient(t, url), newClient(t, url).withCertificate(clients, "alice")
	byToken.await(http.StatusOK, nodesPath, "alice")
	byCertificate.await(http.StatusOK, nodesPath, "")

	cluster.reviewsBusy.Store(true)
	expired := time.Now().Add(time.Second) // CacheTTL and AllowCacheTTL
	for _, test := range []struct {
		client *client
		user   string
		want   int
	}{{byToken, "alice", http.StatusUnauthorized}, {byCertificate, "", http.StatusInternalServerError}} {
		for served := true; served; {
			sent := time.Now()
			response, body := test.client.get(nodesPath, test.user)
			served = response.StatusCode == http.StatusOK
			if response.StatusCode == http.StatusForbidden {
				t.Errorf("got status 403: %s", body)
			}
			if served && sent.After(expired) {
				t.Fatalf("served %v after the reviews expired", sent.Sub(expired))
			}
		}
		test.client.await(test.want, nodesPath, test.user)
	}

	cluster.reviewsBusy.Store(false)
	byToken.await(http.StatusOK, nodesPath, "alice")
	byCertificate.await(http.StatusOK, nodesPath, "")
}

// TestRequestsInFlightAreBounded checks that requests above --max-requests-inflight get status 429
// at once.
func TestRequestsInFlightAreBounded(t *testing.T) {
	// The library does not count requests that it takes for long ones: watches and profiles.
	for _, path := range []string{nodesPath, nodesPath + "?watch=1", "/debug/pprof/x"} {
		t.Run(path, func(t *testing.T) { testRequestsInFlight(t, path) })
	}
}

// testRequestsInFlight checks that a request that waits for its authorization is in flight until it ends.
func testRequestsInFlight(t *testing.T, path string) {
	t.Helper()
	cluster := newCluster(t)
	c, _ := cluster.config(t)
	c.Generic.MaxRequestsInFlight = 1
	h := startHandler(t, c)
	if code := serve(h, nodesPath, "alice"); code != http.StatusOK {
		t.Fatalf("without other requests: got status %d", code)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	r.Header.Set("Authorization", "Bearer sleepy")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// If the response has begun when the request is canceled, the library panics with this
		// error, which net/http expects.
		defer func() {
			if p := recover(); p != nil && p != any(http.ErrAbortHandler) {
				panic(p)
			}
		}()
		h.ServeHTTP(httptest.NewRecorder(), r)
	}()
	<-cluster.asleep
	for _, other := range []string{nodesPath, nodesPath + "?watch=1"} {
		if code := serve(h, other, "alice"); code != http.StatusTooManyRequests {
			t.Errorf("%s during another request: got status %d, want 429", other, code)
		}
	}
	cancel()
	<-ended
	eventually(t, func() string {
		if code := serve(h, nodesPath+"?watch=1", "alice"); code != http.StatusMethodNotAllowed {
			return fmt.Sprintf("a watch after the other request: got status %d, want 405", code)
		}
		return ""
	})
	if code := serve(h, nodesPath, "alice"); code != http.StatusOK {
		t.Errorf("after the other requests: got status %d", code)
	}
}

// TestLongRequestsNeedNoReview checks that requests longer than any path that is served are denied
// without an access review.
func TestLongRequestsNeedNoReview(t *testing.T) {
	cluster := newCluster(t)
	c, _ := cluster.config(t)
	h := startHandler(t, c)
	for _, path := range []string{"/", nodesPath + "/", "/apis/metrics.k8s.io/v1/namespaces/a/pods/"} {
		if code := serve(h, path+strings.Repeat("x", 1<<10), "alice"); code != http.StatusForbidden {
			t.Errorf("%s…: got status %d, want 403", path, code)
		}
	}
	if n := cluster.accessReviews.Load(); n != 0 {
		t.Errorf("got %d access reviews, want 0", n)
	}
}

// BenchmarkGet measures a request for the metrics of one node through all filters, without the
// network.
func BenchmarkGet(b *testing.B) {
	c, _ := newCluster(b).config(b)
	c.Generic.ShutdownDelayDuration = 0
	h := startHandler(b, c)
	b.ReportAllocs()
	for b.Loop() {
		if code := serve(h, nodesPath, "alice"); code != http.StatusOK {
			b.Fatalf("got status %d", code)
		}
	}
}
