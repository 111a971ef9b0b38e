// Package explain explains why a node or pod has no metrics.
//
// It joins what the process knows at that moment: the inventory, the health of the source and of
// the node, and its samples. For an object that the inventory does not have, and for a pod that
// does not run, it may read the API server (Client). It is called for misses only. Explanations
// have no addresses, no contents of certificates and no texts of errors: of a failing node or
// engine, they have the description of the reason, for a node with the cure of its error.
package explain

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Config configures Pods and Nodes.
type Config struct {
	View   View
	Source health.Source
	Lookup *Client

	SelectsNodes bool          // whether only some of the nodes are scraped
	Resolution   time.Duration // between two scrapes of a node
	MaxSampleAge time.Duration // above which a sample is not served
	Clock        usage.Clock
}

// View has the known nodes and pods, and what is known of their samples. *view.View implements it.
type View interface {
	// Node and Pod return the object of that name, or nil.
	Node(name string) *inventory.Object
	Pod(namespace, name string) *inventory.Object
	// NodeFacts and PodFacts report false if a node was never scraped, and if nothing is stored of a pod of its node.
	NodeFacts(name string) (store.Facts, bool)
	PodFacts(pod *inventory.Object) (store.PodFacts, bool)
	// OurTime converts a time by the clock of a node, as far as its offset is known.
	OurTime(node string, t usage.NodeTime) usage.Time
}

// finding is why an object has no metrics.
type finding struct {
	reason  reason.Reason
	failing bool          // whether the node cannot be read for that reason
	err     error         // why it cannot be read: messages have its cure, not its text; nil: the usual cure fits
	text    func() string // called only for messages: a summary of many objects has no texts
}

func newFinding(r reason.Reason, format string, args ...any) finding {
	return finding{reason: r, text: func() string { return fmt.Sprintf(format, args...) }}
}

// message returns the text of a finding with the cure.
func (m *moment) message(f finding) string {
	// Only the cure: kubelets choose details, and commands are for administrators.
	why := reason.Explanation{Problem: f.text(), Cure: m.overall.Describe(f.reason).Explain(f.err).Cure}
	switch f.reason {
	// The text has the time to wait, or the cure. That of PodStarting in lostOfPod has neither: a loss may last.
	case reason.PodStarting, reason.NodeStarting, reason.EngineFailing:
		why.Cure = ""
	}
	return why.Error()
}

// moment is the state of the cluster at one time.
type moment struct {
	*Config
	now      time.Time
	at       usage.Time // now
	overall  health.Overall
	refer    func(node string) string // how texts refer to a node
	examined map[string]*nodeFinding  // by name
}

// nodeFinding explains a node where nothing has metrics. Its text is nil if the node is fine.
type nodeFinding struct {
	finding
	health health.Node
}

func (c *Config) moment(now time.Time, refer func(node string) string) *moment {
	return &moment{
		Config: c, now: now, at: c.Clock.At(now), overall: c.Source.Overall(), refer: refer,
		examined: map[string]*nodeFinding{},
	}
}

// node returns why no object on the node has metrics, if there is such a reason.
func (m *moment) node(name string) *nodeFinding {
	if n := m.examined[name]; n != nil {
		return n
	}
	m.examined[name] = m.examineNode(name, m.refer(name))
	return m.examined[name]
}

func (m *moment) examineNode(name, subject string) *nodeFinding {
	n := &nodeFinding{}
	if m.View.Node(name) == nil {
		n.finding = m.unknownNode(subject)
		return n
	}
	n.health, _ = m.Source.Node(name)
	switch o, h := &m.overall, &n.health; {
	case o.Failures > 0:
		n.finding = newFinding(reason.EngineFailing, "reading the engine has failed%s with the reason %s: %v",
			since(o.FailingSince, m.now), o.Reason, o.Describe(o.Reason).Explain(nil))
	case h.Failures > 0:
		n.finding = newFinding(h.Reason, "the metrics of %s cannot be read%s: %s",
			subject, since(h.FailingSince, m.now), o.Describe(h.Reason).Problem)
		n.failing, n.err = true, h.Err
	case h.LastSuccess.IsZero():
		n.finding = newFinding(reason.NodeStarting, "%s has not been read yet; metrics are expected within %s",
			subject, seconds(o.Startup))
	}
	return n
}

