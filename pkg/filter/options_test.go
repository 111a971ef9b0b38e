package filter

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestOptionsOfServer sends requests that net/http serves itself by default, with a body that does not come. They would
// last as long as the connection, and only count until the next request.
func TestOptionsOfServer(t *testing.T) {
	address, l := serveTLS(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	const streams = 50
	client := dialTLS(t, address, "h2")
	before := heap()
	framer := http2.NewFramer(client, client)
	_, _ = io.WriteString(client, http2.ClientPreface)
	_ = framer.WriteSettings()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	send := func(stream uint32, method, path, value string, end bool) {
		block.Reset()
		for _, field := range []string{":method " + method, ":scheme https", ":authority a", ":path " + path, "x " + value} {
			name, value, _ := strings.Cut(field, " ")
			_ = encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: name == "x"})
		}
		text := block.Bytes()
		first := min(len(text), frameSize)
		_ = framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: stream, BlockFragment: text[:first], EndHeaders: first == len(text), EndStream: end,
		})
		for text = text[first:]; len(text) > 0; text = text[first:] {
			first = min(len(text), frameSize)
			_ = framer.WriteContinuation(stream, first == len(text), text[:first])
		}
	}
	for n := range uint32(streams) {
		send(4*n+1, "OPTIONS", "*", strings.Repeat("~", 60<<10), false)
		send(4*n+3, "GET", "/livez", "", true)
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if frame.Header().Type == http2.FrameHeaders && frame.Header().StreamID == 4*n+3 {
				break
			}
		}
	}
	took := heap() - before
	l.mu.Lock()
	counted := l.taken
	l.mu.Unlock()
	if took > counted {
		t.Errorf("%d requests take %d bytes, counted are %d", streams, took, counted)
	}
}
