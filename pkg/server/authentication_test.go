package server

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
)

// TestRequestHeaders checks that request headers need a certificate of the request-header CA with
// an allowed name.
func TestRequestHeaders(t *testing.T) {
	cluster := newCluster(t)
	clients, proxies, other := kubelettest.NewCA(), kubelettest.NewCA(), kubelettest.NewCA()
	cluster.setCAs(clients, proxies)
	server := startReady(t, cluster.config(t))
	admin := http.Header{"X-Remote-User": {"alice"}, "X-Remote-Group": {"system:masters"}}
	anonymous := http.Header{"X-Remote-User": {"system:anonymous"}, "X-Remote-Group": {"system:unauthenticated"}}
	for name, test := range map[string]struct {
		ca     *kubelettest.CA // of the client certificate; nil: none
		user   string
		header http.Header
		want   int
	}{
		"front proxy, anonymous user":            {proxies, "front-proxy", anonymous, http.StatusForbidden},
		"front proxy, no user":                   {proxies, "front-proxy", nil, http.StatusUnauthorized},
		"other CA, anonymous user":               {other, "front-proxy", anonymous, http.StatusUnauthorized},
		"no certificate, anonymous user":         {nil, "", anonymous, http.StatusUnauthorized},
		"front proxy":                            {proxies, "front-proxy", admin, http.StatusOK},
		"no certificate":                         {nil, "", admin, http.StatusUnauthorized},
		"client certificate":                     {clients, "mallory", admin, http.StatusForbidden},
		"client certificate, front proxy's name": {clients, "front-proxy", admin, http.StatusForbidden},
		"request-header CA, other name":          {proxies, "mallory", admin, http.StatusUnauthorized},
		"other CA, front proxy's name":           {other, "front-proxy", admin, http.StatusUnauthorized},
	} {
		client := server.another()
		client.header = test.header
		if test.ca != nil {
			client.withCertificate(test.ca, test.user)
		}
		if response, body := client.get(nodesPath, ""); response.StatusCode != test.want {
			t.Errorf("%s: got status %d, want %d: %s", name, response.StatusCode, test.want, body)
		}
	}
}

// TestNoReviews has an API server that refuses reviews, as one without the ClusterRoleBinding of system:auth-delegator
// does. Then nothing but the probes is served.
func TestNoReviews(t *testing.T) {
	cluster := newCluster(t)
	clients := kubelettest.NewCA()
	cluster.setCAs(clients, kubelettest.NewCA())
	server := startReady(t, cluster.config(t))
	certificate := server.another().withCertificate(clients, "alice")
	for _, review := range []string{sim.TokenReviews, sim.AccessReviews} {
		cluster.Forbid("", review)
		for _, path := range []string{nodesPath, nodesPath + "/none", "/metrics", "/nodez", "/version"} {
			requests := map[string]func() (*http.Response, string){
				"token": func() (*http.Response, string) { return server.get(path, "alice") },
			}
			if review == sim.AccessReviews {
				requests["certificate"] = func() (*http.Response, string) { return certificate.get(path, "") }
			}
			for name, request := range requests {
				if response, body := request(); response.StatusCode < http.StatusUnauthorized {
					t.Errorf("no %s: %s with a %s: got status %d: %s", review, path, name, response.StatusCode, body)
				}
			}
		}
		if cluster.Requested(review) == 0 {
			t.Errorf("got no %s, so this proves nothing", review)
		}
		for _, path := range []string{"/livez", "/readyz", "/healthz"} {
			if response, body := server.get(path, ""); response.StatusCode != http.StatusOK {
				t.Errorf("no %s: %s: got status %d: %s", review, path, response.StatusCode, body)
			}
		}
	}
	cluster.RefuseBy(nil)
	certificate.await(http.StatusOK, nodesPath, "")
}

// TestCARotation changes the CAs in the ConfigMap while the server runs.
func TestCARotation(t *testing.T) {
	cluster := newCluster(t)
	before, after := kubelettest.NewCA(), kubelettest.NewCA()
	cluster.setCAs(before, before)
	server := start(t, cluster.config(t))
	asUser := func(ca *kubelettest.CA) *client { return server.another().withCertificate(ca, "alice") }
	asProxy := func(ca *kubelettest.CA) *client {
		client := server.another().withCertificate(ca, "front-proxy")
		client.header = http.Header{"X-Remote-User": {"alice"}}
		return client
	}
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
		"/openapi/v2", "/openapi/v3", "/version", "/metrics", "/nodez", "/statusz", "/flagz", "/debug/pprof/",
		"/debug/flags/v",
	}
	for name, test := range map[string]struct {
		flag []string
		open []string // paths that the flag makes public
	}{
		"default":     {[]string{"/healthz", "/readyz", "/livez"}, nil},
		"other paths": {[]string{"/metrics", "/vers*", "/statusz/*"}, []string{"/metrics", "/version"}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t)
			c := cluster.config(t)
			c.Authorization.AlwaysAllowPaths = test.flag
			h := startReady(t, c).handler
			want := map[string]int{}
			for _, path := range others {
				want[path] = http.StatusUnauthorized
			}
			for _, path := range append(probes, test.open...) {
				want[path] = http.StatusOK
			}
			for _, path := range []string{"/configz", "/livezz", "/nothing"} {
				want[path] = http.StatusNotFound
			}
			for path, want := range want {
				if got := serve(h, path, ""); got != want {
					t.Errorf("%s: got status %d, want %d", path, got, want)
				}
			}
			if n := cluster.Requested(sim.TokenReviews, sim.AccessReviews); n != 0 {
				t.Errorf("got %d reviews, want none", n)
			}
		})
	}
}

