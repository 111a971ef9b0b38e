package kubelet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// script is a server that reads requests and answers each with the next of its texts, as they
// stand. After the last one, it begins anew. A text that ends with hangUp has the connection
// closed.
type script struct {
	listener    net.Listener
	connections atomic.Int32
	answers     []string
}

const hangUp = "\x00"

func newScript(t *testing.T, answers ...string) *script {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{listener: listener, answers: answers}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serve()
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return s
}

// serve answers one connection after the other. Which answer comes next does not depend on the
// connection.
func (s *script) serve() {
	next := 0
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.connections.Add(1)
		in := bufio.NewReader(conn)
		for {
			if _, err := http.ReadRequest(in); err != nil {
				break
			}
			text, last := strings.CutSuffix(s.answers[next%len(s.answers)], hangUp)
			next++
			if _, err := io.WriteString(conn, text); err != nil || last {
				break
			}
		}
		_ = conn.Close()
	}
}

// outcome asks twice, reads what comes, and tells all of it.
func (s *script) outcome(t *testing.T, transport http.RoundTripper) string {
	t.Helper()
	var told strings.Builder
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.listener.Addr().String()+"/metrics/resource?a=b", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			told.WriteString("no answer; ")
			cancel()
			continue
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		fmt.Fprintf(&told, "%d %q %v; ", response.StatusCode, body, err)
		cancel()
	}
	return told.String() + fmt.Sprintf("%d connections", s.connections.Load())
}

// TestTransportIsLikeTheStandardOne compares it with http.Transport on answers of every form.
func TestTransportIsLikeTheStandardOne(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"
	for name, answers := range map[string][]string{
		"a length":                        {ok},
		"chunks":                          {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n4;x=y\r\ntwo!\r\n0\r\n\r\n"},
		"chunks and a trailer":            {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\n\r\n3\r\none\r\n0\r\nT: v\r\n\r\n"},
		"chunks of a wrong size":          {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\none\r\n0\r\n\r\n" + hangUp},
		"until the end":                   {"HTTP/1.1 200 OK\r\n\r\nall of it" + hangUp},
		"HTTP/1.0":                        {"HTTP/1.0 200 OK\r\n\r\nold" + hangUp},
		"HTTP/1.0, kept":                  {"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nold"},
		"the server closes":               {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\none" + hangUp},
		"empty":                           {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		"no content":                      {"HTTP/1.1 204 No Content\r\n\r\n"},
		"an error":                        {"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"},
		"informational, then an answer":   {"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + ok},
		"informational without end":       {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 1000) + hangUp},
		"cut in the body":                 {"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\none" + hangUp},
		"cut in a chunk":                  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\none" + hangUp},
		"cut in the headers":              {"HTTP/1.1 200 OK\r\nConte" + hangUp},
		"nothing":                         {hangUp},
		"nothing on a kept connection":    {ok, hangUp, ok},
		"closed after the first answer":   {ok + hangUp},
		"not HTTP":                        {"SSH-2.0-OpenSSH_9.2\r\n" + hangUp},
		"a status that is no number":      {"HTTP/1.1 OK\r\n\r\n" + hangUp},
		"two lengths":                     {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\none" + hangUp},
		"a negative length":               {"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\none" + hangUp},
		"headers without end":             {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("y", 100)+"\r\n", 1000) + "\r\n" + hangUp},
		"a header line without end":       {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 1<<20) + hangUp},
		"just as many headers as allowed": {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", maxHeaderBytes-60) + "\r\nContent-Length: 0\r\n\r\n"},
		"a redirection":                   {"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			standard := &http.Transport{MaxResponseHeaderBytes: maxHeaderBytes, DisableCompression: true, MaxIdleConnsPerHost: 1}
			defer standard.CloseIdleConnections()
			want := newScript(t, answers...).outcome(t, standard)

			s := newScript(t, answers...)
			ours := &transport{address: s.listener.Addr().String(), dial: new(net.Dialer).DialContext, scratch: newScratchPool()}
			defer ours.CloseIdleConnections()
			if got := s.outcome(t, ours); got != want {
				t.Errorf("\n got %s\nwant %s", got, want)
			}
		})
	}
}

func TestTransportGivesUpWithItsContext(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n"
	for name, answer := range map[string]string{"no answer": "", "a part of the headers": head[:20], "a part of the body": head + "one"} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, answer)
			ours := &transport{address: s.listener.Addr().String(), dial: new(net.Dialer).DialContext, scratch: newScratchPool()}
			ctx, cancel := context.WithCancel(t.Context())
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ours.address, nil)
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(50*time.Millisecond, cancel)
			response, err := ours.RoundTrip(request)
			if err == nil {
				_, err = io.ReadAll(response.Body)
				_ = response.Body.Close()
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want %v", err, context.Canceled)
			}
			if ours.idle != nil {
				t.Error("the connection is kept")
			}
		})
	}
}

// An answer whose end was not read leaves nothing to be taken for the start of the next one.
func TestTransportDoesNotKeepWhatWasNotReadToItsEnd(t *testing.T) {
	s := newScript(t, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none")
	ours := &transport{address: s.listener.Addr().String(), dial: new(net.Dialer).DialContext, scratch: newScratchPool()}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+ours.address, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := ours.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if ours.idle != nil {
		t.Error("the connection is kept")
	}
}
