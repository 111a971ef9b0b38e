package server

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// When the server is told to stop, it is not ready any more but answers for the time of the delay,
// and gives up each connection with its next answer, over HTTP/1.1 and HTTP/2.
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

// TestStopsWithARequestThatHangs: a request that does not end keeps the server from ending for
// --request-timeout only.
func TestStopsWithARequestThatHangs(t *testing.T) {
	cluster := newCluster(t)
	c, url := config(t, cluster)
	c.Generic.ShutdownDelayDuration = 0
	c.Generic.RequestTimeout = time.Second
	stop := start(t, c)
	client := newClient(t, url)
	client.until(http.StatusOK, "/readyz", "")
	answered := make(chan int, 1)
	go func() {
		response, _ := client.get("/apis/metrics.k8s.io/v1/nodes", "sleepy")
		answered <- response.StatusCode
	}()
	<-cluster.reviews.asleep
	stop()
	if code := <-answered; code != http.StatusGatewayTimeout {
		t.Errorf("the request that hangs gets %d", code)
	}
}

// TestStopsWithAConnectionThatHangs: half a request keeps the server from ending for
// connectionTimeout only.
func TestStopsWithAConnectionThatHangs(t *testing.T) {
	c, url := config(t, newCluster(t))
	c.Generic.ShutdownDelayDuration = 0
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if s.api.ShutdownTimeout != connectionTimeout {
		t.Errorf("connections may hang for %v", s.api.ShutdownTimeout)
	}
	s.api.ShutdownTimeout = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	client := newClient(t, url)
	client.until(http.StatusOK, "/readyz", "")
	conn, err := tls.Dial("tcp", c.Serving.Listener.Addr().String(), client.transport.TLSClientConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: "); err != nil {
		t.Fatal(err)
	}
	client.until(http.StatusOK, "/livez", "") // the server has had the time to read the half
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the server does not end")
	}
}

// TestShutdownSendRetryAfter: with the flag of that name, requests that come while the last ones
// end are asked to come back.
func TestShutdownSendRetryAfter(t *testing.T) {
	cluster := newCluster(t)
	c, url := config(t, cluster)
	c.Generic.ShutdownDelayDuration = 0
	c.Generic.ShutdownSendRetryAfter = true
	c.Authorization.WebhookRetryBackoff = &wait.Backoff{Steps: 1}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	client := newClient(t, url)
	client.until(http.StatusOK, "/readyz", "")
	answered := make(chan int, 1)
	go func() {
		response, _ := newClient(t, url).get("/apis/metrics.k8s.io/v1/nodes", "sleepy")
		answered <- response.StatusCode
	}()
	<-cluster.reviews.asleep

	cancel()
	client.until(http.StatusTooManyRequests, "/apis/metrics.k8s.io/v1/nodes", "alice")
	response, _ := client.get("/apis/metrics.k8s.io/v1/nodes", "alice")
	after := response.Header.Get("Retry-After")
	if response.StatusCode != http.StatusTooManyRequests || after == "" || !response.Close {
		t.Errorf("%s, Retry-After %q, closes the connection: %t", response.Status, after, response.Close)
	}
	client.until(http.StatusOK, "/livez", "")

	cluster.CloseClientConnections() // its review fails
	if code := <-answered; code != http.StatusInternalServerError {
		t.Errorf("the request in flight gets %d", code)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// reuses reports whether a request goes over a connection that is there already. It waits for the
// client's transport to notice that one was closed.
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
