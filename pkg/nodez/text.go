package nodez

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// WriteText writes a report as text: the totals, a table with the failing nodes first, and the
// errors.
func WriteText(w io.Writer, r *Report) error {
	if _, err := io.WriteString(w, totalsText(r)); err != nil {
		return err
	}
	nodes := problemsFirst(r.Nodes)
	if err := writeNodes(w, nodes, r.Time); err != nil {
		return err
	}
	if err := writeProblems(w, nodes); err != nil || !r.hasDevices() {
		return err
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	return writeExporters(w, r)
}

// totalsText returns the lines above the table.
func totalsText(r *Report) string {
	var b strings.Builder
	t := &r.Totals
	fmt.Fprintf(&b, "kube-vitals %s at %s: metric resolution %s, metrics expire after %s\n", r.Version,
		r.Time.Format(time.RFC3339), flag(r.MetricResolutionSeconds), flag(r.MaxSampleAgeSeconds))
	fmt.Fprintf(&b, "Nodes: %d; %d with metrics", t.Nodes, t.NodesWithMetrics)
	for _, s := range states() {
		if n := t.States[s]; n > 0 {
			fmt.Fprintf(&b, "; %d %s", n, s)
		}
	}
	fmt.Fprintf(&b, "\nPods: %d running; %d with metrics, with %d containers\n", t.Pods, t.PodsWithMetrics, t.Containers)
	if r.Engine != nil {
		b.WriteString(engineText(r.Engine, r.Time))
	}
	for i := range r.DeviceExporters {
		e := &r.DeviceExporters[i]
		fmt.Fprintf(&b, "Device exporter %s: %s\n", e.Name, e.Summary())
	}
	if r.Memory != nil {
		fmt.Fprintf(&b, "Memory: %s\n", memoryText(r.Memory))
	}
	if len(t.Reasons) > 0 {
		b.WriteString("Reasons:")
		for i, c := range t.sortedReasons() {
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, " %d %s", c.Nodes, c.Reason)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	return b.String()
}

// alwaysShown is the number of columns that the table of nodes has. The others are left out if no node
// has a value: what is known of a node depends on the source.
const alwaysShown = 8

// writeNodes writes the table of the nodes.
func writeNodes(w io.Writer, nodes []*Node, now time.Time) error {
	if len(nodes) == 0 {
		return nil
	}
	columns := []string{
		"NAME", "STATE", "REASON", "FAILURES", "AGE", "LAST-SUCCESS", "PODS", "SAMPLES", "NEXT", "DURATION", "SKEW",
		"NEWEST", "INTERVAL", "ADDRESS",
	}
	rows := [][]string{columns}
	isShown := make([]bool, len(columns))
	for i := range alwaysShown {
		isShown[i] = true
	}
	for _, n := range nodes {
		row := cellsOf(n, now)
		for i, text := range row {
			isShown[i] = isShown[i] || text != ""
			row[i] = cmp.Or(strings.ReplaceAll(text, " ", ""), "-")
		}
		rows = append(rows, row)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		var shown []string
		for i, text := range row {
			if isShown[i] {
				shown = append(shown, text)
			}
		}
		fmt.Fprintln(table, strings.Join(shown, "\t"))
	}
	return table.Flush()
}

// cellsOf returns the cells of a node. They are empty if nothing is known.
func cellsOf(n *Node, now time.Time) []string {
	failures, duration := "", ""
	if n.Failures > 0 {
		failures = fmt.Sprintf("%d(%s)", n.Failures, ago(n.FailingSince, now))
	}
	if n.DurationSeconds > 0 {
		duration = took(n.DurationSeconds)
	}
	return []string{
		n.Name, string(n.State), string(n.Reason), failures, age(n.MetricsAgeSeconds), ago(n.LastSuccess, now),
		fraction(n.Pods, n.RunningPods), fmt.Sprint(n.Samples), until(n.NextScrape, now), duration,
		skew(n.ClockSkewSeconds), signedAge(n.SampleAgeSeconds), age(n.SampleIntervalSeconds), n.Address,
	}
}

// text returns the state of the engine in one line.
func (e *Engine) text(now time.Time) string {
	text := fmt.Sprintf("%s is %s", e.Host, e.State)
	if e.LastSuccess != nil {
		text += fmt.Sprintf(", last read %s ago", ago(e.LastSuccess, now))
	}
	if e.LastRefresh != nil {
		text += ", took " + took(e.DurationSeconds)
	}
	if e.Failures > 0 {
		text += fmt.Sprintf(", %d failures in %s", e.Failures, ago(e.FailingSince, now))
	}
	return text
}

// seriesText returns the numbers of series by query, such as "containerCPU 60, nodeCPU 3".
func (e *Engine) seriesText() string {
	var parts []string
	for _, query := range slices.Sorted(maps.Keys(e.Series)) {
		parts = append(parts, query+" "+count(e.Series[query]))
	}
	return strings.Join(parts, ", ")
}

// notes returns what is wrong with the engine apart from its reason.
func (e *Engine) notes() (notes []string) {
	if e.Partial {
		notes = append(notes, "the last response was incomplete: "+e.Warning)
	}
	if e.UnknownSeries > 0 {
		notes = append(notes, count(e.UnknownSeries)+" series are of other nodes")
	}
	if e.FileRejected {
		notes = append(notes, "the content of --prometheus-config cannot be used: its previous content stays in use, "+
			"and the log has the error")
	}
	return notes
}

// engineText returns the lines about the engine.
func engineText(e *Engine, now time.Time) string {
	lines := append([]string{"Engine: " + e.text(now)}, e.notes()...)
	if len(e.Series) > 0 {
		lines = append(lines, "series: "+e.seriesText())
	}
	if e.Reason != "" {
		lines = append(lines, fmt.Sprintf("%s: %s", e.Reason, cmp.Or(e.Error, e.Problem)), "see "+e.URL)
	}
	return strings.Join(lines, "\n  ") + "\n"
}

// writeProblems writes what is wrong with each node and what to do.
func writeProblems(w io.Writer, nodes []*Node) error {
	for _, n := range nodes {
		if n.Reason == "" || n.Reason == reason.EngineFailing { // the engine has its own lines
			continue
		}
		text := n.Error
		if text == "" {
			text = fmt.Sprintf("node %q: %s (%s)", n.Name, n.Problem, n.Cure)
		}
		if _, err := fmt.Fprintf(w, "\n%s\n  see %s\n", text, n.URL); err != nil {
			return err
		}
	}
	return nil
}
