package server

import (
	"crypto/tls"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// TestOneUserLeavesRequestsForOthers checks that users whose connections accept no byte of a response
// cannot have all requests in flight: one gets half of them, the next one half of the rest.
func TestOneUserLeavesRequestsForOthers(t *testing.T) {
	c, address := newCluster(t).config(t)
	c.Generic.MaxRequestsInFlight = 16
	c.Generic.RequestTimeout, c.maxWriteTime = time.Hour, time.Hour
	start(t, c)
	client := newClient(t, address)
	client.await(http.StatusOK, "/readyz", "")
	client.await(http.StatusOK, "/openapi/v2", "alice")
	target, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", target.Host, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
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
	for _, path := range []string{nodesPath, "/metrics", "/openapi/v2"} {
		if response, body := client.get(path, "alice"); response.StatusCode != http.StatusOK {
			t.Errorf("%s of another user: got status %d: %s", path, response.StatusCode, body)
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		if response, body := client.get(path, ""); response.StatusCode != http.StatusOK {
			t.Errorf("%s: got status %d: %s", path, response.StatusCode, body)
		}
	}
}
