// Package store keeps the latest usage of every node and pod: the samples that rates are computed
// from, the snapshots that are served, and the usage of further resources (Resources).
//
// Put compares a scrape with the previous samples, computes the rates, and publishes a snapshot of
// each complete pod; a read is a lookup. The store reads no clock and does no I/O, and holds no
// lock while anything is decoded or encoded. The times of samples are by the clocks of the nodes, whose
// offsets the store estimates.
//
// The store does not know which pods exist (pkg/inventory does) or how metrics are encoded (pkg/api
// does). It reports what is missing, but pkg/scrape alone decides when to scrape. docs/numbers.md
// explains the rules of the numbers.
package store

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Config sets the limits of a Store.
type Config struct {
	// A metric expires at the age of MaxSampleAge, which is also the longest window of a rate.
	MaxSampleAge time.Duration
	// RateWindow is the time that a rate should cover, at most MaxSampleAge. If samples are denser, a
	// rate is computed from an earlier sample than the previous one. 0: always from the previous one.
	RateWindow time.Duration
	// MaxContainers limits the containers of one node: above it, containers that a scrape does not mention
	// are dropped.
	MaxContainers int
	// State returns what the API server shows of a container of a pod that is bound to the node; the
	// zero usage.ContainerState if there is no such pod. It is called for containers that a scrape does not
	// mention, or mentions without CPU and memory. It is also called if a start time has changed, or was
	// not yet found to be that of the pod, or if a sample was refused, or gave no new Amount. Required.
	State func(node, namespace, pod, container string) usage.ContainerState
}

// isDense reports whether a window is so short that a rate should begin at an earlier sample: less than 60 % of
// RateWindow.
func (c *Config) isDense(window time.Duration) bool { return window < c.RateWindow*3/5 }

// isClose reports whether a window is so short that a rate should begin at an earlier sample if the load is
// known to be steady: less than 70 % of RateWindow. Twice the window is about as close to that.
func (c *Config) isClose(window time.Duration) bool { return window < c.RateWindow*7/10 }

// Store holds the usage of a cluster. It is safe for concurrent use, but calls to Put, PutSummary
// and Forget for the same node must not overlap.
type Store struct {
	// Resources has the usage of further resources of the same nodes and pods; nil: there are none.
	Resources *Resources

	config Config
	counts counts

	mu    sync.RWMutex
	nodes map[string]*node // by name
}

// New returns an empty Store.
func New(config Config) *Store {
	return &Store{config: config, nodes: map[string]*node{}}
}

// Put stores a successful scrape of a node. It does not retain the scrape.
func (s *Store) Put(nodeName string, scrape *usage.Scrape) usage.Report {
	n := s.getOrCreateNode(nodeName)
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.put(scrape, &s.counts)
}

// PutSummary stores the kubelet-reported rates of a summary right after a scrape, and returns what
// is still missing. A rate is used for the node or a container without an Amount, if it belongs to
// the sample of that scrape. A summary never starts or ends a series: its times are truncated to
// whole seconds.
func (s *Store) PutSummary(nodeName string, summary *usage.Scrape) []usage.Missing {
	n := s.node(nodeName)
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.putSummary(summary)
}

// Forget drops a node and its pods.
func (s *Store) Forget(nodeName string) {
	s.Resources.forget(nodeName)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, nodeName)
}

// RemovePod drops the metrics of a pod that the API server deleted, at the time now. What is reported later
// of the deleted pod is ignored.
func (s *Store) RemovePod(nodeName, namespace, name string, now usage.Time) {
	s.Resources.removePod(usage.PodKey{Node: nodeName, Namespace: namespace, Name: name}, now)
	n := s.node(nodeName)
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.removePod(podKey{namespace, name}, now)
}

// Node returns the usage of a node, or nil if it has none that is valid at the time now.
func (s *Store) Node(name string, now usage.Time) *usage.Node {
	n := s.node(name)
	if n == nil {
		return nil
	}
	if p := n.snapshot.Load(); p != nil && !s.isExpired(p.AsOf, now) {
		return p
	}
	return nil
}

// Pod returns the usage of a whole pod on its node, or nil if it has none that is valid at the time now.
func (s *Store) Pod(nodeName, namespace, name string, now usage.Time) *usage.Pod {
	key, snapshots := podKey{namespace, name}, s.node(nodeName).published()
	hash := key.hash()
	return s.valid(snapshots.get(key, hash, snapshots.find(hash)), now)
}

