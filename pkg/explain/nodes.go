package explain

import (
	"context"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Nodes explains why nodes have no metrics. It is safe for concurrent use.
type Nodes struct{ Config }

// Explain returns why a node has no metrics. The namespace is ignored.
func (n *Nodes) Explain(ctx context.Context, _, name string, now time.Time) (reason.Reason, string) {
	m := n.moment(now, theNode)
	f := m.nodeWithoutMetrics(name)
	if f.reason == reason.NotSelected {
		f = m.lookUpNode(ctx, name, theNode(name))
	}
	return f.reason, m.message(f)
}

// Summarize returns how many of the nodes have no metrics, by reason.
func (n *Nodes) Summarize(missing []*inventory.Object, now time.Time) string {
	m := n.moment(now, theNode)
	var s summary
	for _, o := range missing {
		s.add(m.nodeWithoutMetrics(o.Name), o.Name)
	}
	return s.text(func(g *group) string {
		if g.failing {
			return "that cannot be read" + g.why()
		}
		return m.describe(g)
	})
}

// theNode refers to a node that the user named.
func theNode(string) string { return "the node" }

// nodeWithoutMetrics explains a node without a lookup.
func (m *moment) nodeWithoutMetrics(name string) finding {
	n := m.node(name)
	if n.text != nil {
		return n.finding
	}
	facts, _ := m.View.NodeFacts(name)
	switch {
	case !m.needsSample(&facts):
		return m.soon(reason.NodeStarting, name)
	case facts.Lost != usage.NotLost:
		return m.lost(facts.Lost, name, "the node", n.health.Capacity)
	case facts.HasAmount:
		return m.stale(name, "the node", facts.SampledAt)
	}
	if f, ok := m.waiting(reason.NodeStarting, "the node", &facts); ok {
		return f
	}
	if facts.SampledAt == 0 {
		return newFinding(reason.NoSamples, "%s responds, but does not report the CPU and memory of the node itself",
			m.overall.Reporter(name))
	}
	return m.stale(name, "the node", facts.SampledAt)
}
