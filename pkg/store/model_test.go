package store

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// The numbers of the rules, as docs/numbers.md has them. They repeat those of the store and pkg/usage on purpose:
// a rule that changes in one place only fails.
const (
	minAge          = 10 * time.Second // 4: younger containers have no metrics
	maxMeanAge      = time.Minute      // 4: no mean since the start is served of older containers
	overlookedFor   = 2 * time.Second  // 4: how long before its start a new container may have been reported
	endedFor        = 2 * time.Minute  // 4: how long a container that ended is not new if it is reported again
	startMargin     = 10 * time.Second // 4, 9: how far the start times of one container may differ
	removedFor      = 2 * time.Minute  // 9: how long samples may be of a pod that was deleted
	ownedFor        = time.Hour        // 9: how long a deleted pod may run beside the next one of its name
	maxLead         = time.Minute      // 9: a start that is further ahead of the clock proves nothing
	usedFactor      = 1.1              // 9: a container uses at most this times what the node has,
	usedMargin      = 2 * time.Minute  // 9: and what it has in this time
	ambiguousFor    = 10 * time.Minute // 9: how long, at most, a clock that was set back makes starts ambiguous
	jumpedFor       = time.Minute      // 3: how long after a jump no start time counts
	slewOnce        = 50               // 3: a clock is slewed by less than 1/50 of the time,
	slewTwice       = 10               // 3: or 1/10 if it is by a second step in the same direction
	latestArrival   = 3 * time.Second  // 3: after the Date, which is up to a second too early, a response has arrived
	aheadFor        = time.Hour        // 3: how long after a sample ahead of its clock no sample bounds the offset
	stepsBackAfter  = 3                // 3: older samples in a row after which another series begins
	shortestWindow  = time.Second      // 1: between any two samples
	minCoarseWindow = 10 * time.Second // 1: between times in whole seconds,
	minCoarseShare  = 2. / 3           // 1: or this share of the rate window
	minShare        = 1. / 4           // 1: the shortest window that is served, of the rate window
	denseShare      = 0.6              // 1: samples that are closer are dense, by the rate window
	closeShare      = 0.7              // 1: those that are closer have a wider window once the noise is known
	targetShare     = 1.05             // 1: windows are as close to this share of the rate window as possible
	noiseShare      = 0.03             // 1: a change of the load is above the noise plus this share of the load
	rateFactor      = 1.1              // 10: a rate is at most this times the capacity,
	rateMargin      = 2 * time.Second  // 10: and what the capacity allows in this time
	exceededAfter   = 3                // 10: samples in a row that show that the status is wrong

	// kubeletRateWindow is the window of a kubelet-reported rate of an old container (5).
	kubeletRateWindow = 15 * time.Second
)

// model computes what must be served by the rules of docs/numbers.md (their numbers are in its
// comments). It is slow and obvious, and shares no code with the store or pkg/usage.
type model struct {
	maxAge     time.Duration
	rateWindow time.Duration
	state      func(node string, key containerKey) usage.ContainerState // according to the API server
	nodes      map[string]*modelNode                                    // by name
	counts     Counts
}

// modelNode is what one node reported.
type modelNode struct {
	name           string
	evidence       []evidence // of its clock's offset, since the last jump
	dateless       bool       // whether the last response had no Date header
	jumps          int
	jumpedAt       usage.Time    // 0: never
	highestBefore  time.Duration // the upper bound of the offset before the jump
	ambiguousUntil usage.Time    // when its clock has passed the times that it shows twice; 0: it never was set back
	broken         usage.Time    // when evidence last contradicted the bounds; 0: never, or it was a step
	brokenAbove    bool
	ahead          usage.Time // when a sample was last ahead of its response's Date; 0: never

	lastAt        usage.Time // of the last scrape
	lastComplete  bool       // whether it was complete, and all of its containers were stored
	self, last    metric
	status        uint64   // the capacity in the node's status
	exceeded      uint64   // what the node's counter has shown above it (10)
	excess        []uint64 // rates above the capacity in a row
	containers    map[containerKey]*modelContainer
	ended         map[containerKey]*modelContainer
	removed       map[podKey]usage.Time
	pods          map[podKey]*usage.Pod // the last complete snapshot of each pod of the node (7)
	lost          usage.Loss            // why the last sample could not be used
	lostOf        map[podKey]loss       // the same of a container of each pod
	changed       map[podKey]bool       // whether a container has ended since, or has a new metric
	awaitsRestart map[podKey]bool       // whether a container waits for its restart, or has nothing new since then
}

type modelContainer struct {
	metric
	omitted bool // whether the last scrape did not mention it
	endedAt usage.Time
}

// loss is why the last sample of a container could not be used.
type loss struct {
	why       usage.Loss
	container string
	of        *modelContainer
}

// evidence are the bounds of a clock's offset that one response proves.
type evidence struct {
	at       usage.Time
	min, max time.Duration
}

// report is one response of a kubelet.
type report struct {
	sent, at   usage.Time
	date       usage.NodeTime // in whole seconds; 0: there is none
	capacity   uint64
	summary    bool // whether it is a summary
	partial    bool // whether some of it cannot be read
	node       usage.Sample
	containers []reported // in the order of the response
}

