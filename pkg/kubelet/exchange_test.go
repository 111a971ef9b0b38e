package kubelet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// script is a server that responds to each request with the next of its texts, in turn. After a
// text that ends with hangUp, it closes the connection.
type script struct {
	address     *net.TCPAddr
	connections atomic.Int32
	requests    atomic.Int32
	responses   []string
}

const hangUp = "\x00"

func newScript(t *testing.T, responses ...string) *script {
	t.Helper()
	s := &script{responses: responses}
	s.address = listen(t, s.serve)
	return s
}

func (s *script) serve(conn net.Conn) {
	s.connections.Add(1)
	for in := bufio.NewReader(conn); ; {
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		n := int(s.requests.Add(1) - 1)
		text, last := strings.CutSuffix(s.responses[n%len(s.responses)], hangUp)
		if _, err := io.WriteString(conn, text); err != nil || last {
			return
		}
	}
}

// roundTrips sends two requests, and returns a description of the responses and connections.
func (s *script) roundTrips(t *testing.T, roundTrip func(*http.Request) (*http.Response, error)) string {
	t.Helper()
	var got strings.Builder
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		defer cancel()
		response, err := roundTrip(s.request(ctx, t))
		if err != nil {
			got.WriteString("no response; ")
			continue
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		fmt.Fprintf(&got, "%d %q %v; ", response.StatusCode, body, err)
	}
	return got.String() + fmt.Sprintf("%d connections", s.connections.Load())
}

func (s *script) request(ctx context.Context, t *testing.T) *http.Request {
	t.Helper()
	url := "http://" + s.address.String() + "/metrics/resource?a=b"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return request
}

// transport returns a transport to the server. Its idle connection is closed when the test ends.
func (s *script) transport(t *testing.T) *transport {
	ours := &transport{
		credentials: new(credentials), endpoint: endpoint{hosts: hosts{s.address.IP.String()}, port: s.address.Port},
		dial: dialWithoutTimeout,
	}
	t.Cleanup(ours.closeIdle)
	return ours
}

// TestTransportMatchesStandard compares transport with http.Transport for responses of every
// form.
func TestTransportMatchesStandard(t *testing.T) {
	const status = "HTTP/1.1 200 OK\r\n"
	const ok = status + "Content-Length: 3\r\n\r\none"
	const empty = "Content-Length: 0\r\n\r\n"
	const chunked = status + "Transfer-Encoding: chunked\r\n"
	for name, responses := range map[string][]string{
		"length":                    {ok},
		"chunks":                    {chunked + "\r\n3\r\none\r\n4;x=y\r\ntwo!\r\n0\r\n\r\n"},
		"chunks with a trailer":     {chunked + "Trailer: T\r\n\r\n3\r\none\r\n0\r\nT: v\r\n\r\n"},
		"invalid chunk size":        {chunked + "\r\nxyz\r\none\r\n0\r\n\r\n" + hangUp},
		"no length":                 {status + "\r\nall of it" + hangUp},
		"HTTP/1.0":                  {"HTTP/1.0 200 OK\r\n\r\nold" + hangUp},
		"HTTP/1.0, keep-alive":      {"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nold"},
		"connection close":          {status + "Connection: close\r\nContent-Length: 3\r\n\r\none" + hangUp},
		"empty":                     {status + empty},
		"no content":                {"HTTP/1.1 204 No Content\r\n\r\n"},
		"error status":              {"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"},
		"informational responses":   {"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + ok},
		"endless informational":     {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 1000) + hangUp},
		"truncated body":            {status + "Content-Length: 30\r\n\r\none" + hangUp},
		"truncated chunk":           {chunked + "\r\n9\r\none" + hangUp},
		"truncated headers":         {status + "Conte" + hangUp},
		"no response":               {hangUp},
		"no response when reused":   {ok, hangUp, ok},
		"closed after one response": {ok + hangUp},
		"not HTTP":                  {"SSH-2.0-OpenSSH_9.2\r\n" + hangUp},
		"invalid status":            {"HTTP/1.1 OK\r\n\r\n" + hangUp},
		"two lengths":               {status + "Content-Length: 3\r\nContent-Length: 4\r\n\r\none" + hangUp},
		"negative length":           {status + "Content-Length: -3\r\n\r\none" + hangUp},
		"endless headers":           {status + strings.Repeat("X: "+strings.Repeat("y", 100)+"\r\n", 1000) + "\r\n" + hangUp},
		"endless header line":       {status + "X: " + strings.Repeat("y", 1<<20) + hangUp},
		"most headers":              {status + "X: " + strings.Repeat("y", maxHeaderBytes-60) + "\r\n" + empty},
		"redirect":                  {"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\n" + empty},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, responses...)
			ours := s.transport(t)
			got := s.roundTrips(t, func(r *http.Request) (*http.Response, error) {
				before, queued := s.connections.Load(), time.Duration(0)
				response, err := ours.roundTrip(r, ours.takeIdle(), newPermits(), nil, &queued)
				if opened := s.connections.Load() > before; err == nil && opened != (queued > 0) {
					t.Errorf("opened a connection: %t, but waited %v for a permit", opened, queued)
				}
				return response, err
			})
			// On a busy machine, http.Transport may open another connection: it waits for 50 ms until a request was written.
			want := ""
			for attempt := 0; got != want && attempt < 100; attempt++ {
				standard := &http.Transport{
					MaxResponseHeaderBytes: maxHeaderBytes, DisableCompression: true, MaxIdleConnsPerHost: 1,
				}
				want = newScript(t, responses...).roundTrips(t, standard.RoundTrip)
				standard.CloseIdleConnections()
			}
			if got != want {
				t.Errorf("\n got %s\nwant %s", got, want)
			}
		})
	}
}

