package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// inProcess runs a Server until the test ends, and returns its whole chain of handlers, once it is ready.
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

// BenchmarkGet measures a request for the metrics of one node through all filters, without the network.
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
