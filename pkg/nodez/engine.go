package nodez

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/prometheus/status"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// fillFromEngine adds the engine and what it has of each node, and returns the names of the nodes.
func (c *Config) fillFromEngine(r *Report, now time.Time) (names []string) {
	e := c.Refreshes.Status()
	r.Engine = engineOf(&e, now)
	statuses := c.Refreshes.NodeStatuses()
	r.Nodes, names = make([]Node, len(statuses)), make([]string, len(statuses))
	for i := range statuses {
		s, n := &statuses[i], &r.Nodes[i]
		names[i] = s.Name
		*n = Node{
			Name:              printable(s.Name, maxNameBytes),
			LastSuccess:       wallAt(s.LastSeen, now),
			MetricsAgeSeconds: c.metricsAge(s.Name, now),
			Samples:           s.Containers,
		}
		if s.SampledAt != 0 {
			n.SampleAgeSeconds = new(seconds(c.Clock.At(now).Sub(s.SampledAt)))
		}
		if s.Interval != 0 {
			n.SampleIntervalSeconds = new(seconds(s.Interval))
		}
		n.State, n.Reason = c.stateInEngine(&e, s, n.MetricsAgeSeconds != nil, now)
		n.describe(n.Reason.DescribeEngine())
	}
	return names
}

// engineOf returns the status of the engine as the page shows it.
func engineOf(s *status.Engine, now time.Time) *Engine {
	e := &Engine{
		Host:            printable(s.Host, maxNameBytes),
		State:           Ready,
		Reason:          s.Reason,
		LastSuccess:     wallAt(s.LastSuccess, now),
		LastRefresh:     wallAt(s.LastRefresh, now),
		FailingSince:    wallAt(s.FailingSince, now),
		Failures:        s.Failures,
		DurationSeconds: seconds(s.Took),
		WindowSeconds:   seconds(s.Window),
		FileRejected:    s.FileRejected,
		Series:          s.Series,
		UnknownSeries:   s.UnknownSeries,
		Skipped:         s.Skipped,
		Partial:         s.Partial,
		Warning:         printable(s.Warning, maxErrorBytes),
	}
	if s.NextRefresh.After(now) {
		e.NextRefresh = wallAt(s.NextRefresh, now)
	}
	switch {
	case s.Failures > 0:
		e.State = Failing
		d := s.Reason.DescribeEngine()
		e.Problem, e.Cure, e.URL = d.Problem, d.Cure, reason.EngineFailing.URL()
		if s.Err != nil {
			e.Error = printable(s.Err.Error(), maxErrorBytes)
		}
	case s.LastSuccess.IsZero():
		e.State = Starting
	}
	return e
}

// stateInEngine returns the state of a node that is read from the engine, and its reason. While the
// engine fails, the nodes with metrics stay as they are: the engine is what someone must repair.
func (c *Config) stateInEngine(
	e *status.Engine, s *status.Node, hasMetrics bool, now time.Time,
) (State, reason.Reason) {
	isNew := now.Sub(s.CreatedAt) <= c.MaxSampleAge
	switch {
	case e.Failures > 0 && hasMetrics:
		return Ready, ""
	case e.Failures > 0:
		return Failing, reason.EngineFailing
	case e.LastSuccess.IsZero(), !s.Seen && isNew:
		return Starting, ""
	case !s.Seen:
		return Failing, reason.NotInEngine
	case hasMetrics:
		return Ready, ""
	case now.Sub(s.SeenSince) <= c.MaxSampleAge:
		return Starting, ""
	case !s.SeenItself:
		return Failing, reason.NotInEngine
	}
	return Stale, reason.StaleSamples
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
