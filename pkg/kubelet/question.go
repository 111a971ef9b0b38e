package kubelet

import (
	"context"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	summaryPath       = "/stats/summary"
	summaryQuery      = "only_cpu_and_memory=true"
	maxSummaryTimeout = 2 * time.Second // a summary is not worth waiting for
)

// question is one thing that kubelets can be asked, how its answer is to be read, and what to do
// when there is none.
type question struct {
	scheme  string
	path    string // empty: the path of the endpoint
	query   string
	accept  string
	timeout time.Duration // from the dialling to the last byte

	takes  func(contentType string) bool
	decode func(w *workspace, node string, dst *usage.Scrape, times decode.Times) error // what is in w.text

	subject string            // what an error's sentence says first; may be empty
	hints   map[string]string // reason → what to do about it, where that is not what is usual
}

func newResourceQuestion(c *Config) *question {
	return &question{
		scheme:  c.scheme(),
		accept:  "text/plain;version=0.0.4",
		timeout: c.Timeout,
		takes:   isText,
		decode: func(w *workspace, _ string, dst *usage.Scrape, times decode.Times) error {
			return w.resource.Decode(dst, w.text, times)
		},
	}
}

func newSummaryQuestion(c *Config) *question {
	const without = "kube-vitals goes on without it: after a start, figures take a second scrape"
	return &question{
		scheme:  c.scheme(),
		path:    summaryPath,
		query:   summaryQuery,
		accept:  "application/json",
		timeout: min(c.Timeout, maxSummaryTimeout),
		takes:   isJSON,
		decode: func(w *workspace, node string, dst *usage.Scrape, times decode.Times) error {
			return w.summary.Decode(dst, w.text, node, times)
		},
		subject: ": asking for its summary",
		hints: map[string]string{
			reasonForbidden:       "grant the verb get on nodes/stats to the user that kube-vitals runs as; until then, " + without,
			reasonNotFound:        without,
			reasonServer:          "see the kubelet's log; " + without,
			reasonStatus:          without,
			reasonTimeout:         "the kubelet or the node may be overloaded; " + without,
			reasonContentType:     without,
			reasonContentEncoding: without,
			reasonMalformed:       without,
			reasonNoSamples:       without,
			reasonBadTime:         "set the node's clock, for example by NTP; until then, " + without,
		},
	}
}

// request puts the question to a kubelet. Nothing but the URL and the request itself is made for
// it.
func (q *question) request(ctx context.Context, e endpoint, header http.Header) *http.Request {
	u := &url.URL{Scheme: q.scheme, Host: e.address(), Path: q.path, RawQuery: q.query}
	if u.Path == "" {
		u.Path = e.path
	}
	r := &http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: header}
	return r.WithContext(ctx)
}

// explain turns what was seen into an Error.
func (q *question) explain(node string, err error) *Error {
	e := explain(node, err)
	e.problem = q.subject + e.problem
	if hint, ok := q.hints[e.reason]; ok {
		e.hint = hint
	}
	return e
}

// isText takes the text exposition format, also by the names that a server without much care gives
// it.
func isText(contentType string) bool {
	if contentType == "" || strings.HasPrefix(contentType, "text/plain; version=0.0.4") {
		return true
	}
	media, parameters, err := mime.ParseMediaType(contentType)
	version := parameters["version"]
	return err == nil && media == "text/plain" && (version == "" || version == "0.0.4")
}

func isJSON(contentType string) bool {
	if contentType == "application/json" {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && media == "application/json"
}
