package engine

import (
	"hash/maphash"
	"iter"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/engine/decode"
	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// node is the state of one node. Apart from object and health, which Source.mu guards, it belongs to the loop.
type node struct {
	name   string
	object *corev1.Node
	health health.Node // without Next

	counter    counter
	containers map[string]*counter // by namespace, pod and name
	all        []*counter          // counter, then the containers, in a stable order: so the store need not sort them
	overLimit  bool                // whether the current refresh has more containers than the limit
	times      times
	foreign    map[foreign]bool // samples that are ignored

	// stamped is above 0 if the times of samples are those of scrapes: the number of refreshes in a row
	// with different times after which they are those of the kubelet. Then it is -1; 0: not known yet.
	stamped int

	conflictLogged bool // that another node has an address of this one
}

type point = decode.Point

// counter is the CPU counter of a node or container, with its other values.
type counter struct {
	namespace, pod, name string // of containers

	isRunning bool // of containers: according to the API server, in the refresh that last had this counter
	// The sample that was stored last, the series that it is from, and the start then. last.at is 0 if there is none.
	last          point
	lastHash      uint64
	lastStartedAt usage.NodeTime
	basesFrom     usage.NodeTime // samples before it may be too low, after a fall without a restart

	// Of the refresh with this number:
	refresh uint64
	selection
	ifStamped    *selection // what counts instead if the times are those of scrapes; nil: the same
	memory, swap uint64
	startedAt    usage.NodeTime
	has          usage.Has
	exact        usage.Has // the values from series with the labels of the selected one
}

// selection is the series that was selected of those with the same identity, and the samples of it
// that matter.
type selection struct {
	hash   uint64         // of the labels
	second usage.NodeTime // the time of the second newest sample; 0: there is none
	cur    point          // the newest sample
	isNew  bool           // whether cur is newer than what was stored
	// base is the start of the rate's window. Zero: the last stored sample. Equal to cur: no start is known,
	// because the counter was replaced or reset.
	base    point
	isReset bool // whether the counter fell since the sample that was stored last
}

// current yields the counters of a node that have samples in the current refresh.
func (s *Source) current(n *node) iter.Seq[*counter] {
	return func(yield func(*counter) bool) {
		for _, c := range n.all {
			if c.refresh == s.refreshes && !yield(c) {
				return
			}
		}
	}
}

// isFresh reports whether the current refresh has a new sample with CPU and memory.
func (s *Source) isFresh(c *counter) bool {
	return c.refresh == s.refreshes && c.isNew && c.has&usage.HasMemory != 0
}

// add adds a series to the samples of its node. It reports whether the series is of a known node.
func (s *Source) add(k kind, series *decode.Series, result *Result) bool {
	result.Skipped[usage.BadValue] += series.Bad
	n := s.nodeOf(series)
	if n == nil {
		return false
	}
	if cpu := series.Get("cpu"); k.isCounter() && cpu != nil && string(cpu) != "total" {
		result.Skipped[usage.Duplicate]++ // a part of the counter
		return true
	}
	c := &n.counter
	var state usage.ContainerState
	if !k.isOfNode() {
		if c, state = s.containerOf(n, k, series, result); c == nil {
			return true
		}
	}
	if len(series.Points) == 0 {
		return true
	}
	hash := labelHash(series)
	if k.isCounter() {
		hasUsed := c.last.Value > 0 // so a counter of 0 is not known: usage.Scrape.DropUnknown sees only the newest
		points := slices.DeleteFunc(series.Points, func(p point) bool {
			hasUsed = hasUsed || p.Value > 0
			return n.foreign[foreign{c, p.At}] || hasUsed && p.Value == 0
		})
		if len(points) > 0 {
			s.offer(n, c, hash, points, state)
		}
		return true
	}
	value := series.Points[len(series.Points)-1].Value
	if c.refresh == s.refreshes {
		c.setValue(k, hash, value)
		if c.startedAt <= n.times.before && c.cur.At.Sub(c.startedAt) <= usage.MaxAgeSinceStart {
			c.startedAt = 0 // of an earlier node of the name: the mean since then would be served
		}
	}
	return true
}

// containerOf returns the container of a series, with its state if the series is a counter. It
// returns nil if the container does not exist or must not be added: the API server decides which
// pods exist.
func (s *Source) containerOf(
	n *node, k kind, series *decode.Series, result *Result,
) (c *counter, state usage.ContainerState) {
	labels := &s.client.settings.Labels
	namespace, pod, name := series.Get(labels.Namespace), series.Get(labels.Pod), series.Get(labels.Container)
	if namespace == nil || pod == nil || name == nil {
		result.Skipped[usage.NoIdentity]++
		return nil, state
	}
	s.key = append(append(append(append(append(s.key[:0], namespace...), 0), pod...), 0), name...)
	c = n.containers[string(s.key)]
	isKnown, key := c != nil, ""
	if isKnown && !k.isCounter() {
		return c, state
	}
	if !isKnown {
		key = string(s.key)
		c = &counter{
			namespace: key[:len(namespace)],
			pod:       key[len(namespace)+1 : len(namespace)+1+len(pod)],
			name:      key[len(namespace)+len(pod)+2:],
		}
	}
	state = s.State(n.name, c.namespace, c.pod, c.name)
	if !state.Accepted {
		return nil, state
	}
	if !isKnown {
		r, ok := usage.CheckNames(name) // those of the namespace and the pod are the API server's
		if ok && len(n.containers) >= s.MaxContainers {
			n.overLimit, r, ok = true, usage.OverLimit, false
		}
		if !ok {
			result.Skipped[r]++
			return nil, state
		}
		n.containers[key] = c // it shares the memory of the names
		n.all = append(n.all, c)
	}
	c.isRunning = state.Running
	return c, state
}

var seed = maphash.MakeSeed()

// labelHash returns a hash of the labels that distinguish series with the same identity, in any
// order: those that an engine or its replicas have added.
func labelHash(series *decode.Series) (hash uint64) {
	for _, l := range series.Labels {
		switch string(l.Name) {
		case "__name__", "__type__", "__unit__", "cpu": // differ between CPU and memory of the same container
		default:
			hash += 31*maphash.Bytes(seed, l.Name) ^ maphash.Bytes(seed, l.Value)
		}
	}
	return hash
}

// hasStartTime is for counter.has and counter.exact only: Samples do not have it.
const hasStartTime usage.Has = 1 << 7

// setValue sets a value other than the CPU counter. If there are several, the one with the labels of
// the chosen CPU counter counts, or else the first.
func (c *counter) setValue(k kind, hash uint64, value float64) {
	has, field := usage.HasMemory, &c.memory
	switch k {
	case containerSwap, nodeSwap:
		has, field = usage.HasSwap, &c.swap
	case containerStartTime:
		has = hasStartTime
	}
	isExact := hash == c.hash
	if value >= math.MaxInt64 || c.has&has != 0 && (!isExact || c.exact&has != 0) {
		return
	}
	c.has |= has
	if isExact {
		c.exact |= has
	}
	switch {
	case has != hasStartTime:
		*field = uint64(value)
	case value >= usage.OldestStart && value < decode.MaxUnixSeconds:
		c.startedAt = decode.Time(value)
	}
}
