package server

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
)

// TestShutdown checks that during the shutdown delay the server is unready, still serves, and closes each connection of
// the front proxy with its next response. Others are never kept.
func TestShutdown(t *testing.T) {
	cluster, proxies := newCluster(t), kubelettest.NewCA()
	cluster.setCAs(kubelettest.NewCA(), proxies)
	s, err := New(cluster.config(t))
	if err != nil {
		t.Fatal(err)
	}
	ready := run(t, s)
	ready.await(http.StatusOK, "/readyz", "")
	if reuses(t, ready.another(), nodesPath) {
		t.Error("a connection of another client than the front proxy is kept")
	}

	client, start := ready.another().withCertificate(proxies, "front-proxy"), time.Now()
	client.header = http.Header{"X-Remote-User": {"alice"}}
	client.get(nodesPath, "")
	if !reuses(t, client, nodesPath) {
		t.Error("the connection is closed before shutdown")
	}
	// The server sleeps for the delay. The requests during it take about as long as these.
	s.assembly.api.ShutdownDelayDuration = max(time.Second, 5*time.Since(start))

	stopped := make(chan struct{})
	go func() { ready.stop(); close(stopped) }()
	ready.await(http.StatusInternalServerError, "/readyz", "")
	client.await(http.StatusOK, nodesPath, "alice")
	if reuses(t, client, nodesPath) {
		t.Error("the connection is kept during shutdown")
	}
	<-stopped
}

// sleepyRequest sends a request that hangs in its access review. It returns a channel for the
// status, 0 if there is no response. On a busy machine, a request may end before its review begins.
func sleepyRequest(cluster *cluster, client *client) <-chan int {
	for {
		status := make(chan int, 1)
		go func() {
			response, _ := client.get(nodesPath, "sleepy")
			status <- response.StatusCode
		}()
		select {
		case <-cluster.asleep:
			return status
		case code := <-status:
			if code != http.StatusGatewayTimeout {
				client.t.Fatalf("got status %d before the access review", code)
			}
		}
	}
}

// TestShutdownWithHangingRequest checks that a hanging request delays shutdown by --request-timeout
// at most.
func TestShutdownWithHangingRequest(t *testing.T) {
	cluster := newCluster(t)
	c := cluster.config(t)
	c.Generic.ShutdownDelayDuration = 0
	c.Generic.RequestTimeout = time.Second
	client := startReady(t, c)
	status := sleepyRequest(cluster, client)
	client.stop()
	// The access review ends at the same moment. If its error is written first, the library closes the connection.
	if code := <-status; code != http.StatusGatewayTimeout && code != 0 {
		t.Errorf("hanging request: got status %d, want 504 or none", code)
	}
}

// TestShutdownWithHangingConnection checks that half a request delays shutdown by connectionTimeout
// at most.
func TestShutdownWithHangingConnection(t *testing.T) {
	c := newCluster(t).config(t)
	c.Generic.ShutdownDelayDuration = 0
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if s.assembly.api.ShutdownTimeout != connectionTimeout {
		t.Errorf("got a ShutdownTimeout of %v, want %v", s.assembly.api.ShutdownTimeout, connectionTimeout)
	}
	s.assembly.api.ShutdownTimeout = 100 * time.Millisecond
	client := run(t, s)
	client.await(http.StatusOK, "/readyz", "")
	conn, err := tls.Dial("tcp", c.Serving.Listener.Addr().String(), client.transport.TLSClientConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: "); err != nil {
		t.Fatal(err)
	}
	client.await(http.StatusOK, "/livez", "") // gives the server time to read the half
	client.stop()
}

// TestShutdownSendRetryAfter checks that with --shutdown-send-retry-after, new requests get status
// 429 while requests in flight end.
func TestShutdownSendRetryAfter(t *testing.T) {
	cluster := newCluster(t)
	c := cluster.config(t)
	c.Generic.ShutdownDelayDuration = 0
	c.Generic.ShutdownSendRetryAfter = true
	c.Authorization.WebhookRetryBackoff = &wait.Backoff{Steps: 1}
	client := startReady(t, c)
	status := sleepyRequest(cluster, client.another())

	stopped := make(chan struct{})
	go func() { client.stop(); close(stopped) }()
	client.await(http.StatusTooManyRequests, nodesPath, "alice")
	response, _ := client.get(nodesPath, "alice")
	after := response.Header.Get("Retry-After")
	if response.StatusCode != http.StatusTooManyRequests || after == "" || !response.Close {
		t.Errorf("got %s, Retry-After %q, Connection: close %v", response.Status, after, response.Close)
	}
	client.await(http.StatusOK, "/livez", "")

	cluster.server.CloseClientConnections() // fails the access review
	if code := <-status; code != http.StatusInternalServerError {
		t.Errorf("request in flight: got status %d, want 500", code)
	}
	<-stopped
}

// reuses reports whether requests reuse the client's connection. It repeats the request for some
// time, until the client notices that the connection was closed.
func reuses(t *testing.T, c *client, path string) (reused bool) {
	t.Helper()
	reused = true
	for deadline := time.Now().Add(500 * time.Millisecond); reused && time.Now().Before(deadline); {
		c.trace = &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
		if response, body := c.get(path, "alice"); response.StatusCode != http.StatusOK {
			t.Errorf("%s: got %s: %s", path, response.Status, body)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return reused
}
