package prometheus

import (
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// node is the state of one node. Apart from object, mu, deleted and health, it belongs to the loop.
type node struct {
	name   string
	object atomic.Pointer[corev1.Node]

	mu      sync.Mutex // held by calls of the Sink
	deleted bool
	health  health.Node // without Name and UID

	counter    counter
	containers map[string]*container // by namespace, pod and name
	order      []*container          // in a stable order, so that the store need not sort them
	overLimit  bool                  // whether the current refresh has more containers than the limit
	isStored   bool                  // whether samples of the node were stored before
	stamps     stamps
	clock      clock
	foreign    map[foreign]bool // samples that are ignored

	conflictLogged bool // that another node has an address of this one
}

// container is one container of a node.
type container struct {
	counter
	namespace, pod, name string
	isRunning            bool // according to the API server, in the refresh that last had its CPU counter
	mention              mention
}

// mention is how a container occurs in what is put into the store.
type mention uint8

const (
	ended    mention = iota // not at all
	fresh                   // with a new sample
	repeated                // with the sample that was stored last
	silent                  // without a sample: it runs, but the engine has no recent sample
)

// counter is the CPU counter of a node or container, with its other values.
type counter struct {
	// The sample that was stored last, and the series that it is from. last.at is 0 if there is none.
	last point
	hash uint64 // of the series' labels

	// Of the refresh with this number:
	refresh      uint64
	choice       choice
	ifStamped    *choice // the choice if the times are those of scrapes; nil: as choice
	memory, swap uint64
	startedAt    usage.Time
	has          usage.Has
	exact        usage.Has // the values from series with the labels of the chosen one
}

// chooser selects the samples of a series that are stored, given the one that was stored last.
type chooser func(points []point, last point) choice

// choice is the series that was chosen of those with the same identity, and the samples of it that
// matter.
type choice struct {
	hash   uint64
	second usage.Time // the time of the second newest sample; 0: there is none

	// cur is the newest sample. If it is newer than the one that was stored last, isFresh is set, and
	// base is the sample to compute its rate from, unless that is the one that was stored last.
	cur, base       point
	isFresh, isBase bool
	// newCounter is set if the counter was reset after the last sample, or is that of another series.
	newCounter bool
}

// add adds a series to the samples of its node. It reports whether the series is of a known node.
func (s *Source) add(k kind, series *series, result *Result) bool {
	result.Skipped[usage.BadValue] += series.bad
	n := s.nodeOf(series)
	if n == nil {
		return false
	}
	c := &n.counter
	var start Start
	if !k.isOfNode() {
		if c, start = s.containerOf(n, k, series, result); c == nil {
			return true
		}
	}
	if len(series.points) == 0 {
		return true
	}
	hash := labelHash(series)
	if k.isCounter() {
		if points := n.usable(c, series.points); len(points) > 0 {
			s.offer(n, c, hash, points, start)
		}
		return true
	}
	value := series.points[len(series.points)-1].value
	if c.refresh == s.refreshes {
		c.setValue(k, hash, value)
		if n.clock.isBeforeStep(c.startedAt, c.choice.cur.at) {
			c.startedAt = 0
		}
	}
	return true
}

// maxNameBytes is the longest name that the API server accepts. Names of namespaces and pods are not
// longer, because the API server has them.
const maxNameBytes = 253

// containerOf returns the container of a series, with its start if the series is a counter. It
// returns nil if the container does not exist or must not be added: the API server decides which
// pods exist.
func (s *Source) containerOf(n *node, k kind, series *series, result *Result) (*counter, Start) {
	labels := &s.client.config.Labels
	namespace, pod, name := series.get(labels.Namespace), series.get(labels.Pod), series.get(labels.Container)
	if namespace == nil || pod == nil || name == nil {
		result.Skipped[usage.NoIdentity]++
		return nil, Start{}
	}
	s.key = append(append(append(append(append(s.key[:0], namespace...), 0), pod...), 0), name...)
	c := n.containers[string(s.key)]
	if c != nil && !k.isCounter() {
		return &c.counter, Start{}
	}
	start, ok := s.startOf(n, c, namespace, pod, name)
	switch {
	case !ok:
		return nil, Start{}
	case c != nil:
		c.isRunning = start.IsRunning
		return &c.counter, start
	case len(name) > maxNameBytes:
		result.Skipped[usage.OverLimit]++
		return nil, Start{}
	case len(n.containers) >= s.MaxContainers:
		n.overLimit = true
		result.Skipped[usage.OverLimit]++
		return nil, Start{}
	}
	key := string(s.key)
	c = &container{
		namespace: key[:len(namespace)],
		pod:       key[len(namespace)+1 : len(namespace)+1+len(pod)],
		name:      key[len(namespace)+len(pod)+2:],
		isRunning: start.IsRunning,
	}
	n.containers[key] = c
	n.order = append(n.order, c)
	return &c.counter, start
}

// startOf calls Started, with the names of the known container if there is one: they need no copies.
func (s *Source) startOf(n *node, c *container, namespace, pod, name []byte) (Start, bool) {
	if c != nil {
		return s.Started(n.name, c.namespace, c.pod, c.name)
	}
	return s.Started(n.name, string(namespace), string(pod), string(name))
}

var seed = maphash.MakeSeed()

// labelHash returns a hash of the labels that distinguish series with the same identity, in any
// order: those that an engine or its replicas have added.
func labelHash(series *series) (hash uint64) {
	for _, l := range series.labels {
		sum := maphash.Bytes(seed, series.text[l.name.start:l.value.end])
		switch name := series.name(l); string(name) {
		case "__name__", "cpu": // differ between CPU and memory of the same container
		default:
			hash += sum ^ uint64(len(name))
		}
	}
	return hash
}

// offer considers the samples of one series, and reports whether it is the best one so far. They are
// at least one, in the order of their times. isOther is set if they are not of the counter that was
// stored last, although the labels may be.
func (c *counter) offer(hash uint64, points []point, refresh uint64, choose chooser, isOther bool) bool {
	newest, second := points[len(points)-1].at, usage.Time(0)
	if len(points) > 1 {
		second = points[len(points)-2].at
	}
	if c.refresh == refresh && !c.prefers(hash, newest, second) {
		return false
	}
	if c.refresh != refresh {
		c.refresh, c.has, c.exact, c.startedAt = refresh, 0, 0, 0
	}
	c.choice = c.choiceOf(hash, points, choose, isOther)
	return true
}

// choiceOf returns the choice of a series, by a function that chooses from its samples, given the
// one that was stored last.
func (c *counter) choiceOf(hash uint64, points []point, choose chooser, isOther bool) choice {
	var chosen choice
	newest := points[len(points)-1].at
	isImpossible := c.last.at.Sub(newest) > maxAhead+maxWindow // no query can have returned both
	if isImpossible || c.last.at != 0 && (isOther || hash != c.hash) {
		chosen = choose(points, point{})
		chosen.isFresh = isImpossible || newest > c.last.at
		chosen.newCounter = true
	} else {
		chosen = choose(points, c.last)
	}
	chosen.hash = hash
	if len(points) > 1 {
		chosen.second = points[len(points)-2].at
	}
	return chosen
}

// prefers reports whether a series is better than the one that was chosen so far in this refresh.
// Several scrapers may store the same container, for example two replicas of Prometheus; their
// samples must not be mixed, because their timestamps may be by different clocks. So the series that
// was used before stays in use, until another has two samples that are newer.
func (c *counter) prefers(hash uint64, newest, second usage.Time) bool {
	chosen := &c.choice
	switch {
	case c.last.at != 0 && chosen.hash == c.hash:
		return second > chosen.cur.at
	case c.last.at != 0 && hash == c.hash:
		return chosen.second <= newest
	case newest != chosen.cur.at:
		return newest > chosen.cur.at
	}
	return hash < chosen.hash
}

// choose selects the samples of a series that are stored, given the one that was stored last. The
// rate of the newest sample is computed from the newest one that is at least as much older as
// spacing: from one that was stored before, if it is not too close, or else from base. A counter
// that was reset in between starts again with base.
func choose(points []point, last point, spacing time.Duration) choice {
	newest := len(points) - 1
	c := choice{cur: points[newest]}
	first := 0 // the first new sample
	for first <= newest && points[first].at <= last.at {
		first++
	}
	if first > newest {
		return c
	}
	c.isFresh = true
	start := first // the first sample since the last reset
	for i := newest; i > first; i-- {
		if points[i].value < points[i-1].value {
			start = i
			break
		}
	}
	c.newCounter = start > first || last.at != 0 && points[first].value < last.value
	for i := newest - 1; i >= start; i-- {
		c.base, c.isBase = points[i], true
		if c.cur.at.Sub(c.base.at) >= spacing {
			return c
		}
	}
	// The samples since the last one, or since the reset, are closer than spacing.
	isLastBase := last.at != 0 && !c.newCounter
	if c.isBase = c.isBase && !isLastBase && c.cur.at.Sub(c.base.at) >= usage.MinWindow; !c.isBase {
		c.base = point{}
	}
	return c
}

// hasStartTime is for counter.has and counter.exact only: Samples do not have it.
const hasStartTime usage.Has = 1 << 7

// setValue sets a value other than the CPU counter. If there are several, the one with the labels of
// the chosen CPU counter counts, or else the first.
func (c *counter) setValue(k kind, hash uint64, value float64) {
	has := usage.HasMemory
	switch k {
	case containerSwap, nodeSwap:
		has = usage.HasSwap
	case containerStartTime:
		has = hasStartTime
	}
	isExact := hash == c.choice.hash
	if c.has&has != 0 && (!isExact || c.exact&has != 0) {
		return
	}
	if value >= math.MaxInt64 {
		return
	}
	c.has |= has
	if isExact {
		c.exact |= has
	}
	switch has {
	case usage.HasMemory:
		c.memory = uint64(value)
	case usage.HasSwap:
		c.swap = uint64(value)
	default:
		if value < maxUnixSeconds {
			c.startedAt = timeOf(value)
		}
	}
}

// isFresh reports whether there is a new sample with CPU and memory in a refresh.
func (c *counter) isFresh(refresh uint64) bool {
	return c.refresh == refresh && c.choice.isFresh && c.has&usage.HasMemory != 0
}

// sample returns the counter's other values with the CPU counter of p.
func (c *counter) sample(p point) usage.Sample {
	return usage.Sample{
		At: p.at, MemoryAt: p.at, StartedAt: c.startedAt, CPUSeconds: p.value, Memory: c.memory, Swap: c.swap,
		Has: usage.HasCPU | c.has&(usage.HasMemory|usage.HasSwap),
	}
}

// current returns the newest sample.
func (c *counter) current() usage.Sample {
	s := c.sample(c.choice.cur)
	s.NewCounter = c.choice.newCounter && !c.choice.isBase
	return s
}

// earlier returns the sample to compute the rate of the newest one from. It reports false if there
// is none.
func (c *counter) earlier() (usage.Sample, bool) {
	switch {
	case c.choice.isBase:
		s := c.sample(c.choice.base)
		s.NewCounter = c.choice.newCounter
		if s.At < c.last.at {
			s.StartedAt = 0 // no mean since the start: it would be older than what is served
		}
		return s, true
	case c.last.at != 0:
		return c.sample(c.last), true
	}
	return usage.Sample{}, false
}
