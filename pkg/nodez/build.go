package nodez

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/labels"

	devices "github.com/kube-vitals/kube-vitals/pkg/device/status"
	"github.com/kube-vitals/kube-vitals/pkg/prometheus/status"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
)

// Scrapes is the source of the states of scrapes. *scrape.Scraper implements it.
type Scrapes interface {
	// Statuses returns the status of every node that is scraped, sorted by name.
	Statuses() []scrape.Status
}

// Refreshes is the source of what an engine has. *prometheus.Source implements it.
type Refreshes interface {
	Status() status.Engine
	// NodeStatuses returns what the engine has of every known node, sorted by name.
	NodeStatuses() []status.Node
}

// Config configures the page. One of Scrapes and Refreshes is set.
type Config struct {
	Version      string // of this program
	Resolution   time.Duration
	MaxSampleAge time.Duration

	Scrapes   Scrapes
	Refreshes Refreshes
	View      *view.View

	// Now returns the current time with its monotonic reading. Clock converts it to the clock by
	// which ages are measured.
	Now   func() time.Time
	Clock usage.Clock

	// Memory returns the memory of this process. It may be nil, and return nil.
	Memory func() *Memory

	// Devices returns the states of the exporters of devices. It is nil if there are none.
	Devices func() []devices.Exporter
}

// Report returns the report at this moment. It takes time in proportion to the nodes and pods of
// the cluster: up to 0.1 s of CPU for 5000 nodes with 150,000 pods.
func (c *Config) Report() *Report {
	now := c.Now()
	r := &Report{
		Time:                    wall(now),
		Version:                 c.Version,
		MetricResolutionSeconds: c.Resolution.Seconds(),
		MaxSampleAgeSeconds:     c.MaxSampleAge.Seconds(),
		Totals: Totals{
			Reasons: map[reason.Reason]int{},
			States:  map[State]int{Ready: 0, Starting: 0, Failing: 0, Stale: 0},
		},
	}
	if c.Memory != nil {
		r.Memory = c.Memory()
	}
	if c.Devices != nil {
		r.DeviceExporters = exportersOf(c.Devices(), now)
	}
	var names []string // of the nodes, as the API server has them
	if c.Refreshes != nil {
		names = c.fillFromEngine(r, now)
	} else {
		names = c.fillFromScrapes(r, now)
	}
	r.Totals.Nodes = len(r.Nodes)
	byName := make(map[string]*Node, len(r.Nodes))
	for i := range r.Nodes {
		byName[names[i]] = &r.Nodes[i]
		r.Totals.add(&r.Nodes[i])
	}
	c.countPods(r, byName, c.Clock.At(now))
	return r
}

// fillFromScrapes adds the nodes that are scraped, and returns their names.
func (c *Config) fillFromScrapes(r *Report, now time.Time) (names []string) {
	statuses := c.Scrapes.Statuses()
	r.Nodes, names = make([]Node, len(statuses)), make([]string, len(statuses))
	for i := range statuses {
		c.fill(&r.Nodes[i], &statuses[i], now)
		names[i] = statuses[i].Node
	}
	return names
}

// add counts a node.
func (t *Totals) add(n *Node) {
	t.States[n.State]++
	if n.State == Failing {
		t.FailingNodes++
	}
	if n.MetricsAgeSeconds != nil {
		t.NodesWithMetrics++
	}
	if n.Reason != "" {
		t.Reasons[n.Reason]++
	}
}

// fill sets the fields of a node, except for its pods.
func (c *Config) fill(n *Node, s *scrape.Status, now time.Time) {
	*n = Node{
		Name:            printable(s.Node, maxNameBytes),
		Address:         printable(s.Address, maxNameBytes),
		LastSuccess:     wallAt(s.LastSuccess, now),
		LastScrape:      wallAt(s.LastScrape, now),
		NextScrape:      wallAt(s.NextScrape, now),
		Active:          s.Active,
		FailingSince:    wallAt(s.FailingSince, now),
		Failures:        s.Failures,
		DurationSeconds: seconds(s.Took),
		Samples:         s.Containers,
		Skipped:         s.Skipped,
	}
	n.MetricsAgeSeconds = c.metricsAge(s.Node, now)
	if s.ClockKnown {
		skew := seconds(s.ClockOffset)
		n.ClockSkewSeconds = &skew
	}
	n.State, n.Reason = c.stateOf(s, n.MetricsAgeSeconds != nil, now)
	n.describe(n.Reason.Describe())
	if s.Err != nil {
		n.Error = printable(s.Err.Error(), maxErrorBytes)
	}
}

// metricsAge returns the age of a node's metrics, or nil if there are none.
func (c *Config) metricsAge(node string, now time.Time) *float64 {
	at := c.Clock.At(now)
	u := c.View.Node(node, at)
	if u == nil {
		return nil
	}
	return new(seconds(max(at.Sub(u.AsOf), 0)))
}

// describe sets what explains the reason of a node, if it has one.
func (n *Node) describe(d reason.Description) {
	if n.Reason != "" {
		n.Problem, n.Cure, n.URL = d.Problem, d.Cure, n.Reason.URL()
	}
}

// stateOf returns the state of a node and its reason. After a success, a node without metrics gets
// as much time as metrics are valid: the first rate needs two samples, which a kubelet may take 30
// seconds apart.
func (c *Config) stateOf(s *scrape.Status, hasMetrics bool, now time.Time) (State, reason.Reason) {
	switch {
	case s.Failures > 0:
		return Failing, s.Reason
	case hasMetrics:
		return Ready, ""
	case s.SucceedingSince.IsZero() || now.Sub(s.SucceedingSince) <= c.MaxSampleAge:
		return Starting, ""
	}
	return Stale, reason.StaleSamples
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
	at := wall(now.Add(t.Sub(now)))
	return &at
}

// seconds returns d in seconds, rounded to microseconds.
func seconds(d time.Duration) float64 { return d.Round(time.Microsecond).Seconds() }

// maxErrorBytes limits the text of an error: a kubelet chooses parts of it, and that of a panic has
// a stack trace.
const maxErrorBytes = 1024

// maxNameBytes is longer than any name or address that the API server accepts.
const maxNameBytes = 512

// printable returns at most limit bytes of text, without characters that could change how the rest
// is displayed, such as the escape sequences of terminals and marks of right-to-left text.
func printable(text string, limit int) string {
	suffix := ""
	if len(text) > limit {
		for !utf8.RuneStart(text[limit]) {
			limit--
		}
		text, suffix = text[:limit], "…"
	}
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return '\uFFFD'
		}
		return r
	}, text) + suffix
}
