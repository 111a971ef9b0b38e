package explain

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Pods explains why pods have no metrics. It is safe for concurrent use.
type Pods struct{ Config }

// Explain returns why a pod has no metrics.
func (p *Pods) Explain(ctx context.Context, namespace, name string, now time.Time) (reason.Reason, string) {
	m := p.moment(now, itsNode)
	o := m.View.Pod(namespace, name)
	pod := &corev1.Pod{} // as the API server has it; empty: not known
	if o == nil || o.Phase != inventory.PodRunning || o.NoneRuns() {
		switch found, err := m.Lookup.Pod(ctx, namespace, name); {
		case found != nil:
			pod = found
			o, _ = inventory.NewObject(pod) // not an error: a pod has metadata
		case err == nil:
			f := newFinding(reason.PodNotFound, "the pod does not exist in namespace %q", namespace)
			return f.reason, m.message(f)
		}
	}
	f := m.pod(ctx, o, pod, namespace)
	return f.reason, m.message(f)
}

// pod explains a pod by its phase.
func (m *moment) pod(ctx context.Context, o *inventory.Object, pod *corev1.Pod, namespace string) finding {
	if o == nil { // the inventory has the pods that are pending or running
		return newFinding(reason.PodNotFound, "the pod does not exist in namespace %q, or has ended", namespace)
	}
	switch o.Phase {
	case inventory.PodRunning:
		f := m.runningPod(o)
		switch f.reason {
		case reason.NotSelected:
			return m.lookUpNode(ctx, o.Node, itsNode(o.Node))
		case reason.NotRunning:
			return newFinding(f.reason, "%s%s", f.text(), waitingContainer(pod))
		}
		return f
	case inventory.PodPending:
		return newFinding(reason.PodPending, "the pod has been pending%s%s",
			since(o.CreatedAt.Time(), m.now), pendingDetail(pod))
	case inventory.PodSucceeded:
		return newFinding(reason.PodSucceeded, "the pod succeeded%s", ended(pod, m.now))
	case inventory.PodFailed:
		return newFinding(reason.PodFailed, "the pod failed%s", ended(pod, m.now))
	}
	return newFinding(reason.PodUnknown, "the API server does not know the state of the pod")
}

// Summarize returns how many of the pods, which are running, have no metrics, by reason.
func (p *Pods) Summarize(missing []*inventory.Object, now time.Time) string {
	m := p.moment(now, itsNode)
	var s summary
	for _, o := range missing {
		s.add(m.runningPod(o), o.Node)
	}
	return s.text(m.describe)
}

// describe describes a group of pods, or of nodes that can be read.
func (m *moment) describe(g *group) string {
	switch {
	case g.failing:
		return g.onNodes("cannot be read", "cannot be read") + g.why()
	case g.reason == reason.EngineFailing:
		return fmt.Sprintf("because the engine cannot be read (%s)", m.overall.Reason)
	case g.reason == reason.NodeNotFound, g.reason == reason.NotSelected:
		return g.onNodes("is not scraped", "are not scraped")
	case g.reason == reason.NodeStarting:
		return "without a second sample yet"
	case g.reason == reason.PodStarting:
		return "whose metrics are expected soon"
	case g.reason == reason.NotRunning:
		return "without a running container"
	case g.reason == reason.NoContainers:
		return "that the " + m.overall.SourceName() + " does not report"
	case g.reason == reason.ContainerMissing:
		return "with a container whose usage the " + m.overall.SourceName() + " does not report"
	case g.reason == reason.StaleSamples:
		return "with samples that are too old"
	case g.reason == reason.UsageUnknown, g.reason == reason.BadTime, g.reason == reason.BadValue,
		g.reason == reason.CounterFell, g.reason == reason.AboveCapacity, g.reason == reason.OtherPod:
		return fmt.Sprintf("with samples that cannot be used (%s)", g.reason)
	}
	return "for other reasons"
}

// itsNode refers to the node of a pod.
func itsNode(node string) string { return fmt.Sprintf("its node %q", node) }

// runningPod explains a pod in the phase Running, without a lookup.
func (m *moment) runningPod(o *inventory.Object) finding {
	if o.Node == "" {
		return newFinding(reason.PodUnknown, "the pod is not bound to a node")
	}
	n := m.node(o.Node)
	switch {
	case n.text != nil:
		return n.finding
	case o.NoneRuns():
		return newFinding(reason.NotRunning, "no container of the pod is running")
	}
	facts, reported := m.View.PodFacts(o)
	if !slices.ContainsFunc(facts.Containers, func(c store.ContainerFacts) bool { return !c.Omitted }) {
		facts, reported = store.PodFacts{}, false
	}
	if f, ok := m.lostOfPod(o, &facts, n); ok {
		return f
	}
	var starting finding
	for _, c := range containersWithoutUsage(o, &facts) {
		f, young := m.startingContainer(c, o.Node)
		switch {
		case young:
			starting = f
		case !reported:
			return m.notReported(o, n)
		default:
			return m.containerWithoutUsage(c, o.Node)
		}
	}
	switch {
	case starting.text != nil:
		return starting
	case !reported: // and the pod has no container statuses yet
		// By the clock of the API server, which may differ from ours.
		if age := m.at.Sub(o.CreatedAt); age >= -usage.MaxLead && age < m.overall.Startup {
			age = max(0, age)
			return newFinding(reason.PodStarting, "the pod was created %s ago; metrics are expected within %s",
				short(age), seconds(m.overall.Startup-age))
		}
		return m.notReported(o, n)
	case facts.AsOf != 0 && m.at.Sub(facts.AsOf) > m.MaxSampleAge:
		return m.expiredPod(o.Node, &facts)
	}
	return m.soon(reason.PodStarting, o.Node)
}

