package store

import (
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// historySize is the largest number of points in a history: one that is at least the rate window
// older than the newest sample, and four that are less old and a quarter of the rate window apart.
const historySize = 5

// history holds points of a series before the newest sample. A series has one only while its
// samples are dense: closer to each other than 60 % of the rate window. A rate from the previous
// sample would then cover too little time. The history starts with the first sample of the series, even
// if the container is too young for a rate.
type history struct {
	count  uint8 // of points; 0: the history has only unserved
	sparse uint8 // consecutive samples that were not dense
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
// samples are dense, it uses the earlier point with which the window is closest to the rate window.
// It adds the previous point to the history, and creates or drops the history.
func (s *series) widen(amount usage.Amount, cur *usage.Sample, isDense bool, a *arrival) usage.Amount {
	if s.history == nil {
		s.history = &history{}
	}
	h := s.history
	h.add(s.prev.point, cur.At, a.config.RateWindow)
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
	if base == s.prev.point {
		return amount
	}
	if wide, verdict := usage.Rate(base.sample(), cur, a.config.MaxSampleAge, a.capacity); verdict == usage.Fresh {
		amount = wide
	}
	return amount
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

// add adds the point that precedes a sample taken at now, unless it is too close to the last one.
// It drops the points that no rate needs any more: those before another one that is at least the
// rate window old.
func (h *history) add(prev point, now usage.Time, rateWindow time.Duration) {
	kept := h.points[:h.count]
	for len(kept) > 1 && now.Sub(kept[1].at) >= rateWindow {
		kept = kept[1:]
	}
	h.count = uint8(copy(h.points[:], kept))
	if h.count == 0 || prev.at.Sub(h.points[h.count-1].at) >= rateWindow/4 {
		h.points[h.count] = prev
		h.count++
	}
}
