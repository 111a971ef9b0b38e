package scrape

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"time"
)

// reschedule determines when a target is due after a scrape, given how long it took, unless the node was
// deleted. failures is the number of failed scrapes in a row; the plan counts after a success only.
//
// Failing nodes are not scraped more often because they are active.
func (s *Scraper) reschedule(t *target, took time.Duration, failures int, p plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.targets[t.node.Load().Name] != t {
		return
	}
	now := time.Since(s.started)
	t.warm = t.warm || failures > 0 || !p.missesKubeletRate || now-t.since >= giveUpAfter
	if t.isActive && now-t.lastRead >= activeFor {
		s.deactivate(t)
	}
	t.took, t.failing = took, failures > 0
	t.due, t.kind = s.nextRegular(t, now), Regular
	switch {
	case failures > fastRetries:
	case failures > 0:
		t.due = min(t.due, now+max(0, retryDelay(s.Interval, failures)-took))
	default:
		if t.isActive {
			t.due, t.kind = s.nextActive(t, now), OfActive
		}
		if early := max(now+p.wait, s.rested(t)); p.wait > 0 && early < t.due && t.early.Allow() {
			t.due, t.kind = early, Early
		}
	}
	s.schedule(t)
}

// nextRegular returns the time of the target's next regular scrape after now. It is now if the last one took
// longer than an interval: its samples may be as old.
func (s *Scraper) nextRegular(t *target, now time.Duration) time.Duration {
	if t.took > s.Interval {
		return now
	}
	due := now.Truncate(s.Interval) + t.offset
	if due <= now {
		due += s.Interval
	}
	return due
}

// rested returns when a target may be scraped again before its next regular scrape: a slow node, which may be
// overloaded, is scraped half of the time.
func (s *Scraper) rested(t *target) time.Duration { return t.lastDue + min(2*t.took, s.Interval) }

// retryDelay returns the time from a scrape that fails to the next one: an eighth of the interval after the
// first failure and a quarter after each further one, with a jitter of ±25 %.
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

// schedule makes a target wait for its due time. s.mu is held.
func (s *Scraper) schedule(t *target) {
	t.waiting = true
	switch wait := t.due - time.Since(s.started); {
	case s.ctx == nil: // Run does it
	case t.timer == nil:
		ctx, cancel := context.WithCancel(s.ctx)
		t.cancel = cancel
		t.timer = time.AfterFunc(wait, func() { s.start(ctx, t) })
	default:
		t.timer.Reset(wait)
	}
}

// start scrapes a target that is due.
func (s *Scraper) start(ctx context.Context, t *target) {
	s.mu.Lock()
	now := time.Since(s.started)
	if !t.waiting || t.due > now || ctx.Err() != nil || s.ctx == nil {
		s.mu.Unlock()
		return // it was rescheduled or deleted when the timer ended, or Run has ended
	}
	t.waiting = false
	t.lastDue = t.due
	s.running.Add(1)
	s.mu.Unlock()
	defer s.running.Done()
	s.scrape(ctx, t)
}
