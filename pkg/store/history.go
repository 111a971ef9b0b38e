package store

import (
	"math"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// historySize is the largest number of points in a history. They are at least a quarter of the rate
// window apart, so the first is at least the rate window older than the newest sample.
const historySize = 5

// A change of the load is more than usualNoise times its noise and more than a share of
// leastChange. The noise is a mean of about the last noiseSpan changes. See docs/dev/measurements.md,
// which compares other rules.
const (
	usualNoise  = 3.5
	leastChange = 0.03
	noiseSpan   = 8
)

// history holds what a series needs in addition to its previous reading: the unserved sample, and, while
// samples are dense (closer to each other than 60 % of the rate window), points for a wider window,
// because a rate from the previous sample would cover too little time. It starts with the first sample of
// the series, even if the container is too young for a rate. One struct keeps a container in 128 bytes.
type history struct {
	count  uint8 // of points; 0: the history has only unserved
	sparse uint8 // consecutive samples that were not dense
	noisy  uint8 // changes of which noise is the mean, at most noiseSpan; 0: noise is not known
	// noise is by how much the rate between two points usually differs from what the two rates before
	// lead to expect, in cores. So a ramp has none. The newest points do not count: what they change
	// is compared with the noise before.
	noise float64
	// unserved is the last sample since the previous reading that had no rate, because it followed too
	// closely or the container was starting up. If the next counter is lower, the container was
	// restarted, even if the counter is higher than at the previous reading. at is 0: there is none.
	unserved point
	points   [historySize]point // oldest first
}

// maxSparse is the number of consecutive samples that are not dense after which a history is
// dropped. Only one can follow from a failed scrape of a node that is scraped often.
const maxSparse = 2

// widen returns the Amount of cur, given that from the previous reading, which is fresh. If the
// samples are dense, its window is the one closest to the rate window, or the longest at the end of
// that in which the load did not change. It adds the previous point to the history, and creates or
// drops the history.
func (s *series) widen(amount usage.Amount, cur *usage.Sample, isDense bool, a *arrival) usage.Amount {
	if s.history == nil {
		s.history = &history{}
	}
	h := s.history
	h.add(s.prev.point, a.config.RateWindow)
	if !isDense {
		if h.sparse++; h.sparse == maxSparse {
			s.history = nil
		}
		return amount
	}
	h.sparse = 0
	base, window := s.prev.point, amount.Window
	for _, p := range slices.Backward(h.points[:h.count]) {
		w := cur.At.Sub(p.at)
		if w <= a.config.MaxSampleAge && (w-a.config.RateWindow).Abs() < (window-a.config.RateWindow).Abs() {
			base, window = p, w
		}
	}
	base = h.steadySince(base, readingOf(cur).point, a.config.RateWindow)
	if base == s.prev.point {
		return amount
	}
	if wide, verdict := usage.Rate(base.sample(), cur, a.config.MaxSampleAge, a.capacity); verdict == usage.Fresh {
		amount = wide
	}
	return amount
}

// steadySince returns the oldest point since which the load has not changed, not before oldest and at
// least a quarter of the rate window before cur.
func (h *history) steadySince(oldest, cur point, rateWindow time.Duration) point {
	if h.noisy == 0 {
		return oldest
	}
	base := cur
	for _, p := range slices.Backward(h.points[:h.count]) {
		if p.at < oldest.at {
			break
		}
		if cur.at.Sub(p.at) < rateWindow/4 {
			continue
		}
		if base != cur {
			rate, before := base.rateTo(cur), p.rateTo(base)
			if math.Abs(before-rate) > usualNoise*h.noise+leastChange*max(before, rate) {
				return base
			}
		}
		base = p
	}
	return oldest
}

// noteUnserved notes a sample that has no rate, unless it repeats the previous one.
func (s *series) noteUnserved(cur *usage.Sample) {
	if cur.At == s.prev.at {
		return
	}
	if s.history == nil {
		s.history = &history{}
	}
	if cur.At > s.history.unserved.at {
		s.history.unserved = readingOf(cur).point
	}
}

// fellSinceUnserved reports whether the counter fell after the last sample that had no rate.
func (s *series) fellSinceUnserved(cur *usage.Sample) bool {
	if s.history == nil {
		return false
	}
	last := s.history.unserved
	return last.at != 0 && cur.At > last.at && cur.CPUSeconds < last.cpuSeconds
}

// dropUnserved drops the unserved sample, and a history that has nothing else.
func (s *series) dropUnserved() {
	if s.history == nil {
		return
	}
	if s.history.unserved = (point{}); s.history.count == 0 {
		s.history = nil
	}
}

// add adds the point that precedes a sample, unless it is too close to the last one. If there is no
// room, it drops the oldest point.
func (h *history) add(prev point, rateWindow time.Duration) {
	if h.count > 0 && prev.at.Sub(h.points[h.count-1].at) < rateWindow/4 {
		return
	}
	if h.count == historySize {
		h.count = uint8(copy(h.points[:], h.points[1:]))
	}
	h.points[h.count] = prev
	if h.count++; h.count < historySize {
		return
	}
	p := &h.points
	change := math.Abs(p[0].rateTo(p[1]) - 2*p[1].rateTo(p[2]) + p[2].rateTo(p[3]))
	h.noisy = min(h.noisy+1, noiseSpan)
	h.noise += (change - h.noise) / float64(h.noisy)
}
