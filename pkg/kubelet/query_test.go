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

	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestTimeouts checks, in fake time, how long each query takes at most.
func TestTimeouts(t *testing.T) {
	// stream sends a text without end after the request; %s is the content type that it accepts.
	stream := func(head string) func(net.Conn) {
		return func(conn net.Conn) {
			request, err := http.ReadRequest(bufio.NewReader(conn))
			if err == nil {
				_, err = fmt.Fprintf(conn, head, request.Header.Get("Accept"))
			}
			for err == nil {
				time.Sleep(300 * time.Millisecond)
				_, err = io.WriteString(conn, "x")
			}
		}
	}
	ignore := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	behaviors := map[string]func(conn net.Conn){
		"no connection":   nil,
		"no handshake":    ignore,
		"no response":     ignore,
		"endless headers": stream("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nX: "),
		"slow body":       stream("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: 1000\r\n\r\n"),
	}
	for _, tt := range []struct {
		fetch   string
		timeout time.Duration
	}{{"Fetch", DefaultTimeout}, {"FetchSummary", DefaultTimeout}, {"FetchSummary", time.Second}} {
		for name, behavior := range behaviors {
			t.Run(fmt.Sprintf("%s/%s/%v", tt.fetch, name, tt.timeout), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c, err := NewClient(withDefaults(Config{
						PlainHTTP: name != "no handshake", TLS: rest.TLSClientConfig{Insecure: true}, AllowLoopback: true,
						UseNodeStatusPort: true, Timeout: tt.timeout,
					}))
					if err != nil {
						t.Fatal(err)
					}
					defer forgetAll(c)
					closed := make(chan struct{})
					c.dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
						if behavior == nil {
							defer close(closed)
							<-ctx.Done()
							return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
						}
						near, far := net.Pipe()
						go func() {
							defer close(closed)
							behavior(far)
						}()
						return near, nil
					}
					start := time.Now()
					err = fetchFuncs()[tt.fetch](c, t.Context(), nodeAt("n7", "127.0.0.1:1"), &usage.Scrape{})
					wantReason, missing := reason.Timeout, "complete response from"
					if behavior == nil {
						wantReason, missing = reason.ConnectTimeout, "connection to"
					}
					checkError(t, err, wantReason, fmt.Sprintf("no %s the kubelet at 127.0.0.1:1 within %v", missing, tt.timeout))
					if took := time.Since(start); took != tt.timeout {
						t.Errorf("got an error after %v, want %v", took, tt.timeout)
					}
					<-closed
				})
			})
		}
	}
}
