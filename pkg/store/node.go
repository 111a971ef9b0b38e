package store

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unique"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// node is what is known of one node through its kubelet.
type node struct {
	name   string
	served atomic.Pointer[publishedNode]

	mu         sync.Mutex // held by Put and Forget; guards all below
	series     series
	containers []*container // in the order in which the kubelet named them last
	claims     []*claim     // the pods that they belong to
}

// publishedNode is a node's figure that may be served, for a time. It is immutable.
type publishedNode struct {
	usage.Node
	asOf usage.Time
}

// claim is a node's word that a pod runs on it. It is published when it is complete, and served unless another node's
// claim to the same pod prevails.
type claim struct {
	key        podKey
	containers []*container  // sorted by name
	complete   *publishedPod // the last complete snapshot; nil: there was none yet
	changed    bool          // whether the containers or their Amounts changed since it was taken
}

// container is one container of a claim.
type container struct {
	claim *claim
	name  string
	series
	heard usage.Time // when a scrape mentioned it last, by our clock
}

// is says whether c is the container that a sample speaks of.
func (c *container) is(s *usage.ContainerSample) bool {
	return c.name == string(s.Name) && c.claim.key.name == string(s.Pod) && c.claim.key.namespace == string(s.Namespace)
}

func (n *node) putNode(scrape *usage.Scrape, counts *counts) {
	if n.series.observe(scrape.Node, scrape.At, counts) {
		n.publish()
	}
}

func (n *node) publish() {
	n.served.Store(&publishedNode{usage.Node{Name: n.name, Amount: n.series.last}, n.series.asOf})
}

// join brings n.containers into the order of the scrape's: those that it names first, one for one, and behind them those
// that it does not mention but that may still exist. It gives the claims that ended. In steady state the order is that
// of the scrape before, and nothing is to be done.
func (n *node) join(scrape *usage.Scrape, config Config) (withdrawn []*claim) {
	if n.sameOrder(scrape) {
		return nil
	}
	known := make(map[containerKey]*container, len(n.containers))
	for _, c := range n.containers {
		known[containerKey{c.claim.key, c.name}] = c
	}
	claims := make(map[podKey]*claim, len(n.claims))
	for _, c := range n.claims {
		claims[c.key] = c
	}

	old := n.containers
	n.containers = make([]*container, 0, len(scrape.Containers))
	for i := range scrape.Containers {
		n.containers = append(n.containers, n.container(&scrape.Containers[i], known, claims))
	}
	mentioned := make(map[*container]bool, len(n.containers))
	for _, c := range n.containers {
		mentioned[c] = true
	}
	for _, c := range old {
		switch {
		case mentioned[c]:
		case scrape.Partial && len(n.containers) < config.MaxContainers && scrape.At.Sub(c.heard) <= config.MaxSampleAge:
			n.containers = append(n.containers, c)
		default:
			c.leave()
		}
	}
	n.claims = slices.DeleteFunc(n.claims, func(c *claim) bool {
		if len(c.containers) > 0 {
			return false
		}
		withdrawn = append(withdrawn, c)
		return true
	})
	return withdrawn
}

// sameOrder says whether the scrape names the containers of n, all of them, in their order.
func (n *node) sameOrder(scrape *usage.Scrape) bool {
	if len(n.containers) != len(scrape.Containers) {
		return false
	}
	for i, c := range n.containers {
		if !c.is(&scrape.Containers[i]) {
			return false
		}
	}
	return true
}

// container gives the container that a sample speaks of, which it makes, and its claim, if they are new.
func (n *node) container(s *usage.ContainerSample, known map[containerKey]*container, claims map[podKey]*claim) *container {
	if c := known[containerKey{podKey{string(s.Namespace), string(s.Pod)}, string(s.Name)}]; c != nil {
		return c
	}
	of := claims[podKey{string(s.Namespace), string(s.Pod)}]
	if of == nil {
		of = &claim{key: podKey{shared(s.Namespace), string(s.Pod)}}
		claims[of.key] = of
		n.claims = append(n.claims, of)
	}
	c := &container{claim: of, name: shared(s.Name)}
	of.containers = append(of.containers, c)
	slices.SortFunc(of.containers, func(a, b *container) int { return strings.Compare(a.name, b.name) })
	return c
}

