package scrape

import "time"

// paceSlack is the part of the resolution by which a scrape may be ahead of its pace, so that it
// can follow a reader that is a little early. Later scrapes make up for it.
const paceSlack = 0.1

// pacer keeps the scrapes of an active node one resolution apart on average, although each may be
// early by a tenth of it. For example, with a resolution of 5 s, scrapes may start after 0 s, 4.5 s,
// 9.5 s and 14.5 s: only the first of them gains half a second. After one at 20 s, the next may start
// at 24.5 s.
type pacer struct {
	started time.Duration // when the last scrape began, since Scraper.started
	ahead   time.Duration // by how much that was ahead of the pace
}

// start notes that a scrape begins.
func (p *pacer) start(now, resolution time.Duration) {
	p.ahead = min(max(0, p.started+resolution+p.ahead-now), slack(resolution))
	p.started = now
}

// earliest returns when the next scrape may start: the interval is at least the resolution.
func (p *pacer) earliest(interval, resolution time.Duration) time.Duration {
	return p.started + interval + p.ahead - slack(resolution)
}

// slack returns by how much a scrape may be ahead of its pace.
func slack(resolution time.Duration) time.Duration {
	return time.Duration(paceSlack * float64(resolution))
}