// expiredPod explains a pod whose last metrics have expired.
func (m *moment) expiredPod(node string, facts *store.PodFacts) finding {
	for i := range facts.Containers {
		if c := &facts.Containers[i]; c.Omitted && m.needsSample(&c.Facts) {
			return newFinding(reason.ContainerMissing, "%s does not report %s; the last sample is from %s",
				m.overall.Reporter(node), named(c.Name), m.ago(c.SampledAt))
		}
	}
	return m.stale(node, "the pod", facts.AsOf)
}

func (m *moment) notReported(o *inventory.Object, n *nodeFinding) finding {
	return newFinding(reason.NoContainers, "%s responded at %s, but does not report the pod",
		m.overall.Reporter(o.Node), ago(n.health.LastSuccess, m.now))
}

// container is a container as the API server and its node show it.
type container struct {
	Name  string
	State *inventory.ContainerState // nil: the API server does not show it
	Facts *store.ContainerFacts     // nil: the node does not report it
}

// containersWithoutUsage returns the containers of a pod that should have usage but do not: those
// that run according to the API server, and those that the node reports. A node chooses how many
// these are, so the time must not grow with their product.
func containersWithoutUsage(o *inventory.Object, facts *store.PodFacts) (found []container) {
	reported := make(map[string]*store.ContainerFacts, len(facts.Containers)) // that the API server does not show
	for i := range facts.Containers {
		reported[facts.Containers[i].Name] = &facts.Containers[i]
	}
	for i := range o.Containers {
		state := &o.Containers[i]
		c := container{state.Name, state, reported[state.Name]}
		delete(reported, state.Name)
		if c.Facts == nil && state.Running || c.Facts != nil && !c.Facts.HasAmount {
			found = append(found, c)
		}
	}
	for i := range facts.Containers {
		if f := &facts.Containers[i]; !f.HasAmount && reported[f.Name] != nil {
			found = append(found, container{Name: f.Name, Facts: f})
		}
	}
	return found
}

// startingContainer explains a container that started so recently that metrics are still expected.
func (m *moment) startingContainer(c container, node string) (finding, bool) {
	age, known := m.ageOf(c.State, node)
	if known && age < m.overall.Startup {
		return newFinding(reason.PodStarting, "%s started %s ago; metrics are expected within %s",
			named(c.Name), short(age), seconds(m.overall.Startup-age)), true
	}
	if c.Facts == nil {
		return finding{}, false
	}
	r := reason.PodStarting
	// Its start is ahead of the clock of the node if that was set back since.
	isAhead := !known && c.State != nil && c.State.StartedAt != 0
	if isAhead || known && age >= 2*m.overall.Startup { // or kube-vitals is new to the node
		r = reason.NodeStarting
	}
	return m.waiting(r, named(c.Name), &c.Facts.Facts)
}

// ageOf returns the time since a container started, and whether it is known.
func (m *moment) ageOf(c *inventory.ContainerState, node string) (time.Duration, bool) {
	if c == nil || c.StartedAt == 0 {
		return 0, false
	}
	age := m.at.Sub(m.View.OurTime(node, c.StartedAt))
	return max(0, age), age >= -usage.MaxLead
}

// containerWithoutUsage explains a container of a pod that the kubelet reports, if metrics should
// have arrived by now.
func (m *moment) containerWithoutUsage(c container, node string) finding {
	switch {
	case c.Facts == nil || c.Facts.Omitted:
		return newFinding(reason.ContainerMissing, "%s does not report %s", m.overall.Reporter(node), named(c.Name))
	case c.Facts.SampledAt == 0:
		return newFinding(reason.ContainerMissing,
			"%s does not report both CPU and memory of %s", m.overall.Reporter(node), named(c.Name))
	}
	return m.stale(node, named(c.Name), c.Facts.SampledAt)
}

// pendingDetail returns ": " and what a pending pod waits for, if that is known.
func pendingDetail(pod *corev1.Pod) string {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return ": it is not scheduled" + code(c.Reason)
		}
	}
	return waitingContainer(pod)
}

// waitingContainer returns ": " and why a container does not run, if that is known.
func waitingContainer(pod *corev1.Pod) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch {
		case s.State.Waiting != nil && s.State.Waiting.Reason != "PodInitializing":
			return fmt.Sprintf(": %s waits%s", named(s.Name), code(s.State.Waiting.Reason))
		case s.State.Terminated != nil && s.State.Terminated.ExitCode != 0:
			return fmt.Sprintf(": %s ended%s", named(s.Name), code(s.State.Terminated.Reason))
		}
	}
	return ""
}

// ended returns when the last container of a pod ended, and ": " and the reason in the pod's
// status, as far as they are known.
func ended(pod *corev1.Pod, now time.Time) string {
	var last time.Time
	for i := range pod.Status.ContainerStatuses {
		if t := pod.Status.ContainerStatuses[i].State.Terminated; t != nil && t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	if last.IsZero() {
		return code(pod.Status.Reason)
	}
	return " at " + ago(last, now) + code(pod.Status.Reason)
}
