package store

import (
	"maps"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// rememberFor is how long containers that ended and pods that were removed are remembered, so that
// they are not considered new if they are reported again: no response takes longer to arrive, unless
// --max-sample-age is above 4 minutes.
const rememberFor = 2 * time.Minute

// maxRemoved is the number of remembered removals when those older than rememberFor are dropped
// even without a scrape. The scrapes of a node may fail for days while pods on it come and go.
const maxRemoved = 1024

type endedContainer struct {
	cpuSeconds float64
	at         usage.Time // when a scrape no longer mentioned it
}

// withoutStale returns the scrape without the samples from before the removal of their pod, and without leftovers of
// containers that have ended. It reports whether there were some of removed pods.
func (n *node) withoutStale(scrape *usage.Scrape) (current *usage.Scrape, hasRemoved bool) {
	for i := range scrape.Containers {
		if s := &scrape.Containers[i]; n.isOfRemoved(s, scrape) || n.isLeftover(s) { // rarely
			filtered := *scrape
			filtered.Containers = slices.DeleteFunc(slices.Clone(scrape.Containers), func(s usage.ContainerSample) bool {
				isOfRemoved := n.isOfRemoved(&s, scrape)
				hasRemoved = hasRemoved || isOfRemoved
				return isOfRemoved || n.isLeftover(&s)
			})
			return &filtered, hasRemoved
		}
	}
	return scrape, false
}

// isLeftover reports whether a container has neither CPU nor memory and does not run according to the API
// server: kubelets may report the start time of a container long after it ended.
func (n *node) isLeftover(s *usage.ContainerSample) bool {
	return s.Has&(usage.HasCPU|usage.HasMemory) == 0 && !n.state(keyOf(s)).Running
}

// isOfRemoved reports whether a sample belongs to a removed pod, because it was requested or taken
// before the removal. A later pod with the same name must not inherit it. The margin of dateUnit allows
// for the error of sampledAt.
func (n *node) isOfRemoved(s *usage.ContainerSample, scrape *usage.Scrape) bool {
	if len(n.removed) == 0 {
		return false
	}
	at, ok := n.removed[keyOf(s).podKey]
	return ok && (sentAt(scrape) < at ||
		s.Has&usage.HasCPU != 0 && n.clock.sampledAt(&s.Sample, scrape.At) < at.Add(dateUnit))
}

// wasOverlooked reports whether an unknown container may have been running already: its pod was
// removed, or an earlier scrape had it, and its counter has not fallen since. Its start time is then
// unreliable.
func (n *node) wasOverlooked(key containerKey, s *usage.ContainerSample) bool {
	if _, ok := n.removed[key.podKey]; ok {
		return true
	}
	e, ok := n.ended[key]
	return ok && (s.Has&usage.HasCPU == 0 || s.CPUSeconds >= e.cpuSeconds)
}

// endContainer notes that a container is no longer part of its pod. It remembers the readings of at
// most MaxContainers containers.
func (n *node) endContainer(c *container, now usage.Time) {
	if len(n.ended) < n.config.MaxContainers {
		n.ended[c.key()] = endedContainer{c.prev.CPUSeconds, now}
	}
	c.pod.changed = true
}

// removePod drops a pod that the API server deleted, and prevents the samples that its kubelet
// still reports from bringing it back.
func (n *node) removePod(key podKey, at usage.Time) {
	if before := len(n.removed); before >= max(maxRemoved, n.mayRemember) {
		n.forgetRemoved(at)
		n.mayRemember = 2 * len(n.removed) // so each removal looks at two of them on average
		if len(n.removed) < before {
			n.completeAt = 0 // a forgotten pod that is reported again would seem to be new
		}
	}
	n.removed[key] = at // what n.ended has of the pod does not count as long as this
	if n.reportedPod(key) == nil {
		return
	}
	n.reported = slices.DeleteFunc(n.reported, func(r *reportedPod) bool { return r.key == key })
	n.containers = slices.DeleteFunc(n.containers, func(c *container) bool { return c.pod.key == key })
	n.publishPods(true)
}

// forgetRemoved forgets the pods that were removed more than rememberFor ago. Ambiguous start times do not distinguish
// a removed pod from the next one, so removed pods are then remembered for maxAmbiguity longer, and not for as long as
// start times are ambiguous: that is for ever if a clock is set back again and again.
func (n *node) forgetRemoved(now usage.Time) {
	keep := rememberFor
	if n.clock.isAmbiguous(now) {
		keep += maxAmbiguity
	}
	forgetBefore(n.removed, now.Add(-keep))
}

// forgetBefore forgets what was removed before a time.
func forgetBefore[K comparable](removed map[K]usage.Time, t usage.Time) {
	maps.DeleteFunc(removed, func(_ K, at usage.Time) bool { return at < t })
}
