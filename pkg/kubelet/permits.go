package kubelet

import (
	"context"
	"io"
	"net"
	"runtime"
	"sync"
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
// waits: a request that computes keeps its permit, and one that still waits for its kubelet after
// permitTimeout returns the permit and continues without it. Kubelets that are slow or hang
// therefore do not delay the requests to others. When more requests are due than the processors can
// serve at once, the first ones complete while the others queue, so that they do not all time out.
type permits chan struct{}

func newPermits() permits { return make(permits, permitsPerCPU*runtime.GOMAXPROCS(0)) }

// permit is what one request holds during one phase. The methods of a nil permit do nothing.
type permit struct {
	permits permits
	queued  time.Duration // how long the request waited for the permit
	timer   *time.Timer

	mu      sync.Mutex
	held    bool
	waiting bool // the request waits for its kubelet
	expired bool // permitTimeout has passed
}

// acquire waits for a permit. It fails only if the context ends first. Even then it returns a
// permit, which is not held but has the time in the queue.
func (a permits) acquire(ctx context.Context) (*permit, error) {
	p := &permit{permits: a}
	start := time.Now()
	select {
	case a <- struct{}{}:
		p.queued = time.Since(start)
		p.held = true
		p.timer = time.AfterFunc(permitTimeout, p.expire)
		return p, nil
	case <-ctx.Done():
		p.queued = time.Since(start)
		return p, ctx.Err()
	}
}

// pause must be called before a wait for the kubelet, and resume after it. If the permit is
// returned meanwhile, resume does not acquire another one: the request would queue behind those
// that have not started yet.
func (p *permit) pause()  { p.setWaiting(true) }
func (p *permit) resume() { p.setWaiting(false) }

func (p *permit) setWaiting(waiting bool) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = waiting
	if p.waiting && p.expired {
		p.drop()
	}
}

func (p *permit) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expired = true
	if p.waiting {
		p.drop()
	}
}

// release returns the permit. Further calls do nothing.
func (p *permit) release() {
	if p == nil || p.timer == nil {
		return
	}
	p.timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
}

// drop returns the permit if it is held. p.mu must be held.
func (p *permit) drop() {
	if p.held {
		p.held = false
		<-p.permits
	}
}

// pausingConn pauses a permit while it waits for the kubelet.
type pausingConn struct {
	net.Conn
	permit *permit
}

// Read implements io.Reader.
func (c *pausingConn) Read(p []byte) (int, error) {
	c.permit.pause()
	defer c.permit.resume()
	return c.Conn.Read(p)
}

// pausingBody pauses a permit while it waits for the kubelet.
type pausingBody struct {
	io.ReadCloser
	permit *permit
}

// Read implements io.Reader.
func (b *pausingBody) Read(p []byte) (int, error) {
	b.permit.pause()
	defer b.permit.resume()
	return b.ReadCloser.Read(p)
}