type reported struct {
	key    containerKey
	sample usage.Sample
}

func newModel(maxAge, rateWindow time.Duration, state func(string, containerKey) usage.ContainerState) *model {
	return &model{maxAge: maxAge, rateWindow: rateWindow, state: state, nodes: map[string]*modelNode{}}
}

func (m *model) put(name string, r report) (put usage.Report) {
	n := m.nodes[name]
	if n == nil {
		if r.summary {
			return put
		}
		n = &modelNode{
			name:       name,
			containers: map[containerKey]*modelContainer{}, ended: map[containerKey]*modelContainer{},
			removed: map[podKey]usage.Time{}, pods: map[podKey]*usage.Pod{}, changed: map[podKey]bool{},
		}
		m.nodes[name] = n
	}
	if r.capacity != n.status {
		n.status, n.exceeded, n.excess = r.capacity, 0, nil
	}
	in := &incoming{model: m, node: n, at: r.at, capacity: max(n.status, 2*n.exceeded)}
	if r.summary {
		m.putSummary(n, r, in)
	} else {
		in.jumped = m.watchClock(n, r)
		m.putScrape(n, r, in)
		put = usage.Report{
			ClockOffset: n.offset(), ClockKnown: len(n.evidence) > 0, ClockJumped: in.jumped, Exceeded: n.exceeded,
		}
	}
	if n.self.known {
		n.last = n.self // without a new one, the last one remains
	}
	n.snapshot()
	if n.self.since.Has != 0 && n.self.needsSample(in) {
		put.Missing = append(put.Missing, n.self.missing(in))
	}
	for _, c := range n.containers {
		if c.needsSample(in) {
			put.Missing = append(put.Missing, c.missing(in))
		}
	}
	return put
}

func (m *model) forget(name string) { delete(m.nodes, name) }

// remove drops a pod that the API server deleted (9).
func (m *model) remove(name string, key podKey, now usage.Time) {
	n := m.nodes[name]
	if n == nil {
		return
	}
	n.removed[key] = now
	maps.DeleteFunc(n.containers, func(k containerKey, _ *modelContainer) bool { return k.podKey == key })
	maps.DeleteFunc(n.ended, func(k containerKey, _ *modelContainer) bool { return k.podKey == key })
	delete(n.pods, key)
	delete(n.changed, key)
}

// bounds returns the bounds that all evidence since the last jump sets at a moment, each widened by
// as much as the clock may have been slewed since (3).
func (n *modelNode) bounds(now usage.Time) (lowest, highest time.Duration) {
	lowest, highest = math.MinInt64, math.MaxInt64
	for _, e := range n.evidence {
		slew := now.Sub(e.at) / slewOnce
		lowest, highest = max(lowest, e.min-slew), min(highest, e.max+slew)
	}
	return lowest, highest
}

// offset returns the estimate closest to 0. A response usually arrives soon after its Date was written.
func (n *modelNode) offset() time.Duration {
	if len(n.evidence) == 0 {
		return 0
	}
	lowest, highest := n.bounds(n.evidence[len(n.evidence)-1].at)
	if !n.dateless {
		highest = min(highest, lowest+latestArrival)
	}
	switch {
	case lowest > 0, highest < 0 && n.dateless:
		return lowest
	case highest < 0:
		return highest
	}
	return 0
}

// watchClock adds the evidence of a scrape, and reports whether the clock jumped (3).
func (m *model) watchClock(n *modelNode, r report) (jumped bool) {
	var newest usage.NodeTime
	for _, s := range append([]reported{{sample: r.node}}, r.containers...) {
		if has(s.sample, usage.HasCPU) && !s.sample.Untimed {
			newest = max(newest, s.sample.At)
		}
	}
	e := evidence{r.at, r.date.AheadOf(r.at), r.date.Add(time.Second).AheadOf(r.sent)}
	switch {
	case r.date == 0 && newest == 0:
		return false
	case r.date == 0:
		e.min, e.max = newest.AheadOf(r.at), newest.Add(m.maxAge).AheadOf(r.sent)
	case newest == 0:
	case newest.AheadOf(r.at) > e.max:
		n.ahead = r.at // the samples are from before the clock was set back, or by another clock
	case n.ahead == 0 || r.at.Sub(n.ahead) > aheadFor:
		e.min = max(e.min, newest.AheadOf(r.at))
	}
	n.dateless = r.date == 0
	if lowest, highest := n.bounds(r.at); e.min > highest || e.max < lowest {
		// After a second small step in the same direction, the clock is being slewed.
		above := e.min > highest
		again := n.broken != 0 && r.at.Sub(n.broken) <= jumpedFor && above == n.brokenAbove
		last := n.evidence[len(n.evidence)-1]
		isStep := max(e.min-last.max, last.min-e.max) > r.at.Sub(last.at)/slewTwice
		n.broken, n.brokenAbove = r.at, above
		if isStep {
			n.broken = 0
		}
		if jumped = !again || isStep; jumped {
			n.jumps++
			n.jumpedAt, n.highestBefore = r.at, highest
			if by := highest - e.min; !above {
				n.ambiguousUntil = min(max(n.ambiguousUntil, r.at).Add(by), r.at.Add(ambiguousFor))
			}
			m.counts.ClockJumps++
		}
		n.evidence = nil
	}
	n.evidence = append(n.evidence, e)
	return jumped
}

