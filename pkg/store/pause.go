package store

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// pauses detects that our clock stood still, for example because the virtual machine of this process
// was paused. The clocks of the other nodes are then further ahead of ours, all by the same time.
//
// A jump of one node's clock proves nothing about ours. So most nodes with metrics must agree, and at
// least two.
type pauses struct {
	within time.Duration         // the longest time between the first and the last of the jumps that a pause causes
	last   atomic.Pointer[pause] // nil: there was none

	mu    sync.Mutex
	jumps map[string]jump // the last jump of each node's clock, unless it is longer ago than within
}

// pause is a time for which our clock stood still.
type pause struct {
	end    usage.Time // by our clock
	length time.Duration
}

// jump is a change of the offset between a node's clock and ours.
type jump struct {
	at     usage.Time // when it was noticed, by our clock
	bounds            // of the time by which the node's clock is further ahead than before
}

// lastJump returns the jump that observe has just reported.
func (c *nodeClock) lastJump() jump {
	return jump{c.jumpedAt, bounds{c.min - c.beforeJump.max, c.max - c.beforeJump.min}}
}

// observe adds a jump of the clock of one of the nodes that have metrics.
func (p *pauses) observe(node string, j jump, nodes int) {
	if j.min <= 0 {
		return // backwards, while a pause is forwards
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.jumps, func(_ string, other jump) bool { return j.at.Sub(other.at) > p.within })
	p.jumps[node] = j
	similar, first := 0, j.at
	for _, other := range p.jumps {
		if other.min <= j.max && j.min <= other.max {
			similar++
			first = min(first, other.at)
		}
	}
	if similar < 2 || 2*similar <= nodes {
		return
	}
	next := &pause{end: first, length: j.min}
	if last := p.last.Load(); last != nil && first.Sub(last.end) <= p.within {
		next.length += last.length // what was sampled before the last pause may still be served
	}
	p.last.Store(next)
	clear(p.jumps)
}

// Corrected returns t, by our clock, so that its difference to a later time contains the time for which
// our clock stood still in between. 0, "not known", stays 0.
func (s *Store) Corrected(t usage.Time) usage.Time {
	if last := s.pauses.last.Load(); last != nil && t != 0 && t < last.end {
		return t.Add(-last.length)
	}
	return t
}
