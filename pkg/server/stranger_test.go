package server

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// TestStrangersAreNoAPIServer: a server whose certificate the cluster's CA did not sign gets no
// request, and so no credentials.
func TestStrangersAreNoAPIServer(t *testing.T) {
	const tries = 3
	connected := make(chan struct{}, tries)
	var requests atomic.Int64
	count := func(http.ResponseWriter, *http.Request) { requests.Add(1) }
	stranger := httptest.NewUnstartedServer(http.HandlerFunc(count))
	stranger.Config.ErrorLog = log.New(io.Discard, "", 0)
	stranger.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state != http.StateClosed {
			return
		}
		select {
		case connected <- struct{}{}:
		default:
		}
	}
	stranger.StartTLS()
	defer stranger.Close()

	cluster := newCluster(t)
	cluster.URL = stranger.URL // for the kubeconfig, which has no CA for it
	c, _ := config(t, cluster)
	defer start(t, c)()
	for range tries {
		<-connected
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests were sent to it", n)
	}
}
