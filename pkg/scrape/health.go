package scrape

import (
	"cmp"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

var _ health.Source = (*Scraper)(nil)

// add adds a result to what is known of a node.
func add(n *health.Node, r *Result, now time.Time) {
	if r.Err != nil {
		n.Fail(now, r.Took, r.Reason, r.Err)
		return
	}
	n.Succeed(now, r.Took)
	n.Containers, n.Skipped = r.Containers, 0
	for _, lines := range r.Skipped {
		n.Skipped += lines
	}
	n.ClockOffset, n.ClockKnown = r.ClockOffset, r.ClockKnown
}

// Overall implements health.Source. The metrics of a container or node are expected when it is old
// enough for a rate, the next regular scrape has seen it, and its kubelet has a second sample.
func (s *Scraper) Overall() health.Overall {
	return health.Overall{Startup: usage.MinAgeSinceStart + max(s.Interval, usage.MinAgeSinceStart)}
}

// Node implements health.Source.
func (s *Scraper) Node(name string) (health.Node, bool) {
	s.mu.Lock()
	t := s.targets[name]
	if t == nil {
		s.mu.Unlock()
		return health.Node{}, false
	}
	next, active := t.nextScrape(), t.activity != nil
	s.mu.Unlock()
	return s.healthOf(t, next, active), true
}

// Nodes implements health.Source.
func (s *Scraper) Nodes() []health.Node {
	type queued struct {
		*target
		next   time.Time
		active bool
	}
	s.mu.Lock()
	targets := make([]queued, 0, len(s.targets))
	for _, t := range s.targets {
		targets = append(targets, queued{t, t.nextScrape(), t.activity != nil})
	}
	s.mu.Unlock()
	nodes := make([]health.Node, len(targets))
	for i, t := range targets {
		nodes[i] = s.healthOf(t.target, t.next, t.active)
	}
	slices.SortFunc(nodes, func(a, b health.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

// nextScrape returns when the target is due, or the zero time if it is being scraped. The
// Scraper's lock is held.
func (t *target) nextScrape() time.Time {
	if t.heapIndex == 0 {
		return time.Time{}
	}
	return t.due
}

func (s *Scraper) healthOf(t *target, next time.Time, active bool) health.Node {
	object := t.node.Load()
	t.mu.Lock()
	n := t.health
	t.mu.Unlock()
	n.Name, n.UID, n.Address, n.Next, n.Active = object.Name, object.UID, s.Fetcher.Address(object), next, active
	return n
}
