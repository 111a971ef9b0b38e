package nodez

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/munnerz/goautoneg"
	"k8s.io/klog/v2"
)

// Path is where the page is served.
const Path = "/nodez"

// handler serves the page.
type handler struct{ config Config }

// Handler returns the handler of the page. It costs nothing until a request arrives. A report of 5000 nodes takes some
// megabytes until the client has read it.
func Handler(c Config) http.Handler { return &handler{config: c} }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	header.Add("Vary", "Accept")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "method "+http.StatusText(http.StatusMethodNotAllowed)+": use GET", http.StatusMethodNotAllowed)
		return
	}
	f, status, problem := formatOf(r)
	if problem != "" {
		http.Error(w, problem, status)
		return
	}
	header.Set("Content-Type", f.contentType)
	if f == formatHTML {
		header.Set("Content-Security-Policy", policy())
		header.Set("Referrer-Policy", "no-referrer")
	}
	if r.Method == http.MethodHead {
		return
	}
	if err := write(w, f, h.config.Report()); err != nil && r.Context().Err() == nil {
		klog.FromContext(r.Context()).V(2).Info("Cannot send the page of nodes", "err", err)
	}
}

// format is a format of the page.
type format struct {
	name, mediaType, contentType string // the name is the value of the query parameter "format"
}

// The formats.
var (
	formatJSON = format{"json", "application/json", "application/json"}
	formatHTML = format{"html", "text/html", "text/html; charset=utf-8"}
	formatText = format{"text", "text/plain", "text/plain; charset=utf-8"}
)

// formats returns all formats. A client that accepts several equally gets the first of them.
func formats() []format { return []format{formatJSON, formatHTML, formatText} }

// formatOf returns the format that a request asks for, or why there is none. A client without an
// Accept header accepts all.
func formatOf(r *http.Request) (f format, status int, problem string) {
	const known = "the formats are json, html and text (application/json, text/html, text/plain)"
	name, accept := r.URL.Query().Get("format"), strings.Join(r.Header.Values("Accept"), ",")
	if name == "" {
		accept = goautoneg.Negotiate(cmp.Or(strings.ToLower(accept), "*/*"),
			[]string{formatJSON.mediaType, formatHTML.mediaType, formatText.mediaType})
	}
	for _, f := range formats() {
		if name == f.name || name == "" && accept == f.mediaType {
			return f, 0, ""
		}
	}
	if name != "" {
		return f, http.StatusBadRequest, "unknown value of the parameter format: " + known
	}
	return f, http.StatusNotAcceptable, "the header Accept allows no format of this page: " + known
}

// write writes a report in a format.
func write(w io.Writer, f format, report *Report) error {
	buffered := bufio.NewWriterSize(w, 64<<10)
	var err error
	switch f {
	case formatJSON:
		err = json.NewEncoder(buffered).Encode(report)
	case formatHTML:
		_, err = WriteHTML(buffered, report)
	case formatText:
		err = writeText(buffered, report)
	}
	if err != nil {
		return err
	}
	return buffered.Flush()
}
