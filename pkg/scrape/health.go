package scrape

import (
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/internal/failure"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

var _ health.Source = (*Scraper)(nil)

// add adds a result to what is known of a node.
func add(n *health.Node, r *Result, report *usage.Report) {
	n.Add(time.Now(), r.Took, reason.Of(r.Err), r.Err)
	n.Slow = r.Slow
	if r.Err != nil {
		return
	}
	n.Containers, n.Skipped = r.Containers, 0
	for _, lines := range r.Skipped {
		n.Skipped += lines
	}
	n.ClockOffset, n.ClockKnown = report.ClockOffset, report.ClockKnown
	n.Capacity, n.Exceeded = r.Capacity, report.Exceeded
}

// Overall implements health.Source. The metrics of a container or node are expected when it is old
// enough for a rate, the next regular scrape has seen it, and its kubelet has a second sample.
func (s *Scraper) Overall() health.Overall {
	return health.Overall{Startup: usage.MinAgeSinceStart + max(s.Interval, housekeepingInterval)}
}

// Node implements health.Source.
func (s *Scraper) Node(name string) (health.Node, bool) {
	s.mu.Lock()
	t := s.targets[name]
	if t == nil {
		s.mu.Unlock()
		return health.Node{}, false
	}
	var next time.Time // zero if it is being scraped
	if t.waiting {
		next = s.started.Add(t.due)
	}
	active := t.isActive
	s.mu.Unlock()

	object := t.node.Load()
	t.mu.Lock()
	n := t.health
	t.mu.Unlock()
	n.Name, n.UID, n.Address, n.Next, n.Active = object.Name, object.UID, s.Fetcher.Address(object), next, active
	return n, true
}

// Nodes implements health.Source.
func (s *Scraper) Nodes() []health.Node {
	s.mu.Lock()
	names := slices.Sorted(maps.Keys(s.targets))
	s.mu.Unlock()
	nodes := make([]health.Node, 0, len(names))
	for _, name := range names {
		if n, ok := s.Node(name); ok {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// newLog returns the log of a node's scrapes.
func newLog() failure.Log {
	return failure.Log{
		Failing: "Scraping failed; the last metrics are served until they expire", Recovered: "Scraping works again",
	}
}

// logChange logs when the requests to a node start to fail, when the reason or the unexpected key changes, and
// when they succeed again.
func logChange(logger klog.Logger, log *failure.Log, node string, now *health.Attempts) {
	if now.Failures == 0 && !log.IsFailing() {
		return // nearly always: nothing is made for a line that is not logged
	}
	cause := string(now.Reason)
	if now.Reason == reason.TLSKeyChanged {
		cause = now.Err.Error()
	}
	log.Note(logger.WithValues("node", node), cause, now.Reason.Describe().Explain(now.Err),
		"reason", now.Reason)
}
