package nodez

import (
	"cmp"
	"fmt"
	"io"
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
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.DiscardEmptyColumns)
	row := textRow
	switch {
	case len(nodes) == 0:
	case r.Engine != nil:
		fmt.Fprintln(table, "NAME\tSTATE\tREASON\tAGE\tLAST-SEEN\tNEWEST\tINTERVAL\tPODS\tSAMPLES")
		row = engineRow
	default:
		fmt.Fprintln(table, "NAME\tSTATE\tREASON\tFAILURES\tAGE\tLAST-SUCCESS\tNEXT\tDURATION\tPODS\tSAMPLES\tSKEW\tADDRESS")
	}
	for _, n := range nodes {
		fmt.Fprintln(table, strings.Join(row(n, r.Time), "\t"))
	}
	if err := table.Flush(); err != nil {
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

// textRow returns the cells of a node.
func textRow(n *Node, now time.Time) []string {
	or := func(text string) string {
		if text == "" {
			return "-"
		}
		return strings.ReplaceAll(text, " ", "")
	}
	failures := ""
	if n.Failures > 0 {
		failures = fmt.Sprintf("%d(%s)", n.Failures, ago(n.FailingSince, now))
	}
	duration := ""
	if n.LastScrape != nil {
		duration = took(n.DurationSeconds)
	}
	cells := []string{
		n.Name, string(n.State), or(string(n.Reason)), or(failures), or(age(n.MetricsAgeSeconds)),
		or(ago(n.LastSuccess, now)),
		until(n.NextScrape, now), or(duration), fraction(n.Pods, n.RunningPods), fmt.Sprint(n.Samples),
		or(skew(n.ClockSkewSeconds)), or(n.Address),
	}
	return cells
}

// engineRow returns the cells of a node that is read from an engine.
func engineRow(n *Node, now time.Time) []string {
	cells := []string{
		n.Name, string(n.State), string(n.Reason), age(n.MetricsAgeSeconds), ago(n.LastSuccess, now),
		signedAge(n.SampleAgeSeconds), age(n.SampleIntervalSeconds), fraction(n.Pods, n.RunningPods), fmt.Sprint(n.Samples),
	}
	for i, text := range cells {
		cells[i] = cmp.Or(strings.ReplaceAll(text, " ", ""), "-")
	}
	return cells
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
