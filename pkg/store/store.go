// Package store keeps the latest state of every node and pod: the samples that a rate needs, and what may be served.
//
// Put joins a scrape with what the node said before, computes the rates, and publishes the pods that are complete; reads
// give what was published last, as long as it is not too old. Nothing here reads a clock or does I/O, and no lock is held
// while anything is decoded or encoded: a scrape and a read meet for the time of one look-up.
//
// It deliberately does not know which pods exist (that is pkg/inventory's), when to scrape (pkg/scrape's) or how figures
// are shown (pkg/api's). The rules that it keeps are explained in docs/numbers.md.
package store

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Config says what a Store serves and how much it keeps.
type Config struct {
	// MaxSampleAge is the age from which on a figure is not served any more.
	MaxSampleAge time.Duration
	// MaxContainers is the number of containers of one node that are kept when its kubelet's answers cannot be read in
	// full, so that a scrape's silence about a container proves nothing.
	MaxContainers int
	// NodeOf, if it is not nil, gives the node that a pod is bound to, or "" if it is not known. What other nodes say of that
	// pod is not believed. It is called often, and must be quick.
	NodeOf func(namespace, pod string) (node string)
}

// Store holds the state of a cluster. It is safe for concurrent use, but a node's Put and Forget must not be called at
// the same time.
type Store struct {
	config Config
	pods   index
	counts counts

	mu    sync.RWMutex
	nodes map[string]*node // by name
}

// New gives an empty Store.
func New(config Config) *Store {
	s := &Store{config: config, nodes: map[string]*node{}}
	s.pods.init()
	return s
}

// Put takes in what a node's kubelet said in a successful scrape, and says what its figures lack. It copies what it keeps;
// the scrape is the caller's again when it returns.
func (s *Store) Put(nodeName string, scrape *usage.Scrape) usage.Report {
	n := s.node(nodeName)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.putNode(scrape, &s.counts)
	withdrawn := n.join(scrape, s.config)
	n.observe(scrape, &s.counts)
	for _, c := range withdrawn {
		s.pods.withdraw(c.key, n)
	}
	s.publish(n, scrape.At)
	return usage.Report{Missing: n.lack(scrape.At)}
}

// Lend takes in a kubelet's summary right after a scrape, and says what the node's figures still lack. The rates that the
// kubelet itself has reckoned serve where the node or a container has no figure yet, if they are those of the same readings. Nothing begins, ends or is compared
// with a summary: its times are cut to whole seconds.
func (s *Store) Lend(nodeName string, summary *usage.Scrape) usage.Lack {
	n := s.known(nodeName)
	if n == nil {
		return usage.Lack{}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lend(summary)
	s.publish(n, summary.At)
	return n.lack(summary.At)
}

// publish serves the node's pods that are complete. Those that have not changed are offered, too: another node's claim that
// prevailed may have ended.
func (s *Store) publish(n *node, now usage.Time) {
	n.complete()
	for _, c := range n.claims {
		if c.complete != nil && !s.offer(c, n, now) {
			s.counts.contested.Add(1)
		}
	}
}

// offer serves a claim's complete snapshot, unless another node prevails: the one that the pod is bound to or, if that is
// not known, the one whose container started last. It says whether the snapshot is served.
func (s *Store) offer(c *claim, n *node, now usage.Time) bool {
	switch s.nodeOf(c.key) {
	case "":
		return s.pods.offer(c, n, now.Add(-s.config.MaxSampleAge))
	case n.name:
		s.pods.serve(c, n)
		return true
	default:
		s.pods.withdraw(c.key, n)
		return false
	}
}

func (s *Store) nodeOf(pod podKey) string {
	if s.config.NodeOf == nil {
		return ""
	}
	return s.config.NodeOf(pod.namespace, pod.name)
}

// Forget drops a node and the pods that are served from it, at once.
func (s *Store) Forget(nodeName string) {
	s.mu.Lock()
	n := s.nodes[nodeName]
	delete(s.nodes, nodeName)
	s.mu.Unlock()
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.claims {
		s.pods.withdraw(c.key, n)
	}
}

// Node gives what a node uses, or nil if there is no figure that may be served at the moment now.
func (s *Store) Node(name string, now usage.Time) *usage.Node {
	n := s.known(name)
	if n == nil {
		return nil
	}
	if p := n.served.Load(); p != nil && s.mayServe(p.asOf, now) {
		return &p.Node
	}
	return nil
}

// Pod gives what a pod uses, all its containers, or nil if there is nothing that may be served at the moment now.
func (s *Store) Pod(namespace, name string, now usage.Time) *usage.Pod {
	key := podKey{namespace, name}
	if p, owner := s.pods.get(key); p != nil && s.mayServePod(p, owner, now) {
		return &p.Pod
	}
	return nil
}

// mayServePod says whether what is held of a pod may be served. It may have been offered before it was known where the pod
// is bound to.
func (s *Store) mayServePod(p *publishedPod, owner *node, now usage.Time) bool {
	if !s.mayServe(p.asOf, now) {
		return false
	}
	bound := s.nodeOf(podKey{p.Namespace, p.Name})
	return bound == "" || bound == owner.name
}

func (s *Store) mayServe(asOf, now usage.Time) bool { return now.Sub(asOf) <= s.config.MaxSampleAge }

// known gives the state of the node of that name, or nil.
func (s *Store) known(name string) *node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.nodes[name]
}

// node is known, but makes the state if there is none.
func (s *Store) node(name string) *node {
	if n := s.known(name); n != nil {
		return n
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[name]; n != nil {
		return n
	}
	n := &node{name: name}
	s.nodes[name] = n
	return n
}

// Stats tells how much is served, and how old it is.
type Stats struct {
	Nodes, Pods, Containers int           // that may be served
	OldestNode, OldestPod   time.Duration // the greatest age of a figure among them; 0 where there is none
}

// Stats looks at everything that is kept: a few milliseconds for tens of thousands of pods.
func (s *Store) Stats(now usage.Time) Stats {
	var stats Stats
	s.mu.RLock()
	for _, n := range s.nodes {
		if p := n.served.Load(); p != nil && s.mayServe(p.asOf, now) {
			stats.Nodes++
			stats.OldestNode = max(stats.OldestNode, now.Sub(p.asOf))
		}
	}
	s.mu.RUnlock()
	s.pods.each(func(p *publishedPod, owner *node) {
		if s.mayServePod(p, owner, now) {
			stats.Pods++
			stats.Containers += len(p.Containers)
			stats.OldestPod = max(stats.OldestPod, now.Sub(p.asOf))
		}
	})
	return stats
}

// Counts are events since the start.
type Counts struct {
	OlderSamples    uint64 // samples older than the one before, ignored
	ClockStepsBack  uint64 // series begun anew because samples went on being older: a node's clock was set back
	Baselines       uint64 // first samples of a series and samples after a restart, from which no rate follows yet
	ContestedClaims uint64 // times that a node's figures for a pod gave way to those of another node
}

type counts struct{ older, stepsBack, baselines, contested atomic.Uint64 }

// Counts gives the events since the start.
func (s *Store) Counts() Counts {
	return Counts{
		OlderSamples:    s.counts.older.Load(),
		ClockStepsBack:  s.counts.stepsBack.Load(),
		Baselines:       s.counts.baselines.Load(),
		ContestedClaims: s.counts.contested.Load(),
	}
}