func (m *model) putScrape(n *modelNode, r report, in *incoming) {
	n.self.next(r.node, in)
	switch {
	case in.served:
		n.excess = nil
	case in.excess > 0 && n.status != 0:
		if n.excess = append(n.excess, in.excess); len(n.excess) == exceededAfter { // 10: the status is wrong
			n.exceeded, n.excess = slices.Min(n.excess), nil
			in.capacity = max(n.status, 2*n.exceeded)
			n.self.next(r.node, in)
		}
	}
	n.lost, n.lostOf, n.awaitsRestart = in.lost, map[podKey]loss{}, map[podKey]bool{}

	isOfRemoved := func(c reported) bool { // 9
		at, removed := n.removed[c.key.podKey]
		return removed && (r.sent < at || has(c.sample, usage.HasCPU) && in.ours(c.sample) < at.Add(time.Second))
	}
	r.containers = slices.DeleteFunc(slices.Clone(r.containers), func(c reported) bool { // 7: containers that ended
		return c.sample.Has&(usage.HasCPU|usage.HasMemory) == 0 && !m.state(n.name, c.key).Running && !isOfRemoved(c)
	})
	all := len(r.containers)
	r.containers = slices.DeleteFunc(r.containers, isOfRemoved)
	lastPods := maps.Clone(n.pods)
	after := map[containerKey]*modelContainer{}
	var foreign, ended []containerKey
	for _, reported := range r.containers {
		c := n.containers[reported.key]
		if c == nil {
			c = &modelContainer{}
			c.absent = n.lastComplete && r.at.Sub(n.lastAt) <= m.maxAge && !n.overlooked(reported)
		}
		in.away, c.omitted = c.omitted, false
		if m.isOfOtherPod(n, c, reported, in) {
			foreign = append(foreign, reported.key)
			if !m.state(n.name, reported.key).Running {
				ended = append(ended, reported.key)
			}
			reported.sample, c.absent = usage.Sample{Loss: usage.LostOwner}, false
		}
		c.next(reported.sample, in)
		lost, known := n.lostOf[reported.key.podKey]
		if in.lost != usage.NotLost && (!known || lost.of.known && (!c.known || c.asOf < lost.of.asOf)) {
			n.lostOf[reported.key.podKey] = loss{in.lost, reported.key.container, c}
		}
		n.changed[reported.key.podKey] = n.changed[reported.key.podKey] || in.served
		if !in.served && m.awaitsRestart(n, reported.key, c, in) {
			n.awaitsRestart[reported.key.podKey] = true
		}
		after[reported.key] = c
	}
	for key, c := range n.containers {
		if after[key] != nil {
			continue
		}
		// 7, 9: a container that a scrape does not mention has ended if the API server says so.
		state := m.state(n.name, key)
		last := lastPods[key.podKey] // 7: the last whole snapshot, which waits for it
		if state.Running || state.Alive && r.at.Sub(c.asOf) <= m.maxAge && last != nil && r.at.Sub(last.AsOf) <= m.maxAge {
			after[key], c.omitted = c, true
			n.awaitsRestart[key.podKey] = n.awaitsRestart[key.podKey] || m.awaitsRestart(n, key, c, in)
			continue
		}
		n.ended[key], c.endedAt, n.changed[key.podKey] = c, r.at, true
	}
	for key := range after {
		delete(n.ended, key)
	}
	for _, key := range ended {
		n.ended[key], after[key].endedAt, n.changed[key.podKey] = after[key], r.at, true
		delete(after, key)
	}
	n.containers = after
	n.lastAt = r.at
	n.lastComplete = !r.partial && len(r.containers) == all && len(foreign) == 0
	// What ended long ago is forgotten.
	maps.DeleteFunc(n.ended, func(_ containerKey, c *modelContainer) bool { return r.at.Sub(c.endedAt) > endedFor })
	maps.DeleteFunc(n.removed, func(_ podKey, at usage.Time) bool {
		return r.at.Sub(at) > removedFor && r.at >= n.ambiguousUntil || r.at.Sub(at) > removedFor+ambiguousFor
	})
}

