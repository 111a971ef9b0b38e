package scrape

import (
	"slices"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// Status describes the scrapes of a node so far. Its times have monotonic readings.
type Status struct {
	Node    string
	Address string // host and port of the kubelet; empty if the node has no valid address

	LastSuccess time.Time // end of the last successful scrape; zero: there was none
	LastScrape  time.Time // end of the last scrape; zero: there was none
	NextScrape  time.Time // when the next one is due; zero: it is running
	Active      bool      // whether its metrics, or those of pods on it, were read recently; see Active

	// SucceedingSince is the end of the first of the last successful scrapes in a row. It is zero if
	// the last scrape failed.
	SucceedingSince time.Time

	// Of the last scrape:
	Took         time.Duration // see Result
	Failures     int           // in a row, with this one; 0: it succeeded
	FailingSince time.Time     // end of the first of these failures
	Err          error         // nil: it succeeded
	Reason       reason.Reason // of Err

	// Of the last successful scrape:
	Containers  int           // in the response
	Skipped     int           // lines
	ClockOffset time.Duration // how far the node's clock is ahead of ours; below 0: behind
	ClockKnown  bool          // whether the offset is known
}

// add adds a result, and sets its Failures and FailingSince.
func (s *Status) add(r *Result, now time.Time) {
	s.LastScrape, s.Took, s.Err, s.Reason = now, r.Took, r.Err, r.Reason
	if r.Err != nil {
		if s.Failures == 0 {
			s.FailingSince = now
		}
		s.Failures++
		s.SucceedingSince = time.Time{}
	} else {
		if s.SucceedingSince.IsZero() {
			s.SucceedingSince = now
		}
		s.LastSuccess, s.Failures, s.FailingSince = now, 0, time.Time{}
		s.Containers, s.Skipped = r.Containers, 0
		for _, n := range r.Skipped {
			s.Skipped += n
		}
		s.ClockOffset, s.ClockKnown = r.ClockOffset, r.ClockKnown
	}
	r.Failures, r.FailingSince = s.Failures, s.FailingSince
}

// Status returns the status of a node, and whether it is scraped.
func (s *Scraper) Status(node string) (Status, bool) {
	s.mu.Lock()
	t := s.targets[node]
	if t == nil {
		s.mu.Unlock()
		return Status{}, false
	}
	next, active := t.nextScrape(), t.activity != nil
	s.mu.Unlock()
	return s.statusOf(t, next, active), true
}

// Statuses returns the status of every node that is scraped, sorted by name.
func (s *Scraper) Statuses() []Status {
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
	statuses := make([]Status, len(targets))
	for i, t := range targets {
		statuses[i] = s.statusOf(t.target, t.next, t.active)
	}
	slices.SortFunc(statuses, func(a, b Status) int { return strings.Compare(a.Node, b.Node) })
	return statuses
}

// nextScrape returns when the target is due, or the zero time if it is being scraped. The
// Scraper's lock is held.
func (t *target) nextScrape() time.Time {
	if t.heapIndex == 0 {
		return time.Time{}
	}
	return t.due
}

func (s *Scraper) statusOf(t *target, next time.Time, active bool) Status {
	node := t.node.Load()
	t.mu.Lock()
	status := t.status
	t.mu.Unlock()
	status.Node, status.Address, status.NextScrape, status.Active = node.Name, s.Fetcher.Address(node), next, active
	return status
}
