package scrape

import (
	"container/heap"
	"context"
	"time"
)

const (
	// maxWait is how long Refresh waits at most.
	maxWait = 250 * time.Millisecond
	// maxWaiters limits the calls of Refresh that wait, so that a flood of them does not occupy all
	// requests that the server handles at the same time.
	maxWaiters = 100
)

// Refresh waits for a scrape of a node, and causes one if the pace of watched nodes allows that now.
// It returns when the scrape has ended, after 250 ms or when the context ends. It returns at once if
// the node fails or is slow, or is scraped at another time.
func (s *Scraper) Refresh(ctx context.Context, node string) {
	ended := s.request(node)
	if ended == nil {
		return
	}
	timeout := time.NewTimer(maxWait)
	defer timeout.Stop()
	inTime := false
	select {
	case <-ended:
		inTime = true
	case <-timeout.C:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiters--
	if inTime {
		s.refreshed++
	} else {
		s.timedOut++
	}
}

// request makes a node due now, unless it is being scraped. It returns a channel that is closed when
// the scrape has ended, or nil if there is nothing to wait for.
func (s *Scraper) request(node string) <-chan struct{} {
	if s.Watched.Resolution == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, now := s.targets[node], time.Now()
	if t == nil || t.failing || t.took >= maxWait || s.waiters >= maxWaiters {
		return nil
	}
	switch {
	case t.heapIndex == 0:
		if now.Sub(t.started) >= maxWait {
			return nil
		}
	case t.kind == Early || now.Before(s.allowed(t)): // an early scrape has the best time for what is missing
		return nil
	case now.Before(t.due):
		t.due, t.kind = now, Requested
		heap.Fix(&s.queue, t.heapIndex-1)
		s.wakeUp()
	}
	if t.ended == nil {
		t.ended = make(chan struct{})
	}
	s.waiters++
	return t.ended
}

// end notes that a scrape of a target has ended, or that there will be none. s.mu is held.
func (t *target) end() {
	if t.ended != nil {
		close(t.ended)
		t.ended = nil
	}
}
