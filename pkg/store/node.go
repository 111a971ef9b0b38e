package store

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"unique"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

type podKey struct{ namespace, name string }

type containerKey struct {
	podKey
	container string
}

func keyOf(s *usage.ContainerSample) containerKey {
	return containerKey{podKey{string(s.Namespace), string(s.Pod)}, string(s.Name)}
}

// node is the state of one node.
type node struct {
	name     string
	config   *Config
	snapshot atomic.Pointer[usage.Node]
	pods     atomic.Pointer[podSnapshots]

	mu         sync.Mutex // held by all writers; guards the fields below
	clock      nodeClock
	series     series
	containers []*container   // in the order of the last scrape
	reported   []*reportedPod // the pods that they belong to, sorted by hash

	// completeAt is when the last scrape arrived. It is 0 if there was none, if that did not mention every container of
	// the node, if not all of them were stored, or if it is too long ago.
	completeAt usage.Time
	capacity   capacity
	lost       usage.Loss // why the last sample of the node could not be used

	// ended has the last counter of each container that a scrape did not mention. removed has the
	// times at which RemovePod removed pods. An entry is dropped by the first scrape that is more
	// than rememberFor later; for removed, see forgetRemoved and maxRemoved.
	ended       map[containerKey]endedContainer
	removed     map[podKey]usage.Time
	mayRemember int // removals before removePod looks for old ones, if more than maxRemoved
}

// seed is random: otherwise, someone could choose names with equal hashes.
var seed = maphash.MakeSeed()

func (k podKey) hash() uint32 { return uint32(maphash.Comparable(seed, k)) }

// reportedPod is what one node reports of one pod.
type reportedPod struct {
	key           podKey
	containers    []*container // sorted by name
	snapshot      *usage.Pod   // the last complete one; nil: there was none
	hash          uint32       // of the key
	changed       bool         // whether the containers or their Amounts have changed since the snapshot
	awaitsRestart bool         // whether one of the containers does, see node.awaitsRestart
	lost          usage.Loss   // why one of the containers had no usable sample in the last scrape
	lostOf        *container   // that container, if lost is set; of several, the one with the oldest Amount
}

// container is one container of a pod.
type container struct {
	pod  *reportedPod
	name unique.Handle[string] // keeps a container in the size class of 128 bytes (TestSizeOfContainers)
	series
	isOmitted bool // whether the last scrape did not mention it
}

// amountAt returns when the Amount was sampled; 0: there is none.
func (c *container) amountAt() usage.Time {
	if !c.hasAmount {
		return 0
	}
	return c.asOf
}

func (c *container) key() containerKey { return containerKey{c.pod.key, c.name.Value()} }

func (n *node) containersByKey() map[containerKey]*container {
	known := make(map[containerKey]*container, len(n.containers))
	for _, c := range n.containers {
		known[c.key()] = c
	}
	return known
}

// state returns what the API server shows of a container.
func (n *node) state(k containerKey) usage.ContainerState {
	return n.config.State(n.name, k.namespace, k.name, k.container)
}

// put stores a scrape. The order matters: the clock first, since everything else uses its offset; stale
// samples before matching; completeAt last, since matching reads that of the scrape before.
func (n *node) put(scrape *usage.Scrape, counts *counts) usage.Report {
	jumped := n.clock.observe(scrape, n.config.MaxSampleAge)
	if jumped {
		counts.clockJumps.Add(1)
		n.series.markJumped()
		for _, c := range n.containers {
			c.markJumped()
		}
	}
	a := &arrival{at: scrape.At, clock: &n.clock, config: n.config, counts: counts}
	if scrape.At.Sub(n.completeAt) > n.config.MaxSampleAge {
		n.completeAt = 0
	}
	scrape, hasRemoved := n.withoutStale(scrape)
	n.observeNode(scrape, a)
	matched := n.matchContainers(scrape)
	n.observeContainers(scrape, a)
	n.publishPods(!matched || a.dropped)
	n.completeAt = scrape.At
	if scrape.Partial || hasRemoved || a.hasForeign {
		n.completeAt = 0
	}
	maps.DeleteFunc(n.ended, func(_ containerKey, e endedContainer) bool { return scrape.At.Sub(e.at) > rememberFor })
	n.forgetRemoved(scrape.At)
	return usage.Report{
		Missing: n.missing(a), ClockOffset: n.clock.offset(), ClockKnown: n.clock.known, ClockJumped: jumped,
		Exceeded: n.capacity.shown,
	}
}

