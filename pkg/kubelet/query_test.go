package kubelet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestTimeouts checks, in fake time, how long each query takes at most.
func TestTimeouts(t *testing.T) {
	// stream sends a text without end after the request.
	stream := func(head string) func(net.Conn) {
		return func(conn net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, err := io.WriteString(conn, head)
			for err == nil {
				time.Sleep(300 * time.Millisecond)
				_, err = io.WriteString(conn, "x")
			}
		}
	}
	behaviors := map[string]func(conn net.Conn){
		"no response":     func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) },
		"endless headers": stream("HTTP/1.1 200 OK\r\nX: "),
		"slow text":       stream("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\n"),
		"slow JSON":       stream("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"),
	}
	for _, tt := range []struct {
		fetch    string
		timeout  time.Duration // configured
		behavior string        // in addition to those that do not depend on the query
		want     time.Duration
	}{
		{"Fetch", DefaultTimeout, "slow text", DefaultTimeout},
		{"FetchSummary", DefaultTimeout, "slow JSON", 2 * time.Second},
		{"FetchSummary", time.Minute, "slow JSON", 2 * time.Second},
		{"FetchSummary", time.Second, "slow JSON", time.Second},
	} {
		for _, behavior := range []string{"no response", "endless headers", tt.behavior} {
			t.Run(fmt.Sprintf("%s/%s/%v", tt.fetch, behavior, tt.timeout), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c, err := NewClient(withDefaults(Config{
						PlainHTTP: true, AllowLoopback: true, UseNodeStatusPort: true, Timeout: tt.timeout,
					}))
					if err != nil {
						t.Fatal(err)
					}
					defer forgetAll(c)
					closed := make(chan struct{})
					c.dialer = func(context.Context, string, string) (net.Conn, error) {
						near, far := net.Pipe()
						go func() {
							defer close(closed)
							behaviors[behavior](far)
						}()
						return near, nil
					}
					start := time.Now()
					err = fetchFuncs()[tt.fetch](c, t.Context(), nodeAt("n7", "127.0.0.1:1"), &usage.Scrape{})
					want := fmt.Sprintf("no complete response from the kubelet at 127.0.0.1:1 within %v", tt.want)
					checkError(t, err, reason.Timeout, want)
					if took := time.Since(start); took != tt.want {
						t.Errorf("got an error after %v, want %v", took, tt.want)
					}
					<-closed
				})
			})
		}
	}
}
