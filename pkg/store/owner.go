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

// podStart is what is known of the start of a container's pod in the API server, when a response arrives.
type podStart struct {
	state    usage.ContainerState
	now      usage.NodeTime // what the node's clock shows
	earliest usage.NodeTime // no container of the pod can have started before
	// The start is known, and, unless the clock is ambiguous, at most usage.MaxLead ahead of it: a later one is by a
	// clock that was set back since, by more than maxAmbiguity or before this process has seen it.
	isComparable bool
	// Another pod of the name was removed, and the samples may be of that: this one has not started, or start times are
	// ambiguous.
	mayBeOther bool
}

// podStart returns what is known of the start of a container's pod.
func (n *node) podStart(c *container, a *arrival) podStart {
	p := podStart{state: n.state(c.key()), now: n.clock.nodeTime(a.at)}
	_, isRemoved := n.removed[c.pod.key]
	isAmbiguous := n.clock.isAmbiguous(a.at)
	p.mayBeOther = isRemoved && (isAmbiguous || !p.state.Running && p.state.EarliestStart == 0)
	p.isComparable = p.state.EarliestStart != 0 && (isAmbiguous || p.state.EarliestStart.Sub(p.now) <= usage.MaxLead)
	p.earliest = p.state.EarliestStart
	// A proven sample with a start that is not earlier shows that this kubelet reports starts of containers, not the
	// pod's creation.
	isShown := c.isProven && c.prev.startedAt != 0 && !c.prev.startedBefore(p.state.EarliestStart)
	if !isRemoved && !isShown {
		p.earliest = earliestOfOnly(&p.state, a.at)
	}
	if isAmbiguous { // the kubelet may report a start by the clock after the step, the API server shows that before
		p.earliest = min(p.earliest, p.now.Add(-maxAmbiguity))
	}
	return p
}

// startedBefore reports whether a container started before a time, by more than the margin.
func (r *reading) startedBefore(t usage.NodeTime) bool {
	return r.startedAt != 0 && r.startedAt < t.Add(-usage.StartMargin)
}

// excludes reports whether a reading is of another pod, or may be.
func (p *podStart) excludes(r reading, a *arrival) bool {
	return p.mayBeOther || p.isComparable && (r.startedBefore(p.earliest) || p.usedTooMuch(r, a))
}

// checkOwner reports whether the sample of a container counts as one of the pod in the API server. It drops what was
// stored of another pod while the API server did not show a start, and notes in the arrival a container that is of
// another pod only.
func (n *node) checkOwner(c *container, s *usage.Sample, a *arrival) bool {
	start := n.podStart(c, a)
	if c.sampled && !c.isProven {
		maybeMoved := start.state.EarliestStart == 0 && c.startMoved(s) != 0
		dropsSeries := maybeMoved || start.excludes(c.prev, a)
		dropsSnapshot := dropsSeries || start.isComparable && !c.hasAmount // it may be of another pod, too
		if dropsSeries {
			c.series = series{}
		}
		if dropsSnapshot {
			c.pod.snapshot, c.pod.changed, a.dropped = nil, true, true
		}
	}
	cur := readingOf(s)
	if start.excludes(cur, a) {
		a.hasForeign = true
		if !start.state.Running {
			a.foreign, a.dropped = append(a.foreign, c), true
		}
		return false
	}
	c.isProven = start.isComparable && !cur.startedBefore(start.earliest)
	c.isNew = c.isNew && s.StartedAt >= start.state.EarliestStart // a start before the pod's is not its own
	return true
}

// earliestOfOnly returns the time before which no container of a pod can have started, if no other pod of
// its name is known: its creation. Another one may have existed before this process, but does not run on
// for longer than runsOnFor.
func earliestOfOnly(s *usage.ContainerState, now usage.Time) usage.NodeTime {
	switch {
	case s.PodCreatedAt == 0:
		return s.EarliestStart
	case now.Sub(s.PodCreatedAt) > runsOnFor:
		return 0
	}
	return min(s.EarliestStart, s.PodCreatedAt.ByClock(0)) // which is what such kubelets report
}

// usedTooMuch reports whether a counter is above what the node can have used since a container's
// start in the API server, or since its pod was created there, if that is longer ago: a node's clock
// may have been ahead when the container started. The margin also covers a clock that was set back by
// up to usage.MaxLead. Either the counter is that of another pod, or the capacity is too low.
func (p *podStart) usedTooMuch(r reading, a *arrival) bool {
	age := p.now.Sub(p.state.EarliestStart)
	if p.state.PodCreatedAt != 0 {
		age = max(age, a.at.Sub(p.state.PodCreatedAt))
	}
	limit := (age.Seconds()*1.1 + 2*usage.MaxLead.Seconds()) * float64(a.capacity) / 1e9
	return a.capacity != 0 && age <= runsOnFor && r.CPUSeconds > limit
}