// shared gives a string that is kept once, however many containers it belongs to: there are few names of namespaces and of
// containers beside those of pods.
func shared(name []byte) string { return unique.Make(string(name)).Value() }

// leave takes c out of its claim.
func (c *container) leave() {
	c.claim.containers = slices.DeleteFunc(c.claim.containers, func(other *container) bool { return other == c })
	c.claim.changed = true
}

// observe takes in the samples of a scrape that was joined.
func (n *node) observe(scrape *usage.Scrape, counts *counts) {
	for i := range scrape.Containers {
		c := n.containers[i]
		c.heard = scrape.At
		if c.observe(scrape.Containers[i].Sample, scrape.At, counts) {
			c.claim.changed = true
		}
	}
}

// lend takes in what a summary says of the node and of the containers that are known. A kubelet that tells a rate above 0 of
// a container knows those of all: one that does not know says 0 for each.
func (n *node) lend(summary *usage.Scrape) {
	if n.series.lend(summary.Node, false, summary.At) {
		n.publish()
	}
	known := make(map[containerKey]*container)
	for _, c := range n.containers {
		known[containerKey{c.claim.key, c.name}] = c
	}
	find := func(s *usage.ContainerSample) *container {
		return known[containerKey{podKey{string(s.Namespace), string(s.Pod)}, string(s.Name)}]
	}
	knows := false
	for i := range summary.Containers {
		s := &summary.Containers[i]
		c := find(s)
		knows = knows || c != nil && s.Has&usage.HasRate != 0 && s.Rate > 0 && c.repeats(s.Sample)
	}
	for i := range summary.Containers {
		s := &summary.Containers[i]
		if c := find(s); c != nil && c.lend(s.Sample, knows, summary.At) {
			c.claim.changed = true
		}
	}
}

// lack says what the node and its containers lack at the moment now. A kubelet that never told of its node will not do so
// for being asked again.
func (n *node) lack(now usage.Time) (lack usage.Lack) {
	if n.series.sampled {
		lack = n.series.lack(now)
	}
	for _, c := range n.containers {
		if !c.has {
			lack = and(lack, c.lack(now))
		}
	}
	return lack
}

// together is the number of snapshots that share their memory. Most of them end together, with the next scrape; but a kubelet
// may tell nothing new of a pod for long, and must not keep much more than that pod's snapshot.
const together = 32

// complete takes new snapshots of the pods that have changed and are complete: every container has an Amount. Thousands of
// small pieces of memory would leave the heap full of holes, so that some share two.
func (n *node) complete() {
	ready := make([]*claim, 0, len(n.claims))
	for _, c := range n.claims {
		if c.ready() {
			ready = append(ready, c)
		}
	}
	for some := range slices.Chunk(ready, together) {
		takeAll(some)
	}
}

func takeAll(ready []*claim) {
	containers := 0
	for _, c := range ready {
		containers += len(c.containers)
	}
	pods, figures := make([]publishedPod, len(ready)), make([]usage.Container, containers)
	for i, c := range ready {
		k := len(c.containers)
		pods[i].Containers, figures = figures[:k:k], figures[k:]
		c.take(&pods[i])
	}
}

// ready says whether there is a new snapshot to be taken.
func (c *claim) ready() bool {
	return c.changed && !slices.ContainsFunc(c.containers, func(of *container) bool { return !of.has })
}

// take makes p the last complete snapshot. It has room for the containers.
func (c *claim) take(p *publishedPod) {
	p.Namespace, p.Name = c.key.namespace, c.key.name
	for i, of := range c.containers {
		p.Containers[i] = usage.Container{Name: of.name, Amount: of.last}
		if i == 0 || of.last.At < p.At {
			p.At, p.Window = of.last.At, of.last.Window
		}
		if i == 0 || of.asOf < p.asOf {
			p.asOf = of.asOf
		}
		if of.prev.startedAt <= of.prev.at { // a start that is still to come cannot be
			p.startedAt = max(p.startedAt, of.prev.startedAt)
		}
	}
	c.complete, c.changed = p, false
}
