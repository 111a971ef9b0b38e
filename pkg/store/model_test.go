package store

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// model says what is to be served by the rules of docs/numbers.md and by nothing else. It is slow and obvious: it keeps all
// that was ever said of a node and reckons from that, from the first word on, whenever something was said. The numbers in
// its comments are those of the rules. It shares no code with what it is a model of, neither here nor in pkg/usage.
type model struct {
	maxAge time.Duration
	nodeOf func(namespace, pod string) string // where a pod is bound to, if that is known
	nodes  map[string]*modelNode              // by name

	// believed is whose word is served for each pod (rule 10), whether or not it is too old by now.
	believed map[podKey]word

	counts Counts // all but ContestedClaims
}

// modelNode is what one node said since it is known.
type modelNode struct {
	history []said               // oldest first
	whole   map[podKey]*snapshot // the last complete snapshot of each pod that the node has (rule 6)
}

// said is what a kubelet said at one time.
type said struct {
	at         usage.Time // when it arrived, by our clock
	summary    bool       // whether it is a summary and not a scrape
	partial    bool       // whether more may have been said than could be read
	node       usage.Sample
	containers []saidOf // in the order in which they were named
}

type saidOf struct {
	key    containerKey
	sample usage.Sample
}

// snapshot is a pod in full.
type snapshot struct {
	usage.Pod
	asOf      usage.Time // the age of the figures counts from here (rule 8)
	startedAt usage.Time // when the container that started last did (rule 10); 0: not known
}

// word is a snapshot, and the node that it comes from.
type word struct {
	node string
	*snapshot
}

func newModel(maxAge time.Duration, nodeOf func(namespace, pod string) string) *model {
	return &model{maxAge: maxAge, nodeOf: nodeOf, nodes: map[string]*modelNode{}, believed: map[podKey]word{}}
}

// hear takes in a scrape or a summary of a node. A node's word for a pod counts when it is given: each scrape of a node that
// has the pod gives it anew.
func (m *model) hear(name string, s said) {
	n := m.nodes[name]
	if n == nil {
		n = &modelNode{whole: map[podKey]*snapshot{}}
		m.nodes[name] = n
	}
	n.history = append(n.history, s)
	m.count(n)
	pods := n.pods(m.maxAge)
	n.complete(pods)
	maps.DeleteFunc(m.believed, func(key podKey, w word) bool { // 9: gone is gone, but 10: only what is served from this node
		return w.node == name && pods[key] == nil
	})
	for key, own := range n.whole {
		served := m.believed[key]
		switch bound := m.nodeOf(key.namespace, key.name); {
		case bound == name, bound == "" && m.prevails(own, name, served, s.at):
			m.believed[key] = word{name, own}
		case bound != "" && served.node == name: // 10: it is known better
			delete(m.believed, key)
		}
	}
}

// forget drops a node, and what is served from it, at once (9), but nothing else (10).
func (m *model) forget(name string) {
	delete(m.nodes, name)
	maps.DeleteFunc(m.believed, func(_ podKey, w word) bool { return w.node == name })
}

// prevails says whether a node's snapshot of a pod is to be served rather than what is.
func (m *model) prevails(own *snapshot, name string, served word, now usage.Time) bool {
	switch {
	case served.snapshot == nil, served.node == name, m.tooOld(served.asOf, now):
		return true
	case m.tooOld(own.asOf, now): // 8: it cannot be served, so it must not keep what can be from being served
		return false
	default:
		return own.startedAt > served.startedAt // 10: the one whose container started last is believed
	}
}

// complete takes a new snapshot of each of a node's pods that has figures for all its containers. Of the others the last
// one stands (6), unless the pod is gone (9).
func (n *modelNode) complete(pods map[podKey]map[string][]arrival) {
	maps.DeleteFunc(n.whole, func(key podKey, _ *snapshot) bool { return pods[key] == nil })
	for key, containers := range pods {
		if s := snapshotOf(key, containers); s != nil {
			n.whole[key] = s
		}
	}
}

// snapshotOf is a pod with all its containers, or nil if one of them has no figure (6).
func snapshotOf(key podKey, containers map[string][]arrival) *snapshot {
	s := &snapshot{Pod: usage.Pod{Namespace: key.namespace, Name: key.name}}
	var asOf, starts []usage.Time
	for _, name := range slices.Sorted(maps.Keys(containers)) {
		f := figureOf(containers[name])
		if !f.known {
			return nil
		}
		s.Containers = append(s.Containers, usage.Container{Name: name, Amount: f.Amount})
		asOf = append(asOf, f.asOf)
		if f.since.StartedAt <= f.since.At { // a start that is still to come is none
			starts = append(starts, f.since.StartedAt)
		}
	}
	oldest := slices.MinFunc(s.Containers, func(a, b usage.Container) int { return cmp.Compare(a.At, b.At) })
	s.At, s.Window = oldest.At, oldest.Window // 7: the time and the window of the oldest figure
	s.asOf = slices.Min(asOf)
	s.startedAt = slices.Max(append(starts, 0))
	return s
}

