package testenv

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// StalledClient is a connection with HTTP/2 whose client accepts headers, but no byte of a body.
type StalledClient struct {
	t      testing.TB
	framer *http2.Framer
	stream uint32 // the next one
}

// NewStalledClient starts HTTP/2 on the connection.
func NewStalledClient(t testing.TB, conn net.Conn) *StalledClient {
	t.Helper()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	c := &StalledClient{t: t, framer: http2.NewFramer(conn, conn), stream: 1}
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	return c
}

// Send sends a GET, and returns the number of its stream.
func (c *StalledClient) Send(path, user string) uint32 {
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

// Get sends a GET, and returns the status of the response once its headers have arrived.
func (c *StalledClient) Get(path, user string) string {
	c.t.Helper()
	for stream := c.Send(path, user); ; {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			c.t.Fatal(err)
		}
		if headers, ok := frame.(*http2.MetaHeadersFrame); ok && headers.StreamID == stream {
			return headers.PseudoValue("status")
		}
	}
}
