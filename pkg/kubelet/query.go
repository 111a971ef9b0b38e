package kubelet

import (
	"cmp"
	"context"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// query is a request that kubelets support, and how its response is read.
type query struct {
	path     string // empty for the path of the endpoint
	rawQuery string
	accept   string

	accepts func(contentType string) bool
	decode  func(w *workspace, node string) error // decodes w.body into w.scrape

	subject string                   // of errors; empty for the resource metrics
	cures   map[reason.Reason]string // replace the usual cures
}

var (
	resourceQuery = &query{
		accept:  "text/plain;version=0.0.4",
		accepts: isText,
		decode:  func(w *workspace, _ string) error { return w.resource.Decode(&w.scrape, w.body) },
	}
	summaryQuery = newSummaryQuery("only_cpu_and_memory=true",
		func(w *workspace, node string) error { return w.summary.Decode(&w.scrape, w.body, node) },
		"summary", "metrics appear only after the second scrape")
	storageQuery = newSummaryQuery("",
		func(w *workspace, node string) error { return w.summary.DecodeStorage(&w.scrape, w.body, node) },
		"complete summary", "ephemeral-storage is not served")
)

// newSummaryQuery returns a query of the summary. loss is what happens without it.
func newSummaryQuery(rawQuery string, decode func(*workspace, string) error, subject, loss string) *query {
	without := "without the summary, " + loss
	return &query{
		path:     "/stats/summary",
		rawQuery: rawQuery,
		accept:   "application/json",
		accepts:  isJSON,
		decode:   decode,
		subject:  subject,
		cures: map[reason.Reason]string{
			reason.Forbidden: "grant get on nodes/stats to the user that kubelets see (kube-vitals-kubelet in the chart); " +
				without,
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

// request returns a request to a kubelet, without a host.
func (q *query) request(ctx context.Context, e endpoint, header http.Header) *http.Request {
	u := &url.URL{Path: cmp.Or(q.path, e.path), RawQuery: q.rawQuery}
	r := &http.Request{Method: http.MethodGet, URL: u, Header: header}
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
