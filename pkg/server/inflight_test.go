package server

import (
	"net/http"
	"testing"
	"time"
)

// TestOneUserLeavesRequestsForOthers checks that users whose connections accept no byte of a response
// cannot have all requests in flight: one gets half of them, the next one half of the rest.
func TestOneUserLeavesRequestsForOthers(t *testing.T) {
	c := newCluster(t).config(t)
	c.Generic.MaxRequestsInFlight = 16
	c.Generic.RequestTimeout, c.maxWriteTime = time.Hour, time.Hour
	c.Serving.Listener = smallBuffers{c.Serving.Listener}
	client := startReady(t, c)
	for _, test := range []struct {
		user   string
		served int
	}{{"system:serviceaccount:tenant:a", 8}, {"system:serviceaccount:tenant:b", 0}, {"bob", 4}} {
		for n := range test.served + 2 {
			want := http.StatusOK
			if n >= test.served {
				want = http.StatusTooManyRequests
			}
			if _, got := stall(t, c.Serving.Listener.Addr().String(), "/openapi/v2", test.user); got.StatusCode != want {
				t.Fatalf("request %d of %s: got status %d, want %d", n, test.user, got.StatusCode, want)
			}
		}
	}
	for path, user := range map[string]string{
		nodesPath: "alice", "/metrics": "alice", "/openapi/v2": "alice", "/livez": "", "/readyz": "", "/healthz": "",
	} {
		if response, body := client.get(path, user); response.StatusCode != http.StatusOK {
			t.Errorf("%s of another user: got status %d: %s", path, response.StatusCode, body)
		}
	}
}
