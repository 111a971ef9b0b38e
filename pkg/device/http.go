package device

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"time"

	promconfig "github.com/prometheus/common/config"
	"golang.org/x/sync/semaphore"

	"github.com/kube-vitals/kube-vitals/pkg/internal/untrusted"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// maxHeader is the maximum size of the headers of a response.
const maxHeader = 16 << 10

// newTransport returns the transport for requests to one kind of exporter. Connections are not
// reused: an idle one would take more memory than a scrape, and the address of a pod that has ended
// may belong to another one soon.
func newTransport(e *Exporter) (http.RoundTripper, error) {
	newRoundTripper := func(config *tls.Config) (http.RoundTripper, error) {
		return &http.Transport{
			TLSClientConfig:        config,
			Proxy:                  nil,
			DialContext:            (&net.Dialer{Timeout: e.Timeout}).DialContext,
			TLSHandshakeTimeout:    e.Timeout, // the end of a request's context does not end its handshake
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxHeader,
			WriteBufferSize:        1 << 10,
		}, nil
	}
	config, err := promconfig.NewTLSConfig(&promconfig.TLSConfig{
		CAFile: e.TLS.CAFile, ServerName: e.TLS.ServerName, InsecureSkipVerify: e.TLS.InsecureSkipVerify,
	})
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	if e.TLS.CAFile == "" {
		return newRoundTripper(config)
	}
	settings := promconfig.TLSRoundTripperSettings{CA: promconfig.NewFileSecret(e.TLS.CAFile)}
	return promconfig.NewTLSRoundTripper(config, settings, newRoundTripper) // reads the file again when it changes
}

// get scrapes a pod. The request has no credentials.
func (g *group) get(ctx context.Context, t *target) (*response, error) {
	url, err := g.endpoint(t.pod, g.source.AllowLoopback)
	if err != nil {
		return nil, &reason.Error{Reason: reason.BadEndpoint, Err: err}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "text/plain;version=0.0.4")
	request.Header.Set("User-Agent", "kube-vitals")
	resp, err := g.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := untrusted.Open(resp, isText, maxBody, nil)
	if err != nil {
		return nil, err
	}
	sentAt, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		sentAt = time.Now()
	}
	d := decoder{group: g, node: t.pod.Spec.NodeName, sentAt: sentAt}
	if err := g.source.permits.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer g.source.permits.Release(1)
	r, err := d.decode(&yieldingReader{body, g.source.permits})
	if err != nil {
		return nil, err
	}
	hasEnd := resp.ContentLength >= 0 || len(resp.TransferEncoding) > 0
	before := t.count
	if t.count = r.count(); !hasEnd && t.count < before {
		return nil, errShorter
	}
	return r, nil
}

// isText reports whether a content type is the text format of Prometheus, or is missing.
func isText(contentType string) bool {
	kind, _, _ := mime.ParseMediaType(contentType)
	return kind == "" || kind == "text/plain"
}

// yieldingReader is a Reader for the holder of a permit, which it returns during each Read.
type yieldingReader struct {
	io.Reader
	permits *semaphore.Weighted
}

func (r *yieldingReader) Read(b []byte) (int, error) {
	r.permits.Release(1)
	defer func() { _ = r.permits.Acquire(context.Background(), 1) }()
	return r.Reader.Read(b)
}