// TestPathsNeedPermission checks that the paths which the library serves need the permission for
// the path.
func TestPathsNeedPermission(t *testing.T) {
	h := startReady(t, newCluster(t).config(t)).handler
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
	h := startReady(t, newCluster(t).config(t)).handler
	long, cached := strings.Repeat("x", 64<<10), strings.Repeat("x", 9000) // the library would cache the second one
	values := strings.Repeat(","+strings.Repeat("v", 60), 200)
	for _, test := range []struct {
		user     string
		requests int
		path     string // with a number
		rest     string
		want     int
	}{
		{"", 60, "/%d", long, http.StatusRequestURITooLong},
		{"mallory", 60, "/%d", long, http.StatusRequestURITooLong},
		{"mallory", 400, "/%d", cached, http.StatusRequestURITooLong},
		{"mallory", 400, nodesPath + "/%d", cached, http.StatusRequestURITooLong},
		{"mallory", 400, nodesPath + "/%d", cached[:8000], http.StatusForbidden},
		{"mallory", 300, nodesPath + "?labelSelector=k+in+(w%d", values + ")", http.StatusForbidden},
		{"mallory", 400, "/%d", "", http.StatusNotFound},
		{"mallory", 400, nodesPath + "/%d", "", http.StatusForbidden},
	} {
		serve(h, fmt.Sprintf(test.path, -1)+test.rest, test.user)
		before := liveHeap()
		sent := 0
		for n := range test.requests {
			path := fmt.Sprintf(test.path, n) + test.rest
			sent += len(path)
			if code := serve(h, path, test.user); code != test.want {
				t.Fatalf("%.40s: got status %d, want %d", path, code, test.want)
			}
		}
		if grown := liveHeap() - before; grown > int64(sent/2+1<<20) {
			t.Errorf("%d requests of %q, %.1f MiB: the heap has grown by %.1f MiB",
				test.requests, test.path, float64(sent)/(1<<20), float64(grown)/(1<<20))
		}
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
// selectors, need one access review, and that requests longer than any path that is served need none.
func TestSelectorsShareOneReview(t *testing.T) {
	cluster := newCluster(t)
	c := cluster.config(t)
	c.Authentication.CacheTTL, c.Authorization.AllowCacheTTL = time.Hour, time.Hour
	c.Authorization.DenyCacheTTL = time.Nanosecond
	h := startReady(t, c).handler
	for _, path := range []string{nodesPath + "/", "/apis/metrics.k8s.io/v1/namespaces/a/pods/"} {
		if code := serve(h, path+strings.Repeat("x", 1<<10), "alice"); code != http.StatusForbidden {
			t.Errorf("%s…: got status %d, want 403", path, code)
		}
	}
	if n := cluster.Requested(sim.AccessReviews); n != 0 {
		t.Errorf("long requests: got %d access reviews, want 0", n)
	}
	for n := range 10 {
		selected := fmt.Sprintf("/apis/metrics.k8s.io/v1beta1/namespaces/a/pods?labelSelector=app%%3D%d", n)
		if code := serve(h, selected, "alice"); code != http.StatusOK {
			t.Fatal(code)
		}
	}
	if n := cluster.Requested(sim.AccessReviews); n != 1 {
		t.Errorf("got %d access reviews, want 1", n)
	}
	for range 2 {
		if code := serve(h, nodesPath, "mallory"); code != http.StatusForbidden {
			t.Errorf("without permission: got status %d, want 403", code)
		}
	}
	if n := cluster.Requested(sim.AccessReviews); n != 3 {
		t.Errorf("got %d access reviews, want 3: a request is still denied when DenyCacheTTL has passed", n)
	}
}

// TestTokenReviewsAreBounded checks that clients with invalid tokens cannot cause more token
// reviews than the library's rate limit.
func TestTokenReviewsAreBounded(t *testing.T) {
	testReviewsAreBounded(t, sim.TokenReviews, func(h http.Handler, client, n int) int {
		return serve(h, "/metrics", fmt.Sprintf("%s-%d-%d", invalidToken, client, n))
	}, http.StatusUnauthorized)
}

// TestAccessReviewsAreBounded does the same for users without permissions, whose tokens are reviewed once.
func TestAccessReviewsAreBounded(t *testing.T) {
	testReviewsAreBounded(t, sim.AccessReviews, func(h http.Handler, client, n int) int {
		return serve(h, fmt.Sprint(nodesPath, "/", n), fmt.Sprint("mallory-", client))
	}, http.StatusForbidden)
}

// testReviewsAreBounded has many clients send requests that each need a review.
func testReviewsAreBounded(t *testing.T, review string, send func(h http.Handler, client, n int) int, want int) {
	cluster := newCluster(t)
	h := startReady(t, cluster.config(t)).handler
	const clients, requests = 40, 20 // of each
	started := time.Now()
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			for n := range requests {
				if code := send(h, client, n); code != want {
					t.Errorf("got status %d, want %d", code, want)
				}
			}
		})
	}
	all.Wait()
	took, reviews := time.Since(started), cluster.Requested(review)
	most := int(1.02 * (400 + 200*took.Seconds())) // burst and rate of pkg/filter; timers may fire early
	if reviews != clients*requests || reviews > most {
		t.Errorf("got %d reviews in %v, want %d, and at most %d in this time", reviews, took, clients*requests, most)
	}
}

