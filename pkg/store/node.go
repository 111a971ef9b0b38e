package store

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
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
	snapshot atomic.Pointer[usage.Node]
	pods     atomic.Pointer[podSnapshots]

	mu         sync.Mutex // held by all writers; guards the fields below
	clock      nodeClock
	series     series
	containers []*container // in the order of the last scrape
	reports    []*podReport // the pods that they belong to, sorted by hash

	// lastComplete is set if the last scrape mentioned every container of the node, and all of them
	// were stored.
	lastComplete bool

	// ended has the last counter of each container that a scrape did not mention. removed has the
	// times at which RemovePod removed pods. An entry is dropped by the first scrape that is more
	// than rememberFor later; for removed, see also maxRemoved.
	ended   map[containerKey]endedContainer
	removed map[podKey]usage.Time
}

// podSnapshots are the snapshots of a node's pods. It is immutable. Consecutive ones share the
// hashes.
type podSnapshots struct {
	hashes []uint32     // of the keys of the pods, sorted
	all    []*usage.Pod // in the same order; nil: the pod was never complete
}

// seed is random: otherwise, someone could choose names with equal hashes.
var seed = maphash.MakeSeed()

func (k podKey) hash() uint32 { return uint32(maphash.Comparable(seed, k)) }

var noSnapshots = &podSnapshots{}

// published returns the latest snapshots of a node. A nil node has none.
func (n *node) published() *podSnapshots {
	if n == nil {
		return noSnapshots
	}
	if s := n.pods.Load(); s != nil {
		return s
	}
	return noSnapshots
}

// find returns the position of the first hash that is not less. Hashes are evenly distributed, so it
// is a few steps from where it would be if they had equal distances.
func (s *podSnapshots) find(hash uint32) int {
	i := int(uint64(hash) * uint64(len(s.hashes)) >> 32)
	for i > 0 && s.hashes[i-1] >= hash {
		i--
	}
	for i < len(s.hashes) && s.hashes[i] < hash {
		i++
	}
	return i
}

// get returns the snapshot of a pod with that hash, or nil. The position is what find returned.
func (s *podSnapshots) get(key podKey, hash uint32, position int) *usage.Pod {
	for i := position; i < len(s.hashes) && s.hashes[i] == hash; i++ {
		if p := s.all[i]; p != nil && p.Name == key.name && p.Namespace == key.namespace {
			return p
		}
	}
	return nil
}

// podReport is what one node reports of one pod.
type podReport struct {
	key        podKey
	containers []*container // sorted by name
	snapshot   *usage.Pod   // the last complete one; nil: there was none
	lastSeen   usage.Time   // when a scrape last mentioned the pod, by our clock
	hash       uint32       // of the key
	changed    bool         // whether the containers or their Amounts have changed since the snapshot
}

// container is one container of a pod.
type container struct {
	pod  *podReport
	name unique.Handle[string] // 8 bytes less than the string: one more word would need 16 more bytes
	series
	lastSeen usage.Time // when a scrape last mentioned it, by our clock
}

// rememberFor is how long containers that ended and pods that were removed are remembered, so that
// they are not considered new if they are reported again.
const rememberFor = 2 * time.Minute

// maxRemoved is the number of remembered removals at which those older than rememberFor are dropped
// even without a scrape. The scrapes of a node may fail for days while pods on it come and go.
const maxRemoved = 1024

type endedContainer struct {
	cpuSeconds float64
	at         usage.Time // when a scrape last mentioned it, by our clock
}

// matches reports whether a sample is of c.
func (c *container) matches(s *usage.ContainerSample) bool {
	return c.name.Value() == string(s.Name) && c.pod.key.name == string(s.Pod) &&
		c.pod.key.namespace == string(s.Namespace)
}

func (c *container) key() containerKey { return containerKey{c.pod.key, c.name.Value()} }

// put stores a scrape.
func (n *node) put(scrape *usage.Scrape, config Config, counts *counts) usage.Report {
	jumped := n.clock.observe(scrape, config.MaxSampleAge)
	if jumped {
		counts.clockJumps.Add(1)
		n.series.markSuspect()
		for _, c := range n.containers {
			c.markSuspect()
		}
	}
	a := &arrival{
		at: scrape.At, capacity: scrape.Capacity, maxAge: config.MaxSampleAge, rateWindow: config.RateWindow,
		clock: &n.clock, proves: config.State != nil, jumped: jumped,
	}
	reported := len(scrape.Containers)
	scrape = n.withoutStale(scrape, config)
	if n.series.observe(scrape.Node, a, counts) {
		n.publishNode()
	}
	matched := n.matchContainers(scrape, config)
	owners := n.observeContainers(scrape, a, config, counts)
	n.publishPods(!matched || owners.dropped || len(owners.ended) > 0)
	n.lastComplete = !scrape.Partial && len(scrape.Containers) == reported && !owners.hasForeign
	maps.DeleteFunc(n.ended, func(_ containerKey, e endedContainer) bool { return scrape.At.Sub(e.at) > rememberFor })
	n.forgetRemoved(scrape.At)
	return usage.Report{
		Missing: n.missing(a), ClockOffset: n.clock.offset(), ClockKnown: n.clock.known, ClockJumped: jumped,
	}
}