// isOfOtherPod reports whether a container started more than startMargin before the pod in the API server did,
// or used more than the node can have since (4, 9). It is also of another pod if a pod of the name was removed and the
// next one has not started, or while the clock shows times for the second time, unless the previous sample was proven
// to be of this one and has the same start time.
func (m *model) isOfOtherPod(n *modelNode, c *modelContainer, r reported, in *incoming) bool {
	isSame := c.since.Has != 0 && r.sample.StartedAt == c.since.StartedAt
	if c.proven && isSame && (c.refused.Has == 0 || in.at < n.ambiguousUntil) {
		return false
	}
	inAPI := m.state(n.name, r.key)
	now := usage.NodeTime(in.at.Add(n.offset()))
	_, removed := n.removed[r.key.podKey]
	ambiguous := in.at < n.ambiguousUntil
	unknown := inAPI.EarliestStart == 0 || !ambiguous && inAPI.EarliestStart > now.Add(maxLead)
	earliest := inAPI.EarliestStart
	isEarlierThan := func(s usage.Sample, t usage.NodeTime) bool {
		return s.StartedAt != 0 && s.StartedAt.Add(startMargin) < t
	}
	isKnown := removed || c.proven && c.since.StartedAt != 0 && !isEarlierThan(c.since, earliest) // another pod
	if !isKnown && inAPI.PodCreatedAt != 0 {
		earliest = min(earliest, usage.NodeTime(inAPI.PodCreatedAt))
		if in.at.Sub(inAPI.PodCreatedAt) > ownedFor {
			earliest = 0
		}
	}
	if ambiguous { // starts may have moved since the clock was set back
		earliest = min(earliest, now.Add(-ambiguousFor))
	}
	isEarlier := func(s usage.Sample) bool { return isEarlierThan(s, earliest) }
	isOther := func(s usage.Sample) bool {
		age := now.Sub(inAPI.EarliestStart)
		if inAPI.PodCreatedAt != 0 {
			age = max(age, in.at.Sub(inAPI.PodCreatedAt))
		}
		most := float64(in.capacity) * (age.Seconds()*usedFactor + usedMargin.Seconds())
		switch {
		case removed && (ambiguous || inAPI.EarliestStart == 0 && !inAPI.Running):
			return true // the next pod has not started, or nothing shows which of the two has
		case unknown:
			return false
		case isEarlier(s):
			return true
		}
		// More than the node can have used, unless it had another capacity long ago.
		return in.capacity != 0 && age <= ownedFor && s.CPUSeconds*1e9 > most
	}
	if c.since.Has != 0 && !c.proven && (isOther(c.since) || inAPI.EarliestStart == 0 && c.moved(r.sample) != 0) {
		// everything up to now was of the other pod, or may have been
		c.metric = metric{}
		delete(n.pods, r.key.podKey)
		n.changed[r.key.podKey] = true
	}
	if c.since.Has != 0 && !c.proven && !c.known && !unknown { // what is served is from before
		delete(n.pods, r.key.podKey)
		n.changed[r.key.podKey] = true
	}
	if isOther(r.sample) {
		return true
	}
	c.proven = !unknown && !isEarlier(r.sample)
	c.absent = c.absent && r.sample.StartedAt >= inAPI.EarliestStart // 4
	return false
}

// awaitsRestart reports whether a container waits for its restart, or was restarted since its metric (7).
func (m *model) awaitsRestart(n *modelNode, key containerKey, c *modelContainer, in *incoming) bool {
	state := m.state(n.name, key)
	since := state.StartedAt.Sub(c.At)
	isSince := state.StartedAt != 0 && since > 0 && since < max(maxLead, m.maxAge)
	isSince = isSince && !c.since.Untimed && in.at >= n.ambiguousUntil
	return c.known && (state.Alive && !state.Running || isSince)
}

// overlooked reports whether a new container may have run before (4).
func (n *modelNode) overlooked(r reported) bool {
	_, removed := n.removed[r.key.podKey]
	before := n.ended[r.key]
	fell := before != nil && has(r.sample, usage.HasCPU) && r.sample.CPUSeconds < before.since.CPUSeconds
	return removed || before != nil && !fell
}

func (m *model) putSummary(n *modelNode, r report, in *incoming) {
	n.self.kubeletRate(r.node, in)
	for _, c := range r.containers {
		if known := n.containers[c.key]; known != nil {
			in.served = false
			known.kubeletRate(c.sample, in)
			n.changed[c.key.podKey] = n.changed[c.key.podKey] || in.served
		}
	}
}

// snapshot makes a new snapshot of each pod whose containers all have a metric. The others keep the
// last one (7), unless the pod has ended (9).
func (n *modelNode) snapshot() {
	pods := map[podKey][]string{}
	for key := range n.containers {
		pods[key.podKey] = append(pods[key.podKey], key.container)
	}
	maps.DeleteFunc(n.pods, func(key podKey, _ *usage.Pod) bool { return pods[key] == nil })
	maps.DeleteFunc(n.changed, func(key podKey, _ bool) bool { return pods[key] == nil })
	for key, names := range pods {
		slices.Sort(names)
		s := &usage.Pod{Namespace: key.namespace, Name: key.name}
		var oldest metric
		whole := !n.awaitsRestart[key]
		for _, name := range names {
			container := n.containers[containerKey{key, name}]
			c := container.metric
			whole = whole && c.known
			s.Ambiguous = s.Ambiguous || container.since.Untimed // 7: its time is by our clock, starts are not
			s.Containers = append(s.Containers, usage.Container{Name: name, Amount: c.Amount})
			s.Window = max(s.Window, c.Window)
			if oldest.asOf == 0 || cmp.Or(cmp.Compare(c.asOf, oldest.asOf), cmp.Compare(c.At, oldest.At)) < 0 {
				oldest = c
			}
		}
		s.At, s.AsOf = oldest.At, oldest.asOf // of the oldest metric
		s.Ambiguous = s.Ambiguous || s.AsOf < n.ambiguousUntil
		if whole && n.changed[key] {
			n.pods[key] = s
			delete(n.changed, key)
		}
	}
}

