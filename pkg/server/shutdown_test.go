package server

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"
)

// When the server is told to stop, it is not ready any more but answers for the time of the delay, and gives up each
// connection with its next answer, over HTTP/1.1 and HTTP/2.
func TestStops(t *testing.T) {
	c, url := config(t, newCluster(t))
	c.Generic.ShutdownDelayDuration = 2 * time.Second
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	ready := newClient(t, url)
	ready.until(http.StatusOK, "/readyz", "")

	const path = "/apis/metrics.k8s.io/v1/nodes"
	clients := map[string]*client{}
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := newClient(t, url)
		client.transport.ForceAttemptHTTP2 = protocol == "HTTP/2.0"
		if response, _ := client.get(path, "alice"); response.Proto != protocol {
			t.Fatalf("%s instead of %s", response.Proto, protocol)
		}
		if !reuses(t, client, path) {
			t.Errorf("%s: a connection is given up while the server runs", protocol)
		}
		clients[protocol] = client
	}

	cancel()
	ready.until(http.StatusInternalServerError, "/readyz", "")
	for protocol, client := range clients {
		client.until(http.StatusOK, path, "alice")
		if reuses(t, client, path) {
			t.Errorf("%s: the connection is kept while the server stops", protocol)
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A request that does not end keeps the server from ending for a bounded time only.
func TestStopsWithARequestThatHangs(t *testing.T) {
	cluster := newCluster(t)
	c, url := config(t, cluster)
	c.Generic.ShutdownDelayDuration = 0
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.api.ShutdownTimeout = 200 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	client := newClient(t, url)
	client.until(http.StatusOK, "/readyz", "")
	answered := make(chan struct{})
	go func() {
		client.get("/apis/metrics.k8s.io/v1/nodes", "sleepy")
		close(answered)
	}()
	<-cluster.reviews.asleep
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-answered:
		t.Error("the request was answered")
	case <-time.After(20 * time.Second):
		t.Error("the server does not end")
	}
	cluster.CloseClientConnections() // ends the request
	<-answered
}

// reuses says whether a request goes over a connection that is there already. It waits for the client's transport to
// notice that one was closed.
func reuses(t *testing.T, c *client, path string) (reused bool) {
	t.Helper()
	for deadline := time.Now().Add(500 * time.Millisecond); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		trace := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused },
		})
		request, err := http.NewRequestWithContext(trace, http.MethodGet, c.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer alice")
		response, err := c.transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, response.Status)
		}
		if !reused {
			return false
		}
	}
	return true
}
