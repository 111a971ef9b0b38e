package doctor

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// maxClockSkew is the skew that kube-vitals reports, too.
const maxClockSkew = 5 * time.Second

// checkNodes examines the nodes: by the page of nodes, or else by the API.
func (d *doctor) checkNodes(ctx context.Context, c Check) []Check {
	if d.target.kind != KubeVitals {
		return d.checkNodesByAPI(ctx, c)
	}
	report, skipped := d.nodez(ctx)
	if report == nil {
		return append(skipped, d.checkNodesByAPI(ctx, c)...)
	}
	return checkPage(c, report)
}

// checkPage examines a page of nodes. Cures are our own: people run the commands in them.
func checkPage(c Check, report *nodez.Report) []Check {
	t := report.Totals
	if t.Nodes == 0 {
		return c.Fail(noMetrics, "kube-vitals scrapes no node: its --node-selector may match none")
	}
	work, describe := "scraped without an error", reason.Reason.Describe
	var checks []Check
	if report.Engine != nil {
		work, describe = "read from the engine", reason.Reason.DescribeEngine
		checks = checkEngine(report)
	}
	working, failing := 0, Groups{}
	for _, n := range report.Nodes {
		if n.State != nodez.Failing && n.State != nodez.Stale {
			working++
			continue
		}
		failing.Add(string(n.Reason), n.Name, func() []Check {
			one := c
			one.URL = n.URL
			return one.Fail(Problem{string(n.Reason), describe(n.Reason).Cure}, "%s", strings.TrimSuffix(
				fmt.Sprintf("%s: %s: %s", cmp.Or(n.Reason, "no reason"), n.Problem, detailOf(n)), ": "))
		})
	}
	if len(failing) == 0 {
		checks = append(checks, c.OK("%d of %d %s; pods with metrics: %d of %d", working, t.Nodes, work, t.PodsWithMetrics,
			t.Pods)...)
	}
	for _, one := range failing.Checks() {
		verb := "fail"
		if len(one.Objects) == 1 {
			verb = "fails"
		}
		one.Seen = fmt.Sprintf("%d of %s %s: %s", len(one.Objects), Count(t.Nodes, "node"), verb, one.Seen)
		checks = append(checks, one)
	}
	checks = append(checks, checkClocks(report)...)
	checks = append(checks, checkDevices(report)...)
	return append(checks, checkMemory(report.Memory)...)
}

// detailOf returns what the error of a node adds to its problem and cure.
func detailOf(n nodez.Node) string {
	text := strings.TrimSuffix(n.Error, " ("+n.Cure+")")
	if _, detail, found := strings.Cut(text, n.Problem+": "); found {
		return detail
	}
	if strings.HasSuffix(text, n.Problem) {
		return ""
	}
	return text
}

// checkClocks compares the clocks of the nodes with that of kube-vitals.
func checkClocks(report *nodez.Report) []Check {
	c := Check{ID: "clocks", Title: "clocks"}
	largest := 0.0
	for _, n := range report.Nodes {
		skew := n.ClockSkewSeconds
		if age := n.SampleAgeSeconds; age != nil && *age < 0 {
			skew = new(-*age) // at least
		}
		if skew == nil {
			continue
		}
		largest = max(largest, math.Abs(*skew))
		if math.Abs(*skew) > maxClockSkew.Seconds() {
			c.Objects = append(c.Objects, fmt.Sprintf("%s %+.1fs", n.Name, *skew))
		}
	}
	if n := len(c.Objects); n > 0 {
		return c.Warn(clockSkew, "clocks of %s differ from that of kube-vitals by more than %v:", Count(n, "node"), maxClockSkew)
	}
	if report.Engine != nil {
		return c.OK("no sample is from the future; an engine does not tell whether a clock is behind")
	}
	return c.OK("the largest difference from a node's clock is %.1fs", largest)
}

// checkDevices examines the exporters of devices, as kube-vitals sees them.
func checkDevices(report *nodez.Report) []Check {
	c := Check{ID: "devices", Title: "devices"}
	var checks []Check
	for i := range report.DeviceExporters {
		e := &report.DeviceExporters[i]
		failing := Groups{}
		for _, p := range e.Pods {
			if p.Reason == "" {
				continue
			}
			failing.Add(string(p.Reason), p.Node, func() []Check {
				one := c
				one.URL = p.URL
				return one.Fail(Problem{string(p.Reason), p.Reason.DescribeExporter().Cure}, "%s: %s", p.Reason,
					cmp.Or(p.Error, p.Problem))
			})
		}
		seen := fmt.Sprintf("exporter %s: %s", e.Name, e.Summary())
		switch {
		case len(e.Pods) == 0:
			checks = append(checks, c.Warn(exporterNoPods, "%s", seen)...)
		case len(failing) == 0 && e.LeftOut > 0:
			checks = append(checks, c.Warn(exporterManyPods, "%s", seen)...)
		case len(failing) == 0:
			checks = append(checks, c.OK("%s", seen)...)
		}
		for _, one := range failing.Checks() {
			one.Seen = fmt.Sprintf("%d of %d pods of exporter %s cannot be read: %s", len(one.Objects), len(e.Pods), e.Name,
				one.Seen)
			checks = append(checks, one)
		}
	}
	return checks
}