// withoutStale returns the scrape without the containers that no longer exist.
func (n *node) withoutStale(scrape *usage.Scrape, config Config) *usage.Scrape {
	isStale := func(s *usage.ContainerSample) bool {
		return n.hasEnded(s, config) || n.isOfRemovedPod(s, scrape)
	}
	first := 0
	for first < len(scrape.Containers) && !isStale(&scrape.Containers[first]) {
		first++
	}
	if first == len(scrape.Containers) { // the steady state
		return scrape
	}
	filtered := *scrape
	filtered.Containers = slices.DeleteFunc(slices.Clone(scrape.Containers), func(s usage.ContainerSample) bool {
		return isStale(&s)
	})
	return &filtered
}

// hasEnded reports whether a container has neither CPU nor memory and does not run according to the
// API server: kubelets may report the start time of a container long after it ended.
func (n *node) hasEnded(s *usage.ContainerSample, config Config) bool {
	return s.Has&(usage.HasCPU|usage.HasMemory) == 0 && config.State != nil && !config.isRunning(n.name, keyOf(s))
}

// isOfRemovedPod reports whether a sample belongs to a removed pod, because it was requested or
// taken before the removal. A later pod with the same name must not inherit it. The margin of
// dateUnit allows for the error of ourTime.
func (n *node) isOfRemovedPod(s *usage.ContainerSample, scrape *usage.Scrape) bool {
	if len(n.removed) == 0 {
		return false
	}
	at, ok := n.removed[keyOf(s).podKey]
	return ok && (sentAt(scrape) < at || n.clock.ourTime(&s.Sample, scrape.At) < at.Add(dateUnit))
}

func (n *node) publishNode() {
	n.snapshot.Store(&usage.Node{Name: n.name, Amount: n.series.amount, AsOf: n.series.asOf})
}

// matchContainers sorts n.containers into the order of the scrape: first those that it mentions,
// one for one, then those that it does not mention but that may still run. It reports whether they
// matched already, which is the steady state.
func (n *node) matchContainers(scrape *usage.Scrape, config Config) (unchanged bool) {
	if n.isInOrder(scrape) {
		return true
	}
	known := make(map[containerKey]*container, len(n.containers))
	for _, c := range n.containers {
		known[c.key()] = c
	}
	reports := make(map[podKey]*podReport, len(n.reports))
	for _, r := range n.reports {
		reports[r.key] = r
	}

	old := n.containers
	n.containers = make([]*container, 0, len(scrape.Containers))
	mentioned := make(map[*container]bool, len(scrape.Containers))
	mentionedPods := make(map[*podReport]bool, len(n.reports))
	for i := range scrape.Containers {
		c := n.getOrCreateContainer(&scrape.Containers[i], known, reports)
		n.containers = append(n.containers, c)
		mentioned[c], mentionedPods[c.pod] = true, true
	}
	for _, c := range old {
		switch {
		case mentioned[c]:
		case scrape.Partial && len(n.containers) < config.MaxContainers &&
			n.mayRun(c, mentionedPods[c.pod], scrape.At, config):
			n.containers = append(n.containers, c)
		default:
			n.endContainer(c, config.MaxContainers)
		}
	}
	n.groupByPod()
	return false
}

// groupByPod assigns n.containers to their pods, drops pods without containers, and sorts the pods.
// It sorts each pod's containers once: the time must not grow with the square of their number.
func (n *node) groupByPod() {
	for _, r := range n.reports {
		clear(r.containers)
		r.containers = r.containers[:0]
	}
	for _, c := range n.containers {
		c.pod.containers = append(c.pod.containers, c)
	}
	n.reports = slices.DeleteFunc(n.reports, func(r *podReport) bool { return len(r.containers) == 0 })
	slices.SortFunc(n.reports, func(a, b *podReport) int { return cmp.Compare(a.hash, b.hash) })
	for _, r := range n.reports {
		slices.SortFunc(r.containers, func(a, b *container) int { return strings.Compare(a.name.Value(), b.name.Value()) })
	}
}

