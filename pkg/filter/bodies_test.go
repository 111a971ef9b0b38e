package filter

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// TestBodiesThatDoNotCome sends requests with long headers and a body that does not come. All that the server keeps of
// them counts.
func TestBodiesThatDoNotCome(t *testing.T) {
	const connections = 20
	var names, headers strings.Builder
	for i := range 15 << 10 {
		name := fmt.Sprintf("%c%c%c", 'a'+i%26, 'a'+i/26%26, 'a'+i/26/26)
		fmt.Fprintf(&names, ",%s", name)
		fmt.Fprintf(&headers, "%s:\r\n", name)
	}
	const host, end = " HTTP/1.1\r\nHost: a\r\n", "\r\n"
	trailers := host + "Transfer-Encoding: chunked\r\nTrailer: x" + names.String() + end + end
	for name, text := range map[string]string{
		"a flag":            "PUT /debug/flags/v" + host + "Content-Length: 50\r\n" + headers.String() + end,
		"another path":      "GET /livez" + host + "Content-Length: 50\r\n" + headers.String() + end,
		"trailers":          "GET /livez" + trailers,
		"trailers and flag": "PUT /debug/flags/v" + trailers,
		// net/http serves this one itself.
		"options": "OPTIONS *" + host + "Content-Length: 50\r\n" + headers.String() + end,
	} {
		synctest.Test(t, func(t *testing.T) { // so no deadline passes meanwhile
			listener := make(testenv.Listener)
			l := NewListener(listener, time.Hour, time.Hour, 1<<30)
			server := &http.Server{MaxHeaderBytes: 1 << 20, Handler: WithRequestLimits(
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), &genericapiserver.Config{},
				func() []string { return []string{"/livez"} }, nil,
			)}
			go server.Serve(l)
			defer server.Close()
			before := heap()
			for range connections {
				client := listener.Dial()
				defer client.Close()
				if _, err := io.WriteString(client, text); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			took, counted := (heap()-before)/connections, l.taken/connections
			t.Logf("%s: %d bytes take %d, counted are %d", name, len(text), took, counted)
			if took > counted {
				t.Errorf("%s: a connection takes %d bytes, counted are %d", name, took, counted)
			}
		})
	}
}

// TestBodiesHaveADeadline checks how long a request waits for its body.
func TestBodiesHaveADeadline(t *testing.T) {
	const maxReadTime = 2 * time.Minute
	long := "/livez?" + strings.Repeat("x", maxTarget)
	for request, want := range map[string]time.Duration{
		"PUT /debug/flags/v": MaxWriteTime, "PUT /livez": MaxWriteTime, "GET /livez": MaxWriteTime, "GET " + long: 0,
		"OPTIONS *": maxReadTime, // by net/http
	} {
		for _, body := range []string{"Content-Length: 50\r\n\r\n1", "Transfer-Encoding: chunked\r\n\r\n1\r\n"} {
			if request == "PUT /debug/flags/v" && strings.HasPrefix(body, "Transfer") {
				want = 0 // rejected
			}
			synctest.Test(t, func(t *testing.T) {
				listener := make(testenv.Listener)
				h := WithRequestLimits(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.ReadAll(r.Body) }),
					&genericapiserver.Config{}, func() []string { return []string{"/livez"} }, nil)
				server := &http.Server{Handler: h}
				go server.Serve(NewListener(listener, maxReadTime, time.Hour, 1<<30))
				defer server.Close()
				client, start := listener.Dial(), time.Now()
				defer client.Close()
				go fmt.Fprint(client, request+" HTTP/1.1\r\nHost: a\r\n"+body)
				_ = client.SetReadDeadline(start.Add(time.Hour))
				if _, err := io.ReadAll(client); err != nil || time.Since(start).Round(time.Second) != want {
					t.Errorf("%.40s, %q: got %v after %v, want the end after %v", request, body, err, time.Since(start), want)
				}
			})
		}
	}
}

// TestReadsLastAsLongAsRequests checks that no request is cancelled before the limit of reads.
func TestReadsLastAsLongAsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const readTime = 10 * time.Minute
		listener := make(testenv.Listener)
		server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			time.Sleep(readTime - time.Second)
			if err := r.Context().Err(); err != nil {
				t.Errorf("got %v", err)
			}
		})}
		go server.Serve(NewListener(listener, readTime, time.Hour, 1<<30))
		defer server.Close()
		client := listener.Dial()
		defer client.Close()
		fmt.Fprint(client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	})
}
