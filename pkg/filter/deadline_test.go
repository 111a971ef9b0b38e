package filter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
		go server.Serve(NewListener(listener, time.Hour, MaxWriteTime, 1<<30))
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
			time.Sleep(time.Minute)
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

// TestStalledConnections checks that a connection breaks if the client does not read.
func TestStalledConnections(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	accepted := make(testenv.Listener, 1)
	accepted <- server
	conn, err := NewListener(accepted, time.Hour, time.Millisecond, 1<<30).Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want that the write ends", err)
	}
}
