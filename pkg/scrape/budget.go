package scrape

import "time"

// maxEarly is how many early scrapes a node may have in a row. One more is allowed with each
// interval, so that a node on which containers start all the time is scraped at most about twice as
// often as others.
const maxEarly = 10

// budget bounds the early scrapes of a node.
type budget struct {
	interval time.Duration
	spent    int       // of maxEarly
	since    time.Time // when the first of those that are spent is given back, less an interval
}

func newBudget(interval time.Duration) budget { return budget{interval: interval} }

// take spends one early scrape, if there is one left.
func (b *budget) take(now time.Time) bool {
	if b.spent == 0 {
		b.since = now
	}
	back := min(b.spent, int(now.Sub(b.since)/b.interval))
	b.spent -= back
	b.since = b.since.Add(time.Duration(back) * b.interval)
	if b.spent == maxEarly {
		return false
	}
	b.spent++
	return true
}
