package scrape

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// target is a node that is to be scraped.
type target struct {
	node   atomic.Pointer[corev1.Node]
	offset time.Duration // of its clock

	// These belong to whoever holds the target: the queue (under the Scraper's lock), or the scrape
	// that runs.
	due      time.Time
	hurried  bool   // whether that is before the regular time
	early    budget // of scrapes before their regular time
	failures int    // in a row
	reason   string // of the failures that was logged last
	borrowed bool   // whether the kubelet was asked for its own rates, as long as some are missing
	place    int    // in the queue, from 1; 0: not in there

	settled atomic.Bool // whether it has its first figures, or will not have them soon

	mu     sync.Mutex
	gone   bool
	cancel context.CancelFunc // ends the scrape that runs; nil: none does
}

// begin notes how to end the scrape that begins. It says whether the node is there.
func (t *target) begin(cancel context.CancelFunc) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cancel = cancel
	return !t.gone
}

// whileThere runs f if the node is there, and keeps it from going meanwhile. It says whether the
// node is there.
func (t *target) whileThere(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return false
	}
	f()
	return true
}

// leave ends the scrape that runs, if any, and runs f when nothing more comes of it.
func (t *target) leave(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone = true
	if t.cancel != nil {
		t.cancel()
	}
	f()
}

// queue holds targets, the one that is due first in front.
type queue []*target

func (q *queue) push(t *target) { heap.Push((*byDue)(q), t) }

func (q *queue) pop() *target { return heap.Pop((*byDue)(q)).(*target) }

// remove takes a target out, if it is in there.
func (q *queue) remove(t *target) {
	if t.place > 0 {
		heap.Remove((*byDue)(q), t.place-1)
	}
}

// byDue makes a queue a heap.Interface.
type byDue []*target

func (q byDue) Len() int           { return len(q) }
func (q byDue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q byDue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i+1, j+1
}

func (q *byDue) Push(x any) {
	t := x.(*target)
	*q = append(*q, t)
	t.place = len(*q)
}

func (q *byDue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	t.place = 0
	return t
}
