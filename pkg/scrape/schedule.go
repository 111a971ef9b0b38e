package scrape

import (
	"container/heap"
	"hash/maphash"
	"math/rand/v2"
	"time"
)

// reschedule puts a target back into the queue after a successful scrape, which took so long.
func (s *Scraper) reschedule(t *target, p plan, took time.Duration) {
	if !p.summary {
		s.markWarm(t)
	}
	s.requeue(t, func(now time.Time) {
		t.took, t.failing = took, false
		t.due, t.kind = s.nextRegular(t, now), Regular
		if t.activity != nil {
			t.due, t.kind = s.nextActive(t, now), OfActive
			s.refused += float64(s.activeResolution())/float64(s.Active.Resolution) - 1
		}
		if early := now.Add(p.wait); p.wait > 0 && early.Before(t.due) && t.early.spend(now) {
			t.due, t.kind = early, Early
		}
	})
}

// retry puts a target back into the queue after a failed scrape. Failing nodes are not scraped more
// often because they are active.
func (s *Scraper) retry(t *target, took time.Duration, failures int) {
	s.markWarm(t)
	s.requeue(t, func(now time.Time) {
		t.took, t.failing = took, true
		t.due, t.kind = s.nextRegular(t, now), Regular
		retry := now.Add(retryDelay(s.Interval, failures))
		if failures <= fastRetries && retry.Before(t.due) {
			t.due = retry
		}
	})
}

// nextRegular returns the time of the target's next regular scrape after now.
func (s *Scraper) nextRegular(t *target, now time.Time) time.Time {
	elapsed := now.Sub(s.started)
	due := elapsed.Truncate(s.Interval) + t.offset
	if due <= elapsed {
		due += s.Interval
	}
	return s.started.Add(due)
}

// retryDelay returns an eighth of the interval after the first failure and a quarter after each
// further one, with a jitter of ±25 %.
func retryDelay(interval time.Duration, failures int) time.Duration {
	delay := interval / 4
	if failures == 1 {
		delay = interval / 8
	}
	return delay*3/4 + rand.N(delay/2) //nolint:gosec // spreads retries, which needs no secrecy
}

// offset returns the offset of a node's regular scrapes in the interval. It differs from process to
// process, so that replicas do not scrape a kubelet at the same moment.
func (s *Scraper) offset(node string) time.Duration {
	return time.Duration(maphash.String(s.seed, node)%slots) * s.Interval / slots
}

// requeue puts a target into the queue, unless the node was deleted. Before that, it calls schedule
// with s.mu held, which sets when the target is due.
func (s *Scraper) requeue(t *target, schedule func(now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.targets[t.node.Load().Name] != t {
		return
	}
	now := time.Now()
	s.expire(t, now.Sub(s.started))
	schedule(now)
	s.enqueue(t)
}

// enqueue puts a target into the queue. s.mu is held.
func (s *Scraper) enqueue(t *target) {
	heap.Push(&s.queue, t)
	if s.queue[0] == t {
		s.wakeUp()
	}
}

// wakeUp wakes the loop because the queue has a new first target.
func (s *Scraper) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default: // the loop will wake up anyway
	}
}
