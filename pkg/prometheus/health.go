package prometheus

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

var _ health.Source = (*Source)(nil)

// overall is what is known of the engine.
type overall struct {
	mu sync.Mutex
	health.Overall
	details health.Engine // Overall copies it into Engine
}

// Overall implements health.Source.
func (s *Source) Overall() health.Overall {
	s.overall.mu.Lock()
	defer s.overall.mu.Unlock()
	current, engine := s.overall.Overall, s.overall.details
	current.Engine = &engine
	return current
}

// Node implements health.Source.
func (s *Source) Node(name string) (health.Node, bool) {
	s.mu.Lock()
	n := s.nodes[name]
	s.mu.Unlock()
	if n == nil {
		return health.Node{}, false
	}
	return n.current(s.Overall().Next), true
}

// Nodes implements health.Source.
func (s *Source) Nodes() []health.Node {
	known, next := s.snapshot(), s.Overall().Next
	nodes := make([]health.Node, len(known))
	for i, n := range known {
		nodes[i] = n.current(next)
	}
	slices.SortFunc(nodes, func(a, b health.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

// current returns what is known of the node, which is read with the next refresh.
func (n *node) current(next time.Time) health.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	current := n.health
	current.Name, current.UID, current.Next = n.name, n.object.Load().UID, next
	return current
}

// recordRefresh adds a result to what is known of the engine.
func (s *Source) recordRefresh(r *Result, now, next time.Time) {
	rejected := s.client.problem != ""
	s.overall.mu.Lock()
	defer s.overall.mu.Unlock()
	s.overall.Next, s.overall.details.FileRejected = next, rejected
	if r.Err != nil {
		s.overall.Fail(now, r.Took, r.Reason, r.Err)
		return
	}
	s.overall.Succeed(now, r.Took)
	e := &s.overall.details
	e.Series, e.UnknownSeries, e.Partial, e.Warning, e.Skipped = r.Series, r.Unknown, r.Partial, r.Warning, 0
	for _, n := range r.Skipped {
		e.Skipped += n
	}
}

// recordNode adds a refresh to what is known of a node, after its samples have been stored. It reports
// whether the engine has series of the node. A new node may have none for as long as its first metrics
// may take.
func (s *Source) recordNode(n *node, now time.Time) bool {
	var sampledAt usage.Time
	count, containers := 0, 0
	newest := &n.counter // the series that tells the interval
	for c := range s.current(n) {
		if count++; count == 1 {
			newest = c
		}
		sampledAt = max(sampledAt, c.cur.At)
		if c != &n.counter {
			containers++
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	h := &n.health
	if count == 0 {
		h.Containers = 0
		age := now.Sub(n.object.Load().CreationTimestamp.Time) // below 0: the clock of the API server was set
		if h.Last.IsZero() && age >= -usage.MaxLead && age < s.overall.Startup {
			return false
		}
		h.Fail(now, 0, reason.NotInEngine, nil)
		return false
	}
	h.Succeed(now, 0)
	switch {
	case newest.second != 0:
		h.Interval = newest.cur.At.Sub(newest.second)
	case h.SampledAt != 0 && sampledAt > h.SampledAt: // more than the range of the query apart
		h.Interval = sampledAt.Sub(h.SampledAt)
	}
	h.SampledAt, h.Containers = sampledAt, containers
	return true
}
