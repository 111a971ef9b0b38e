package scrape

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/internal/failure"
)

// target is a node that the Scraper scrapes.
type target struct {
	node   atomic.Pointer[corev1.Node]
	offset time.Duration // of its regular scrapes within the interval
	since  time.Duration // when it was set, since Scraper.started

	// These fields are guarded by the Scraper's lock.
	waiting  bool               // for due, when the timer starts a scrape; false: it is being scraped
	timer    *time.Timer        // nil until Run
	cancel   context.CancelFunc // cancels what is running; nil until Run
	warm     bool               // it has the first metrics that its kubelet can provide soon, or its scrape failed
	lastDue  time.Duration      // when the last scrape that has begun was due; before the first one: long ago
	took     time.Duration      // by the last scrape that has ended
	failing  bool               // whether that failed
	isActive bool
	lastRead time.Duration // meaningful if isActive

	// These fields belong to the running scrape, or, while the target waits, to the Scraper, whose lock
	// guards them then.
	due            time.Duration // since Scraper.started
	kind           Kind          // of the scrape at due
	early          *rate.Limiter // of early scrapes
	summaryFetched bool          // whether it was fetched since its rates have been missing
	log            failure.Log

	mu      sync.Mutex
	deleted bool
	health  health.Node // without Name, UID, Address, Next and Active
	storage storageState
}

// unlessDeleted calls f, unless the target is deleted, and reports whether it did. The target
// cannot be deleted while f runs.
func (t *target) unlessDeleted(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.deleted {
		return false
	}
	f()
	return true
}
