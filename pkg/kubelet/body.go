package kubelet

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	firstBufferBytes = 32 << 10  // some 25 pods
	maxPooledBytes   = 512 << 10 // workspaces with larger texts are left to the garbage collector
	maxStatusBytes   = 256       // how much is shown of the text that comes with an error status
)

// workspace is the memory that one request needs.
type workspace struct {
	text     []byte // the answer
	resource decode.Text
	summary  decode.Summary
	gzip     *gzip.Reader // nil until it is needed
}

func newWorkspace(limits decode.Limits) *workspace {
	return &workspace{resource: decode.Text{Limits: limits}, summary: decode.Summary{Limits: limits}}
}

// release makes w available for another request, unless a large response has made it large.
func (c *Client) release(w *workspace) {
	if cap(w.text) <= maxPooledBytes {
		c.workspaces.Put(w)
	}
}

// read checks the answer to a question, and reads its body into w.text.
func (c *Client) read(response *http.Response, q *question, w *workspace) error {
	if response.StatusCode != http.StatusOK {
		return newStatusError(response)
	}
	if content := response.Header.Get("Content-Type"); !q.takes(content) {
		return &refusedAnswer{reasonContentType, fmt.Sprintf("its content type is %.100q", content)}
	}
	limit := c.config.MaxBodyBytes
	if response.ContentLength > limit {
		return tooLarge(limit)
	}
	body, err := c.decompress(response, w)
	if err == nil {
		w.text, err = readAll(w.text[:0], body, limit)
	}
	return err
}

// decompress gives the body as it was before it was compressed, if it was and was asked to be.
func (c *Client) decompress(response *http.Response, w *workspace) (io.Reader, error) {
	encoding := response.Header.Get("Content-Encoding")
	switch {
	case encoding == "" || strings.EqualFold(encoding, "identity"):
		return response.Body, nil
	case !c.config.Gzip || !strings.EqualFold(encoding, "gzip"):
		return nil, &refusedAnswer{reasonContentEncoding, fmt.Sprintf("its content encoding is %.100q", encoding)}
	}
	// What is compressed is bounded too: it can be endless and yet hold nothing.
	compressed := &boundedReader{response.Body, c.config.MaxBodyBytes}
	if w.gzip == nil {
		w.gzip = new(gzip.Reader)
	}
	if err := w.gzip.Reset(compressed); err != nil {
		return nil, asBodyError(err)
	}
	return w.gzip, nil
}

// readAll appends what r gives to buf. More than limit bytes of it are an error.
func readAll(buf []byte, r io.Reader, limit int64) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), min(max(firstBufferBytes, 2*int64(cap(buf))), limit+1))
			copy(grown, buf)
			buf = grown
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)) > limit:
			return buf, tooLarge(limit)
		case err == io.EOF:
			return buf, nil
		case err != nil:
			return buf, asBodyError(err)
		}
	}
}

// boundedReader fails when there is more to read than a limit.
type boundedReader struct {
	r    io.Reader
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, &refusedAnswer{reasonTooLarge, "it is longer than allowed even while compressed"}
	}
	return n, err
}

func tooLarge(limit int64) error {
	return &refusedAnswer{reasonTooLarge, fmt.Sprintf("it has more than the %d bytes that are allowed", limit)}
}

// asBodyError marks what went wrong with the connection, and leaves what this package found.
func asBodyError(err error) error {
	var ours *refusedAnswer
	if errors.As(err, &ours) {
		return err
	}
	return &bodyError{err}
}

// newStatusError reads the start of the body, in which a kubelet says what it misses.
func newStatusError(response *http.Response) error {
	text := make([]byte, maxStatusBytes)
	n, _ := io.ReadFull(response.Body, text) // it is a help, not needed
	return &statusError{
		code:     response.StatusCode,
		location: response.Header.Get("Location"),
		text:     string(bytes.ToValidUTF8(bytes.TrimSpace(text[:n]), nil)),
	}
}

// detach moves the names in s from the text of the answer to memory of their own, so that the text
// can be reused.
func detach(s *usage.Scrape) {
	size := 0
	for i := range s.Containers {
		c := &s.Containers[i]
		size += len(c.Namespace) + len(c.Pod) + len(c.Name)
	}
	names := make([]byte, 0, size)
	move := func(name []byte) []byte {
		start := len(names)
		names = append(names, name...)
		return names[start:len(names):len(names)]
	}
	for i := range s.Containers {
		c := &s.Containers[i]
		c.Namespace, c.Pod, c.Name = move(c.Namespace), move(c.Pod), move(c.Name)
	}
}