// pods gives the pods that a node has, each with its containers, and for each container what was said of it since it
// appeared.
func (n *modelNode) pods(maxAge time.Duration) map[podKey]map[string][]arrival {
	containers := map[containerKey][]arrival{}
	for _, s := range n.history {
		containers = heard(containers, s, maxAge)
	}
	pods := map[podKey]map[string][]arrival{}
	for key, arrivals := range containers {
		if pods[key.podKey] == nil {
			pods[key.podKey] = map[string][]arrival{}
		}
		pods[key.podKey][key.container] = arrivals
	}
	return pods
}

// heard gives the containers that a node has after it said something, from those that it had before.
func heard(before map[containerKey][]arrival, s said, maxAge time.Duration) map[containerKey][]arrival {
	after := map[containerKey][]arrival{}
	if s.summary { // a summary creates and ends nothing
		after = maps.Clone(before)
	}
	for _, c := range s.containers {
		if arrivals, known := before[c.key]; known || !s.summary {
			after[c.key] = append(arrivals, arrival{c.sample, s.at, s.summary, knows(before, s)})
		}
	}
	for key, arrivals := range before {
		// 9: what a scrape does not mention is gone. One that could not be read in full proves nothing of it, as long as it
		// was mentioned not too long ago.
		if after[key] == nil && s.partial && s.at.Sub(mentioned(arrivals)) <= maxAge {
			after[key] = arrivals
		}
	}
	return after
}

// mentioned gives when a scrape mentioned a container last.
func mentioned(arrivals []arrival) usage.Time {
	scrapes := slices.DeleteFunc(slices.Clone(arrivals), func(r arrival) bool { return r.summary })
	return scrapes[len(scrapes)-1].received
}

// node gives what is to be served for a node, if anything.
func (m *model) node(name string, now usage.Time) (*usage.Node, usage.Time) {
	n := m.nodes[name]
	if n == nil {
		return nil, 0
	}
	var f, last figure
	for _, r := range n.arrivals() {
		if f.hear(r); f.known {
			last = f // while there is no new one, the last one stands: a node has no parts that could be missing
		}
	}
	if !last.known || m.tooOld(last.asOf, now) {
		return nil, 0
	}
	return &usage.Node{Name: name, Amount: last.Amount}, last.asOf
}

// arrivals are those of the node itself.
func (n *modelNode) arrivals() []arrival {
	var arrivals []arrival
	for _, s := range n.history {
		arrivals = append(arrivals, arrival{Sample: s.node, received: s.at, summary: s.summary})
	}
	return arrivals
}

// pod gives what is to be served for a pod, if anything.
func (m *model) pod(key podKey, now usage.Time) (*usage.Pod, usage.Time) {
	w, ok := m.believed[key]
	if bound := m.nodeOf(key.namespace, key.name); !ok || m.tooOld(w.asOf, now) || bound != "" && bound != w.node {
		return nil, 0
	}
	return &w.Pod, w.asOf
}

// tooOld is rule 8.
func (m *model) tooOld(asOf, now usage.Time) bool { return now.Sub(asOf) > m.maxAge }

// stats counts what is served.
func (m *model) stats(now usage.Time) Stats {
	var s Stats
	for name := range m.nodes {
		if n, asOf := m.node(name, now); n != nil {
			s.Nodes++
			s.OldestNode = max(s.OldestNode, now.Sub(asOf))
		}
	}
	for key := range m.believed {
		if p, asOf := m.pod(key, now); p != nil {
			s.Pods++
			s.Containers += len(p.Containers)
			s.OldestPod = max(s.OldestPod, now.Sub(asOf))
		}
	}
	return s
}

// count counts what the last word of a node brought: 3 says that older samples are.
func (m *model) count(n *modelNode) {
	all := [][]arrival{n.arrivals()}
	s := n.history[len(n.history)-1]
	for key, containers := range n.pods(m.maxAge) {
		for name, arrivals := range containers {
			if slices.ContainsFunc(s.containers, func(c saidOf) bool { return c.key == containerKey{key, name} }) {
				all = append(all, arrivals)
			}
		}
	}
	for _, arrivals := range all {
		now, before := figureOf(arrivals).counts, figureOf(arrivals[:len(arrivals)-1]).counts
		m.counts.OlderSamples += now.OlderSamples - before.OlderSamples
		m.counts.ClockStepsBack += now.ClockStepsBack - before.ClockStepsBack
		m.counts.Baselines += now.Baselines - before.Baselines
	}
}

// arrival is one sample of a node or a container, as it arrived.
type arrival struct {
	usage.Sample
	received usage.Time // by our clock
	summary  bool       // whether a summary has it
	knows    bool       // whether that one's kubelet knows its containers' rates, so that 0 is one
}

