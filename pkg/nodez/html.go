package nodez

import (
	"crypto/sha256"
	_ "embed" // for the parts of the page
	"encoding/base64"
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
	if err := p.template().Execute(w, newView(r)); err != nil {
		return err
	}
	_, err := io.WriteString(w, "</html>\n")
	return err
}

// view is what the template shows.
type view struct {
	*Report
	At, AtExact    string
	Resolution     string
	MaxAge         string
	RefreshSeconds int
	States         []stateCount
	Reasons        []reasonCount
	MemoryText     string
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
	case Ready:
	}
	return badge{s, "✓", "Ready"}
}

// cell is a number or a time with the value by which the column is sorted and, in a title, the
// exact value.
type cell struct{ Text, Value, Title string }

// row is a node as the page shows it.
type row struct {
	*Node
	Badge                                       badge
	Rank                                        int
	FailingFor                                  string
	Age, Success, Next, Took, Pods, Count, Skew cell
	Old, FewPods                                bool
}

func newView(r *Report) *view {
	v := &view{
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
	for _, s := range states() {
		v.States = append(v.States, stateCount{badgeOf(s), r.Totals.States[s]})
	}
	for _, n := range problemsFirst(r.Nodes) {
		v.Rows = append(v.Rows, newRow(n, r))
	}
	return v
}

func newRow(n *Node, r *Report) row {
	now := r.Time
	out := row{
		Node:    n,
		Badge:   badgeOf(n.State),
		Rank:    n.State.rank(),
		Success: cell{ago(n.LastSuccess, now), secondsBetween(n.LastSuccess, now), exact(n.LastSuccess)},
		Next:    cell{Text: until(n.NextScrape, now), Value: "0", Title: "running"},
		Pods: cell{fraction(n.Pods, n.RunningPods), strconv.Itoa(n.Pods),
			strconv.Itoa(n.Pods) + " of " + strconv.Itoa(n.RunningPods) + " running pods have metrics"},
		Count:   cell{strconv.Itoa(n.Samples), strconv.Itoa(n.Samples), ""},
		FewPods: n.Pods < n.RunningPods,
	}
	if n.NextScrape != nil {
		out.Next.Value, out.Next.Title = number(n.NextScrape.Sub(now).Seconds()), exact(n.NextScrape)
	}
	if n.LastScrape != nil {
		out.Took = cell{took(n.DurationSeconds), number(n.DurationSeconds), "scraped at " + exact(n.LastScrape)}
	}
	if n.Failures > 0 {
		out.FailingFor = ago(n.FailingSince, now)
	}
	if n.MetricsAgeSeconds != nil {
		out.Age = cell{age(n.MetricsAgeSeconds), number(*n.MetricsAgeSeconds),
			"sampled at " + exact(new(now.Add(-time.Duration(*n.MetricsAgeSeconds*float64(time.Second)))))}
		out.Old = *n.MetricsAgeSeconds > r.MaxSampleAgeSeconds*3/4
	}
	if n.ClockSkewSeconds != nil {
		out.Skew = cell{skew(n.ClockSkewSeconds), number(*n.ClockSkewSeconds), number(*n.ClockSkewSeconds) + " s"}
	}
	if n.Skipped > 0 {
		out.Count.Title = strconv.Itoa(n.Skipped) + " lines of the response could not be used"
	}
	return out
}

// exact returns a time for a title, or "" if it is nil.
func exact(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Format("2006-01-02 15:04:05.000 UTC")
}

// secondsBetween returns the seconds from t to now, or "" if t is nil.
func secondsBetween(t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	return number(now.Sub(*t).Seconds())
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
