package store

import (
	"cmp"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	// dateUnit is the resolution of a Date header. Servers truncate the time to it.
	dateUnit = time.Second
	// maxDelay is how long after it was written a response with a Date header usually arrives, at most.
	maxDelay = 2 * time.Second
	// slewDivisor limits the change of an offset without a step (slew) to 1/slewDivisor of the
	// elapsed time. Clocks drift by about 0.01 %; time services correct them by 0.05 % (ntpd,
	// systemd-timesyncd) or much faster (chrony).
	slewDivisor = 50
	// fastSlewDivisor sets the same limit for a clock that is corrected fast.
	fastSlewDivisor = 10
	// ignoreSamplesFor is how long samples are not used to estimate a node's clock after one was
	// ahead of it.
	ignoreSamplesFor = time.Hour
	// maxAmbiguity is how long, at most, a clock is ambiguous after it was set back. Then, start times count again,
	// although those from before the step may still be ahead. Until then, these should have come to an end: a removed
	// pod that runs on beside the next one, an outage of the node, and the omission of a running container. What is
	// wrong if one lasts longer is in the exceptions of docs/numbers.md.
	maxAmbiguity = 10 * time.Minute
)

// bounds are limits of the offset of a node's clock.
type bounds struct{ min, max time.Duration }

// nodeClock estimates the offset of a node's clock: how far it is ahead of ours. Each response sets
// a lower and an upper bound; the bounds of all responses together are much narrower than the
// second of a Date header. A response that contradicts the previous ones shows that one of the two
// clocks was set, or is slewed fast. For example, a node's clock is 2.3 s
// ahead; each response arrives 0.1 s after its request:
//
//	sent, by our clock   Date   bounds of this response   bounds of all
//	10.2                 12     1.7 s to 2.8 s            1.7 s to 2.8 s
//	25.6                 27     1.3 s to 2.4 s            1.7 s to 2.4 s
//	41.3                 53     11.6 s to 12.7 s          a jump: 11.6 s to 12.7 s
//
// The example leaves out the samples, which raise the lower bound, and the drift of clocks, which
// widens the bounds with time. Steps of less than about 1.3 s may go unnoticed, and longer ones if
// no response came for a while.
type nodeClock struct {
	bounds            // of all responses since the last jump; meaningful if known
	at     usage.Time // when the bounds were valid
	known  bool

	last     bounds // of the last response alone
	dateless bool   // whether that response had no Date header, as those of an engine

	jumpedAt     usage.Time // when the last jump was noticed; 0: never
	boundsBefore bounds     // of all responses before that jump

	// A clock that was set back is ambiguous until it has passed the times that it shows for the second
	// time, but for maxAmbiguity at most, also if it is set forwards before: a start time does not show which of two
	// containers started first. 0: it never was set back.
	ambiguousUntil usage.Time

	aheadAt usage.Time // when a sample was last ahead of its response's Date; 0: never

	// When a response last contradicted the bounds, and whether the clock was then further ahead. 0: never,
	// or by too much for a slew.
	slewedAt usage.Time
	forwards bool
}

// observe narrows the bounds to those of a scrape, and reports whether the offset jumped.
func (c *nodeClock) observe(s *usage.Scrape, maxAge time.Duration) (jumped bool) {
	next, ok := c.boundsOf(s, maxAge)
	if !ok {
		return false
	}
	c.dateless = s.Date == 0
	elapsed := s.At.Sub(c.at)
	// The offset may have drifted since.
	c.min, c.max, c.at = c.min-elapsed/slewDivisor, c.max+elapsed/slewDivisor, s.At
	defer func() { c.last = next }()
	if c.known && next.min <= c.max && next.max >= c.min {
		c.min, c.max = max(c.min, next.min), min(c.max, next.max)
		return false
	}
	if c.known && !c.isFastSlew(next, elapsed, s.At) {
		c.jumpedAt, c.boundsBefore, jumped = s.At, c.bounds, true
		if next.max < c.min {
			until := max(c.ambiguousUntil, s.At).Add(c.max - next.min)
			c.ambiguousUntil = min(until, s.At.Add(maxAmbiguity))
		}
	}
	c.bounds, c.known = next, true
	return jumped
}

// isFastSlew reports whether a response that contradicts the bounds shows a clock that is slewed fast rather
// than set: it follows another contradiction in the same direction, and a slew explains both (chrony corrects by
// up to 8.3 %). So only the first contradiction is a jump. It notes the contradiction for the next one.
func (c *nodeClock) isFastSlew(next bounds, elapsed time.Duration, now usage.Time) bool {
	forwards := next.min > c.max
	repeated := c.slewedAt != 0 && now.Sub(c.slewedAt) <= time.Minute && forwards == c.forwards
	c.slewedAt, c.forwards = 0, forwards
	if max(next.min-c.last.max, c.last.min-next.max) > elapsed/fastSlewDivisor {
		return false
	}
	c.slewedAt = now
	return repeated
}

