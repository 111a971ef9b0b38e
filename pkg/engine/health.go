package engine

import (
	"cmp"
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

var _ health.Source = (*Source)(nil)

// Overall implements health.Source.
func (s *Source) Overall() health.Overall { return *s.overall.Load() }

// Node implements health.Source.
func (s *Source) Node(name string) (health.Node, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[name]; n != nil {
		return s.healthOf(n), true
	}
	return health.Node{}, false
}

// Nodes implements health.Source.
func (s *Source) Nodes() []health.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes := make([]health.Node, 0, len(s.nodes))
	for _, n := range s.nodes {
		nodes = append(nodes, s.healthOf(n))
	}
	slices.SortFunc(nodes, func(a, b health.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

// healthOf returns what is known of a node, which is read with the next refresh.
func (s *Source) healthOf(n *node) health.Node {
	h := n.health
	h.Next = s.overall.Load().Next
	return h
}

// setNext sets when the next refresh is due.
func (s *Source) setNext(due time.Time) {
	o := s.Overall()
	o.Next = due
	s.overall.Store(&o)
}

// record adds a result to what is known of the engine. It logs when refreshes start to fail, when the
// reason changes, and when they work again, and the same of warnings. It logs the first warning only:
// the next ones may differ each time.
func (s *Source) record(ctx context.Context, r *Result, now time.Time) {
	before, engine, logger := s.overall.Load(), r.Engine, klog.FromContext(ctx)
	o := *before
	if o.Add(now, r.Took, reason.Of(r.Err), r.Err); r.Err != nil {
		engine = *before.Engine
	}
	engine.Host, engine.FileRejected = before.Engine.Host, s.client.problem != nil
	o.Engine = &engine
	s.overall.Store(&o)
	s.log.Note(logger, string(o.Reason), o.Describe(o.Reason).Explain(r.Err), "reason", o.Reason)
	switch {
	case (engine.Warning == "") == (before.Engine.Warning == ""):
	case engine.Warning != "":
		logger.Info("The engine has responded with a warning; metrics that are missing in the response are served until "+
			"they expire", "warning", engine.Warning)
	default:
		logger.Info("The engine responds without a warning again")
	}
}

// recordNode adds a refresh to what is known of a node, after its samples have been stored. It reports
// whether the engine has series of the node. A new node may have none for as long as its first metrics
// may take.
func (s *Source) recordNode(n *node, now time.Time) bool {
	var newestAt usage.NodeTime
	count, containers := 0, 0
	newest := &n.counter // the series that tells the interval
	for c := range s.current(n) {
		if count++; count == 1 {
			newest = c
		}
		newestAt = max(newestAt, c.cur.At)
		if c != &n.counter {
			containers++
		}
	}
	h := &n.health
	if count == 0 {
		h.Containers = 0
		age := now.Sub(n.object.CreationTimestamp.Time) // below 0: the clock of the API server was set
		if h.Last.IsZero() && age >= -usage.MaxLead && age < s.overall.Load().Startup {
			return false
		}
		h.Add(now, 0, reason.NotInEngine, nil)
		return false
	}
	h.Add(now, 0, "", nil)
	switch {
	case newest.second != 0:
		h.Interval = newest.cur.At.Sub(newest.second)
	case h.Newest != 0 && newestAt > h.Newest: // more than the range of the query apart
		h.Interval = newestAt.Sub(h.Newest)
	}
	h.Newest, h.Containers = newestAt, containers
	return true
}
