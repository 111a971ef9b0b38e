package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// inProcess runs a Server until the test ends, and returns its whole chain of handlers, once it is
// ready.
func inProcess(t testing.TB, c Config) http.Handler {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		names, reasons := s.ready.missing()
		if names == nil {
			return s.api.Handler
		}
		if time.Now().After(deadline) {
			t.Fatalf("not ready: %q", reasons)
		}
	}
}

// do sends a GET to a handler, as the user, or as nobody if that is "". It returns the status.
func do(h http.Handler, path, user string) int {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	if user != "" {
		r.Header.Set("Authorization", "Bearer "+user)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

// BenchmarkGet measures a request for the metrics of one node through all filters, without the
// network.
func BenchmarkGet(b *testing.B) {
	cluster := newCluster(b)
	c, _ := config(b, cluster)
	c.Generic.ShutdownDelayDuration = 0
	h := inProcess(b, c)
	b.ReportAllocs()
	for b.Loop() {
		if code := do(h, "/apis/metrics.k8s.io/v1/nodes", "alice"); code != http.StatusOK {
			b.Fatalf("status %d", code)
		}
	}
}

// TestRequestsInFlightAreBounded: requests above the limit of --max-requests-inflight get 429 at
// once.
func TestRequestsInFlightAreBounded(t *testing.T) {
	cluster := newCluster(t)
	c, _ := config(t, cluster)
	c.Generic.MaxRequestsInFlight = 1
	h := inProcess(t, c)
	const path = "/apis/metrics.k8s.io/v1/nodes"
	if code := do(h, path, "alice"); code != http.StatusOK {
		t.Fatalf("with no other request: %d", code)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	r.Header.Set("Authorization", "Bearer sleepy")
	ended := make(chan struct{})
	go func() { h.ServeHTTP(httptest.NewRecorder(), r); close(ended) }()
	<-cluster.reviews.asleep // its access review hangs
	if code := do(h, path, "alice"); code != http.StatusTooManyRequests {
		t.Errorf("beside a request that hangs: %d", code)
	}
	cancel()
	<-ended
}

// TestLongRequestsCostNoReview: a request that is longer than any that is served is refused without
// a review by the API server.
func TestLongRequestsCostNoReview(t *testing.T) {
	cluster := newCluster(t)
	c, _ := config(t, cluster)
	h := inProcess(t, c)
	for _, path := range []string{"/", "/apis/metrics.k8s.io/v1/nodes/", "/apis/metrics.k8s.io/v1/namespaces/a/pods/"} {
		if code := do(h, path+strings.Repeat("x", maxReviewBytes), "alice"); code != http.StatusForbidden {
			t.Errorf("%s…: %d", path, code)
		}
	}
	if n := cluster.reviews.accesses.Load(); n != 0 {
		t.Errorf("%d access reviews", n)
	}
}
