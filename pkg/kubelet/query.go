package kubelet

import (
	"context"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

const (
	summaryPath       = "/stats/summary"
	summaryQuery      = "only_cpu_and_memory=true"
	maxSummaryTimeout = 2 * time.Second // a summary is not worth a longer wait
)

// query is a request that kubelets support, and how its response is read.
type query struct {
	scheme   string
	path     string // empty for the path of the endpoint
	rawQuery string
	accept   string
	timeout  time.Duration // from dialing to the last byte

	accepts func(contentType string) bool
	decode  func(w *workspace, node string, times decode.Times) error // decodes w.body into w.scrape

	subject string                   // of errors
	cures   map[reason.Reason]string // replace the usual cures
}

func newResourceQuery(c *Config) *query {
	return &query{
		scheme:  c.scheme(),
		accept:  "text/plain;version=0.0.4",
		timeout: c.Timeout,
		accepts: isText,
		decode: func(w *workspace, _ string, times decode.Times) error {
			return w.resource.Decode(&w.scrape, w.body, times)
		},
	}
}

func newSummaryQuery(c *Config) *query {
	q := summaryQueryOf(c, "summary", "without the summary, metrics appear only after the second scrape")
	q.rawQuery, q.timeout = summaryQuery, min(c.Timeout, maxSummaryTimeout)
	q.decode = func(w *workspace, node string, times decode.Times) error {
		return w.summary.Decode(&w.scrape, w.body, node, times)
	}
	return q
}

func newStorageQuery(c *Config) *query {
	q := summaryQueryOf(c, "complete summary", "without the summary, ephemeral-storage is not served")
	q.decode = func(w *workspace, node string, times decode.Times) error {
		return w.summary.DecodeStorage(&w.scrape, w.body, node, times)
	}
	return q
}

// summaryQueryOf returns a query of the summary. without is what is missing without it.
func summaryQueryOf(c *Config, subject, without string) *query {
	return &query{
		scheme:  c.scheme(),
		path:    summaryPath,
		accept:  "application/json",
		timeout: c.Timeout,
		accepts: isJSON,
		subject: subject,
		cures: map[reason.Reason]string{
			reason.Forbidden:   "grant get on nodes/stats to the user that kube-vitals runs as; " + without,
			reason.NotFound:    without,
			reason.ServerError: "see the kubelet's log; " + without,
			reason.BadStatus:   without,
			reason.Timeout:     "check the load of the node; " + without,
			reason.BadFormat:   without,
			reason.Undecodable: without,
			reason.NoSamples:   without,
			reason.ClockSkew:   "set the node's clock, for example by NTP; " + without,
		},
	}
}

// request returns a request to a kubelet.
func (q *query) request(ctx context.Context, e endpoint, header http.Header) *http.Request {
	u := &url.URL{Scheme: q.scheme, Host: e.address(), Path: q.path, RawQuery: q.rawQuery}
	if u.Path == "" {
		u.Path = e.path
	}
	r := &http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: header}
	return r.WithContext(ctx)
}

// isText reports whether a content type is the text exposition format. Some servers send no type,
// no version, or invalid parameters after the version.
func isText(contentType string) bool {
	if contentType == "" || strings.HasPrefix(contentType, "text/plain; version=0.0.4;") {
		return true
	}
	media, parameters, err := mime.ParseMediaType(contentType)
	version := parameters["version"]
	return err == nil && media == "text/plain" && (version == "" || version == "0.0.4")
}

func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && media == "application/json"
}