// mayRun reports whether a container that a partial scrape does not mention may still run. If the
// scrape mentions others of its pod, the API server decides: if the container runs, its lines are
// the unreadable ones, and the pod is incomplete without it. If the scrape does not mention the pod
// at all, all of its containers stay, and expire together.
func (n *node) mayRun(c *container, podMentioned bool, now usage.Time, config Config) bool {
	switch {
	case !podMentioned:
		return now.Sub(c.pod.lastSeen) <= config.MaxSampleAge
	case config.State != nil:
		return config.isRunning(n.name, c.key())
	}
	return now.Sub(c.lastSeen) <= config.MaxSampleAge
}

// isInOrder reports whether the scrape mentions exactly the containers of n, in the same order.
func (n *node) isInOrder(scrape *usage.Scrape) bool {
	if len(n.containers) != len(scrape.Containers) {
		return false
	}
	for i, c := range n.containers {
		if !c.matches(&scrape.Containers[i]) {
			return false
		}
	}
	return true
}

// getOrCreateContainer returns the container of a sample. It creates the container and its pod if
// they are unknown; groupByPod then adds the container to the pod.
func (n *node) getOrCreateContainer(
	s *usage.ContainerSample, known map[containerKey]*container, reports map[podKey]*podReport,
) *container {
	key := keyOf(s)
	if c := known[key]; c != nil {
		return c
	}
	pod := reports[key.podKey]
	if pod == nil {
		pod = &podReport{key: podKey{intern(s.Namespace).Value(), key.name}, hash: key.hash()}
		reports[pod.key] = pod
		n.reports = append(n.reports, pod)
	}
	c := &container{pod: pod, name: intern(s.Name)}
	c.isNew = n.lastComplete && !n.wasOverlooked(key, s)
	delete(n.ended, key)
	known[key] = c
	return c
}

// wasOverlooked reports whether an unknown container may have been running already: its pod was
// removed, or a scrape no longer mentioned it and its counter has not fallen since. Its start time
// is then unreliable.
func (n *node) wasOverlooked(key containerKey, s *usage.ContainerSample) bool {
	if _, ok := n.removed[key.podKey]; ok {
		return true
	}
	e, ok := n.ended[key]
	return ok && s.CPUSeconds >= e.cpuSeconds
}

// intern returns the handle of a string that is stored once for all its users. Few different names of
// namespaces and containers exist, compared to those of pods.
func intern(name []byte) unique.Handle[string] { return unique.Make(string(name)) }

// endContainer notes that a container is no longer part of its pod. It remembers the readings of at
// most maxRemembered containers.
func (n *node) endContainer(c *container, maxRemembered int) {
	if c.sampled && len(n.ended) < maxRemembered {
		if n.ended == nil {
			n.ended = map[containerKey]endedContainer{}
		}
		n.ended[c.key()] = endedContainer{c.prev.cpuSeconds, c.lastSeen}
	}
	c.pod.changed = true
}

// observeContainers adds the samples of a scrape, after matchContainers.
func (n *node) observeContainers(scrape *usage.Scrape, a *arrival, config Config, counts *counts) ownership {
	var o ownership
	for i := range scrape.Containers {
		c, s := n.containers[i], scrape.Containers[i].Sample
		c.lastSeen, c.pod.lastSeen = a.at, a.at
		if config.State != nil && !c.isProvenBy(&s) && !o.prove(n, c, &s, a, config) {
			s, c.isNew = usage.Sample{}, false
		}
		if c.observe(s, a, counts) {
			c.pod.changed = true
		}
	}
	n.dropContainers(o.ended, config)
	return o
}

// putSummary applies the kubelet-reported rates of a summary to the node and to the containers that
// have no Amount. A kubelet that does not know the rates reports 0 for all containers. If one rate
// is above 0, the others are real, too.
func (n *node) putSummary(summary *usage.Scrape, config Config) []usage.Missing {
	a := &arrival{at: summary.At, capacity: summary.Capacity, maxAge: config.MaxSampleAge, clock: &n.clock}
	if n.series.applyKubeletRate(summary.Node, false, a) {
		n.publishNode()
	}
	known := make(map[containerKey]*container, len(n.containers))
	for _, c := range n.containers {
		known[c.key()] = c
	}
	zeroIsReal := slices.ContainsFunc(summary.Containers, func(s usage.ContainerSample) bool {
		c := known[keyOf(&s)]
		return c != nil && s.Has&usage.HasRate != 0 && s.Rate > 0 && c.repeats(s.Sample)
	})
	for i := range summary.Containers {
		s := &summary.Containers[i]
		if c := known[keyOf(s)]; c != nil && c.applyKubeletRate(s.Sample, zeroIsReal, a) {
			c.pod.changed = true
		}
	}
	n.publishPods(false)
	return n.missing(a)
}

