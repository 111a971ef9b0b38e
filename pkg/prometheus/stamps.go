package prometheus

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// An engine with honor_timestamps: false stores the time of the scrape instead of the time at which
// the kubelet read a counter, up to 20 s earlier. This file recognizes nodes with such samples, and
// computes their rates over a time in which the unknown age of the counters matters little.

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

// stamps is what is known of the times of a node's samples.
type stamps struct {
	areKnown     bool // whether there were enough samples to set areOfScrapes
	areOfScrapes bool
	contrary     int // refreshes in a row that contradict areOfScrapes
}

// offer considers the samples of one series of a kubelet that are not from before the start of the
// container.
func (s *Source) offer(n *node, c *counter, hash uint64, points []point, start Start) {
	st := &n.stamps
	if st.areOfScrapes {
		since := n.clock.sinceScrape(start, points)
		if points = from(points, since); len(points) > 0 {
			c.offer(hash, points, s.refreshes, s.chooseStamped, c.last.at < since)
		}
		return
	}
	since := n.clock.since(start, points)
	if points = from(points, since); len(points) == 0 {
		return
	}
	if c.offer(hash, points, s.refreshes, s.chooseHonored, c.last.at < since) && !st.areKnown {
		since = n.clock.sinceScrape(start, points)
		later := from(points, since)
		if len(later) == 0 { // the newest has no rate
			later = points[len(points)-1:]
		}
		stamped := c.choiceOf(hash, later, s.chooseStamped, c.last.at < since)
		c.ifStamped = &stamped
	}
}

// observeStamps updates what is known of the times of a node's samples. Kubelets read each counter
// at a time of its own, so times are those of scrapes if most counters have the same two newest
// ones. Others may differ: an engine may not have stored the rest of a scrape yet.
func (s *Source) observeStamps(n *node) {
	clear(s.times)
	all, equal := 0, 0
	count := func(c *counter) {
		if c.refresh == s.refreshes && c.choice.second != 0 {
			times := [2]usage.Time{c.choice.cur.at, c.choice.second}
			s.times[times]++
			all, equal = all+1, max(equal, s.times[times])
		}
	}
	count(&n.counter)
	for _, c := range n.order {
		count(&c.counter)
	}
	st := &n.stamps
	switch {
	case all < minStamped: // too few to decide
	case equal >= minStamped && equal > all/2:
		st.areKnown, st.areOfScrapes, st.contrary = true, true, 0
	default:
		st.areKnown = true
		if st.contrary++; st.contrary >= honoredAfter {
			st.areOfScrapes, st.contrary = false, 0
		}
	}
	n.counter.decide(st.areOfScrapes)
	for _, c := range n.order {
		c.decide(st.areOfScrapes)
	}
}

// decide makes the choice for times of scrapes the one that counts, or drops it.
func (c *counter) decide(areOfScrapes bool) {
	if areOfScrapes && c.ifStamped != nil {
		c.choice = *c.ifStamped
	}
	c.ifStamped = nil
}

func (s *Source) chooseHonored(points []point, last point) choice {
	return choose(points, last, s.Interval*2/3)
}

// chooseStamped selects samples as choose does, if their times are those of scrapes. The base is
// usually older than the sample that was stored last.
func (s *Source) chooseStamped(points []point, last point) choice {
	newest := len(points) - 1
	c := choice{cur: points[newest], isFresh: points[newest].at > last.at}
	prev := last
	for _, p := range points {
		if p.at > last.at {
			c.newCounter = c.newCounter || p.value < prev.value
			prev = p
		}
	}
	minWindow := min(minStampedWindow, s.client.window/3)
	for i := newest - 1; c.isFresh && i >= 0 && points[i].value <= points[i+1].value; i-- {
		window := c.cur.at.Sub(points[i].at)
		if window > s.client.window { // only the range for clocks that are ahead has it
			break
		}
		if window >= minWindow {
			c.base, c.isBase = points[i], true
		}
		if window >= stampedSpacing {
			break
		}
	}
	isContinued := last.at != 0 && !c.newCounter
	if c.isBase {
		c.newCounter = true // the store has a later sample
	} else if isContinued && c.cur.at.Sub(last.at) < minWindow {
		c.isFresh = false
	}
	return c
}
