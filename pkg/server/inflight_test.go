package server

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// stalledClient is a connection with HTTP/2 whose client accepts headers, but no byte of a body.
type stalledClient struct {
	t      *testing.T
	framer *http2.Framer
	stream uint32 // the next one
}

func newStalledClient(t *testing.T, conn net.Conn) *stalledClient {
	t.Helper()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	c := &stalledClient{t: t, framer: http2.NewFramer(conn, conn), stream: 1}
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	return c
}

// send sends a GET, and returns the number of its stream.
func (c *stalledClient) send(path, user string) uint32 {
	c.t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{
		{":method", http.MethodGet}, {":scheme", "https"}, {":authority", "localhost"}, {":path", path},
		{"authorization", "Bearer " + user},
	} {
		if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			c.t.Fatal(err)
		}
	}
	stream := c.stream
	c.stream += 2
	headers := http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
	}
	if err := c.framer.WriteHeaders(headers); err != nil {
		c.t.Fatal(err)
	}
	return stream
}

// get sends a GET, and returns the status of the response once its headers have arrived.
func (c *stalledClient) get(path, user string) string {
	c.t.Helper()
	for stream := c.send(path, user); ; {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			c.t.Fatal(err)
		}
		if headers, ok := frame.(*http2.MetaHeadersFrame); ok && headers.StreamID == stream {
			return headers.PseudoValue("status")
		}
	}
}

// TestOneUserLeavesRequestsForOthers checks that users whose connections accept no byte of a response
// cannot have all requests in flight: one gets half of them, the next one half of the rest.
func TestOneUserLeavesRequestsForOthers(t *testing.T) {
	c, address := newCluster(t).config(t)
	c.Generic.MaxRequestsInFlight = 16
	c.Generic.RequestTimeout, c.maxWriteTime = time.Hour, time.Hour
	start(t, c)
	client := newClient(t, address)
	client.await(http.StatusOK, "/readyz", "")
	client.await(http.StatusOK, "/openapi/v2", "alice")
	target, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", target.Host, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stalled := newStalledClient(t, conn)
	for _, test := range []struct {
		user   string
		served int
	}{{"system:serviceaccount:tenant:a", 8}, {"system:serviceaccount:tenant:b", 0}, {"bob", 4}} {
		for n := range test.served + 2 {
			want := "200"
			if n >= test.served {
				want = "429"
			}
			if got := stalled.get("/openapi/v2", test.user); got != want {
				t.Fatalf("request %d of %s: got status %s, want %s", n, test.user, got, want)
			}
		}
	}
	for _, path := range []string{nodesPath, "/metrics", "/openapi/v2"} {
		if response, body := client.get(path, "alice"); response.StatusCode != http.StatusOK {
			t.Errorf("%s of another user: got status %d: %s", path, response.StatusCode, body)
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		if response, body := client.get(path, ""); response.StatusCode != http.StatusOK {
			t.Errorf("%s: got status %d: %s", path, response.StatusCode, body)
		}
	}
}