// pod returns what must be served of a pod that is bound to a node, and its time (11).
func (m *model) pod(node string, key podKey, now usage.Time) (*usage.Pod, usage.Time) {
	n := m.nodes[node]
	if n == nil || n.pods[key] == nil || m.isTooOld(n.pods[key].AsOf, now) {
		return nil, 0
	}
	return n.pods[key], n.pods[key].AsOf
}

// node returns what must be served of a node, and its time.
func (m *model) node(name string, now usage.Time) (*usage.Node, usage.Time) {
	n := m.nodes[name]
	if n == nil || !n.last.known || m.isTooOld(n.last.asOf, now) {
		return nil, 0
	}
	return &usage.Node{Name: name, Amount: n.last.Amount, AsOf: n.last.asOf}, n.last.asOf
}

// podFacts returns what is known of the samples of a pod.
func (m *model) podFacts(node string, key podKey) (facts PodFacts, reported bool) {
	n := m.nodes[node]
	if n == nil {
		return facts, false
	}
	for k, c := range n.containers {
		if k.podKey == key {
			facts.Containers = append(facts.Containers, ContainerFacts{Name: k.container, Facts: m.facts(n, &c.metric)})
		}
	}
	if len(facts.Containers) == 0 {
		return facts, false
	}
	slices.SortFunc(facts.Containers, func(a, b ContainerFacts) int { return cmp.Compare(a.Name, b.Name) })
	if last := n.pods[key]; last != nil {
		facts.AsOf = last.AsOf
	}
	facts.Lost, facts.LostContainer = n.lostOf[key].why, n.lostOf[key].container
	return facts, true
}

func (m *model) nodeFacts(name string) (Facts, bool) {
	n := m.nodes[name]
	if n == nil {
		return Facts{}, false
	}
	facts := m.facts(n, &n.self)
	facts.Lost = n.lost
	return facts, true
}

func (m *model) facts(n *modelNode, v *metric) Facts {
	f := Facts{Since: v.waits, HasAmount: v.known}
	switch {
	case v.known:
		f.SampledAt = v.asOf
	case v.since.Has != 0:
		in := &incoming{node: n, at: math.MaxInt64}
		f.SampledAt = in.ours(v.since)
	}
	return f
}

// isTooOld is rule 8.
func (m *model) isTooOld(asOf, now usage.Time) bool { return now.Sub(asOf) > m.maxAge }

func (m *model) stats(now usage.Time) Stats {
	var s Stats
	for name, n := range m.nodes {
		if served, asOf := m.node(name, now); served != nil {
			s.Nodes++
			s.OldestNode = max(s.OldestNode, now.Sub(asOf))
		}
		for key := range n.pods {
			if p, asOf := m.pod(name, key, now); p != nil {
				s.Pods++
				s.Containers += len(p.Containers)
				s.OldestPod = max(s.OldestPod, now.Sub(asOf))
			}
		}
	}
	return s
}

// incoming describes the response whose samples are stored.
type incoming struct {
	model    *model
	node     *modelNode
	at       usage.Time
	capacity uint64
	jumped   bool
	away     bool   // whether the scrape before did not mention the container
	served   bool   // whether the last sample gave an Amount
	excess   uint64 // the rate above the capacity that the last sample had instead
	lost     usage.Loss
}

// ours returns the time of a sample (3). Nothing was sampled after it arrived.
func (in *incoming) ours(s usage.Sample) usage.Time {
	if s.Untimed { // 1: it has the time of the scrape
		return usage.Time(s.At)
	}
	return min(usage.Time(s.At.Add(-in.node.offset())), in.at)
}

// afterJump reports whether a time of the node may be from before a jump (3).
func (in *incoming) afterJump() bool {
	return in.node.jumpedAt != 0 && in.at.Sub(in.node.jumpedAt) <= jumpedFor
}

// startsAreAmbiguous reports whether a container may have started while the clock showed times for the second time (3).
func (in *incoming) startsAreAmbiguous() bool { return in.at.Sub(in.node.ambiguousUntil) <= jumpedFor }

// isTooMuch reports whether a rate exceeds what the API can carry, or the node's capacity by more
// than 10 % and what it allows in 2 seconds (1).
func (in *incoming) isTooMuch(nanocores float64, window time.Duration) bool {
	return nanocores >= math.MaxInt64 || isAboveCapacity(nanocores, window, in.capacity)
}

func isAboveCapacity(nanocores float64, window time.Duration, capacity uint64) bool {
	return capacity != 0 && nanocores > float64(capacity)*(rateFactor+rateMargin.Seconds()/window.Seconds())
}