func checkMemory(m *nodez.Memory) []Check {
	c := Check{ID: "memory", Title: "memory"}
	if m == nil {
		return nil
	}
	mebibytes := func(n uint64) string { return fmt.Sprintf("%d MiB", (n+1<<19)>>20) }
	uses, limit := "uses "+mebibytes(m.ResidentBytes), mebibytes(m.LimitBytes)
	switch {
	case m.LimitBytes == 0:
		return c.OK("%s; there is no limit", uses)
	case m.ResidentBytes > m.LimitBytes/10*9:
		return c.Warn(memoryLimit, "%s, more than nine tenths of its limit of %s", uses, limit)
	}
	return c.OK("%s; its limit is %s", uses, limit)
}

// checkEngine examines the engine that kube-vitals reads, as kube-vitals sees it, and how often it
// scrapes the nodes.
func checkEngine(report *nodez.Report) []Check {
	c, e := Check{ID: "engine", Title: "engine"}, report.Engine
	var checks []Check
	warn := func(p Problem, format string, args ...any) { checks = append(checks, c.Warn(p, format, args...)...) }
	if e.FileRejected {
		warn(engineFile, "the content of --prometheus-config cannot be used: its previous content stays in use")
	}
	switch e.State {
	case nodez.Failing:
		seen := fmt.Sprintf("%s: %s", e.Reason, cmp.Or(strings.TrimSuffix(e.Error, " ("+e.Cure+")"), e.Problem))
		if e.LastSuccess != nil {
			seen += fmt.Sprintf("; it was last read %s ago", report.Time.Sub(*e.LastSuccess).Round(time.Second))
		}
		c.URL = e.URL
		return append(c.Fail(Problem{string(e.Reason), e.Reason.DescribeEngine().Cure}, "%s", seen), checks...)
	case nodez.Starting:
		return append(c.Warn(engineStarting, "kube-vitals has not read %s yet", e.Host), checks...)
	}
	series := 0
	for _, n := range e.Series {
		series += n
	}
	if e.Partial {
		warn(enginePartial, "the last response was incomplete: %s", e.Warning)
	}
	for _, query := range []string{"containerCPU", "containerMemory", "nodeCPU", "nodeMemory"} {
		if n, known := e.Series[query]; known && n == 0 {
			warn(engineSeries, "%s has no series of %s", e.Host, query)
		}
	}
	if e.UnknownSeries > series {
		warn(engineOtherNodes, "%d series are of nodes that this cluster does not have, and %d of others", e.UnknownSeries,
			series)
	}
	if newest := newestSample(report); newest > report.MaxSampleAgeSeconds/2 {
		warn(engineStale, "the newest sample of all nodes is %.0fs old; metrics expire after %.0fs", newest,
			report.MaxSampleAgeSeconds)
	}
	if len(checks) == 0 {
		checks = c.OK("%s was read in %.1fs: %d series", e.Host, e.DurationSeconds, series)
	}
	return append(checks, checkIntervals(report)...)
}

// newestSample returns the age of the newest sample of all nodes in seconds, or 0 if there is none.
func newestSample(report *nodez.Report) (newest float64) {
	known := false
	for _, n := range report.Nodes {
		if age := n.SampleAgeSeconds; age != nil && (!known || *age < newest) {
			newest, known = *age, true
		}
	}
	return newest
}

// checkIntervals finds nodes that the engine scrapes too seldom: the range of the queries must always
// have two samples.
func checkIntervals(report *nodez.Report) []Check {
	c := Check{ID: "scrape-interval", Title: "scrape interval"}
	longest := report.Engine.WindowSeconds / 2
	for _, n := range report.Nodes {
		if s := n.SampleIntervalSeconds; s != nil && *s > longest {
			c.Objects = append(c.Objects, fmt.Sprintf("%s %.0fs", n.Name, *s))
		}
	}
	if n := len(c.Objects); n > 0 {
		return c.Warn(scrapeInterval, "samples of %s are more than %.0fs apart, so metrics come late or expire:",
			Count(n, "node"), longest)
	}
	return c.OK("the samples of each node are at most %.0fs apart", longest)
}
