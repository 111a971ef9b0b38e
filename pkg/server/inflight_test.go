package server

import (
	"crypto/tls"
	"net/http"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// TestOneUserLeavesRequestsForOthers checks that users whose connections accept no byte of a response
// cannot have all requests in flight: one gets half of them, the next one half of the rest.
func TestOneUserLeavesRequestsForOthers(t *testing.T) {
	c := newCluster(t).config(t)
	c.Generic.MaxRequestsInFlight = 16
	c.Generic.RequestTimeout, c.maxWriteTime = time.Hour, time.Hour
	client := startReady(t, c)
	conn, err := tls.Dial("tcp", c.Serving.Listener.Addr().String(),
		&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stalled := testenv.NewStalledClient(t, conn)
	for _, test := range []struct {
		user   string
		served int
	}{{"system:serviceaccount:tenant:a", 8}, {"system:serviceaccount:tenant:b", 0}, {"bob", 4}} {
		for n := range test.served + 2 {
			want := "200"
			if n >= test.served {
				want = "429"
			}
			if got := stalled.Get("/openapi/v2", test.user); got != want {
				t.Fatalf("request %d of %s: got status %s, want %s", n, test.user, got, want)
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
