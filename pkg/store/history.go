package store

import (
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// historySize is the largest number of readings in a history: one that is at least the rate window
// older than the newest sample, and four that are less old and a quarter of the rate window apart.
const historySize = 5

// history holds readings of a series before the newest sample. A series has one only while its
// samples are dense: closer to each other than 60 % of the rate window. A rate from the previous
// sample would then cover too little time. The history starts with the first sample of the series, even
// if the container is too young for a rate.
type history struct {
	count  uint8 // of readings; 0: the history has only skipped
	sparse uint8 // consecutive samples that were not dense
	// skipped is the last sample since the previous reading that had no rate, because it followed too
	// closely or the container was starting up. If the next counter is lower, the container was
	// restarted, even if the counter is higher than at the previous reading. at is 0: there is none.
	skipped  earlierReading
	readings [historySize]earlierReading // oldest first
}

// earlierReading is the part of a reading that a rate is computed from.
type earlierReading struct {
	at         usage.Time
	cpuSeconds float64
}

// maxSparse is the number of consecutive samples that are not dense after which a history is
// dropped. Only one can follow from a failed scrape of a node that is scraped often.
const maxSparse = 2

// widen returns the Amount of cur, given that from the previous reading, which is fresh. If the
// samples are dense, it uses the earlier reading with which the window is closest to the rate window.
// It adds the previous reading to the history, and creates or drops the history.
func (s *series) widen(amount usage.Amount, cur usage.Sample, isDense bool, a *arrival) usage.Amount {
	if s.history == nil {
		s.history = &history{}
	}
	h := s.history
	h.add(s.prev, cur.At, a.rateWindow)
	if !isDense {
		if h.sparse++; h.sparse == maxSparse {
			s.history = nil
		}
		return amount
	}
	h.sparse = 0
	var base *earlierReading
	window := amount.Window
	for i, r := range slices.Backward(h.readings[:h.count]) {
		w := cur.At.Sub(r.at)
		if w <= a.maxAge && (w-a.rateWindow).Abs() < (window-a.rateWindow).Abs() {
			base, window = &h.readings[i], w
		}
	}
	if base == nil {
		return amount
	}
	earlier := usage.Sample{At: base.at, CPUSeconds: base.cpuSeconds, Has: usage.HasCPU}
	if wide, verdict := usage.Rate(earlier, cur, a.maxAge, a.capacity); verdict == usage.Fresh {
		amount = wide
	}
	return amount
}

// skip records a sample that has no rate, unless it repeats the previous one.
func (s *series) skip(cur usage.Sample) {
	if cur.At == s.prev.at {
		return
	}
	if s.history == nil {
		s.history = &history{}
	}
	if cur.At > s.history.skipped.at {
		s.history.skipped = earlierReading{cur.At, cur.CPUSeconds}
	}
}

// fellSinceSkipped reports whether the counter fell after the last sample that was skipped.
func (s *series) fellSinceSkipped(cur usage.Sample) bool {
	if s.history == nil {
		return false
	}
	last := &s.history.skipped
	return last.at != 0 && cur.At > last.at && cur.CPUSeconds < last.cpuSeconds
}

// endSkipping drops the skipped sample, and a history that has nothing else.
func (s *series) endSkipping() {
	switch {
	case s.history == nil || s.history.skipped.at == 0:
	case s.history.count == 0:
		s.history = nil
	default:
		s.history.skipped = earlierReading{}
	}
}

// add adds the reading that precedes a sample taken at now, unless it is too close to the last one.
// It drops the readings that no rate needs any more: those before another one that is at least the
// rate window old.
func (h *history) add(prev reading, now usage.Time, rateWindow time.Duration) {
	kept := h.readings[:h.count]
	for len(kept) > 1 && now.Sub(kept[1].at) >= rateWindow {
		kept = kept[1:]
	}
	h.count = uint8(copy(h.readings[:], kept))
	if h.count == 0 || prev.at.Sub(h.readings[h.count-1].at) >= rateWindow/4 {
		h.readings[h.count] = earlierReading{prev.at, prev.cpuSeconds}
		h.count++
	}
}
