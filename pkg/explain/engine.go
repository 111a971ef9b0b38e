package explain

import (
	"fmt"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// examineInEngine sets why no object on a known node has metrics, if the engine is the cause.
func (m *moment) examineInEngine(n *nodeFinding, name, owner string) {
	e := m.engine
	n.status.LastSuccess = e.LastSuccess
	s, known := m.Refreshes.NodeStatus(name)
	age := m.now.Sub(s.CreatedAt)
	switch {
	case e.Failures > 0:
		d := e.Reason.DescribeEngine()
		n.finding = newFinding(reason.EngineFailing, "reading the engine has failed%s with the reason %s: %s%s",
			since(e.FailingSince, m.now), e.Reason, d.Problem, inParentheses(d.Cure))
	case e.LastSuccess.IsZero():
		n.finding = newFinding(reason.NodeStarting, "the engine has not been read yet; metrics are expected within %s",
			seconds(m.startup()))
	case known && s.Seen:
		n.found = false
	case age >= -usage.MaxLead && age < m.startup():
		age = max(0, age)
		n.finding = newFinding(reason.NodeStarting, "%s was created %s ago; metrics are expected within %s",
			owner, short(age), seconds(m.startup()-age))
	default:
		n.finding = newFinding(reason.NotInEngine, "the engine has no current series of %s%s", owner, m.partly())
	}
}

// partly returns text if the engine said that it does not have all series.
func (m *moment) partly() string {
	if m.engine.Partial {
		return ", but says that its response is incomplete"
	}
	return ""
}

// failingEngine describes a group of objects without metrics because the engine cannot be read.
func (m *moment) failingEngine() string {
	return fmt.Sprintf("because the engine cannot be read (%s)", m.engine.Reason)
}

// source names what reports usage.
func (m *moment) source() string {
	if m.engine != nil {
		return "engine"
	}
	return "kubelet"
}
