package kubelet

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"

	"github.com/kube-vitals/kube-vitals/pkg/internal/untrusted"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	firstBufferBytes = 32 << 10  // about 25 pods
	maxPooledBytes   = 512 << 10 // workspaces with a larger body are left to the garbage collector
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
	var unzip *gzip.Reader
	if c.config.Gzip {
		unzip = &w.gzip
	}
	body, err := untrusted.Open(response, q.accepts, c.config.MaxBodyBytes, unzip)
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
