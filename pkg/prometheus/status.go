package prometheus

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/prometheus/status"
)

// published is the status of the last refresh.
type published struct {
	mu     sync.Mutex
	engine status.Engine
}

// Status returns the status of the engine.
func (s *Source) Status() status.Engine {
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	return s.status.engine
}

// NodeStatus returns what the engine has of a node, and whether the node is known.
func (s *Source) NodeStatus(name string) (status.Node, bool) {
	s.mu.Lock()
	n := s.nodes[name]
	s.mu.Unlock()
	if n == nil {
		return status.Node{}, false
	}
	return n.statusNow(), true
}

// NodeStatuses returns what the engine has of each known node, sorted by name.
func (s *Source) NodeStatuses() []status.Node {
	nodes := s.snapshot()
	statuses := make([]status.Node, len(nodes))
	for i, n := range nodes {
		statuses[i] = n.statusNow()
	}
	slices.SortFunc(statuses, func(a, b status.Node) int { return strings.Compare(a.Name, b.Name) })
	return statuses
}

func (n *node) statusNow() status.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	current := n.status
	current.Name, current.CreatedAt = n.name, n.object.Load().CreationTimestamp.Time
	return current
}

// publish makes a result the status of the engine.
func (s *Source) publish(r *Result, now, next time.Time) {
	rejected := s.client.failed != nil || s.client.problem != ""
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	e := &s.status.engine
	if r.Err != nil && e.Failures == 0 {
		e.FailingSince = now
	}
	e.LastRefresh, e.NextRefresh, e.Took, e.FileRejected = now, next, r.Took, rejected
	e.Failures, e.Err, e.Reason = r.Failures, r.Err, r.Reason
	if r.Err != nil {
		return
	}
	e.LastSuccess, e.FailingSince = now, time.Time{}
	e.Series, e.UnknownSeries, e.Partial, e.Warning, e.Skipped = r.Series, r.Unknown, r.Partial, r.Warning, 0
	for _, n := range r.Skipped {
		e.Skipped += n
	}
}

// describe updates the status of a node after its samples of a refresh have been stored. It reports
// whether the engine has series of the node.
func (s *Source) describe(n *node, now time.Time) bool {
	seen := status.Node{SeenItself: n.counter.refresh == s.refreshes}
	newest := &n.counter // the series that tells the interval
	note := func(c *counter) {
		seen.SampledAt = max(seen.SampledAt, c.choice.cur.at)
		if newest.refresh != s.refreshes {
			newest = c
		}
	}
	if seen.SeenItself {
		note(&n.counter)
	}
	for _, c := range n.order {
		if c.refresh == s.refreshes {
			seen.Containers++
			note(&c.counter)
		}
	}
	seen.Seen = seen.SeenItself || seen.Containers > 0
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.status
	if !seen.Seen {
		n.status = status.Node{LastSeen: before.LastSeen, SampledAt: before.SampledAt, Interval: before.Interval}
		return false
	}
	seen.LastSeen, seen.SeenSince = now, now
	if before.Seen {
		seen.SeenSince = before.SeenSince
	}
	switch {
	case newest.choice.second != 0:
		seen.Interval = newest.choice.cur.at.Sub(newest.choice.second)
	case before.SampledAt != 0 && seen.SampledAt > before.SampledAt: // more than the range of the query apart
		seen.Interval = seen.SampledAt.Sub(before.SampledAt)
	default:
		seen.Interval = before.Interval
	}
	n.status = seen
	return true
}
