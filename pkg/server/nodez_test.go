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

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-vitals/kube-vitals/pkg/filter"
	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/health/healthtest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
	"github.com/kube-vitals/kube-vitals/pkg/view/viewtest"
)

// TestStalledReaders checks that a user whose clients keep their connections, but do not read, does not make the
// page of nodes unavailable, which makes few reports at once, and has it again when these are given up.
func TestStalledReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := viewtest.NewStore(1)
		page := filter.WithShares(nodez.Handler(nodez.Config{
			Source: &healthtest.Source{List: make([]health.Node, 1000)}, Now: time.Now, Clock: usage.NewClock(time.Now()),
			View:   &view.View{Pods: inventory.New(), Nodes: inventory.New(), Store: s},
			Memory: func() *nodez.Memory { return nil },
		}), maxReports)
		listener := make(testenv.Listener)
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			u := &user.DefaultInfo{Name: r.URL.Query().Get("user")}
			page.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), u)))
		})
		server := &http.Server{Handler: filter.WithDeadline(h, time.Minute, filter.MaxWriteTime)}
		go server.Serve(filter.NewListener(listener, time.Hour, filter.MaxWriteTime, 1<<30))
		defer server.Close()
		send := func(name string) net.Conn {
			client := listener.Dial()
			fmt.Fprintf(client, "GET /nodez?user=%s HTTP/1.1\r\nHost: localhost\r\n\r\n", name)
			return client
		}
		get := func(name string, want int) {
			client := send(name)
			defer client.Close()
			client.SetDeadline(time.Now().Add(time.Hour))
			response, err := http.ReadResponse(bufio.NewReader(client), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			n, err := io.Copy(io.Discard, response.Body)
			if response.StatusCode != want || err != nil || want == http.StatusOK && n < 64<<10 {
				t.Errorf("%s: got %s and %d bytes, error %v, want status %d", name, response.Status, n, err, want)
			}
		}
		for range maxReports {
			defer send("mallory").Close()
		}
		synctest.Wait()
		get("mallory", http.StatusTooManyRequests)
		get("alice", http.StatusOK)
		time.Sleep(2 * filter.MaxWriteTime)
		get("mallory", http.StatusOK)
	})
}
