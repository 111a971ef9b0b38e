package filter

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// slowWriter is a client that needs some time for each write, and notes its deadlines.
type slowWriter struct {
	*httptest.ResponseRecorder
	start     time.Time
	each      time.Duration
	deadlines []time.Duration // since the start
}

func (w *slowWriter) SetWriteDeadline(t time.Time) error {
	w.deadlines = append(w.deadlines, t.Sub(w.start))
	return nil
}

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(w.each)
	return w.ResponseRecorder.Write(p)
}

// TestWriteDeadlines checks that deadlines follow the progress of a response up to a limit.
func TestWriteDeadlines(t *testing.T) {
	const list = "/apis/metrics.k8s.io/v1/pods"
	for name, test := range map[string]struct {
		path   string
		bytes  int
		each   time.Duration // that a write takes
		starts time.Duration // when the response begins
		want   []time.Duration
	}{
		"short":        {list, 100, time.Second, 3 * time.Second, []time.Duration{13 * time.Second}},
		"empty":        {list, 0, time.Second, 0, []time.Duration{10 * time.Second}},
		"a full piece": {list, pieceSize, time.Second, 0, []time.Duration{10 * time.Second}},
		"pieces": {list, 2*pieceSize + 1, 9 * time.Second, 0,
			[]time.Duration{10 * time.Second, 19 * time.Second, 28 * time.Second}},
		"too slow": {list, 3 * pieceSize, 25 * time.Second, 30 * time.Second,
			[]time.Duration{40 * time.Second, 65 * time.Second, 70 * time.Second}},
		"a watch":   {list + "?watch=1", 100, 0, 0, []time.Duration{10 * time.Second}},
		"a profile": {"/debug/pprof/profile", 100, 0, 30 * time.Second, []time.Duration{40 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body := strings.Repeat("x", test.bytes)
				h := WithDeadline(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					time.Sleep(test.starts)
					if n, err := io.WriteString(w, body); n != len(body) || err != nil {
						t.Errorf("got %d, %v", n, err)
					}
				}), time.Minute, MaxWriteTime)
				w := &slowWriter{ResponseRecorder: httptest.NewRecorder(), start: time.Now(), each: test.each}
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, test.path, nil))
				if !slices.Equal(w.deadlines, test.want) || w.Body.String() != body {
					t.Errorf("got %d bytes and the deadlines %v, want %d and %v", w.Body.Len(), w.deadlines, len(body), test.want)
				}
			})
		})
	}
}

// TestStalledResponses checks when a response without an end is given up that a client of HTTP/1 does
// not read, and that the deadline of a response does not affect the next one on its connection.
func TestStalledResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ended := make(chan time.Duration, 1)
		h := WithDeadline(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/short" {
				fmt.Fprint(w, "short")
				return
			}
			for err := error(nil); err == nil; _, err = io.WriteString(w, strings.Repeat("x", 2*pieceSize)) {
			}
			ended <- time.Since(start)
		}), time.Minute, MaxWriteTime)
		listener := make(testenv.Listener)
		server := &http.Server{Handler: h}
		go server.Serve(NewListener(listener, MaxWriteTime, 1<<30))
		defer server.Close()
		client := listener.Dial()
		defer client.Close()
		reader := bufio.NewReader(client)
		for range 2 {
			fmt.Fprint(client, "GET /short HTTP/1.1\r\nHost: localhost\r\n\r\n")
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(response.Body); string(body) != "short" || err != nil {
				t.Fatalf("got %q, %v", body, err)
			}
			response.Body.Close()
			time.Sleep(time.Hour)
		}
		for path, read := range map[string]int64{"/none": 1, "/some": pieceSize * 3 / 2} {
			start = time.Now()
			client := listener.Dial()
			defer client.Close()
			fmt.Fprintf(client, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
			synctest.Wait()
			time.Sleep(9 * time.Second)
			if _, err := io.CopyN(io.Discard, client, read); err != nil {
				t.Fatal(err)
			}
			want := 10 * time.Second
			if read > pieceSize {
				want = 19 * time.Second
			}
			if got := <-ended; got != want {
				t.Errorf("%s: given up after %v, want %v", path, got, want)
			}
		}
	})
}

// serveHTTP2 serves a connection as the library does, but without TLS.
func serveHTTP2(conn net.Conn, h http.Handler) {
	(&http2.Server{}).ServeConn(conn, &http2.ServeConnOpts{Handler: h}) //nolint:staticcheck // the library uses it
}

// endless returns a handler of endless responses, which sends the error that ends one.
func endless(ended chan<- error) http.Handler {
	return WithDeadline(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var err error
		for err == nil {
			_, err = w.Write(make([]byte, pieceSize))
		}
		ended <- err
	}), time.Minute, time.Millisecond)
}

// TestStalledStreams checks that responses are given up if the client grants no window of HTTP/2. The
// time for a write is short, but no check depends on it: the responses would be endless.
func TestStalledStreams(t *testing.T) {
	const streams = 10
	ended := make(chan error, streams)
	h := endless(ended)
	conn, server := net.Pipe()
	defer conn.Close()
	go serveHTTP2(server, h)
	client := testenv.NewStalledClient(t, conn)
	go io.Copy(io.Discard, conn)
	for range streams {
		client.Send("/", "alice")
	}
	for range streams {
		if err := <-ended; err == nil {
			t.Error("got no error")
		}
	}
}

// TestStalledConnections checks that a connection breaks if the client does not read: no reset of a
// stream could be sent.
func TestStalledConnections(*testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	conn := newConn(server, time.Millisecond)
	broken := make(chan bool)
	go func() {
		serveHTTP2(conn, http.NotFoundHandler())
		close(broken)
	}()
	io.WriteString(client, http2.ClientPreface) // fails if the connection is broken already
	<-broken
}

// newConn returns the only connection of a listener.
func newConn(c net.Conn, maxWriteTime time.Duration) net.Conn {
	accepted := make(testenv.Listener, 1)
	accepted <- c
	wrapped, err := NewListener(accepted, maxWriteTime, 1<<30).Accept()
	if err != nil {
		panic(err)
	}
	return wrapped
}

// TestStalledStreamsLeaveTheirConnection checks that responses that are given up do not affect others
// on the same connection: the API server sends the requests of all users over few connections.
func TestStalledStreamsLeaveTheirConnection(t *testing.T) {
	ended, received := make(chan error, 1), make(chan bool)
	endless := endless(ended)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/short" {
			fmt.Fprint(w, "short")
			return
		}
		w.(http.Flusher).Flush()
		<-received // the deadline is too short for the headers
		endless.ServeHTTP(w, r)
	})
	conn, server := net.Pipe()
	defer conn.Close()
	go serveHTTP2(newConn(server, testenv.Patience), h)
	client, err := (&http2.Transport{}).NewClientConn(conn) //nolint:staticcheck // without TLS
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://localhost"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.RoundTrip(r)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return response
	}
	for range 3 {
		stalled := get("/endless")
		defer stalled.Body.Close()
		received <- true
		<-ended
		if n, err := io.Copy(io.Discard, stalled.Body); err == nil {
			t.Errorf("the stalled response ended after %d bytes without an error", n)
		}
		short := get("/short")
		if body, err := io.ReadAll(short.Body); string(body) != "short" || err != nil {
			t.Errorf("got %q, %v", body, err)
		}
		short.Body.Close()
	}
}
