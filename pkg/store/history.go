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

// A change of the load is more than its noise, times the rate window ÷ the interval, plus a share of
// leastChange of the larger rate: a rate over a long interval is seldom far off by chance. The noise is a
// mean of about the last noiseSpan changes. See docs/dev/measurements.md, which compares other rules.
const (
	leastChange = 0.03
	noiseSpan   = 8
)

// history holds what a series needs in addition to its previous reading: the unserved sample, and, while
// samples are close (see Config.isClose), points for a wider window, because a rate from the previous
// sample would cover too little time. If samples are dense, it starts with the first sample of the series,
// even if the container is too young for a rate. One struct keeps a container in 128 bytes.
type history struct {
	count   uint8 // of points; 0: the history has only unserved or refused
	sparse  uint8 // consecutive samples that were not close
	changes uint8 // that noise is the mean of, at most noiseSpan; 0: noise is not known
	// noise is by how much the rate between two points usually differs from what the two rates before
	// lead to expect, in cores. So a ramp has none. The newest points do not count: what they change
	// is compared with the noise before.
	noise float64
	// unserved is the last sample since the previous reading that had no rate, because it followed too
	// closely or the container was starting up. If the next counter is lower, the container was
	// restarted, even if the counter is higher than at the previous reading.
	unserved usage.Reading
	// refused is the last sample since the previous reading whose rate was above the node's capacity.
	refused usage.Reading
	points  [historySize]usage.Reading // oldest first
}

// hasRefused reports whether a sample since the previous reading was above the capacity.
func (s *series) hasRefused() bool { return s.history != nil && s.history.refused.At != 0 }

func (h *history) hasPoints() bool { return h != nil && h.count > 0 }

// maxSparse is the number of consecutive samples that are not close after which a history is
// dropped. Only one can follow from a failed scrape of a node that is scraped often.
const maxSparse = 2

// widen returns the Amount of cur over a wider window if samples are close, else amount unchanged. The window
// is the one closest to the rate window, but none from before the load changed. It adds the previous point to
// the history, and creates or drops the history.
func (s *series) widen(amount usage.Amount, cur *usage.Sample, isDense bool, a *arrival) usage.Amount {
	isClose := a.config.isClose(amount.Window)
	// Scrapes every 15 s of a kubelet that samples every 10 s have windows of 10 and 20 s in turn. That starts no
	// history.
	wasClose := s.hasAmount && a.config.isClose(s.amount.Window)
	needsHistory := isDense || isClose && wasClose || s.history.hasPoints()
	if !needsHistory { // the steady state
		s.history = nil
		return amount
	}
	if s.history == nil {
		s.history = &history{}
	}
	h := s.history
	h.unserved, h.refused = usage.Reading{}, usage.Reading{}
	h.add(s.prev.Reading, a.config.RateWindow)
	if !isClose {
		if h.sparse++; h.sparse == maxSparse {
			s.history = nil
		}
		return amount
	}
	h.sparse = 0
	if !isDense && h.changes == 0 { // a wider window could hide a change of the load
		return amount
	}
	base, window := s.prev.Reading, amount.Window
	target := a.config.RateWindow * 21 / 20 // of two windows that are about as close, the longer
	for _, p := range slices.Backward(h.points[:h.count]) {
		w := cur.At.Sub(p.At)
		if w <= a.config.MaxSampleAge && (w-target).Abs() < (window-target).Abs() {
			base, window = p, w
		}
	}
	base = h.steadySince(base, cur.Reading(), a.config.RateWindow)
	if base == s.prev.Reading {
		return amount
	}
	switch wide, verdict := usage.Rate(base, cur, a.config.MaxSampleAge, a.capacity); verdict {
	case usage.Fresh:
		amount = wide
	case usage.Excess: // the margin of the shorter window hides that
		a.excess = wide.CPUNanocores
	}
	return amount
}

// steadySince returns the oldest point since which the load has not changed, not before oldest and at
// least a quarter of the rate window before cur.
func (h *history) steadySince(oldest, cur usage.Reading, rateWindow time.Duration) usage.Reading {
	if h.changes == 0 {
		return oldest
	}
	base := cur
	for _, p := range slices.Backward(h.points[:h.count]) {
		if p.At < oldest.At {
			break
		}
		if cur.At.Sub(p.At) < rateWindow/4 {
			continue
		}
		if base != cur {
			rate, before := cores(base, cur), cores(p, base)
			noise := h.noise * rateWindow.Seconds() / base.At.Sub(p.At).Seconds()
			if math.Abs(before-rate) > noise+leastChange*max(before, rate) {
				return base
			}
		}
		base = p
	}
	return oldest
}

// noteUnserved notes a sample that has no rate, unless it repeats the previous one.
func (s *series) noteUnserved(cur *usage.Sample) {
	if cur.At == s.prev.At {
		return
	}
	if s.history == nil {
		s.history = &history{}
	}
	if cur.At > s.history.unserved.At {
		s.history.unserved = cur.Reading()
	}
}

// fellSinceUnserved reports whether the counter fell after the last sample that had no rate.
func (s *series) fellSinceUnserved(cur *usage.Sample) bool {
	h := s.history
	return h != nil && cur.At > h.unserved.At && cur.CPUSeconds < h.unserved.CPUSeconds
}

// cores returns the mean usage between two readings, in cores.
func cores(from, to usage.Reading) float64 {
	return (to.CPUSeconds - from.CPUSeconds) / to.At.Sub(from.At).Seconds()
}

// add adds the point that precedes a sample, unless it is too close to the last one. If there is no
// room, it drops the oldest point.
func (h *history) add(prev usage.Reading, rateWindow time.Duration) {
	if h.count > 0 && prev.At.Sub(h.points[h.count-1].At) < rateWindow/4 {
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
	change := math.Abs(cores(p[0], p[1]) - 2*cores(p[1], p[2]) + cores(p[2], p[3]))
	h.changes = min(h.changes+1, noiseSpan)
	h.noise += (change - h.noise) / float64(h.changes)
}