// metric is the state of one node or container.
type metric struct {
	usage.Amount
	known bool
	asOf  usage.Time // when the Amount was sampled

	since        usage.Sample // what the next sample is compared with
	skipped      usage.Sample // the newest one after since that had no rate; none if Has is 0
	refused      usage.Sample // the newest one after since whose rate was above the capacity; none if Has is 0
	waits        usage.Time   // since when there is no Amount
	absent       bool         // from an earlier complete scrape
	jumps        int          // jumps of the node's clock before since arrived
	incomparable int          // how many further samples must not be compared with since
	jumpedTwice  bool         // whether it was incomparable already when the clock jumped last
	older        int          // consecutive samples that were older than since
	fell         bool         // whether since started the series because its start time is lower than the one before
	proven       bool         // whether since is of the pod in the API server

	dense  []usage.Sample // all samples before since that may start a rate, oldest first
	sparse int            // consecutive rates without any need for them
}

func (v *metric) next(s usage.Sample, in *incoming) {
	in.served, in.excess, in.lost = false, 0, s.Loss
	if v.waits == 0 {
		v.waits = in.at
	}
	if v.jumps != in.node.jumps && v.since.Has != 0 {
		v.jumpedTwice = v.incomparable > 0 || in.node.jumps-v.jumps > 1
		v.incomparable = 2 // 3: this one is not comparable, and may also be from before the jump
	}
	v.jumps = in.node.jumps
	elapsed := s.At.Sub(v.since.At)
	young := s.StartedAt != 0 && !s.Untimed && s.StartedAt <= s.At && s.At < s.StartedAt.Add(minAge)
	switch {
	case !has(s, usage.HasCPU|usage.HasMemory):
		// half a sample is no metric; the last one remains
	case v.incomparable == 1 && elapsed == 0:
		// repeated
	case v.since.Has != 0 && s.CPUSeconds == 0 && v.since.CPUSeconds > 0 && !v.startedLater(s):
		in.lost = usage.LostZero // 6: not known
	case v.incomparable > 0:
		left := v.incomparable - 1
		if in.afterJump() && (s.At.AheadOf(in.node.jumpedAt) > in.node.highestBefore || elapsed < 0 && !v.jumpedTwice) {
			left = 0 // it cannot be from before the jump
		}
		v.begin(s, in)
		v.incomparable = left // a second sample from the future is by another clock
	case v.since.Has != 0 && v.since.Untimed != s.Untimed: // 1: times by two clocks
		v.begin(s, in)
	case v.since.Has == 0:
		reported := in.ours(s).Sub(v.waits) // for so long, without a value
		absent := v.absent && !in.startsAreAmbiguous() && reported <= s.At.Sub(s.StartedAt)+overlookedFor
		v.begin(s, in)
		if in.afterJump() && !s.Untimed && s.At.AheadOf(in.node.jumpedAt) <= in.node.highestBefore {
			v.incomparable = 1 // 3: kubelets repeat samples, so it may be from before the jump
		}
		if absent {
			v.meanSinceStart(s, in)
		}
	case elapsed >= 0 && v.isOther(s, in): // 4
		v.begin(s, in)
	case elapsed == 0:
		v.older = 0 // 2: nothing new; the last metric remains
	case elapsed < 0:
		in.model.counts.OlderSamples++
		if v.older++; v.older == stepsBackAfter {
			in.model.counts.ClockStepsBack++
			v.begin(s, in)
		}
	case s.CPUSeconds < v.since.CPUSeconds, // 4: a restart, if something explains it
		v.skipped.Has != 0 && s.At > v.skipped.At && s.CPUSeconds < v.skipped.CPUSeconds:
		switch {
		case v.since.StartedAt == 0 || s.StartedAt == 0 || v.startedLater(s) || in.away || in.startsAreAmbiguous():
			isDated := v.startedLater(s)
			v.begin(s, in)
			if isDated {
				v.meanSinceStart(s, in)
			}
		case elapsed > in.model.maxAge:
			v.proven = false
			v.begin(s, in)
		default:
			in.lost = usage.LostFall
		}
	case elapsed > in.model.maxAge: // 5
		v.proven = false // the counter may be that of another container
		v.begin(s, in)
	default:
		nanocores := math.Round((s.CPUSeconds - v.since.CPUSeconds) * 1e9 / elapsed.Seconds())
		switch {
		case in.isTooMuch(nanocores, elapsed):
			v.refuse(s, nanocores, in)
		case elapsed < shortestWindow:
			v.older = 0 // 1: too short
			v.skip(s)
		case !v.known && young && in.ours(s).Sub(v.waits) < minAge: // 4: in its start-up
			v.older = 0
			if v.isDense(s, in) { // 1: later rates may begin with it
				v.base(s, in)
				v.since, v.skipped, v.refused = s, usage.Sample{}, usage.Sample{}
			} else {
				v.skip(s)
				v.since.StartedAt = s.StartedAt
			}
		default:
			isDense, base := v.isDense(s, in), v.base(s, in)
			longer := s.At.Sub(base.At)
			wide, excess := math.Round((s.CPUSeconds-base.CPUSeconds)*1e9/longer.Seconds()), uint64(0)
			if !in.isTooMuch(wide, longer) {
				nanocores, elapsed = wide, longer
			} else {
				excess = uint64(min(wide, math.MaxInt64))
			}
			coarse := min(minCoarseWindow, share(minCoarseShare, in.model.rateWindow))
			isCoarse := s.At%1e9 == 0 && elapsed%1e9 == 0 && elapsed < coarse
			v.since, v.skipped, v.refused, v.older = s, usage.Sample{}, usage.Sample{}, 0
			if !isDense || elapsed >= share(minShare, in.model.rateWindow) && !isCoarse { // 1
				v.serve(s, uint64(nanocores), elapsed, in)
			} else if in.excess = excess; excess > 0 { // 10
				in.lost = usage.LostExcess
			}
		}
	}
}

