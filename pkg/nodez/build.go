package nodez

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/internal/printable"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
)

// Config configures the page.
type Config struct {
	Version      string // of this program
	Resolution   time.Duration
	MaxSampleAge time.Duration

	Source health.Source
	View   *view.View

	// Now returns the current time with its monotonic reading. Clock converts it to the clock that
	// measures ages.
	Now   func() time.Time
	Clock usage.Clock

	// Memory returns the memory of this process, or nil.
	Memory func() *Memory

	// Devices returns what is known of the exporters of devices. It is nil if there are none.
	Devices func() []health.Exporter
}

// Report returns the report at this moment. It takes time in proportion to the nodes and pods of
// the cluster: up to 0.3 s of CPU for 5000 nodes with 150,000 pods (BenchmarkReport).
func (c *Config) Report() *Report {
	now := c.Now()
	r := &Report{
		Time:                    wall(now),
		Version:                 c.Version,
		MetricResolutionSeconds: c.Resolution.Seconds(),
		MaxSampleAgeSeconds:     c.MaxSampleAge.Seconds(),
		Memory:                  c.Memory(),
		Totals: Totals{
			Reasons: map[reason.Reason]int{},
			States:  map[State]int{Ready: 0, Starting: 0, Failing: 0, Stale: 0},
		},
	}
	if c.Devices != nil {
		r.DeviceExporters = exportersOf(c.Devices(), now)
	}
	source, nodes := c.Source.Overall(), c.Source.Nodes()
	r.Engine = engineOf(&source, now)
	r.Nodes = make([]Node, len(nodes))
	byName := make(map[string]*Node, len(nodes)) // as the API server names them
	for i := range nodes {
		n := &r.Nodes[i]
		c.fill(n, &source, &nodes[i], now)
		r.Totals.add(n)
		byName[nodes[i].Name] = n
	}
	r.Totals.Nodes, r.Totals.FailingNodes = len(nodes), r.Totals.States[Failing]
	c.countPods(r, byName, c.Clock.At(now))
	return r
}

// add counts a node.
func (t *Totals) add(n *Node) {
	t.States[n.State]++
	if n.MetricsAgeSeconds != nil {
		t.NodesWithMetrics++
	}
	if n.Reason != "" {
		t.Reasons[n.Reason]++
	}
}

// fill sets the fields of a node, except for its pods.
func (c *Config) fill(n *Node, source *health.Overall, h *health.Node, now time.Time) {
	*n = Node{
		Name:            shorten(h.Name, maxNameBytes),
		Address:         shorten(h.Address, maxNameBytes),
		LastSuccess:     wallAt(h.LastSuccess, now),
		LastScrape:      wallAt(h.Last, now),
		NextScrape:      nextAt(&h.Attempts, now),
		Active:          h.Active,
		FailingSince:    wallAt(h.FailingSince, now),
		Failures:        h.Failures,
		DurationSeconds: seconds(h.Took),
		Samples:         h.Containers,
		Skipped:         h.Skipped,
	}
	at := c.Clock.At(now)
	if u := c.View.NodeUsage(h.Name, at); u != nil {
		n.MetricsAgeSeconds = new(seconds(max(at.Sub(u.AsOf), 0)))
	}
	if h.ClockKnown {
		n.ClockSkewSeconds = new(seconds(h.ClockOffset))
	}
	if h.Newest != 0 {
		n.SampleAgeSeconds = new(seconds(-h.Newest.AheadOf(at)))
	}
	if h.Interval != 0 {
		n.SampleIntervalSeconds = new(seconds(h.Interval))
	}
	var r reason.Reason
	n.State, r = c.stateOf(source, h, n.MetricsAgeSeconds != nil, now)
	err := h.Err
	if h.Exceeded != 0 {
		n.CapacityCores, n.UsedCores = cores(h.Capacity), cores(h.Exceeded)
		if n.State == Ready {
			r = reason.AboveCapacity
			err = fmt.Errorf("%.4g of %.4g cores", n.UsedCores, n.CapacityCores)
		}
	}
	if r == reason.Slow && err == nil {
		err = fmt.Errorf("after %.0f s", n.DurationSeconds)
	}
	n.Diagnosis = diagnosisOf(r, source.Describe(r), r.URL(), err)
}

func cores(nanocores uint64) float64 { return float64(nanocores) / 1e9 }

// diagnosisOf returns a Diagnosis. The reason may be empty, the error nil.
func diagnosisOf(r reason.Reason, d reason.Description, url string, err error) Diagnosis {
	e := d.Explain(err)
	diagnosis := Diagnosis{Reason: r, Problem: e.Problem, Cure: e.Cure, Command: e.Command,
		Error: shorten(e.Detail, maxErrorBytes)}
	if r != "" {
		diagnosis.URL = url
	}
	return diagnosis
}

