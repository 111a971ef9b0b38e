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

// The parts of the page. The policy has the hashes of the style and of the script.
var (
	//go:embed page.css
	pageStyle string
	//go:embed page.js
	pageScript string
	//go:embed page.html
	pageTemplate string
)

// maxRows is the number of nodes that the page lists, those with problems first: laying out thousands
// takes a browser seconds.
const maxRows = 500

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
			functions := template.FuncMap{
				"style":  func() template.CSS { return template.CSS(pageStyle) }, //nolint:gosec // constant
				"script": func() template.JS { return template.JS(pageScript) },  //nolint:gosec // constant
				"count":  count, "exact": exact, "flag": flag, "badge": badgeOf, "memory": memoryText, "states": states,
				"engine": (*Engine).text, "notes": (*Engine).notes, "series": (*Engine).seriesText,
			}
			return template.Must(template.New("nodez").Funcs(functions).Parse(pageTemplate))
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
func (p *page) write(w io.Writer, r *Report) error { return p.template().Execute(w, newContent(r)) }

// content is what the template shows.
type content struct {
	*Report
	RefreshSeconds int
	Reasons        []reasonCount
	ExportersText  string // the table of exporters' pods
	MissingPods    int
	NodesWithout   int
	Rows           []row
	NotListed      int // nodes without a row
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

// row is a node as the page shows it.
type row struct {
	*Node
	badge
	Rank         int    // of the state
	Since        string // a failing node's time since the first failure
	FailuresText string
	Cells        []cell // of the columns from age to skew
}

// cell is a number or a time, with the value by which the column is sorted and an exact description.
type cell struct {
	Text, Value, Title string
	Warn               bool
}

func newContent(r *Report) *content {
	v := &content{
		Report:         r,
		RefreshSeconds: max(int(r.MetricResolutionSeconds), 5),
		Reasons:        r.Totals.sortedReasons(),
		MissingPods:    r.Totals.Pods - r.Totals.PodsWithMetrics,
		NodesWithout:   r.Totals.Nodes - r.Totals.NodesWithMetrics,
		NotListed:      max(len(r.Nodes)-maxRows, 0),
	}
	if r.hasDevices() {
		var text strings.Builder
		_ = writeExporters(&text, r) // a Builder returns no error
		v.ExportersText = text.String()
	}
	for _, n := range problemsFirst(r.Nodes)[:len(r.Nodes)-v.NotListed] {
		v.Rows = append(v.Rows, newRow(n, r))
	}
	return v
}

func newRow(n *Node, r *Report) row {
	w := row{Node: n, badge: badgeOf(n.State), Rank: n.State.rank()}
	if n.Failures > 0 {
		w.Since, w.FailuresText = ago(n.FailingSince, r.Time), strconv.Itoa(n.Failures)+" failed scrapes in a row"
	}
	w.Cells = append(w.Cells, ageCell(n, r), successCell(n, r.Time))
	if r.Engine != nil {
		w.Cells = append(w.Cells, engineCells(n)...)
	} else {
		w.Cells = append(w.Cells, scrapeCells(n, r.Time)...)
	}
	w.Cells = append(w.Cells, countCells(n)...)
	return w
}

// ageCell returns the age of the metrics, with a warning if they expire soon.
func ageCell(n *Node, r *Report) cell {
	if n.MetricsAgeSeconds == nil {
		return cell{}
	}
	s := *n.MetricsAgeSeconds
	at := r.Time.Add(-time.Duration(s * float64(time.Second)))
	return cell{age(&s), number(s), "sampled at " + exact(&at), s > r.MaxSampleAgeSeconds*3/4}
}

func successCell(n *Node, now time.Time) cell {
	if n.LastSuccess == nil {
		return cell{}
	}
	return cell{
		Text: ago(n.LastSuccess, now), Value: number(now.Sub(*n.LastSuccess).Seconds()), Title: exact(n.LastSuccess),
	}
}

// scrapeCells returns the cells of the next and the last scrape.
func scrapeCells(n *Node, now time.Time) []cell {
	next := cell{Text: until(n.NextScrape, now), Value: "0", Title: "running"}
	if n.NextScrape != nil {
		next.Value, next.Title = number(n.NextScrape.Sub(now).Seconds()), exact(n.NextScrape)
	}
	if n.Active {
		next.Title += ", active"
	}
	last := cell{}
	if n.LastScrape != nil {
		last = cell{
			Text: took(n.DurationSeconds), Value: number(n.DurationSeconds), Title: "scraped at " + exact(n.LastScrape),
		}
	}
	return []cell{next, last}
}

// engineCells returns the cells of the newest samples in the engine.
func engineCells(n *Node) []cell {
	return []cell{
		secondsCell(signedAge(n.SampleAgeSeconds), n.SampleAgeSeconds),
		secondsCell(age(n.SampleIntervalSeconds), n.SampleIntervalSeconds),
	}
}

// countCells returns the cells of pods, samples and the skew of the clock.
func countCells(n *Node) []cell {
	pods := cell{
		Text: fraction(n.Pods, n.RunningPods), Value: strconv.Itoa(n.Pods), Warn: n.Pods < n.RunningPods,
		Title: fmt.Sprintf("%d of %d running pods have metrics", n.Pods, n.RunningPods),
	}
	samples := cell{Text: strconv.Itoa(n.Samples), Value: strconv.Itoa(n.Samples)}
	if n.Skipped > 0 {
		samples.Title, samples.Warn = strconv.Itoa(n.Skipped)+" lines of the response could not be used", true
	}
	return []cell{pods, samples, secondsCell(skew(n.ClockSkewSeconds), n.ClockSkewSeconds)}
}

// secondsCell returns a cell with the exact value as its title. It is empty if the value is nil.
func secondsCell(text string, seconds *float64) cell {
	if seconds == nil {
		return cell{}
	}
	return cell{Text: text, Value: number(*seconds), Title: number(*seconds) + " s"}
}

// exact returns a time for a title, or "" if it is nil.
func exact(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Format("2006-01-02 15:04:05.000 UTC")
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