// offset returns the value within the bounds that is closest to 0: if both clocks may agree, they
// are assumed to. A slow kubelet takes its time before it writes the Date, so its responses are assumed to arrive
// within maxDelay after that, though the upper bound allows for more. For a clock that is behind and whose responses
// have no Date header, it assumes that the newest sample was fresh.
func (c *nodeClock) offset() time.Duration {
	if c.dateless && c.max < 0 {
		return c.min
	}
	highest := c.max
	if !c.dateless {
		highest = min(highest, c.min+dateUnit+maxDelay)
	}
	return min(max(0, c.min), highest)
}

// isAmbiguous reports whether the clock shows times for the second time.
func (c *nodeClock) isAmbiguous(now usage.Time) bool { return now < c.ambiguousUntil }

// recentJump is how long after a jump start times, and windows of kubelet-reported rates, may be from before it.
const recentJump = time.Minute

// jumpedRecently reports whether the clock jumped so recently that a start time, or the window of a
// kubelet-reported rate, may be from before the jump.
func (c *nodeClock) jumpedRecently(now usage.Time) bool {
	return c.jumpedAt != 0 && now.Sub(c.jumpedAt) <= recentJump
}

// isAfterJump reports whether the clock jumped recently and a sample was certainly taken after that. By the
// clock before the jump, it would be from the future, or older than the previous sample, which is 0 if that is
// not by this clock.
func (c *nodeClock) isAfterJump(at, prev usage.NodeTime, now usage.Time) bool {
	return c.jumpedRecently(now) && (at.AheadOf(c.jumpedAt) > c.boundsBefore.max || at < prev)
}

// ourTime returns when the clock showed a time.
func (c *nodeClock) ourTime(t usage.NodeTime) usage.Time { return usage.Time(t.Add(-c.offset())) }

// sampledAt returns when a sample was taken, which is not after received.
func (c *nodeClock) sampledAt(s *usage.Sample, received usage.Time) usage.Time {
	if s.Untimed {
		return min(usage.Time(s.At), received)
	}
	return min(c.ourTime(s.At), received)
}

// nodeTime returns what the clock shows at a time.
func (c *nodeClock) nodeTime(t usage.Time) usage.NodeTime { return t.ByClock(c.offset()) }

// isAhead reports whether a sample is certainly ahead of its own node's clock, because it was taken
// before the clock was set back.
func (c *nodeClock) isAhead(s *usage.Sample, received usage.Time) bool {
	return c.known && !s.Untimed && s.At.AheadOf(received) > c.max
}

// boundsOf returns the bounds that one scrape sets. The response was written after the request was
// sent and before it arrived, and its samples were taken before that. Without a Date header, the
// newest sample replaces it: if it were older than maxAge, nothing could be served.
//
// A sample ahead of the Date was taken before the clock was set back, or by another clock: virtual
// kubelets pass on the timestamps of others. Samples are then ignored for a while.
func (c *nodeClock) boundsOf(s *usage.Scrape, maxAge time.Duration) (b bounds, ok bool) {
	sent, newest := sentAt(s), newestSample(s)
	sampled := newest.AheadOf(s.At)
	if s.Date == 0 {
		return bounds{sampled, newest.AheadOf(sent) + maxAge}, newest != 0
	}
	b = bounds{s.Date.AheadOf(cmp.Or(s.Dated, s.At)), s.Date.AheadOf(sent) + dateUnit}
	switch {
	case newest == 0:
	case sampled > b.max:
		c.aheadAt = s.At
	case c.aheadAt == 0 || s.At.Sub(c.aheadAt) > ignoreSamplesFor:
		b.min = max(b.min, sampled)
	}
	return b, true
}

// sentAt returns when the request was sent, or, if that is not known, when the response arrived.
func sentAt(s *usage.Scrape) usage.Time { return cmp.Or(s.Sent, s.At) }

// newestSample returns the latest time of a CPU sample; 0: there is none.
func newestSample(s *usage.Scrape) usage.NodeTime {
	newest := timeOf(&s.Node)
	for i := range s.Containers {
		newest = max(newest, timeOf(&s.Containers[i].Sample))
	}
	return newest
}

// timeOf returns the time of a CPU sample; 0: it has none.
func timeOf(s *usage.Sample) usage.NodeTime {
	if s.Has&usage.HasCPU == 0 || s.Untimed {
		return 0
	}
	return s.At
}