// knows says whether a summary has a rate above 0 of a reading that was told before.
func knows(before map[containerKey][]arrival, summary said) bool {
	return summary.summary && slices.ContainsFunc(summary.containers, func(c saidOf) bool {
		f := figureOf(before[c.key])
		return f.since.Has != 0 && f.repeated(c.sample) && has(c.sample, usage.HasRate) && c.sample.Rate > 0
	})
}

// figure is what follows from a row of arrivals.
type figure struct {
	usage.Amount
	known bool
	asOf  usage.Time

	since usage.Sample // what the next reading is compared with
	older int          // arrivals in a row that were older than that

	counts Counts
}

// figureOf goes through what was said of one node or container, from the first to the last word.
func figureOf(arrivals []arrival) figure {
	var f figure
	for _, r := range arrivals {
		f.hear(r)
	}
	return f
}

func (f *figure) hear(r arrival) {
	if r.summary {
		f.lend(r)
	} else {
		f.next(r)
	}
}

func (f *figure) next(r arrival) {
	switch elapsed := r.At.Sub(f.since.At); {
	case !has(r.Sample, usage.HasCPU|usage.HasMemory):
		// half a reading makes no figure; what is known stands
	case f.since.Has == 0:
		f.begin(r)
	case elapsed == 0:
		f.older = 0 // 2: nothing new; the last figure stands
	case elapsed < 0:
		f.counts.OlderSamples++ // 3: ignored and counted
		if f.older++; f.older == 3 {
			f.counts.ClockStepsBack++
			f.begin(r)
		}
	case r.CPUSeconds < f.since.CPUSeconds, startedWithin(f.since.At, r.Sample):
		f.begin(r) // 4: a restart
	case elapsed < time.Second:
		f.older = 0 // 1: less than a second gives no rate
	case startedWithin(r.At.Add(-10*time.Second), r.Sample):
		f.older = 0 // 4: in its start-up spike
	default:
		f.take(r, r.CPUSeconds-f.since.CPUSeconds, elapsed) // 1
	}
}

// startedWithin says whether a container started after a moment and before its sample (4).
func startedWithin(after usage.Time, s usage.Sample) bool {
	return after < s.StartedAt && s.StartedAt <= s.At
}

// begin starts a new series (4): one that is 10 to 60 seconds old has a figure at once.
func (f *figure) begin(r arrival) {
	if age := r.At.Sub(r.StartedAt); r.StartedAt != 0 && 10*time.Second <= age && age <= 60*time.Second {
		f.take(r, r.CPUSeconds, age)
		return
	}
	f.none(r)
}

func (f *figure) none(r arrival) {
	f.counts.Baselines++
	f.since, f.older, f.known = r.Sample, 0, false
}

// take is rule 1: core-seconds by seconds.
func (f *figure) take(r arrival, coreSeconds float64, window time.Duration) {
	nanocores := math.Round(coreSeconds * 1e9 / window.Seconds())
	if nanocores >= math.MaxInt64 { // more than the API can say: not a figure but a mistake
		f.none(r)
		return
	}
	f.since, f.older = r.Sample, 0
	f.serve(r, uint64(nanocores), window)
}

// lend gives a series without a figure the rate that the kubelet itself reckons, if it speaks of the same series.
func (f *figure) lend(r arrival) {
	age := r.At.Sub(r.StartedAt)
	dated := r.StartedAt != 0 && age >= 0
	switch {
	case f.since.Has == 0, f.known, !f.repeated(r.Sample):
	case !has(r.Sample, usage.HasCPU|usage.HasMemory|usage.HasRate):
	case r.Rate == 0 && r.CPUSeconds > 0 && !r.knows: // a placeholder
	case r.Rate > math.MaxInt64:
	case dated && age < 10*time.Second: // 4: in its start-up spike
	case dated:
		f.serve(r, r.Rate, min(age, usage.OwnRateWindow))
	default:
		f.serve(r, r.Rate, usage.OwnRateWindow)
	}
}

// repeated says whether a summary's sample is of the reading that was told last, and not of another one or another series.
func (f *figure) repeated(s usage.Sample) bool {
	return s.CPUSeconds == f.since.CPUSeconds && s.StartedAt <= f.since.At
}

// serve makes the figure: its time is that of the CPU sample (1), and a swap that is not reported is not 0 (5).
func (f *figure) serve(r arrival, nanocores uint64, window time.Duration) {
	f.known = true
	f.Amount = usage.Amount{CPUNanocores: nanocores, Memory: r.Memory, Swap: r.Swap, At: r.At, Window: window, HasSwap: has(r.Sample, usage.HasSwap)}
	f.asOf = min(r.At, r.received) // 8: a clock that runs ahead does not prolong its life
}

func has(s usage.Sample, what usage.Has) bool { return s.Has&what == what }
