package prometheus

import (
	"cmp"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	// maxDelays is the number of delays that are remembered of each node.
	maxDelays = 16
	// minDelays is the number of delays that show between which limits the next ones are.
	minDelays = 4
	// firstSpread is how far the delays of a node may be apart before so many are known.
	firstSpread = maxCounterAge + 15*time.Second
	// minSpread is the same after a clock was set, or a delay was longer or shorter by chance.
	minSpread = 10 * time.Second
	// delayTolerance is how much longer than the limit a delay is if a clock was set back.
	delayTolerance = 2 * time.Second
	// forwardTolerance is how much shorter than the limit a delay is if a clock was set forward. It is
	// longer, because such a step makes one rate too low, and delays that are shorter by chance are as
	// frequent as longer ones.
	forwardTolerance = 5 * time.Second
)

// clock notices that the clock of a node was set, because a rate across the step would be wrong. The
// samples do not show that a clock was set back: engines reject those that are older than the ones
// they have, and the next one seems to follow closely.
//
// The delay of a sample is the time of the refresh that first had it, by our clock, minus the time of
// the sample. It depends on the offset of the node's clock, on when kubelets read, engines scrape and
// refreshes come, and on how often. These repeat, so a delay that is longer or shorter than all recent
// ones shows that the node's clock was set, or that a scrape or a refresh came at another time. In all
// cases, no rate is computed across it. Unlike an engine's series up, this needs no query and no labels.
type clock struct {
	reference usage.Time // of the last refresh with new samples
	newest    usage.Time // of the samples of that refresh
	sent      usage.Time // of that refresh, by our clock
	// setAt is the time that the clock had shown when it was set, or of the last sample of another node
	// of the name: samples up to it may be from before.
	setAt  usage.Time
	delays []time.Duration // since the clock was set
	spread time.Duration   // how far delays were apart before the clock was set; 0: not known
}

// observe adds the times of a refresh, which was sent at a time by our clock. It reports whether the
// clock was set since the one before.
func (c *clock) observe(reference, newest, sent usage.Time) (wasSet bool) {
	if c.reference.Sub(reference) > maxAhead+maxWindow { // no query can have returned both
		*c = clock{}
	}
	if reference <= c.reference {
		c.newest = max(c.newest, newest)
		return false
	}
	if c.reference != 0 { // else it may be older than a refresh
		delay := sent.Sub(reference)
		low, high := c.limits()
		isForwards, isBackwards := delay < low-forwardTolerance, delay > high+delayTolerance
		if wasSet = len(c.delays) > 0 && (isForwards || isBackwards); wasSet {
			if len(c.delays) >= minDelays {
				c.spread = max(high-low, minSpread)
			}
			c.setAt, c.delays = c.newest, nil
		}
		if wasSet && delay < low-maxCounterAge { // some samples may still be from before
			c.setAt = c.setAt.Add(sent.Sub(c.sent))
		}
		if len(c.delays) == minDelays { // the first one may have been longer or shorter by chance
			c.delays[0] = delay
		}
		c.delays = append(c.delays[max(0, len(c.delays)-maxDelays+1):], delay)
	}
	c.reference, c.newest, c.sent = reference, newest, sent
	return wasSet
}

// limits returns the limits of the next delay if the clock is not set. Until enough delays are known,
// they are as far apart as before the clock was set.
func (c *clock) limits() (low, high time.Duration) {
	if len(c.delays) == 0 {
		return 0, 0
	}
	low, high = slices.Min(c.delays), slices.Max(c.delays)
	if len(c.delays) < minDelays {
		spread := cmp.Or(c.spread, firstSpread)
		low, high = min(low, high-spread), max(high, low+spread)
	}
	return low, high
}

// isLate reports whether a sample is older than those of one node are, by more than the time since the
// one before it. The clock may have been set back although most counters have no samples since.
func (c *clock) isLate(newest *selection, sent usage.Time) bool {
	if len(c.delays) == 0 || newest.second == 0 {
		return false
	}
	_, high := c.limits()
	interval := newest.cur.At.Sub(newest.second)
	return sent.Sub(newest.cur.At) > high+maxCounterAge+delayTolerance+interval
}

// startUnit is the resolution of starts in the API server, which truncates them to it.
const startUnit = time.Second

// since returns the time from which samples are of a container, and by the clock as it is now.
//
// Times of the kubelet and the start in the API server are by the same clock. Times of scrapes are by the
// engine's clock. The offset of the node's clock is not known then, so the creation of the pod counts as
// well: the clocks of the API server and the engine are assumed to agree, that of the node may be behind.
// The kubelet has read the counter earlier.
func (c *clock) since(start Start, points []point, areOfScrapes bool) usage.Time {
	started, margin := usage.Time(0), startUnit
	if areOfScrapes {
		started, margin = start.PodCreatedAt, startUnit+maxCounterAge
	}
	// A start that is further ahead of the samples than they can be late is from before the node's clock
	// was set back: it shows nothing.
	if start.At.Sub(max(c.newest, points[len(points)-1].At)) <= maxWindow {
		started = max(started, start.At)
	}
	return max(c.setAt+1, started.Add(margin))
}

// from returns the points that are not older than a time.
func from(points []point, since usage.Time) []point {
	for len(points) > 0 && points[0].At < since {
		points = points[1:]
	}
	return points
}

// reference returns the median of the times of the node's newest samples: what the others are
// compared with. The newest of all could be one sample of the future, which would make all others
// too old. Containers that have ended do not count, unless there are no others. Of two in the middle,
// the later one counts, unless it is from the future compared to the reference before.
func (s *Source) reference(n *node, sent usage.Time) usage.Time {
	all := s.newest[:0]
	for c := range s.current(n) {
		if c.isRunning {
			all = append(all, c.cur.At)
		}
	}
	if len(all) == 0 {
		for c := range s.current(n) {
			all = append(all, c.cur.At)
		}
	}
	if s.newest = all; len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	c, later := &n.clock, all[len(all)/2]
	if c.reference == 0 || later.Sub(c.reference) <= sent.Sub(c.sent)+s.client.window {
		return later
	}
	return all[(len(all)-1)/2]
}

// apart returns how far a sample may be ahead of the reference of its node. One that is further ahead
// is by another clock.
func (s *Source) apart(n *node, reference usage.Time) time.Duration {
	interval := time.Duration(0)
	for c := range s.current(n) {
		if c.second != 0 && c.cur.At <= reference {
			interval = max(interval, c.cur.At.Sub(c.second))
		}
	}
	if interval == 0 {
		return s.client.window
	}
	return min(interval+maxCounterAge, s.client.window)
}

// foreign identifies a sample that is by another clock than those of its node.
type foreign struct {
	counter *counter
	at      usage.Time
}
