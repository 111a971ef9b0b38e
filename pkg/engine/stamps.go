package engine

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// An engine with honor_timestamps: false stores the time of the scrape instead of the time when
// the kubelet read a counter, up to 20 s earlier. This file recognizes nodes with such samples, and
// computes their rates over a time so long that the unknown age of the counters matters little.

const (
	// maxCounterAge is the longest time between two readings of a counter by its kubelet, if the
	// container uses CPU.
	maxCounterAge = 20 * time.Second
	// stampedSpacing is the window of a rate between times of scrapes, if there are samples as old. It
	// limits the error to 20/55. With usual intervals of scrapes, the window is 60 s.
	stampedSpacing = 55 * time.Second
	// minStampedWindow is the shortest such window. Below maxCounterAge, both samples could be of one
	// reading.
	minStampedWindow = maxCounterAge * 3 / 2
	// minStamped is the number of counters that must have equal times.
	minStamped = 3
	// honoredAfter is the number of refreshes in a row with different times after which the times of a
	// node are those of the kubelet again.
	honoredAfter = 4
)

// observeStamps updates what is known of the times of a node's samples. Kubelets read each counter
// at a time of its own, so times are those of scrapes if most counters have the same two newest
// ones. Others may differ: an engine may not have stored the rest of a scrape yet.
func (s *Source) observeStamps(n *node) {
	clear(s.times)
	all, equal := 0, 0
	for c := range s.current(n) {
		if c.second != 0 {
			times := [2]usage.NodeTime{c.cur.At, c.second}
			s.times[times]++
			all, equal = all+1, max(equal, s.times[times])
		}
	}
	switch {
	case all < minStamped: // too few to decide
	case equal >= minStamped && equal > all/2:
		n.stamped = honoredAfter
	case n.stamped > 1:
		n.stamped--
	default:
		n.stamped = -1
	}
	for c := range s.current(n) {
		if n.stamped > 0 && c.ifStamped != nil {
			c.selection = *c.ifStamped
		}
		c.ifStamped = nil
	}
}
