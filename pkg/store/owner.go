package store

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// A pod that was deleted by force may still run when the next pod of its name starts on the same
// node. Until the kubelet has killed it, each response has the samples of either of them, under the
// same names, or the start time of one with the counter of the other. No container of the new pod
// started before that pod did, by the status in the API server, or used more than the node has had
// since. Until the API server shows a start, all samples are of the removed pod.
//
// Some kubelets report the creation of the pod as the start of its containers (virtual-kubelet/azure-aci#567),
// which is before the pod's start. So an earlier start proves another pod only if one of that name is known.

// runsOnFor is longer than a deleted pod runs beside the next one of its name. The counter of an older
// container proves nothing: the node may have had more CPUs before.
const runsOnFor = time.Hour

// accept compares the sample of a container with the start in the API server, and returns why it cannot
// be of the pod in the API server, if so. It drops what was stored of another pod while the API server
// did not show a start, and notes in the arrival a container that is of another pod only.
func (n *node) accept(c *container, s *usage.Sample, a *arrival) usage.Loss {
	state := n.state(c.key())
	_, isRemoved := n.removed[c.pod.key]
	isAmbiguous := n.clock.isAmbiguous(a.at)
	// The next pod of the name has not started, or start times are ambiguous.
	runsOn := isRemoved && (isAmbiguous || !state.Running && state.EarliestStart == 0)
	now := n.clock.nodeTime(a.at)
	// The start is known, and is not by a clock that was set back before this process has seen it.
	isComparable := state.EarliestStart != 0 && (isAmbiguous || state.EarliestStart.Sub(now) <= usage.MaxLead)
	startedBefore := func(r reading, t usage.NodeTime) bool {
		return r.startedAt != 0 && r.startedAt < t.Add(-usage.StartMargin)
	}
	earliest := state.EarliestStart
	if hasOther := isRemoved || c.isProven && !startedBefore(c.prev, earliest); !hasOther {
		earliest = state.earliestOfOnly(a.at)
	}
	if isAmbiguous { // the start of a running container may have moved since the clock was set back
		earliest = min(earliest, now.Add(-maxAmbiguity))
	}
	isEarlier := func(r reading) bool { return startedBefore(r, earliest) }
	lossOf := func(r reading) usage.Loss {
		switch {
		case runsOn, isComparable && isEarlier(r):
			return usage.LostOwner
		case isComparable && usedTooMuch(r, state, a, now): // or the capacity is too low
			return usage.LostExcess
		}
		return usage.NotLost
	}
	if c.sampled && !c.isProven {
		if lossOf(c.prev) != usage.NotLost || state.EarliestStart == 0 && c.startMoved(s) != 0 {
			c.series = series{}
		}
		if !c.sampled || isComparable && !c.hasAmount { // the snapshot may be of another pod, too
			c.pod.snapshot, c.pod.changed, a.dropped = nil, true, true
		}
	}
	if loss := lossOf(readingOf(s)); loss != usage.NotLost {
		a.hasForeign = true
		if !state.Running {
			a.ended, a.dropped = append(a.ended, c), true
		}
		return loss
	}
	c.isProven = isComparable && !isEarlier(readingOf(s))
	c.isNew = c.isNew && s.StartedAt >= state.EarliestStart // a start before the pod's is not its own
	return usage.NotLost
}

// earliestOfOnly returns the time before which no container of a pod can have started, if no other pod of
// its name is known: its creation. Another one may have existed before this process, but does not run on
// for longer than runsOnFor.
func (s *ContainerState) earliestOfOnly(now usage.Time) usage.NodeTime {
	switch {
	case s.PodCreatedAt == 0:
		return s.EarliestStart
	case now.Sub(s.PodCreatedAt) > runsOnFor:
		return 0
	}
	return min(s.EarliestStart, usage.NodeTime(s.PodCreatedAt)) // which is what such kubelets report
}

// usedTooMuch reports whether a counter is above what the node can have used since a container's
// start in the API server, or since its pod was created there, if that is longer ago: a node's clock
// may have been ahead when the container started. The margin also covers a clock that was set back by
// up to usage.MaxLead.
func usedTooMuch(r reading, state ContainerState, a *arrival, now usage.NodeTime) bool {
	age := now.Sub(state.EarliestStart)
	if state.PodCreatedAt != 0 {
		age = max(age, a.at.Sub(state.PodCreatedAt))
	}
	limit := (age.Seconds()*1.1 + 2*usage.MaxLead.Seconds()) * float64(a.capacity) / 1e9
	return a.capacity != 0 && age <= runsOnFor && r.CPUSeconds > limit
}
