package kubelet

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// permitsPerCPU is the number of permits per processor, for connecting and for reading. There
	// are more permits than processors because a permit is also held through short waits, such as
	// round trips within a data center.
	permitsPerCPU = 16
	// permitTimeout is how long a permit is held through waits. 1,000 kubelets that hang pass
	// through the permits of one processor within 1,000 ÷ 16 × 20 ms = 1.3 s.
	permitTimeout = 20 * time.Millisecond
)

// permits bounds how many requests are in an expensive phase at the same time. It bounds work, not
// waits: a request that computes keeps its permit, and one that waits for its kubelet when it has had
// the permit for permitTimeout returns it and continues without. Kubelets that are slow or hang
// therefore do not delay the requests to others. When more requests are due than the processors can
// serve at once, the first ones complete while the others queue, so that they do not all time out.
type permits chan struct{}

func newPermits() permits { return make(permits, permitsPerCPU*runtime.GOMAXPROCS(0)) }

// permit is what one request holds during one phase. The methods of a nil permit do nothing.
type permit struct {
	permits  permits
	queued   time.Duration // how long the request waited for the permit
	deadline time.Time     // when a wait returns it
	timer    *time.Timer   // of a wait
	held     atomic.Bool
}

// acquire waits for a permit. It fails only if the context ends first. Even then it returns a
// permit, which is not held but has the time in the queue.
func (a permits) acquire(ctx context.Context) (p *permit, err error) {
	p = &permit{permits: a}
	start := time.Now()
	select {
	case a <- struct{}{}:
		p.held.Store(true)
	case <-ctx.Done():
		err = ctx.Err()
	}
	now := time.Now()
	p.queued, p.deadline = now.Sub(start), now.Add(permitTimeout)
	return p, err
}

// pause must be called before a wait for the kubelet, and resume after it. If the permit is
// returned meanwhile, resume does not acquire another one: the request would queue behind those
// that have not started yet.
func (p *permit) pause() {
	switch {
	case p == nil:
	case p.timer == nil:
		p.timer = time.AfterFunc(time.Until(p.deadline), p.release)
	default:
		p.timer.Reset(time.Until(p.deadline))
	}
}

func (p *permit) resume() {
	if p != nil {
		p.timer.Stop()
	}
}

// release returns the permit. Further calls do nothing.
func (p *permit) release() {
	if p != nil && p.held.Swap(false) {
		<-p.permits
	}
}
