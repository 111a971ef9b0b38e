package prometheus

import (
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	// delays is the number of delays that are remembered of each node.
	delays = 16
	// minDelays is the number of delays that must be known before a longer one shows that a clock was
	// set back.
	minDelays = 4
	// delayTolerance is how much longer than all remembered delays such a delay is.
	delayTolerance = 2 * time.Second
)

// clock notices that the clock of a node was set back. Engines reject samples that are older than
// those they have, so the samples of the time that passes twice are missing, and those after it seem
// to follow those before it closely: a rate between them would be too high.
//
// The delay of a sample is the time of the refresh that first had it, by our clock, minus the time of
// the sample. It depends on the offset of the node's clock, on when kubelets read, engines scrape and
// refreshes come, and on how often. These repeat, so a delay longer than all recent ones shows that
// the node's clock was set back, or that a scrape was late. In both cases, no rate is computed across
// it. Unlike an engine's series up, this needs no query and no labels.
type clock struct {
	reference usage.Time // of the last refresh with new samples
	newest    usage.Time // of the samples of that refresh
	sent      usage.Time // of that refresh, by our clock
	// setBackAt is the time that the clock had shown when it was set back: samples up to it may be from
	// before.
	setBackAt usage.Time
	delays    [delays]time.Duration
	count     int // of delays, since the clock was set back
}

// isTooFar reports whether a time is further ahead of the reference that is expected at a time by our
// clock than samples of one node are apart.
func (c *clock) isTooFar(at, sent usage.Time, apart time.Duration) bool {
	return c.reference != 0 && at.Sub(c.reference) > sent.Sub(c.sent)+apart
}

// observe adds the times of a refresh, which was sent at a time by our clock. It reports whether the
// clock was set back since the one before.
func (c *clock) observe(reference, newest, sent usage.Time) (wasSetBack bool) {
	if c.reference.Sub(reference) > maxAhead+maxWindow { // no query can have returned both
		*c = clock{}
	}
	if reference <= c.reference {
		return false
	}
	if c.reference != 0 { // else it may be older than a refresh
		delay := sent.Sub(reference)
		known := c.delays[:min(c.count, delays)]
		if wasSetBack = c.count >= minDelays && delay > slices.Max(known)+delayTolerance; wasSetBack {
			c.setBackAt, c.count = c.newest, 0
		}
		c.delays[c.count%delays] = delay
		c.count++
	}
	c.reference, c.newest, c.sent = reference, newest, sent
	return wasSetBack
}

// since returns the time from which samples with times of the kubelet are of a container, and by
// the clock as it is now. The start in the API server and the samples are by the same clock.
func (c *clock) since(start Start, points []point) usage.Time {
	since := c.setBackAt + 1
	if c.isPlausible(start.At, points) {
		since = max(since, start.At.Add(startUnit))
	}
	return since
}

// isPlausible reports whether a start in the API server shows something. A start that is further ahead
// of the samples than they can be late is from before the node's clock was set back.
func (c *clock) isPlausible(start usage.Time, points []point) bool {
	return start != 0 && start.Sub(max(c.newest, points[len(points)-1].at)) <= maxWindow
}

// startUnit is the resolution of starts in the API server, which truncates them to it.
const startUnit = time.Second

// sinceScrape is since for times of scrapes, which are by the engine's clock. The offset of the
// node's clock is not known then, so the creation of the pod counts as well: the clocks of the
// API server and the engine are assumed to agree, that of the node may be behind. The kubelet has
// read the counter earlier.
func (c *clock) sinceScrape(start Start, points []point) usage.Time {
	started := start.PodCreatedAt
	if c.isPlausible(start.At, points) {
		started = max(started, start.At)
	}
	return max(c.setBackAt+1, started.Add(startUnit+maxCounterAge))
}

// from returns the points that are not older than a time.
func from(points []point, since usage.Time) []point {
	for len(points) > 0 && points[0].at < since {
		points = points[1:]
	}
	return points
}

// restart makes the newest sample start a new series.
func (c *counter) restart() {
	c.choice.newCounter, c.choice.isBase, c.choice.base = true, false, point{}
	c.startedAt = 0 // it may be by the clock before
}

// eachCounter calls f for the counters of a node.
func (s *Source) eachCounter(n *node, f func(*counter)) {
	f(&n.counter)
	for _, c := range n.order {
		f(&c.counter)
	}
}

// reference returns the median of the times of the node's newest samples: what the others are
// compared with. The newest of all could be one sample of the future, which would make all others
// too old. Containers that have ended do not count, unless there are no others. Of two in the middle,
// the later one counts, unless it is from the future compared to the reference before.
func (s *Source) reference(n *node, sent usage.Time) usage.Time {
	s.newest = s.newest[:0]
	if n.counter.refresh == s.refreshes {
		s.newest = append(s.newest, n.counter.choice.cur.at)
	}
	ended := 0
	for _, c := range n.order {
		if c.refresh != s.refreshes {
			continue
		}
		s.newest = append(s.newest, c.choice.cur.at)
		if !c.isRunning {
			last := len(s.newest) - 1
			s.newest[ended], s.newest[last] = s.newest[last], s.newest[ended]
			ended++
		}
	}
	all := s.newest
	if ended < len(all) {
		all = all[ended:]
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	if later := all[len(all)/2]; !n.clock.isTooFar(later, sent, s.client.window) {
		return later
	}
	return all[(len(all)-1)/2]
}
