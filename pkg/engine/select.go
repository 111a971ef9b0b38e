package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// offer considers the samples of one series of a counter, at least one, in the order of their times.
// Those from before the start of the container, or of an earlier pod of the name, do not count.
func (s *Source) offer(n *node, c *counter, hash uint64, points []point, state usage.ContainerState) {
	since := n.times.since(&state, points, n.stamped > 0)
	usable := from(points, since)
	usable = s.withoutEarlier(points[:len(points)-len(usable)], usable, n.times.earliest(&state))
	if len(usable) == 0 || c.refresh == s.refreshes && !c.prefers(hash, usable) {
		return
	}
	if c.refresh != s.refreshes {
		c.refresh, c.has, c.exact, c.startedAt, c.ifStamped = s.refreshes, 0, 0, 0, nil
	}
	c.selection = s.pick(c, hash, usable, since, n.stamped > 0)
	if n.stamped == 0 {
		since = n.times.since(&state, points, true)
		later := from(usable, since)
		if len(later) == 0 { // the newest has no rate
			later = usable[len(usable)-1:]
		}
		ifStamped := s.pick(c, hash, later, since, true)
		c.ifStamped = &ifStamped
	}
}

// prefers reports whether a series is better than the one that was selected so far in this refresh.
// Several scrapers may store the same container, for example two replicas of Prometheus; their
// samples must not be mixed, because their timestamps may be by different clocks. So the series that
// was used before stays in use, until another has two samples that are newer.
func (c *counter) prefers(hash uint64, points []point) bool {
	newest, second := newestTwo(points)
	switch {
	case c.last.At != 0 && c.hash == c.lastHash:
		return second > c.cur.At
	case c.last.At != 0 && hash == c.lastHash:
		return c.second <= newest.At
	case newest.At != c.cur.At:
		return newest.At > c.cur.At
	}
	return hash < c.hash
}

// newestTwo returns the newest point, and the time of the one before, or 0.
func newestTwo(points []point) (newest point, second usage.NodeTime) {
	if len(points) > 1 {
		second = points[len(points)-2].At
	}
	return points[len(points)-1], second
}

// pick selects the samples of a series that are stored, given the one that was stored last: it was of
// another counter if it is of another series, or from before the start of the container.
//
// The window starts at the newest sample that is at least spacing older, among those since the last one or
// since the counter was reset: at the one that was stored last, if it is not too close, or else at base. If
// the times are those of scrapes, base is usually older than the sample that was stored last.
func (s *Source) pick(c *counter, hash uint64, points []point, since usage.NodeTime, areOfScrapes bool) selection {
	p, last := selection{hash: hash}, c.last
	p.cur, p.second = newestTwo(points)
	isImpossible := last.At.Sub(p.cur.At) > maxAhead+maxWindow // no query can have returned both
	if p.isNew = isImpossible || p.cur.At > last.At; !p.isNew {
		return p
	}
	wasStored := last.At != 0
	isReplaced := wasStored && (hash != c.lastHash || last.At < since || isImpossible) // by another counter
	if isReplaced {
		last = point{}
	}
	first := len(points) - len(from(points, last.At+1)) // the first new sample
	isReset := points[first].Value < last.Value || !slices.IsSortedFunc(points[first:], byValue)
	isContinued := last.At != 0 && !isReset
	p.isReset = last.At != 0 && isReset
	spacing, minWindow, longest := s.Interval*2/3, max(s.Interval/4, usage.MinWindow), s.MaxSampleAge
	switch {
	case areOfScrapes:
		spacing, minWindow, longest = stampedSpacing, min(minStampedWindow, s.client.window/3), s.client.window
		first = len(points) - len(from(points, c.basesFrom))
	case isContinued:
		minWindow = spacing // else the last one is closer to it
	}
	for i := len(points) - 2; i >= first && points[i].Value <= points[i+1].Value; i-- {
		window := p.cur.At.Sub(points[i].At)
		if window > longest { // only the range for clocks that are ahead has it
			break
		}
		if window >= minWindow {
			p.base = points[i]
		}
		if window >= spacing {
			break
		}
	}
	switch {
	case p.base.At != 0:
	case isReplaced || p.isReset:
		p.base = p.cur
	case areOfScrapes && isContinued:
		p.isNew = p.cur.At.Sub(last.At) >= minWindow
	}
	return p
}

func byValue(a, b point) int { return cmp.Compare(a.Value, b.Value) }

// isRestart reports whether a restart of the container explains that its counter fell since the sample that was stored
// last: its start is later than that sample, or than its start was then, or not known. The response with the start may
// be newer than that with the sample. Times of scrapes are by another clock than starts, and later than the sample.
func (c *counter) isRestart(areOfScrapes bool) bool {
	margin := time.Duration(0)
	if areOfScrapes {
		margin = maxAhead + maxCounterAge
	}
	return c.startedAt == 0 || c.startedAt > c.lastStartedAt || c.startedAt.Add(margin) > c.last.At
}