// moved returns how far the start time has moved since the last sample, if by more than the margin (4).
func (v *metric) moved(s usage.Sample) time.Duration {
	by := s.StartedAt.Sub(v.since.StartedAt)
	if s.StartedAt == 0 || v.since.StartedAt == 0 || -startMargin <= by && by <= startMargin {
		return 0
	}
	return by
}

// startedLater reports whether a container has started since the last sample, by its start time (4).
func (v *metric) startedLater(s usage.Sample) bool {
	return v.since.StartedAt != 0 && s.StartedAt > v.since.StartedAt
}

// refuse notes a sample above the capacity. If the next one follows it, the series starts with it (10).
func (v *metric) refuse(s usage.Sample, nanocores float64, in *incoming) {
	if r := v.refused; r.Has != 0 {
		elapsed := s.At.Sub(r.At)
		nanocores = 0
		if elapsed > 0 && elapsed <= in.model.maxAge && s.CPUSeconds >= r.CPUSeconds {
			nanocores = math.Round((s.CPUSeconds - r.CPUSeconds) * 1e9 / elapsed.Seconds())
			isTooMuch := in.isTooMuch(nanocores, elapsed)
			isSteady := in.capacity == 0 || nanocores <= rateFactor*float64(in.capacity)
			if elapsed < shortestWindow && !isTooMuch { // 1: too short
				nanocores = 0
			}
			if nanocores > 0 && !isTooMuch && isSteady {
				r.StartedAt, r.Untimed = s.StartedAt, s.Untimed
				if v.begin(r, in); v.incomparable == 0 {
					v.next(s, in)
				}
				return
			}
		}
	}
	v.refused, in.excess, in.lost = s, uint64(min(nanocores, math.MaxInt64)), usage.LostExcess
}

// isOther reports whether the start time shows another container (4).
func (v *metric) isOther(s usage.Sample, in *incoming) bool {
	switch by := v.moved(s); {
	case by < 0:
		return true
	case by == 0, s.CPUSeconds < v.since.CPUSeconds:
		return false
	}
	return v.fell || in.away
}

// skip keeps a sample that has no rate, so that a counter that falls after it is noticed.
func (v *metric) skip(s usage.Sample) {
	if v.skipped.Has == 0 || s.At > v.skipped.At {
		v.skipped = s
	}
}

func (v *metric) isDense(s usage.Sample, in *incoming) bool {
	return s.At.Sub(v.since.At) < share(denseShare, in.model.rateWindow)
}

// base returns the sample that a rate starts with (1). That is the previous one, or, if the two are
// closer than 70 % of the rate window, the one that makes the time of the rate closest to the rate
// window. Of samples closer than a quarter of the rate window, only the first is
// considered. Only samples since the first that was followed by one closer than 60 %, or by the second
// in a row closer than 70 %, are, until two in a row are not. If the load has changed since then, the
// rate is from after the change. Of samples that are not dense, it is from the previous one if the noise is
// not known.
func (v *metric) base(s usage.Sample, in *incoming) usage.Sample {
	window, isDense := in.model.rateWindow, v.isDense(s, in)
	isClose := s.At.Sub(v.since.At) < share(closeShare, window)
	if v.sparse++; isClose {
		v.sparse = 0
	}
	switch {
	case v.sparse >= 2:
		v.dense = nil
	case isDense || v.dense != nil || isClose && v.known && v.Window < share(closeShare, window):
		v.dense = append(slices.Clone(v.dense), v.since)
	}
	if !isClose {
		return v.since
	}
	var candidates []usage.Sample
	for _, c := range v.dense {
		if n := len(candidates); n == 0 || c.At.Sub(candidates[n-1].At) >= share(minShare, window) {
			candidates = append(candidates, c)
		}
	}
	noise, isKnown := noiseOf(candidates)
	if !isDense && !isKnown {
		return v.since
	}
	known := slices.Clone(candidates)
	candidates = append(candidates, v.since)
	candidates = slices.DeleteFunc(candidates, func(c usage.Sample) bool { return s.At.Sub(c.At) > in.model.maxAge })
	slices.Reverse(candidates) // the first of several that are equally close is the newest
	target := share(targetShare, window)
	widest := slices.MinFunc(candidates, func(a, b usage.Sample) int {
		return cmp.Compare((s.At.Sub(a.At) - target).Abs(), (s.At.Sub(b.At) - target).Abs())
	})
	if !isKnown {
		return widest
	}
	return lastChange(known, widest, s, window, noise)
}

// coresBetween returns the mean usage between two samples.
func coresBetween(a, b usage.Sample) float64 {
	return (b.CPUSeconds - a.CPUSeconds) / b.At.Sub(a.At).Seconds()
}

