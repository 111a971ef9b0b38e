package scrape

import "time"

const (
	// maxReaders limits the readers whose periods are learned. Each takes about 100 bytes.
	maxReaders = 10_000
	// sameRead is the time within which several reads of a reader count as one, such as those of the
	// two metrics of a HorizontalPodAutoscaler, or the pages of a list.
	sameRead = time.Second
	// minPeriod and maxPeriod limit the periods that are learned.
	minPeriod, maxPeriod = 2 * time.Second, activeFor
	// periodTolerance is the part of its period by which a reader may be early or late.
	periodTolerance = 0.2
	// maxSkipped is the number of times in a row that reads may be missing between two reads before a
	// longer period is learned.
	maxSkipped = 4
)

// reader is what is known of a reader. Times are since Scraper.started.
type reader struct {
	last    time.Duration // its last read; of several that count as one, the first
	period  time.Duration // between two reads; 0: not known
	skipped int           // how often in a row a read was missing before the next one

	marked    time.Duration // when a read was last noted at each node
	size      int           // of that read, in objects
	following bool          // whether the nodes follow the reader since then
}

// note notes a read. Another replica may have got some of the reads before it, so that the time since
// the last read may be a multiple of the period.
func (r *reader) note(now time.Duration) {
	gap := now - r.last
	if gap < sameRead {
		return
	}
	r.last = now
	if n := gap.Round(r.period) / max(1, r.period); r.period > 0 && n > 0 {
		off := gap - gap.Round(r.period)
		if float64(max(off, -off)) <= periodTolerance*float64(r.period) {
			r.skipped++
			if n == 1 {
				r.skipped = 0
			}
			if r.skipped < maxSkipped {
				r.period += off / (2 * n)
				return
			}
		}
	}
	r.skipped, r.period = 0, gap
	if gap < minPeriod || gap > maxPeriod {
		r.period = 0
	}
}

// mark reports whether a read must be noted at each node: if it may have other nodes than before, or if
// they do not follow the reader yet, or if some time has passed.
func (r *reader) mark(size int, now time.Duration) bool {
	if size == r.size && r.following == (r.period > 0) && now-r.marked < markInterval {
		return false
	}
	r.size, r.following, r.marked = size, r.period > 0, r.last
	return true
}

// after returns the first predicted read at t or later.
func (r *reader) after(t time.Duration) time.Duration {
	return r.last + max(r.period, (t-r.last+r.period-1).Truncate(r.period))
}

// isOverdue reports whether the reader has probably stopped reading.
func (r *reader) isOverdue(now time.Duration) bool { return r.period == 0 || now-r.last > 3*r.period }

// readers are the known readers by their hashes.
type readers map[uint64]*reader

// note notes a read and returns the reader, or nil for the hash 0.
func (m readers) note(id uint64, now time.Duration) *reader {
	if id == 0 {
		return nil
	}
	r := m[id]
	if r == nil {
		m.makeRoom(now)
		r = &reader{last: now, marked: -1}
		m[id] = r
		return r
	}
	r.note(now)
	return r
}

// makeRoom looks at a few readers at random, and deletes those that have stopped. If there are too
// many readers, it deletes at least one, of which the period is not known if possible.
func (m readers) makeRoom(now time.Duration) {
	const sample = 8
	looked := 0
	var worst uint64
	worstAge := time.Duration(-1)
	for id, r := range m {
		if looked++; looked > sample {
			break
		}
		age := now - r.last
		if age > activeFor {
			m.forget(id)
			continue
		}
		if r.period == 0 {
			age += activeFor
		}
		if age > worstAge {
			worst, worstAge = id, age
		}
	}
	if worstAge >= 0 && len(m) >= maxReaders {
		m.forget(worst)
	}
}

// forget deletes a reader. The nodes that still refer to it no longer follow it.
func (m readers) forget(id uint64) {
	m[id].period = 0
	delete(m, id)
}
