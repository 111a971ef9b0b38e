package filter

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// TestStalledResponses checks when a response without an end is given up that a client does not read, or reads byte by
// byte, and that the deadline of a response does not affect the next one on its connection.
func TestStalledResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ended := make(chan time.Duration, 1)
		h := WithDeadline(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/short" {
				fmt.Fprint(w, "short")
				return
			}
			for err := error(nil); err == nil; _, err = io.WriteString(w, strings.Repeat("x", 128<<10)) {
			}
			ended <- time.Since(start)
		}), time.Minute, MaxWriteTime)
		listener := make(testenv.Listener)
		server := &http.Server{Handler: h}
		go server.Serve(tls.NewListener(NewListener(listener, time.Hour, MaxWriteTime, 1<<30), &tls.Config{
			Certificates:           []tls.Certificate{kubelettest.NewCA().Issue([]string{"localhost"}, nil)},
			SessionTicketsDisabled: true, // a write in memory waits for its reader, and a client reads none before its request
		}))
		defer server.Close()
		const request = "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
		config := &tls.Config{InsecureSkipVerify: true}

		client := tls.Client(listener.Dial(), config)
		defer client.Close()
		reader := bufio.NewReader(client)
		for range 2 {
			fmt.Fprintf(client, request, "/short")
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(response.Body); string(body) != "short" || err != nil {
				t.Fatalf("got %q, %v", body, err)
			}
			response.Body.Close()
			time.Sleep(2 * time.Minute)
		}

		const record = 17 << 10 // more than a record has
		for name, test := range map[string]struct {
			bytes, times int
			every, want  time.Duration
		}{
			"nothing":          {0, 0, 0, 10 * time.Second},
			"a byte a second":  {1, 100, time.Second, 10 * time.Second},
			"a record":         {record, 1, 9 * time.Second, 19 * time.Second},
			"record by record": {record, 10, 9 * time.Second, 70 * time.Second},
		} {
			start = time.Now()
			conn, next := listener.Dial(), make([]byte, 1)
			fmt.Fprintf(tls.Client(conn, config), request, "/endless")
			for range test.times {
				time.Sleep(test.every)
				for range test.bytes {
					_, _ = conn.Read(next) // fails when the response has ended
				}
			}
			if got := <-ended; got != test.want {
				t.Errorf("a client that reads %s: given up after %v, want %v", name, got, test.want)
			}
			conn.Close()
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
