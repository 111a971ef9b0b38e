package store

import (
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// A pod that was deleted by force may still run when the next pod of its name starts on the same
// node. Until the kubelet has killed it, each response has the samples of either of them, under the
// same names, or the start time of one with the counter of the other. No container of the new pod
// started before that pod did, by the status in the API server, or used more than the node has had
// since. Both times are by the node's clock. Until the API server shows a start, all samples are of
// the removed pod.

// runsOnFor is longer than a deleted pod runs beside the next one of its name. The counter of an older
// container proves nothing: the node may have had more CPUs before.
const runsOnFor = time.Hour

// ownership collects, over one scrape, which samples were rejected and what was dropped because of it.
type ownership struct {
	hasForeign bool         // whether there are samples of another pod of the name
	dropped    bool         // whether a snapshot was dropped
	ended      []*container // those that belong to another pod only
}

// isProvenBy reports whether a sample is of the pod in the API server because the previous one is.
// That is the steady state.
func (c *container) isProvenBy(s *usage.Sample) bool {
	return c.isProven && s.StartedAt == c.prev.startedAt
}

// accept compares the sample of a container with the start in the API server, and reports whether it
// may be of the pod in the API server. It drops what was stored of another pod while the API server
// did not show a start.
func (o *ownership) accept(n *node, c *container, s *usage.Sample, a *arrival) bool {
	state := n.config.State(n.name, c.pod.key.namespace, c.pod.key.name, c.name.Value())
	_, isRemoved := n.removed[c.pod.key]
	runsOn := isRemoved && !state.Running && state.EarliestStart == 0 // the next pod of the name has not started
	now := a.at.Add(n.clock.offset())
	isComparable := n.canCompare(state, now)
	isEarlier := func(r reading) bool {
		return r.startedAt != 0 && r.startedAt < state.EarliestStart.Add(-usage.StartMargin)
	}
	isForeign := func(r reading) bool {
		return runsOn || isComparable && (isEarlier(r) && !n.mayHaveMoved(r, state, now) ||
			n.startedBeforeJump(r, state, now) || n.usedTooMuch(r, state, a))
	}
	if c.sampled && !c.isProven {
		switch {
		case isForeign(c.prev), state.EarliestStart == 0 && c.startMoved(s) != 0:
			c.series = series{}
			o.drop(c.pod)
		case isComparable && !c.hasAmount: // the snapshot is from before prev
			o.drop(c.pod)
		}
	}
	if isForeign(readingOf(s)) {
		o.hasForeign = true
		if !state.Running {
			o.ended = append(o.ended, c)
		}
		return false
	}
	c.isProven = isComparable && !isEarlier(readingOf(s))
	return true
}

// drop drops the snapshot of a pod.
func (o *ownership) drop(pod *podReport) {
	pod.snapshot, pod.changed = nil, true
	o.dropped = true
}

// canCompare reports whether the start in the API server is known, and is not by a clock that was set
// back before this process has seen it.
func (n *node) canCompare(state ContainerState, now usage.Time) bool {
	start := state.EarliestStart
	return start != 0 && (start.Sub(now) <= usage.MaxLead || start < n.clock.maxShown)
}

// mayHaveMoved reports whether the start time of a container may have moved to an earlier time, because
// the node's clock was set back after the container had started.
func (n *node) mayHaveMoved(r reading, state ContainerState, now usage.Time) bool {
	return state.PodCreatedAt <= n.clock.setBackAt && n.clock.showedTwice(r.startedAt, now)
}

// startedBeforeJump reports whether a container started before the node's clock was set back, as that
// clock has not shown its start since, but the pod in the API server was created after that.
func (n *node) startedBeforeJump(r reading, state ContainerState, now usage.Time) bool {
	return state.PodCreatedAt > n.clock.setBackAt && now.Add(usage.StartMargin) < r.startedAt && now < n.clock.maxShown
}

// usedTooMuch reports whether a counter is above what the node can have used since a container's
// start in the API server, or since its pod was created there, if that is longer ago: a node's clock
// may have been ahead when the container started. The margin also covers a clock that was set back by
// up to usage.MaxLead.
func (n *node) usedTooMuch(r reading, state ContainerState, a *arrival) bool {
	age := a.at.Add(n.clock.offset()).Sub(state.EarliestStart)
	if state.PodCreatedAt != 0 {
		age = max(age, a.at.Sub(state.PodCreatedAt))
	}
	limit := (age.Seconds()*1.1 + 2*usage.MaxLead.Seconds()) * float64(a.capacity) / 1e9
	return a.capacity != 0 && age <= runsOnFor && r.CPUSeconds > limit
}

// dropContainers drops containers, which are in the order of n.containers, from their pods.
func (n *node) dropContainers(ended []*container) {
	if len(ended) == 0 {
		return
	}
	n.containers = slices.DeleteFunc(n.containers, func(c *container) bool {
		if len(ended) == 0 || c != ended[0] {
			return false
		}
		n.endContainer(c)
		ended = ended[1:]
		return true
	})
	n.groupByPod()
}
