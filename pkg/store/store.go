// Package store keeps the latest usage of every node and pod: the samples that a rate needs, and
// the snapshots that may be served.
//
// Put compares a scrape with the samples before it, computes the rates, and publishes snapshots of
// the pods that are complete; a read is a lookup. Nothing here reads a clock or does I/O, and no
// lock is held while anything is decoded or encoded. All times that callers pass are by one
// usage.Clock, "our clock"; the times in samples are by the clocks of the nodes, whose offsets the
// store estimates.
//
// The store does not know which pods exist (pkg/inventory does), when to scrape (pkg/scrape) or how
// metrics are encoded (pkg/api). docs/numbers.md explains the rules that it keeps.
package store

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Config sets the limits of a Store.
type Config struct {
	// MaxSampleAge is the age beyond which a metric expires, and the longest window of a rate.
	MaxSampleAge time.Duration
	// MaxContainers is the number of containers of one node beyond which those that partial scrapes
	// do not mention are dropped.
	MaxContainers int
	// IsRunning, if not nil, reports whether the API server has a container as running. It is
	// called for containers that a partial scrape does not mention although it mentions others of
	// their pod.
	IsRunning func(namespace, pod, container string) bool
}

// Store holds the state of a cluster. It is safe for concurrent use, but a node's Put, PutSummary
// and Forget must not be called at the same time.
type Store struct {
	config Config
	counts counts

	mu    sync.RWMutex
	nodes map[string]*node // by name
}

// New returns an empty Store.
func New(config Config) *Store {
	return &Store{config: config, nodes: map[string]*node{}}
}

// Put takes in a successful scrape of a node. It copies what it keeps; the scrape is the caller's
// again when it returns.
func (s *Store) Put(nodeName string, scrape *usage.Scrape) usage.Report {
	n := s.addNode(nodeName)
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.put(scrape, s.config, &s.counts)
}

// PutSummary stores the kubelet-reported rates of a summary right after a scrape, and returns what
// is missing then. The rates serve where the node or a container has no Amount yet, if they belong
// to the samples of that scrape. A summary never starts or ends a series: its times are cut to
// whole seconds.
func (s *Store) PutSummary(nodeName string, summary *usage.Scrape) []usage.Missing {
	n := s.node(nodeName)
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.putSummary(summary, s.config)
}

// Forget drops a node and its pods.
func (s *Store) Forget(nodeName string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, nodeName)
}

// RemovePod drops what a node reported of a pod that the API server deleted, as was noticed at the
// moment now. What the kubelet goes on reporting of it is ignored.
func (s *Store) RemovePod(nodeName, namespace, name string, now usage.Time) {
	n := s.node(nodeName)
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(podKey{namespace, name}, now)
}

// Node returns the usage of a node, or nil if there is none that may be served at the moment now.
func (s *Store) Node(name string, now usage.Time) *usage.Node {
	n := s.node(name)
	if n == nil {
		return nil
	}
	if p := n.served.Load(); p != nil && !s.isExpired(p.AsOf, now) {
		return p
	}
	return nil
}

// Pod returns the usage of a pod, all its containers, as the node to which it is bound reports it,
// or nil if there is none that may be served at the moment now.
func (s *Store) Pod(nodeName, namespace, name string, now usage.Time) *usage.Pod {
	n := s.node(nodeName)
	if n == nil {
		return nil
	}
	if p := n.pods.Load().get(podKey{namespace, name}); p != nil && !s.isExpired(p.AsOf, now) {
		return p
	}
	return nil
}

func (s *Store) isExpired(asOf, now usage.Time) bool { return now.Sub(asOf) > s.config.MaxSampleAge }

// node returns the state of the node of that name, or nil.
func (s *Store) node(name string) *node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.nodes[name]
}

// addNode returns the state of the node of that name, which it adds if there is none.
func (s *Store) addNode(name string) *node {
	if n := s.node(name); n != nil {
		return n
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if n == nil {
		n = &node{name: name}
		s.nodes[name] = n
	}
	return n
}

// Stats is what is served, and how old it is.
type Stats struct {
	Nodes, Pods, Containers int           // that may be served
	OldestNode, OldestPod   time.Duration // the greatest age among them; 0 where there is none
}

// Stats reads everything that is kept: a few milliseconds for tens of thousands of pods.
func (s *Store) Stats(now usage.Time) Stats {
	var stats Stats
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, n := range s.nodes {
		if p := n.served.Load(); p != nil && !s.isExpired(p.AsOf, now) {
			stats.Nodes++
			stats.OldestNode = max(stats.OldestNode, now.Sub(p.AsOf))
		}
		pods := n.pods.Load()
		if pods == nil {
			continue
		}
		for _, p := range pods.all {
			if p != nil && !s.isExpired(p.AsOf, now) {
				stats.Pods++
				stats.Containers += len(p.Containers)
				stats.OldestPod = max(stats.OldestPod, now.Sub(p.AsOf))
			}
		}
	}
	return stats
}

// Counts are events since the start.
type Counts struct {
	OlderSamples   uint64 // samples older than the one before, ignored
	ClockStepsBack uint64 // series started again because their samples went on being older
	ClockJumps     uint64 // jumps of the offset between a node's clock and ours
	Baselines      uint64 // samples that started a series, from which no rate follows yet
}

type counts struct{ older, stepsBack, clockJumps, baselines atomic.Uint64 }

// Counts returns the events since the start.
func (s *Store) Counts() Counts {
	return Counts{
		OlderSamples:   s.counts.older.Load(),
		ClockStepsBack: s.counts.stepsBack.Load(),
		ClockJumps:     s.counts.clockJumps.Load(),
		Baselines:      s.counts.baselines.Load(),
	}
}