// Pods sets each element of found to what Pod returns for the key of the same index. There must be no more
// than usage.ReadAhead.
//
// Each loop reads one thing for many pods: see usage.ReadAhead, and BenchmarkAllPods in pkg/api.
func (s *Store) Pods(found []*usage.Pod, keys []usage.PodKey, now usage.Time) {
	var (
		hashes    [usage.ReadAhead]uint32
		nodes     [usage.ReadAhead]*node
		snapshots [usage.ReadAhead]*podSnapshots
		positions [usage.ReadAhead]int
	)
	read := 0 // makes the compiler keep reads whose only purpose is to begin them early
	for i := range keys {
		read += firstByte(keys[i].Name) + firstByte(keys[i].Node)
	}
	for i := range keys {
		hashes[i] = podKey{keys[i].Namespace, keys[i].Name}.hash()
	}
	s.mu.RLock()
	for i := range keys {
		nodes[i] = s.nodes[keys[i].Node]
	}
	s.mu.RUnlock()
	for i := range keys {
		snapshots[i] = nodes[i].published()
	}
	for i := range keys {
		positions[i] = snapshots[i].find(hashes[i])
	}
	for i := range keys {
		found[i] = nil
		if j := positions[i]; j < len(snapshots[i].all) {
			found[i] = snapshots[i].all[j]
		}
	}
	for i := range keys {
		if p := found[i]; p != nil {
			read += int(p.AsOf) + len(p.Name)
		}
	}
	for i := range keys {
		if p := found[i]; p != nil {
			read += firstByte(p.Name)
		}
	}
	for i := range keys {
		key := podKey{keys[i].Namespace, keys[i].Name}
		found[i] = s.valid(snapshots[i].get(key, hashes[i], positions[i]), now)
	}
	runtime.KeepAlive(read)
}

func firstByte(s string) int {
	if s == "" {
		return 0
	}
	return int(s[0])
}

// valid returns the snapshot, or nil if it has expired.
func (s *Store) valid(p *usage.Pod, now usage.Time) *usage.Pod {
	if p == nil || s.isExpired(p.AsOf, now) {
		return nil
	}
	return p
}

func (s *Store) isExpired(asOf, now usage.Time) bool {
	return asOf.IsExpired(s.config.MaxSampleAge, now)
}

// node returns the state of a node, or nil if it is unknown.
func (s *Store) node(name string) *node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.nodes[name]
}

// getOrCreateNode returns the state of a node, which it creates if it is unknown.
func (s *Store) getOrCreateNode(name string) *node {
	n := s.node(name)
	if n == nil { // no other call creates it meanwhile
		n = &node{
			name: name, config: &s.config, ended: map[containerKey]endedContainer{}, removed: map[podKey]usage.Time{},
		}
		n.pods.Store(noSnapshots)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.nodes[name] = n
	}
	return n
}

// Stats describes the metrics that are served.
type Stats struct {
	Nodes, Pods, Containers int           // with valid metrics
	OldestNode, OldestPod   time.Duration // the greatest age of their metrics; 0 if there are none
}

// Stats returns the statistics at the time now. It reads all snapshots, which takes a few
// milliseconds for tens of thousands of pods.
func (s *Store) Stats(now usage.Time) Stats {
	var stats Stats
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, n := range s.nodes {
		if p := n.snapshot.Load(); p != nil && !s.isExpired(p.AsOf, now) {
			stats.Nodes++
			stats.OldestNode = max(stats.OldestNode, now.Sub(p.AsOf))
		}
		for _, p := range n.pods.Load().all {
			if p != nil && !s.isExpired(p.AsOf, now) {
				stats.Pods++
				stats.Containers += len(p.Containers)
				stats.OldestPod = max(stats.OldestPod, now.Sub(p.AsOf))
			}
		}
	}
	return stats
}

// Counts are the numbers of events since the store was created.
type Counts struct {
	OlderSamples   uint64 // ignored samples that were older than the previous one
	ClockStepsBack uint64 // series restarted because their samples stayed older
	ClockJumps     uint64 // jumps of the offset between a node's clock and ours
	Baselines      uint64 // samples that started a series
}

type counts struct{ older, stepsBack, clockJumps, baselines atomic.Uint64 }

// Counts returns the numbers of events so far.
func (s *Store) Counts() Counts {
	c := &s.counts
	return Counts{c.older.Load(), c.stepsBack.Load(), c.clockJumps.Load(), c.baselines.Load()}
}
