package store

import (
	"math"
	"sort"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Facts describes the samples of a node or container.
type Facts struct {
	Lost      usage.Loss // of a node: why its last sample cannot be used
	Since     usage.Time // when its series started; 0: no scrape has mentioned it
	SampledAt usage.Time // when its Amount was sampled, else its last sample; 0: none had both CPU and memory
	HasAmount bool       // whether there are enough samples for a rate
}

// ContainerFacts describes the samples of a container.
type ContainerFacts struct {
	Name    string
	Omitted bool // whether the last scrape did not mention it, although it may run
	Facts
}

// PodFacts describes what a node reports of a pod.
type PodFacts struct {
	AsOf       usage.Time       // when the last snapshot of the whole pod was sampled; 0: there was none
	Containers []ContainerFacts // sorted by name; at least one

	// Lost is why the last sample of a container, LostContainer, cannot be used.
	Lost          usage.Loss
	LostContainer string
}

// NodeFacts describes the samples of a node itself. It reports false if the node was never scraped.
func (s *Store) NodeFacts(nodeName string) (Facts, bool) {
	n := s.node(nodeName)
	if n == nil {
		return Facts{}, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	facts := n.facts(&n.series)
	facts.Lost = n.lost
	return facts, true
}

// PodFacts describes what a node reports of a pod. It reports false if no scrape has mentioned the pod, or if all
// its containers were dropped since. The time it takes hardly depends on the number of pods.
func (s *Store) PodFacts(nodeName, namespace, name string) (PodFacts, bool) {
	n := s.node(nodeName)
	if n == nil {
		return PodFacts{}, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.reportedPod(podKey{namespace, name})
	if r == nil {
		return PodFacts{}, false
	}
	facts := PodFacts{Containers: make([]ContainerFacts, len(r.containers))}
	if r.snapshot != nil {
		facts.AsOf = r.snapshot.AsOf
	}
	if r.lost != usage.NotLost {
		facts.Lost, facts.LostContainer = r.lost, r.lostOf.name.Value()
	}
	for i, c := range r.containers {
		facts.Containers[i] = ContainerFacts{c.name.Value(), c.isOmitted, n.facts(&c.series)}
	}
	return facts, true
}

// OurTime converts a time by the clock of a node. Without a known offset, the clocks agree.
func (s *Store) OurTime(nodeName string, t usage.NodeTime) usage.Time {
	n := s.node(nodeName)
	if n == nil {
		return new(nodeClock).ourTime(t)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.clock.ourTime(t)
}

// reportedPod returns what the node reports of a pod, or nil.
func (n *node) reportedPod(key podKey) *reportedPod {
	hash := key.hash()
	i := sort.Search(len(n.reported), func(i int) bool { return n.reported[i].hash >= hash })
	for ; i < len(n.reported) && n.reported[i].hash == hash; i++ {
		if n.reported[i].key == key {
			return n.reported[i]
		}
	}
	return nil
}

// facts describes a series of the node.
func (n *node) facts(of *series) Facts {
	const received = math.MaxInt64 // not known any more
	facts := Facts{Since: of.since, HasAmount: of.hasAmount}
	switch {
	case of.hasAmount:
		facts.SampledAt = of.asOf
	case of.sampled:
		last := usage.Sample{At: of.prev.At, Untimed: of.untimed}
		facts.SampledAt = n.clock.sampledAt(&last, received)
	}
	return facts
}
