package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// shutdownBound is how long the end of a server may take, with a kubelet that hangs and a client
// that does: the delay of 5 s before the port is closed, and 15 s for requests in flight. After 30
// s the cluster would kill the pod.
const shutdownBound = 25 * time.Second

// shutdown ends a server under load. Each request gets its response or, once the port is closed, is
// not accepted: the connection is refused, or a request on one that was just accepted gets the
// library's 503 with Retry-After.
func (d *disturbed) shutdown(t *testing.T) {
	s := d.replica(t)
	hanging := d.Simulation.Kubelet("node-03")
	hanging.SetFaults(kubelettest.Hang)
	t.Cleanup(func() { hanging.SetFaults() })
	hang(t, s, "nothing at all", nil)
	hang(t, s, "half a request", []byte("GET /livez HTTP/1.1\r\nHost: "))

	var clients sync.WaitGroup
	var answered atomic.Int64
	for range 8 {
		r := d.administrator(t, s)
		clients.Go(func() {
			for {
				status, body, err := r.get(t.Context(), podsPath)
				if status == http.StatusServiceUnavailable && closedSoon(s) {
					return
				}
				err = wholePods(status, body, err)
				switch {
				case errors.Is(err, syscall.ECONNREFUSED):
					return
				case errors.Is(err, syscall.ECONNRESET) && closed(s):
					return // the connection still waited to be accepted when the port was closed
				case err != nil:
					t.Error(err)
					return
				}
				answered.Add(1)
				time.Sleep(5 * time.Millisecond) // a pause between requests, so that there are processors left
			}
		})
	}
	d.eventually(t, "load", func(context.Context) error {
		if n := answered.Load(); n < 100 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	before, began := answered.Load(), time.Now()
	if err := s.Stop(shutdownBound); err != nil {
		t.Errorf("the server does not end well: %v", err)
	}
	took := time.Since(began)
	clients.Wait()
	if took > shutdownBound {
		t.Errorf("the end takes %s", took)
	}
	if answered.Load() == before {
		t.Error("no request was answered after SIGTERM, though the port is to stay open for a while")
	}
	t.Logf("ended after %s; %d requests answered meanwhile", took.Round(time.Millisecond), answered.Load()-before)
}

// closedSoon reports whether the server's port is closed, or is so within a second.
func closedSoon(s *cluster.Server) bool {
	for deadline := time.Now().Add(time.Second); !closed(s); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// closed reports whether nothing listens at the server's port any more.
func closed(s *cluster.Server) bool {
	conn, err := net.Dial("tcp", s.Address)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// hang opens a connection, sends so much over TLS, and then does nothing.
func hang(t *testing.T, s *cluster.Server, what string, send []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if send == nil {
		return
	}
	config := newReader(t, s).transport.TLSClientConfig.Clone()
	if _, err := tls.Client(conn, config).Write(send); err != nil {
		t.Fatalf("%s cannot be sent: %v", what, err)
	}
}
