package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/filter"
	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/health/healthtest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
)

// TestStalledReaders checks that clients that keep their connections, but do not read, do not make the
// page of nodes unavailable, which makes few reports at once.
func TestStalledReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(store.Config{MaxSampleAge: time.Minute, MaxContainers: 1})
		page := filter.WithTurns(nodez.Handler(nodez.Config{
			Source: &healthtest.Source{List: make([]health.Node, 1000)}, Now: time.Now, Clock: usage.NewClock(time.Now()),
			View:   &view.View{Pods: inventory.New(), Nodes: inventory.New(), Store: s},
			Memory: func() *nodez.Memory { return nil },
		}), maxReports)
		listener := make(testenv.Listener)
		server := &http.Server{Handler: filter.WithDeadline(page, time.Minute, filter.MaxWriteTime)}
		go server.Serve(listener)
		defer server.Close()
		request := func() net.Conn {
			client := listener.Dial()
			fmt.Fprint(client, "GET /nodez HTTP/1.1\r\nHost: localhost\r\n\r\n")
			return client
		}
		for range 10 {
			defer request().Close()
		}
		time.Sleep(filter.MaxWriteTime / 2)
		client := request()
		defer client.Close()
		client.SetDeadline(time.Now().Add(time.Hour))
		response, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil {
			t.Fatalf("stalled clients hold the page: %v", err)
		}
		defer response.Body.Close()
		if n, err := io.Copy(io.Discard, response.Body); err != nil || n < 64<<10 {
			t.Errorf("got %d bytes, error %v", n, err)
		}
	})
}