// missing describes what has no Amount: the node itself, if its kubelet reports it, and containers.
func (n *node) missing(a *arrival) []usage.Missing {
	var missing []usage.Missing
	if n.series.sampled && !n.series.hasAmount {
		missing = append(missing, n.series.missing(a))
	}
	for _, c := range n.containers {
		if !c.hasAmount {
			missing = append(missing, c.missing(a))
		}
	}
	return missing
}

// removePod drops a pod that the API server deleted, and prevents the samples that its kubelet
// still reports from bringing it back.
func (n *node) removePod(key podKey, at usage.Time) {
	if n.removed == nil {
		n.removed = map[podKey]usage.Time{}
	}
	if len(n.removed) >= maxRemoved {
		n.forgetRemoved(at)
		n.lastComplete = false // a forgotten pod that is reported again would seem to be new
	}
	n.removed[key] = at
	maps.DeleteFunc(n.ended, func(k containerKey, _ endedContainer) bool { return k.podKey == key })
	before := len(n.reports)
	n.reports = slices.DeleteFunc(n.reports, func(r *podReport) bool { return r.key == key })
	if len(n.reports) == before {
		return
	}
	n.containers = slices.DeleteFunc(n.containers, func(c *container) bool { return c.pod.key == key })
	n.publishPods(true)
}

// forgetRemoved forgets the pods that were removed more than rememberFor ago.
func (n *node) forgetRemoved(now usage.Time) {
	maps.DeleteFunc(n.removed, func(_ podKey, at usage.Time) bool { return now.Sub(at) > rememberFor })
}

// publishPods publishes new snapshots. reindex is set if pods were added or removed.
func (n *node) publishPods(reindex bool) {
	ready := make([]*podReport, 0, len(n.reports))
	for _, r := range n.reports {
		if r.isReady() {
			ready = append(ready, r)
		}
	}
	if len(ready) == 0 && !reindex {
		return
	}
	for batch := range slices.Chunk(ready, batchSize) {
		snapshotBatch(batch, &n.clock)
	}
	next := &podSnapshots{all: make([]*usage.Pod, len(n.reports))}
	for i, r := range n.reports {
		next.all[i] = r.snapshot
	}
	// After a panic that was recovered, the pods may have changed without a new index.
	if current := n.pods.Load(); !reindex && current != nil && len(current.hashes) == len(n.reports) {
		next.hashes = current.hashes
	} else {
		next.hashes = make([]uint32, len(n.reports))
		for i, r := range n.reports {
			next.hashes[i] = r.hash
		}
	}
	n.pods.Store(next)
}

// batchSize is the number of snapshots that share one allocation: thousands of small ones would
// fragment the heap. Most snapshots of a batch are replaced together, by the next scrape. But if a
// kubelet reports nothing new of one pod for long, its snapshot keeps the whole batch in memory.
const batchSize = 32

// snapshotBatch creates the snapshots of pods that are ready.
func snapshotBatch(ready []*podReport, clock *nodeClock) {
	count := 0
	for _, r := range ready {
		count += len(r.containers)
	}
	pods, containers := make([]usage.Pod, len(ready)), make([]usage.Container, count)
	for i, r := range ready {
		k := len(r.containers)
		pods[i].Containers, containers = containers[:k:k], containers[k:]
		pods[i].MaxClockShown, pods[i].ClockJumpedAt = clock.maxShown, clock.jumpedAt
		r.setSnapshot(&pods[i])
	}
}

// isReady reports whether a new snapshot is possible: something has changed, and every container
// has an Amount.
func (r *podReport) isReady() bool {
	return r.changed && !slices.ContainsFunc(r.containers, func(c *container) bool { return !c.hasAmount })
}

// setSnapshot fills p, which has room for the containers, and makes it the last complete snapshot.
func (r *podReport) setSnapshot(p *usage.Pod) {
	p.Namespace, p.Name = r.key.namespace, r.key.name
	for i, c := range r.containers {
		p.Containers[i] = usage.Container{Name: c.name.Value(), Amount: c.amount}
		if i == 0 || c.asOf < p.AsOf || c.asOf == p.AsOf && c.amount.At < p.At {
			p.AsOf, p.At, p.Window = c.asOf, c.amount.At, c.amount.Window
		}
	}
	r.snapshot, r.changed = p, false
}
