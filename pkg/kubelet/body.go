package kubelet

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/kube-vitals/kube-vitals/pkg/internal/httpbody"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	firstBufferBytes = 32 << 10  // about 25 pods
	maxPooledBytes   = 512 << 10 // workspaces with a larger body are left to the garbage collector
	maxStatusBytes   = 256       // of the body of an error status that are reported
)

// workspace is the memory that one response needs, from its first byte until its samples are stored.
type workspace struct {
	body     []byte
	scrape   usage.Scrape // its names alias body
	resource decode.Text
	summary  decode.Summary
	gzip     gzip.Reader
}

func newWorkspace(maxContainers int) *workspace {
	return &workspace{
		resource: decode.Text{MaxContainers: maxContainers}, summary: decode.Summary{MaxContainers: maxContainers},
	}
}

// release makes w available for another request, unless a large response has made it large.
func (c *Client) release(w *workspace) {
	if cap(w.body) <= maxPooledBytes {
		c.workspaces.Put(w)
	}
}

// read checks the response to a query, and reads its body into w.body.
func (c *Client) read(response *http.Response, q *query, w *workspace) error {
	if response.StatusCode != http.StatusOK {
		return newStatusError(response)
	}
	if content := response.Header.Get("Content-Type"); !q.accepts(content) {
		return reason.Errorf(reason.BadFormat, "content type %.100q", content)
	}
	var unzip *gzip.Reader
	if c.config.Gzip {
		unzip = &w.gzip
	}
	body, err := httpbody.Open(response, c.config.MaxBodyBytes, unzip)
	if err == nil {
		w.body, err = readAll(w.body[:0], body, c.config.MaxBodyBytes)
	}
	if _, isKnown := errors.AsType[*reason.Error](err); err != nil && !isKnown {
		return &reason.Error{Reason: reason.Truncated, Err: err}
	}
	return err
}

// readAll appends at most limit bytes of r to buf. A bytes.Buffer would grow to twice the limit.
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
		case err == io.EOF:
			return buf, nil
		case err != nil:
			return buf, err
		}
	}
}

// newStatusError returns an error with the start of the body, where kubelets explain the status.
func newStatusError(response *http.Response) error {
	body := make([]byte, maxStatusBytes)
	n, _ := io.ReadFull(response.Body, body) // helpful, but not required
	text := fmt.Sprintf("status %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	if location := response.Header.Get("Location"); location != "" {
		text += fmt.Sprintf(", redirect to %.200q is not followed", location)
	}
	if body = bytes.ToValidUTF8(bytes.TrimSpace(body[:n]), nil); len(body) > 0 {
		text += fmt.Sprintf(", %q", body)
	}
	return reason.Errorf(reason.OfStatus(response.StatusCode), "%s", text)
}