// TestTransportCanceled checks that the end of a context in a response is not reported as an invalid
// response.
func TestTransportCanceled(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n"
	for _, text := range []string{"", "HTTP/1.1 20", head[:20], head, head + "one"} {
		s := newScript(t, text)
		ours := s.transport(t)
		for round := range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			if round == 0 { // as at a shutdown
				ctx, cancel = context.WithCancel(t.Context())
				time.AfterFunc(20*time.Millisecond, cancel)
			}
			response, err := ours.roundTrip(s.request(ctx, t), ours.takeIdle(), newPermits(), nil, new(time.Duration))
			if err == nil {
				_, err = io.ReadAll(response.Body)
				_ = response.Body.Close()
			}
			if want := ctx.Err(); want == nil || !errors.Is(err, want) || ours.idle.Load() != nil {
				t.Errorf("after %q: got error %v, want %v, and a closed connection", text, err, want)
			}
			cancel()
		}
	}
}

// TestTransportKeepalive checks that a request opens another connection if keepalive has ended its idle one.
func TestTransportKeepalive(t *testing.T) {
	s := newScript(t, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none")
	ours := s.transport(t)
	dial := ours.dial
	ours.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed, err := dial(ctx, network, address)
		return &endedConn{Conn: dialed}, err
	}
	got := s.roundTrips(t, func(r *http.Request) (*http.Response, error) {
		return ours.roundTrip(r, ours.takeIdle(), newPermits(), nil, new(time.Duration))
	})
	if want := `200 "one" <nil>; 200 "one" <nil>; 2 connections`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// endedConn is a connection that the kernel ends after the first write.
type endedConn struct {
	net.Conn
	written bool
}

func (c *endedConn) Write(p []byte) (int, error) {
	if c.written {
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.ETIMEDOUT)}
	}
	c.written = true
	return c.Conn.Write(p)
}

// TestTransportDropsUnreadResponses checks that the rest of a response is not taken for the start
// of the next one.
func TestTransportDropsUnreadResponses(t *testing.T) {
	s := newScript(t, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none")
	ours := s.transport(t)
	response, err := ours.roundTrip(s.request(t.Context(), t), ours.takeIdle(), newPermits(), nil, new(time.Duration))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if ours.idle.Load() != nil {
		t.Error("the connection is kept")
	}
}