// stateOf returns the state of a node and its reason. While the source fails as a whole, the nodes with
// metrics stay as they are: it is the source that someone must repair. After a success, a node without
// metrics gets as much time as metrics are valid: the first rate needs two samples, which a kubelet may
// take 30 seconds apart.
func (c *Config) stateOf(
	source *health.Overall, h *health.Node, hasMetrics bool, now time.Time,
) (State, reason.Reason) {
	switch {
	case source.Failures > 0 && !hasMetrics:
		return Failing, reason.EngineFailing
	case hasMetrics && h.Slow && (h.Failures == 0 || h.Reason == reason.Timeout):
		return Ready, reason.Slow
	case h.Failures > 0:
		return Failing, h.Reason
	case hasMetrics:
		return Ready, ""
	case h.SucceedingSince.IsZero() || now.Sub(h.SucceedingSince) <= c.MaxSampleAge:
		return Starting, ""
	}
	switch facts, _ := c.View.NodeFacts(h.Name); {
	case facts.Lost != usage.NotLost:
		return Stale, health.ReasonOf(facts.Lost)
	case facts.SampledAt == 0:
		return Stale, reason.NoSamples
	case h.Slow:
		return Stale, reason.Slow
	}
	return Stale, reason.StaleSamples
}

// engineOf returns what the page shows of a source that is an engine, or nil.
func engineOf(o *health.Overall, now time.Time) *Engine {
	if o.Engine == nil {
		return nil
	}
	return &Engine{
		Host:            shorten(o.Engine.Host, maxNameBytes),
		State:           attemptsState(&o.Attempts),
		Diagnosis:       diagnosisOf(o.Reason, o.Describe(o.Reason), reason.EngineFailing.URL(), o.Err),
		LastSuccess:     wallAt(o.LastSuccess, now),
		LastRefresh:     wallAt(o.Last, now),
		NextRefresh:     nextAt(&o.Attempts, now),
		FailingSince:    wallAt(o.FailingSince, now),
		Failures:        o.Failures,
		DurationSeconds: seconds(o.Took),
		WindowSeconds:   seconds(o.Window),
		FileRejected:    o.Engine.FileRejected,
		Series:          o.Engine.Series,
		UnknownSeries:   o.Engine.UnknownSeries,
		Skipped:         o.Engine.Skipped,
		Partial:         o.Engine.Warning != "",
		Warning:         shorten(o.Engine.Warning, maxErrorBytes),
	}
}

// attemptsState returns the state of something that is read as a whole.
func attemptsState(a *health.Attempts) State {
	switch {
	case a.Failures > 0:
		return Failing
	case a.LastSuccess.IsZero():
		return Starting
	}
	return Ready
}

// countPods counts the running pods, and those of them that the API serves now.
func (c *Config) countPods(r *Report, nodes map[string]*Node, now usage.Time) {
	running := c.View.RunningPods("", labels.Everything())
	for i, pod := range c.View.PodUsages(running, now) {
		n := nodes[running[i].Node]
		if n == nil {
			n = new(Node) // not scraped
		}
		r.Totals.Pods++
		n.RunningPods++
		if pod != nil {
			r.Totals.PodsWithMetrics++
			r.Totals.Containers += len(pod.Containers)
			n.Pods++
		}
	}
}

// wall returns a time of this machine's clock, in UTC and whole milliseconds.
func wall(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// wallAt returns the time of this machine's clock at t. If someone has set that clock since t, it
// still has the right distance from now: both have monotonic readings. The zero time becomes nil.
func wallAt(t, now time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(wall(now.Add(t.Sub(now))))
}

// nextAt returns when the next attempt is due, or nil if it is running.
func nextAt(a *health.Attempts, now time.Time) *time.Time {
	if !a.Next.After(now) {
		return nil
	}
	return wallAt(a.Next, now)
}

// seconds returns d in seconds, rounded to microseconds.
func seconds(d time.Duration) float64 { return d.Round(time.Microsecond).Seconds() }

// maxErrorBytes limits the text of an error: a kubelet chooses parts of it, and that of a panic has
// a stack trace.
const maxErrorBytes = 1024

// maxNameBytes is longer than any name or address that the API server accepts.
const maxNameBytes = 512

// shorten returns at most limit bytes of text, without characters that could change how the rest
// is displayed, such as the escape sequences of terminals and marks of right-to-left text.
func shorten(text string, limit int) string {
	suffix := ""
	if len(text) > limit {
		text, suffix = strings.ToValidUTF8(text[:limit], ""), "…"
	}
	return printable.Text(text) + suffix
}