// observeNode adds the sample of the node itself, and sets the capacity for all samples of the scrape.
func (n *node) observeNode(scrape *usage.Scrape, a *arrival) {
	a.capacity = n.capacity.limit(scrape.Capacity)
	hasNew := n.series.observe(&scrape.Node, a)
	if n.capacity.learn(hasNew, a) {
		hasNew = n.series.observe(&scrape.Node, a)
	}
	n.lost = a.lost
	if hasNew {
		n.publishNode()
	}
}

// observeContainers adds the samples of a scrape, after matchContainers.
func (n *node) observeContainers(scrape *usage.Scrape, a *arrival) {
	for _, r := range n.reported {
		r.lost, r.awaitsRestart = usage.NotLost, false
	}
	for _, c := range n.containers[len(scrape.Containers):] { // see mayRun
		c.isOmitted = true
		c.pod.awaitsRestart = c.pod.awaitsRestart || n.awaitsRestart(c, a)
	}
	for i := range scrape.Containers {
		c, s := n.containers[i], &scrape.Containers[i].Sample
		a.wasAway, c.isOmitted = c.isOmitted, false
		// In the steady state, a sample is of the pod in the API server because the previous one is. After one that was
		// refused, it may follow that, which may be of another pod. While the clock is ambiguous, the check would reject
		// it anyway if a pod of the name was removed, so one refused sample would cost the pod its metrics.
		staysProven := c.sampled && c.isProven && s.StartedAt == c.prev.startedAt &&
			(!c.hasRefused() || n.clock.isAmbiguous(a.at))
		if !staysProven && !n.checkOwner(c, s, a) {
			s, c.isNew = &usage.Sample{Loss: usage.LostOwner}, false
		}
		if c.observe(s, a) {
			c.pod.changed = true
		} else {
			c.pod.awaitsRestart = c.pod.awaitsRestart || n.awaitsRestart(c, a)
		}
		if a.lost != usage.NotLost && (c.pod.lost == usage.NotLost || c.amountAt() < c.pod.lostOf.amountAt()) {
			c.pod.lost, c.pod.lostOf = a.lost, c
		}
	}
	if len(a.foreign) > 0 {
		n.containers = slices.DeleteFunc(n.containers, func(c *container) bool {
			if len(a.foreign) == 0 || c != a.foreign[0] {
				return false
			}
			n.endContainer(c, a.at)
			a.foreign = a.foreign[1:]
			return true
		})
		n.groupByPod()
	}
}

// awaitsRestart reports whether a container waits for its restart, or was restarted since its Amount was sampled,
// according to the API server. The start of a container that is much later is by a clock that was set back.
func (n *node) awaitsRestart(c *container, a *arrival) bool {
	if !c.hasAmount {
		return false
	}
	state := n.state(c.key())
	if state.Alive && !state.Running {
		return true
	}
	since := state.StartedAt.Sub(c.amount.At)
	isLater := since > 0 && since < max(usage.MaxLead, n.config.MaxSampleAge)
	return isLater && !c.untimed && !n.clock.isAmbiguous(a.at)
}

// putSummary applies the kubelet-reported rates of a summary to the node and to the containers that
// have no Amount.
func (n *node) putSummary(summary *usage.Scrape) []usage.Missing {
	a := &arrival{at: summary.At, capacity: n.capacity.limit(summary.Capacity), clock: &n.clock, config: n.config}
	if n.series.applyKubeletRate(&summary.Node, a) {
		n.publishNode()
	}
	known := n.containersByKey()
	for i := range summary.Containers {
		s := &summary.Containers[i]
		if c := known[keyOf(s)]; c != nil && c.applyKubeletRate(&s.Sample, a) {
			c.pod.changed = true
		}
	}
	n.publishPods(false)
	return n.missing(a)
}

// missing describes what needs another sample soon: the node itself, if its kubelet reports it, and containers.
func (n *node) missing(a *arrival) []usage.Missing {
	var missing []usage.Missing
	if n.series.sampled && n.series.isMissing(a) {
		missing = append(missing, n.series.missing(a))
	}
	for _, c := range n.containers {
		if c.isMissing(a) {
			missing = append(missing, c.missing(a))
		}
	}
	return missing
}
