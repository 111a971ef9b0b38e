package scrape

import (
	"iter"
	"slices"
	"time"
)

// Active configures the scrapes of active nodes: nodes that somebody reads metrics of, or of pods
// on them, by name or by label selector. See Scraper.Read.
type Active struct {
	// Resolution is the time between two scrapes of an active node; 0: no node is active.
	Resolution time.Duration
	// Budget is how many times as often as without active nodes all nodes together may be scraped, at
	// least 1. The Resolution is lengthened as needed. Early scrapes and retries are not included. A
	// cluster counts as at least smallCluster nodes.
	Budget float64
}

const (
	// activeFor is how long a node is active after a read, at least; at most, it is markInterval
	// longer. It is longer than the period of every common reader: HorizontalPodAutoscalers read every
	// 15 seconds, dashboards every minute.
	activeFor = 2 * time.Minute
	// markInterval is the time between two reads of a reader that are noted at each of its nodes. That
	// takes some 0.1 µs for each of them, a tenth of a list.
	markInterval = 40 * time.Second
	// minLead and maxLead limit how long before a predicted read a scrape starts. Between them, it
	// depends on how long a scrape takes.
	minLead, maxLead = 500 * time.Millisecond, 3 * time.Second
	// burstSpacing is the time by which two scrapes should differ that one read causes, or that precede
	// one. A scrape takes less than a quarter of it.
	burstSpacing = 2 * time.Millisecond
	// maxNodeReaders is the number of readers whose next reads the scrapes of a node follow.
	maxNodeReaders = 8
)

// activity is what is known of the reads of an active node. Times are since Scraper.started.
type activity struct {
	lastRead time.Duration
	readers  [maxNodeReaders]nodeReader
}

// nodeReader is a reader of a node.
type nodeReader struct {
	*reader
	marked time.Duration // reader.marked when it last read this node
}

// Read counts as a read of the metrics of nodes, or of pods on them, by name or by label selector.
// They are active from now on. The id is a hash of who reads what; 0: the next reads cannot
// be predicted. Names of unknown nodes are ignored, and a name may occur more than once. The
// size is the number of objects that were read: if it does not change, nor do the nodes in general.
func (s *Scraper) Read(id uint64, size int, nodes iter.Seq[string]) {
	if s.Active.Resolution == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Since(s.started)
	r := s.readers.note(id, now)
	if r != nil && !r.mark(size, now) {
		return
	}
	var added []*target
	for name := range nodes {
		t := s.targets[name]
		if t == nil {
			continue
		}
		if t.activity == nil {
			t.activity = new(activity)
			s.active++
			added = append(added, t)
		}
		t.activity.note(r, now)
	}
	s.pullForward(added, now)
}

// note notes a read by a reader, which may be nil.
func (a *activity) note(r *reader, now time.Duration) {
	a.lastRead = now
	if r == nil || r.period == 0 {
		return
	}
	place := slices.IndexFunc(a.readers[:], func(n nodeReader) bool { return n.reader == r })
	if place < 0 { // readers that still read stay: replacing them in turn would predict nothing
		place = slices.IndexFunc(a.readers[:], func(n nodeReader) bool { return n.reader == nil || n.isOverdue(now) })
	}
	if place >= 0 {
		a.readers[place] = nodeReader{r, r.marked}
	}
}

// pullForward reschedules targets that have become active. They are spread as if all nodes had, so
// that neither a read of many nodes nor many reads at the same time cause a burst. s.mu is held.
func (s *Scraper) pullForward(targets []*target, now time.Duration) {
	for _, t := range targets {
		if !t.waiting || t.failing || t.kind == Early {
			continue // it is rescheduled after its scrape
		}
		due := max(s.slot(now+s.spread(t, len(s.targets))), s.nextActive(t, now))
		if due < t.due {
			t.due, t.kind = due, OfActive
			s.schedule(t)
		}
	}
}

// spread returns how long after the first of at most so many nodes a target is scraped. Its place among
// them is that of its regular scrapes within the interval. s.mu is held.
func (s *Scraper) spread(t *target, nodes int) time.Duration {
	within := min(time.Duration(nodes)*burstSpacing, s.activeResolution()/2)
	return time.Duration(float64(t.offset) / float64(s.Interval) * float64(within))
}

// smallCluster is the least number of nodes from which the budget is computed: the further scrapes of
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
	if t.activity != nil {
		t.activity = nil
		s.active--
	}
}

// nextActive returns the time of the next scrape of an active target. The schedule is counted back
// from just before the next predicted read that can be met. Without a prediction, scrapes are one
// resolution apart. A slow node, which may be overloaded, is scraped half of the time, unless its
// interval requires more. s.mu is held.
func (s *Scraper) nextActive(t *target, now time.Duration) time.Duration {
	resolution := s.activeResolution()
	earliest := max(now, t.pace.earliest(max(resolution, min(2*t.took, s.Interval)), resolution))
	due, predicted := s.nextRead(t, earliest)
	if predicted {
		due -= (due - earliest).Truncate(resolution)
	} else {
		due = s.slot(earliest)
	}
	return min(due, max(earliest, t.pace.started+s.Interval))
}

// slot returns the first moment from t on at which regular scrapes start. Scrapes that share a
// moment are cheaper, see slots.
func (s *Scraper) slot(t time.Duration) time.Duration {
	step := s.Interval / slots
	return (t + step - 1).Truncate(step)
}

// nextRead returns when a scrape of the target should start for the first predicted read for which
// it can start at the earliest moment or later, and whether a read is predicted. s.mu is held.
func (s *Scraper) nextRead(t *target, earliest time.Duration) (start time.Duration, predicted bool) {
	lead := min(minLead+(2*t.took).Truncate(minLead/2), maxLead)
	for i := range t.activity.readers {
		r := &t.activity.readers[i]
		if r.reader == nil || r.period == 0 || r.marked != r.reader.marked { // it no longer reads this node
			continue
		}
		nodes := min(r.size, len(s.targets)) // at most; of pods, several are on one node
		lead := lead + s.spread(t, nodes)
		first := r.after(earliest+lead) - lead
		if !predicted || first < start {
			start, predicted = first, true
		}
	}
	return start, predicted
}

// ActiveStats describes the scrapes of active nodes.
type ActiveStats struct {
	Nodes      int           // that are active
	Resolution time.Duration // time between two scrapes of an active node, which the budget may lengthen
	// Refused is how many further scrapes there would have been without the budget.
	Refused float64
}

// ActiveStats returns the state of the active nodes.
func (s *Scraper) ActiveStats() ActiveStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ActiveStats{Nodes: s.active, Resolution: s.activeResolution(), Refused: s.refused}
}
