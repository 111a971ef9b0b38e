package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/nodez"
)

// engineChecks examines the engine that kube-vitals reads, as kube-vitals sees it.
func engineChecks(report *nodez.Report) []Check {
	e := report.Engine
	c := Check{ID: "engine", Title: "engine", Status: OK}
	switch e.State {
	case nodez.Failing:
		c.Status, c.Reason, c.Cure, c.URL = Failed, string(e.Reason), e.Reason.DescribeEngine().Cure, e.URL
		c.Seen = fmt.Sprintf("%s: %s", e.Reason, cmp.Or(strings.TrimSuffix(e.Error, " ("+e.Cure+")"), e.Problem))
		if e.LastSuccess != nil {
			c.Seen += fmt.Sprintf("; it was last read %s ago", since(*e.LastSuccess, report.Time))
		}
		return append([]Check{c}, fileCheck(e)...)
	case nodez.Starting:
		c.Status, c.Reason, c.Seen = Warning, engineStarting, "kube-vitals has not read "+e.Host+" yet"
		return []Check{c}
	}
	series := 0
	for _, n := range e.Series {
		series += n
	}
	c.Seen = fmt.Sprintf("%s was read in %.1fs: %d series", e.Host, e.DurationSeconds, series)
	checks := fileCheck(e)
	warn := func(reason, format string, args ...any) {
		checks = append(checks, Check{ID: "engine", Title: "engine", Status: Warning, Reason: reason,
			Seen: fmt.Sprintf(format, args...)})
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
		checks = []Check{c}
	}
	return append(checks, intervalCheck(report))
}

// fileCheck reports a configuration that cannot be used.
func fileCheck(e *nodez.Engine) []Check {
	if !e.FileRejected {
		return nil
	}
	return []Check{{ID: "engine", Title: "engine", Status: Warning, Reason: engineFile,
		Seen: "the content of --prometheus-config cannot be used: its previous content stays in use"}}
}

// newestSample returns the age of the newest sample of all nodes, or 0 if there is none.
func newestSample(report *nodez.Report) float64 {
	var ages []float64
	for i := range report.Nodes {
		if age := report.Nodes[i].SampleAgeSeconds; age != nil {
			ages = append(ages, *age)
		}
	}
	if len(ages) == 0 {
		return 0
	}
	return slices.Min(ages)
}

// intervalCheck finds nodes that the engine scrapes too seldom: the range of the queries must always
// have two samples.
func intervalCheck(report *nodez.Report) Check {
	c := Check{ID: "scrape-interval", Title: "scrape interval", Status: OK}
	longest := report.Engine.WindowSeconds / 2
	var rare []string
	for i := range report.Nodes {
		n := &report.Nodes[i]
		if s := n.SampleIntervalSeconds; s != nil && *s > longest {
			rare = append(rare, fmt.Sprintf("%s %.0fs", n.Name, *s))
		}
	}
	if len(rare) == 0 {
		c.Seen = fmt.Sprintf("the samples of each node are at most %.0fs apart", longest)
		return c
	}
	c.Status, c.Reason, c.Objects = Warning, scrapeInterval, rare
	c.Seen = fmt.Sprintf("samples of %s are more than %.0fs apart, so metrics come late or expire:",
		count(len(rare), "node"), longest)
	return c
}

// since returns the time from one time to another in whole seconds.
func since(t, now time.Time) time.Duration { return now.Sub(t).Round(time.Second) }