// TestBusyAPIServer checks that while reviews get status 429, a client is served until the cached
// reviews expire. Then it gets an error, but not that it has no permission.
func TestBusyAPIServer(t *testing.T) {
	cluster := newCluster(t)
	clients := kubelettest.NewCA()
	cluster.setCAs(clients, clients)
	c := cluster.config(t)
	c.Authentication.CacheTTL, c.Authorization.AllowCacheTTL = time.Second, time.Second
	c.Authentication.WebhookRetryBackoff = &wait.Backoff{Steps: 1}
	c.Authorization.WebhookRetryBackoff = &wait.Backoff{Steps: 1}
	byToken := start(t, c)
	byCertificate := byToken.another().withCertificate(clients, "alice")
	byToken.await(http.StatusOK, nodesPath, "alice")
	byCertificate.await(http.StatusOK, nodesPath, "")

	cluster.reviewsBusy.Store(true)
	expired := time.Now().Add(time.Second) // CacheTTL and AllowCacheTTL
	for _, test := range []struct {
		client *client
		user   string
		want   int
	}{{byToken, "alice", http.StatusUnauthorized}, {byCertificate, "", http.StatusInternalServerError}} {
		for served := true; served; time.Sleep(time.Millisecond) {
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
// at once, except for probes and system:masters, and that a request that waits for its authorization is in
// flight until it ends.
func TestRequestsInFlightAreBounded(t *testing.T) {
	cluster := newCluster(t)
	c := cluster.config(t)
	c.Generic.MaxRequestsInFlight = 1
	h := startReady(t, c).handler
	const watch = nodesPath + "?watch=1"
	want := func(code int, path string) func() string {
		return func() string {
			if got := serve(h, path, "alice"); got != code {
				return fmt.Sprintf("%s: got status %d, want %d", path, got, code)
			}
			return ""
		}
	}
	// The library does not count requests that it takes for long ones: watches and profiles.
	for _, path := range []string{nodesPath, watch, "/debug/pprof/heap"} {
		eventually(t, want(http.StatusOK, nodesPath))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			serveUntil(ctx, h, path, "sleepy")
		}()
		<-cluster.asleep
		for _, other := range []string{nodesPath, watch} {
			w := get(h, other, "alice")
			if retry, err := strconv.Atoi(w.Header().Get("Retry-After")); w.Code != http.StatusTooManyRequests || retry < 1 {
				t.Errorf("during %s: %s: got status %d, Retry-After %d, %v", path, other, w.Code, retry, err)
			}
		}
		for other, user := range map[string]string{"/livez": "", "/readyz": "", "/healthz": "", nodesPath: "root"} {
			if got := serve(h, other, user); got != http.StatusOK {
				t.Errorf("during %s: %s of %q: got status %d, want 200", path, other, user, got)
			}
		}
		cancel()
		<-ended
		eventually(t, want(http.StatusMethodNotAllowed, watch))
	}
	eventually(t, want(http.StatusOK, nodesPath))
}

// serveUntil serves a GET until the context ends.
func serveUntil(ctx context.Context, h http.Handler, path, user string) {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	r.Header.Set("Authorization", "Bearer "+user)
	// If the response has begun when the request is canceled, the library panics with this error, which net/http
	// expects.
	defer func() {
		if p := recover(); p != nil && p != any(http.ErrAbortHandler) {
			panic(p)
		}
	}()
	h.ServeHTTP(httptest.NewRecorder(), r)
}