// unknownNode explains a node that is not in the inventory, as far as that is known without a
// lookup.
func (m *moment) unknownNode(subject string) finding {
	if m.SelectsNodes {
		return newFinding(reason.NotSelected, "%s does not exist or is not selected for scraping", subject)
	}
	return newFinding(reason.NodeNotFound, "%s does not exist", subject)
}

// lookUpNode explains a node that is not in the inventory, and that may not be selected.
func (m *moment) lookUpNode(ctx context.Context, name, subject string) finding {
	switch exists, err := m.Lookup.NodeExists(ctx, name); {
	case exists:
		return newFinding(reason.NotSelected, "%s is not selected for scraping", subject)
	case err == nil:
		return newFinding(reason.NodeNotFound, "%s does not exist", subject)
	}
	return m.unknownNode(subject)
}

// waiting returns a finding about a series that is so young that metrics are still expected.
func (m *moment) waiting(r reason.Reason, what string, facts *store.Facts) (finding, bool) {
	age := m.at.Sub(facts.Since)
	if facts.Since == 0 || age >= m.overall.Startup {
		return finding{}, false
	}
	if facts.SampledAt == 0 {
		return newFinding(r, "%s was first reported %s ago, and has had no sample of both CPU and memory yet; metrics are "+
			"expected within %s", what, short(age), seconds(m.overall.Startup-age)), true
	}
	return newFinding(r, "the first sample of %s arrived %s ago; metrics need a second one, and are expected within %s",
		what, short(age), seconds(m.overall.Startup-age)), true
}

// stale returns a finding about samples; the last was taken at the given time.
func (m *moment) stale(node, what string, sampledAt usage.Time) finding {
	if m.at.Sub(sampledAt) <= m.MaxSampleAge { // not too old, but too far from the one before
		return newFinding(reason.StaleSamples, "%s has one sample of %s, from %s, but metrics need two within %s",
			m.overall.Reporter(node), what, m.ago(sampledAt), seconds(cmp.Or(m.overall.Window, m.MaxSampleAge)))
	}
	return newFinding(reason.StaleSamples, "%s responds, but its last sample of %s is from %s",
		m.overall.Reporter(node), what, m.ago(sampledAt))
}

// soon is for metrics that nothing prevents: they have just arrived, or come with the next scrape.
func (m *moment) soon(r reason.Reason, node string) finding {
	return newFinding(r, "metrics are expected when %s is read again, within %s", m.overall.Reporter(node),
		seconds(m.Resolution))
}

// ago returns a time as text, such as "12:03:05 UTC (2m10s ago)".
func (m *moment) ago(t usage.Time) string { return ago(m.now.Add(t.Sub(m.at)), m.now) }

func ago(t, now time.Time) string {
	return fmt.Sprintf("%s (%s ago)", timeOfDay(t, now), short(now.Sub(t)))
}

// since returns text such as " since 12:03:05 UTC (2m10s)", or nothing if the time is not known.
func since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf(" since %s (%s)", timeOfDay(t, now), short(now.Sub(t)))
}

// timeOfDay returns a time as text. Times of other days have the date.
func timeOfDay(t, now time.Time) string {
	t, now = t.UTC(), now.UTC()
	layout := "15:04:05 MST"
	if t.YearDay() != now.YearDay() || t.Year() != now.Year() {
		layout = "2006-01-02 " + layout
	}
	return t.Format(layout)
}

// short returns a duration as kubectl prints it.
func short(d time.Duration) string { return duration.HumanDuration(max(0, d)) }

// seconds returns a duration in whole seconds, rounded up.
func seconds(d time.Duration) string {
	return (d + time.Second - 1).Truncate(time.Second).String()
}

// named returns "container" and its name, which kubelets and the status of a pod may have instead of
// the API server. A name that is not valid, which the node may have chosen for its readers, is not
// shown.
func named(container string) string {
	if len(validation.IsDNS1123Label(container)) > 0 {
		return "a container"
	}
	return `container "` + container + `"`
}

// maxCode is the length above which a machine-readable reason of a status is not shown. The node
// sets it.
const maxCode = 64

// code returns ": " and a machine-readable reason of a pod's or container's status, or nothing if
// it is not valid.
func code(text string) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	if text == "" || len(text) > maxCode || strings.Trim(text, letters) != "" {
		return ""
	}
	return ": " + text
}
