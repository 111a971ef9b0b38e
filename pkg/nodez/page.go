package nodez

import (
	"crypto/sha256"
	_ "embed" // for the parts of the page
	"encoding/base64"
	"html/template"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	texttemplate "text/template"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// The parts of the page. The policy has the hashes of the style and of the script.
var (
	//go:embed page.css
	pageStyle string
	//go:embed page.js
	pageScript string
	//go:embed page.html
	pageHTML string
	//go:embed page.txt
	pageText string
)

// maxRows is the number of nodes that the page lists as HTML, those with problems first: laying out
// thousands takes a browser seconds.
const maxRows = 500

// The templates are parsed when they are used first.
var (
	htmlPage = sync.OnceValue(func() *template.Template {
		parts := template.FuncMap{
			"style":     func() template.CSS { return template.CSS(pageStyle) }, //nolint:gosec // constant
			"script":    func() template.JS { return template.JS(pageScript) },  //nolint:gosec // constant
			"exporters": exporters,
		}
		return template.Must(template.New("html").Funcs(functions()).Funcs(parts).Parse(pageHTML))
	})
	textPage = sync.OnceValue(func() *texttemplate.Template {
		return texttemplate.Must(texttemplate.New("text").Funcs(functions()).Parse(pageText))
	})
)

// policy returns the Content-Security-Policy of the page. Nothing is loaded from elsewhere, and only
// this style and this script work. The script requests the page again if the user wants that.
func policy() string {
	return strings.Join([]string{
		"default-src 'none'", "style-src " + hashSource(pageStyle), "script-src " + hashSource(pageScript),
		"connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
	}, "; ")
}

// functions returns the functions of both templates.
func functions() template.FuncMap {
	return template.FuncMap{
		"age": age, "ago": ago, "cell": cell, "count": count, "engine": (*Engine).text, "exact": exact, "flag": flag,
		"hasDevices": (*Report).hasDevices, "memory": memoryText, "notes": (*Engine).notes,
		"pods": (*DeviceExporter).problemsFirst, "rank": State.rank, "series": (*Engine).seriesText, "skew": skew,
		"states": states, "took": took, "until": until,
	}
}

// hashSource returns the source expression of an inline style or script.
func hashSource(text string) string {
	hash := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
}

// WriteHTML writes a report as a page, and returns its Content-Security-Policy.
func WriteHTML(w io.Writer, r *Report) (csp string, err error) {
	return policy(), htmlPage().Execute(w, newContent(r, maxRows))
}

// writeText writes a report as text: the totals, a table with the failing nodes first, and the errors.
func writeText(w io.Writer, r *Report) error {
	return writeTables(w, "text", newContent(r, len(r.Nodes)))
}

// exporters returns a table of the exporters' pods with the failing ones first, and their errors.
func exporters(r *Report) (string, error) {
	var b strings.Builder
	err := writeTables(&b, "exporters", r)
	return b.String(), err
}

// writeTables writes a template of text, where adjacent lines with tabs are a table.
func writeTables(w io.Writer, name string, data any) error {
	tables := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if err := textPage().ExecuteTemplate(tables, name, data); err != nil {
		return err
	}
	return tables.Flush()
}

// content is what the templates show.
type content struct {
	*Report
	RefreshSeconds int
	Reasons        []reason.Reason // of nodes, the most frequent one first
	MissingPods    int
	NodesWithout   int
	Rows           []*Node // those with problems first
	NotListed      int     // nodes without a row
}

func newContent(r *Report, maxRows int) *content {
	rows := problemsFirst(r.Nodes, func(n *Node) State { return n.State })
	listed := min(len(rows), maxRows)
	return &content{
		Report:         r,
		RefreshSeconds: max(int(r.MetricResolutionSeconds), 5),
		Reasons:        r.Totals.sortedReasons(),
		MissingPods:    r.Totals.Pods - r.Totals.PodsWithMetrics,
		NodesWithout:   r.Totals.Nodes - r.Totals.NodesWithMetrics,
		Rows:           rows[:listed],
		NotListed:      len(rows) - listed,
	}
}

// ExpiresSoon reports whether metrics of this age in seconds expire soon.
func (c *content) ExpiresSoon(age float64) bool { return age > c.MaxSampleAgeSeconds*3/4 }
