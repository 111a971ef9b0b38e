package scrape

import (
	"iter"
	"time"
)

// Active configures the scrapes of active nodes, see Scraper.NoteRead.
type Active struct {
	// Resolution is the time between two scrapes of an active node; 0: no node is active.
	Resolution time.Duration
	// Budget limits the total scrape rate: 2 allows twice the rate without active nodes, and 1 is the
	// least. The Resolution is lengthened as needed. Early scrapes and retries are not included. A
	// cluster counts as at least smallCluster nodes.
	Budget float64
}

const (
	// activeFor is how long a node is active after a read. It is longer than the period of every common
	// reader: HorizontalPodAutoscalers read every 15 seconds, dashboards every minute.
	activeFor = 2 * time.Minute
	// burstSpacing is the minimum distance between scrapes that the same read triggers. A scrape takes less
	// than a quarter of it.
	burstSpacing = 2 * time.Millisecond
)

// NoteRead makes nodes active: a client has just read their metrics, or those of pods on them, by name or by
// label selector. Names of unknown nodes are ignored, and a name may occur more than once.
func (s *Scraper) NoteRead(nodes iter.Seq[string]) {
	if s.Active.Resolution == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Since(s.started)
	var added []*target
	for name := range nodes {
		t := s.targets[name]
		if t == nil {
			continue
		}
		t.lastRead = now
		if !t.isActive {
			t.isActive = true
			s.active++
			added = append(added, t)
		}
	}
	s.pullForward(added, now)
}

// pullForward reschedules targets that have become active. They are spread as if all nodes had, so
// that neither a read of many nodes nor many reads at the same time cause a burst. s.mu is held.
func (s *Scraper) pullForward(targets []*target, now time.Duration) {
	for _, t := range targets {
		if !t.waiting || t.failing || t.kind == Early {
			continue // it is rescheduled after its scrape
		}
		due := max(s.slot(now+s.spread(t)), s.nextActive(t, now))
		if due < t.due {
			t.due, t.kind = due, OfActive
			s.schedule(t)
		}
	}
}

// spread returns how long after a read a target is scraped. Its place among all targets is that of its regular
// scrapes within the interval. s.mu is held.
func (s *Scraper) spread(t *target) time.Duration {
	within := min(time.Duration(len(s.targets))*burstSpacing, s.activeResolution()/2)
	return time.Duration(float64(t.offset) / float64(s.Interval) * float64(within))
}

// smallCluster is the least number of nodes that the budget is computed from: the further scrapes of
// ten nodes cost too little to let autoscalers wait.
const smallCluster = 10

// activeResolution returns the time between two scrapes of an active node. With it, all nodes
// together, counted as at least smallCluster, are scraped at most Budget times as often as without
// active nodes, and every active node has an equal share of that. s.mu is held.
func (s *Scraper) activeResolution() time.Duration {
	times := 1 + (s.Active.Budget-1)*float64(max(smallCluster, len(s.targets)))/float64(max(1, s.active))
	return max(s.Active.Resolution, time.Duration(float64(s.Interval)/times))
}

// deactivate makes a target inactive, if it is active. s.mu is held.
func (s *Scraper) deactivate(t *target) {
	if t.isActive {
		t.isActive = false
		s.active--
	}
}

// nextActive returns the time of the next scrape of an active target: one resolution after the last one, or
// later if the node is slow. s.mu is held.
func (s *Scraper) nextActive(t *target, now time.Duration) time.Duration {
	next := max(now, t.lastDue+s.activeResolution(), s.rested(t))
	return min(s.slot(next), max(now, t.lastDue+s.Interval))
}

// slot returns the first moment from t on when regular scrapes start. Scrapes that share a
// moment are cheaper, see slots.
func (s *Scraper) slot(t time.Duration) time.Duration {
	step := s.Interval / slots
	return (t + step - 1).Truncate(step)
}

// ActiveStats describes the scrapes of active nodes.
type ActiveStats struct {
	Nodes      int           // that are active
	Resolution time.Duration // time between two scrapes of an active node, which the budget may lengthen
}

// ActiveStats returns the state of the active nodes.
func (s *Scraper) ActiveStats() ActiveStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ActiveStats{Nodes: s.active, Resolution: s.activeResolution()}
}
