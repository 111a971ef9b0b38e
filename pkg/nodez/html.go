package nodez

import (
	"crypto/sha256"
	_ "embed" // for the parts of the page
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The parts of the page. The template does not contain the style and the script, because html/template
// would change them, and the policy has their hashes.
var (
	//go:embed page.css
	pageStyle string
	//go:embed page.js
	pageScript string
	//go:embed page.html
	pageTemplate string
)

// page is the page as HTML.
type page struct {
	policy   string // Content-Security-Policy
	template func() *template.Template
}

func newPage() *page {
	return &page{
		// Nothing is loaded from elsewhere, and only this style and this script work. The script
		// requests the page again if the user wants that.
		policy: strings.Join([]string{
			"default-src 'none'", "style-src " + hashSource(pageStyle), "script-src " + hashSource(pageScript),
			"connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
		}, "; "),
		template: sync.OnceValue(func() *template.Template {
			return template.Must(template.New("nodez").Funcs(template.FuncMap{"count": count}).Parse(pageTemplate))
		}),
	}
}

// hashSource returns the source expression of an inline style or script.
func hashSource(text string) string {
	hash := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
}

// WriteHTML writes a report as a page, and returns its Content-Security-Policy.
func WriteHTML(w io.Writer, r *Report) (policy string, err error) {
	p := newPage()
	return p.policy, p.write(w, r)
}

// write writes a report as a page.
func (p *page) write(w io.Writer, r *Report) error {
	for _, part := range []string{
		"<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n",
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Nodes · kube-vitals</title>\n",
		"<style>", pageStyle, "</style>\n<script>", pageScript, "</script>\n",
	} {
		if _, err := io.WriteString(w, part); err != nil {
			return err
		}
	}
	if err := p.template().Execute(w, newContent(r)); err != nil {
		return err
	}
	_, err := io.WriteString(w, "</html>\n")
	return err
}

// content is what the template shows.
type content struct {
	*Report
	At, AtExact    string
	Resolution     string
	MaxAge         string
	RefreshSeconds int
	States         []stateCount
	Reasons        []reasonCount
	MemoryText     string
	EngineText     string
	EngineBadge    badge
	EngineNotes    []string
	SeriesText     string
	Exporters      []exporterLine
	ExportersText  string // the table of exporters' pods
	MissingPods    int
	NodesWithout   int
	HasProblems    bool
	Rows           []row
}

type stateCount struct {
	badge
	Nodes int
}

// badge is a state as the page shows it: by a symbol and a word, not only by a color.
type badge struct {
	State        State
	Symbol, Word string
}

func badgeOf(s State) badge {
	switch s {
	case Failing:
		return badge{s, "✕", "Failing"}
	case Stale:
		return badge{s, "!", "Stale"}
	case Starting:
		return badge{s, "◔", "Starting"}
	}
	return badge{Ready, "✓", "Ready"}
}

// exporterLine is an exporter of devices as the page shows it.
type exporterLine struct {
	badge
	Name, Summary string
}

// row is a node as the page shows it.
type row struct {
	*Node
	Cells template.HTML // of the columns from state to skew
}

func newContent(r *Report) *content {
	v := &content{
		Report:         r,
		At:             r.Time.Format(time.TimeOnly) + " UTC",
		AtExact:        exact(&r.Time),
		Resolution:     flag(r.MetricResolutionSeconds),
		MaxAge:         flag(r.MaxSampleAgeSeconds),
		RefreshSeconds: max(int(r.MetricResolutionSeconds), 5),
		Reasons:        r.Totals.sortedReasons(),
		MissingPods:    r.Totals.Pods - r.Totals.PodsWithMetrics,
		NodesWithout:   r.Totals.Nodes - r.Totals.NodesWithMetrics,
		HasProblems:    len(r.Totals.Reasons) > 0,
		Rows:           make([]row, 0, len(r.Nodes)),
	}
	if r.Memory != nil {
		v.MemoryText = memoryText(r.Memory)
	}
	if e := r.Engine; e != nil {
		v.EngineText, v.EngineBadge, v.EngineNotes, v.SeriesText = e.text(r.Time), badgeOf(e.State), e.notes(), e.seriesText()
	}
	for i := range r.DeviceExporters {
		e := &r.DeviceExporters[i]
		v.Exporters = append(v.Exporters, exporterLine{badgeOf(e.State()), e.Name, e.Summary()})
	}
	if r.hasDevices() {
		var text strings.Builder
		_ = writeExporters(&text, r) // a Builder returns no error
		v.ExportersText = text.String()
	}
	for _, s := range states() {
		v.States = append(v.States, stateCount{badgeOf(s), r.Totals.States[s]})
	}
	for _, n := range problemsFirst(r.Nodes) {
		v.Rows = append(v.Rows, row{n, cells(n, r)})
	}
	return v
}

// cells returns the cells of a node with its state, numbers and times. They have no text that a
// node chooses, so the template need not escape them: that would take most of the time.
func cells(n *Node, r *Report) template.HTML {
	now := r.Time
	b := appendState(make([]byte, 0, 1024), n, now)
	var c cell
	if n.MetricsAgeSeconds != nil {
		at := now.Add(-time.Duration(*n.MetricsAgeSeconds * float64(time.Second)))
		c = cell{age(n.MetricsAgeSeconds), number(*n.MetricsAgeSeconds), "sampled at " + exact(&at),
			*n.MetricsAgeSeconds > r.MaxSampleAgeSeconds*3/4}
	}
	b = c.append(b)
	c = cell{}
	if n.LastSuccess != nil {
		c = cell{text: ago(n.LastSuccess, now), value: number(now.Sub(*n.LastSuccess).Seconds()), title: exact(n.LastSuccess)}
	}
	b = c.append(b)
	if r.Engine != nil {
		b = appendSamples(b, n)
	} else {
		b = appendScrapes(b, n, now)
	}
	pods, running, samples := strconv.Itoa(n.Pods), strconv.Itoa(n.RunningPods), strconv.Itoa(n.Samples)
	c = cell{pods + "/" + running, pods, pods + " of " + running + " running pods have metrics", n.Pods < n.RunningPods}
	b = c.append(b)
	c = cell{text: samples, value: samples}
	if n.Skipped > 0 {
		c.title, c.warn = strconv.Itoa(n.Skipped)+" lines of the response could not be used", true
	}
	b = c.append(b)
	c = cell{}
	if n.ClockSkewSeconds != nil {
		exactly := number(*n.ClockSkewSeconds)
		c = cell{text: skew(n.ClockSkewSeconds), value: exactly, title: exactly + " s"}
	}
	return template.HTML(c.append(b)) //nolint:gosec // see above
}

// appendScrapes appends the cells of the next and the last scrape to b.
func appendScrapes(b []byte, n *Node, now time.Time) []byte {
	c := cell{text: until(n.NextScrape, now), value: "0", title: "running"}
	if n.NextScrape != nil {
		c.value, c.title = number(n.NextScrape.Sub(now).Seconds()), exact(n.NextScrape)
	}
	if n.Active {
		c.title += ", active"
	}
	b = c.append(b)
	c = cell{}
	if n.LastScrape != nil {
		c = cell{text: took(n.DurationSeconds), value: number(n.DurationSeconds), title: "scraped at " + exact(n.LastScrape)}
	}
	return c.append(b)
}

// appendSamples appends the cells of the newest samples in the engine to b.
func appendSamples(b []byte, n *Node) []byte {
	c := cell{}
	if s := n.SampleAgeSeconds; s != nil {
		c = cell{text: signedAge(s), value: number(*s), title: number(*s) + " s"}
	}
	b = c.append(b)
	c = cell{}
	if s := n.SampleIntervalSeconds; s != nil {
		c = cell{text: age(s), value: number(*s), title: number(*s) + " s"}
	}
	return c.append(b)
}

// appendState appends the cell of a node's state to b.
func appendState(b []byte, n *Node, now time.Time) []byte {
	shown := badgeOf(n.State)
	b = fmt.Appendf(b, `<td data-v="%d"><span class="badge %s"`, n.State.rank(), shown.State)
	since := ""
	if n.Failures > 0 {
		b = fmt.Appendf(b, ` title="%d failed scrapes in a row"`, n.Failures)
		since = " " + ago(n.FailingSince, now)
	}
	return fmt.Appendf(b, `><i aria-hidden="true">%s</i>%s%s</span></td>`, shown.Symbol, shown.Word, since)
}

// cell is a number or a time, with the value by which the column is sorted and an exact description.
type cell struct {
	text, value, title string
	warn               bool
}

// append appends the cell to b.
func (c cell) append(b []byte) []byte {
	b = append(append(b, `<td data-v="`...), c.value...)
	if c.title != "" {
		b = append(append(b, `" title="`...), c.title...)
	}
	if c.warn {
		b = append(b, `" class="warn`...)
	}
	return append(append(append(b, `">`...), c.text...), "</td>"...)
}

// exact returns a time for a title, or "" if it is nil.
func exact(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Format("2006-01-02 15:04:05.000 UTC")
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