// noiseOf returns the noise of a load, without what the newest of the samples show (1).
func noiseOf(known []usage.Sample) (noise float64, isKnown bool) {
	for i := 4; i < len(known); i++ {
		a, b, c, d := known[i-4], known[i-3], known[i-2], known[i-1]
		change := math.Abs(coresBetween(a, b) - 2*coresBetween(b, c) + coresBetween(c, d))
		noise += (change - noise) / float64(min(8, i-3))
	}
	return noise, len(known) >= 5
}

// lastChange returns the first of the known samples after which the load was as at s, or widest if it
// did not change since (1).
func lastChange(known []usage.Sample, widest, s usage.Sample, window time.Duration, noise float64) usage.Sample {
	far := slices.DeleteFunc(known, func(c usage.Sample) bool {
		return s.At.Sub(c.At) < share(minShare, window) || c.At < widest.At
	})
	for i := len(far) - 1; i > 0; i-- {
		since, before := coresBetween(far[i], s), coresBetween(far[i-1], far[i])
		usual := noise * window.Seconds() / far[i].At.Sub(far[i-1].At).Seconds()
		if math.Abs(before-since) > usual+noiseShare*max(before, since) {
			return far[i]
		}
	}
	return widest
}

// begin begins a new series.
func (v *metric) begin(s usage.Sample, in *incoming) {
	in.model.counts.Baselines++
	fell := v.since.Has != 0 && v.incomparable == 0 && v.moved(s) < 0
	*v = metric{
		since: s, waits: in.at, jumps: in.node.jumps, Amount: v.Amount, asOf: v.asOf,
		fell: fell, proven: v.proven,
	}
	if len(in.node.evidence) > 0 && !s.Untimed {
		if _, highest := in.node.bounds(in.at); s.At.AheadOf(in.at) > highest {
			v.incomparable = 1 // ahead of its own clock, which was set back
		}
	}
}

// meanSinceStart is rule 4.
func (v *metric) meanSinceStart(s usage.Sample, in *incoming) {
	age := s.At.Sub(s.StartedAt)
	nanocores := math.Round(s.CPUSeconds * 1e9 / age.Seconds())
	switch {
	case s.Untimed: // the start is by the node's clock, the sample by ours
	case s.StartedAt == 0, age < minAge, age > min(maxMeanAge, in.model.maxAge):
	case in.afterJump(), v.incomparable > 0, v.jumps != in.node.jumps:
	case nanocores >= math.MaxInt64, in.capacity != 0 && nanocores > float64(in.capacity):
	default:
		v.serve(s, uint64(nanocores), age, in)
	}
}

// kubeletRate sets the rate of a summary if there is no other and it belongs to the same sample.
func (v *metric) kubeletRate(s usage.Sample, in *incoming) {
	age := s.At.Sub(s.StartedAt)
	dated := s.StartedAt != 0 && !s.Untimed && age >= 0 // 1: else the start and the sample are by two clocks
	window := kubeletRateWindow
	if dated {
		window = min(age, window)
	}
	switch {
	case v.since.Has == 0, v.known, !v.repeated(s), in.afterJump(), v.incomparable > 0, v.jumps != in.node.jumps:
	case !has(s, usage.HasCPU|usage.HasMemory|usage.HasRate):
	case s.Rate == 0, s.Memory == 0: // 6: placeholders
	case s.Rate > math.MaxInt64, in.isTooMuch(float64(s.Rate), window):
	case dated && age < minAge: // 4: in its start-up
	default:
		v.serve(s, s.Rate, window, in)
	}
}

// needsSample reports whether there is no Amount, or one over less than 60 % of the rate window (1).
func (v *metric) needsSample(in *incoming) bool {
	return !v.known || v.Window < share(denseShare, in.model.rateWindow)
}

// missing describes a metric that needs another sample, for the decision when to scrape again.
func (v *metric) missing(in *incoming) usage.Missing {
	m := usage.Missing{Since: v.waits}
	if s := v.since; s.Has != 0 {
		m.SampledAt = in.ours(s)
		age := s.At.Sub(s.StartedAt)
		dated := s.StartedAt != 0 && !s.Untimed && age >= 0
		if dated {
			m.StartedAt = m.SampledAt.Add(-age)
		}
		m.KubeletRate = !v.known && (!dated || age >= minAge) && !in.afterJump()
	}
	return m
}

// repeated reports whether a summary's sample is that of the last scrape.
func (v *metric) repeated(s usage.Sample) bool { return s.CPUSeconds == v.since.CPUSeconds }

// serve sets the Amount: its time is that of the CPU sample (1), and swap that is not reported is
// not 0 (6).
func (v *metric) serve(s usage.Sample, nanocores uint64, window time.Duration, in *incoming) {
	in.served = true
	v.known = true
	v.Amount = usage.Amount{
		CPUNanocores: nanocores, Memory: s.Memory, Swap: s.Swap, At: s.At, Window: window, HasSwap: has(s, usage.HasSwap),
	}
	v.asOf = in.ours(s)
}

// share returns a share of a time.
func share(part float64, of time.Duration) time.Duration {
	return time.Duration(math.Round(part * float64(of)))
}

func has(s usage.Sample, what usage.Has) bool { return s.Has&what == what }
