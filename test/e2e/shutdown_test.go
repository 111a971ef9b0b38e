package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// shutdownTimeout bounds a shutdown, also with a kubelet and a client that hang: 5 s until the port
// is closed, and 15 s for requests in flight. Without a limit for these, it would take 65 s. The rest
// is for a busy machine.
func (c *testCluster) shutdownTimeout() time.Duration { return max(50*time.Second, 3*c.started) }

// testShutdown stops a server under load. Each request gets its response or, when the port is
// closed, is not accepted: the connection is refused, or one that was accepted last is closed by
// net/http, or its request gets a 503 with Retry-After from the library.
func (d *disruption) testShutdown(t *testing.T) {
	s := d.replica(t, d.server)
	hanging := d.Simulation.Kubelet("node-03")
	hanging.SetFaults(kubelettest.Hang)
	t.Cleanup(func() { hanging.SetFaults() })
	openConnection(t, s, nil)
	openConnection(t, s, []byte("GET /livez HTTP/1.1\r\nHost: ")) // half a request

	var clients sync.WaitGroup
	var responses atomic.Int64
	for range 8 {
		client := d.asAdmin(t, s)
		clients.Go(func() {
			for {
				response, body, err := client.fetch(t.Context(), podsPath)
				status, header := 0, http.Header{}
				if response != nil {
					status, header = response.StatusCode, response.Header
				}
				if status == http.StatusServiceUnavailable && header.Get("Retry-After") != "" && isClosedSoon(s) {
					return
				}
				err = d.checkPods(body, err)
				switch {
				case errors.Is(err, syscall.ECONNREFUSED):
					return
				case errors.Is(err, syscall.ECONNRESET) && isClosed(s):
					return // the connection was not yet accepted when the port was closed
				case errors.Is(err, io.EOF) && status == 0 && isClosedSoon(s):
					return
				case err != nil:
					t.Errorf("status %d: %v", status, err)
					return
				}
				responses.Add(1)
				time.Sleep(5 * time.Millisecond) // leaves CPU time for the servers
			}
		})
	}
	eventually(t, "load", func(context.Context) error {
		if n := responses.Load(); n < 100 {
			return fmt.Errorf("%d responses", n)
		}
		return nil
	})
	before, started := responses.Load(), time.Now()
	if err := s.Stop(d.shutdownTimeout()); err != nil {
		t.Errorf("the server exits with %v", err)
	}
	elapsed := time.Since(started)
	clients.Wait()
	if responses.Load() == before {
		t.Error("got no response after SIGTERM, want the port to stay open for some seconds")
	}
	t.Logf("stopped after %s, with %d responses meanwhile", elapsed.Round(time.Millisecond), responses.Load()-before)
}

// isClosedSoon waits until the server's port is closed, and reports whether it is.
func isClosedSoon(s *cluster.Server) bool {
	for deadline := time.Now().Add(timeout); !isClosed(s); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// isClosed reports whether the server's port refuses connections.
func isClosed(s *cluster.Server) bool {
	conn, err := net.Dial("tcp", s.Address)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// openConnection opens a connection, sends data over TLS if there is any, and keeps the connection
// open.
func openConnection(t *testing.T, s *cluster.Server, data []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if data == nil {
		return
	}
	config := newClient(t, s).transport.TLSClientConfig.Clone()
	if _, err := tls.Client(conn, config).Write(data); err != nil {
		t.Fatal(err)
	}
}
