package scrape

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/internal/failure"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Storage configures the requests for the ephemeral storage of nodes. A request follows a scrape of
// its node, on the same connection. If Interval is 0, there are none; else all fields are required.
type Storage struct {
	// Interval is the time between two requests to a node, to the nearest scrape that is not early.
	Interval time.Duration
	Sink     StorageSink
	// Ready reports whether the Sink can store what the nodes report. The first request is sent when
	// it does, and when every node has its first metrics: CPU and memory come first.
	Ready func() bool
	// Observe is called after each request. The reason is empty if the request succeeded.
	Observe func(took time.Duration, r reason.Reason)
}

// StorageSink stores ephemeral storage. Calls for the same node never overlap.
type StorageSink interface {
	// Put stores a successful response. It must not retain s.
	Put(node string, s *usage.Scrape)
}

// storageState is what is known of a node's requests for ephemeral storage. The target's lock guards
// it.
type storageState struct {
	running  bool
	started  time.Time // when the last request began; zero: there was none
	attempts health.Attempts
	log      failure.Log
}

// fetchStorage fetches and stores the ephemeral storage of a node after one of its scrapes, if that is
// due. The next scrape is scheduled already, and opens another connection if this one is still in use:
// a kubelet that hangs with its complete summary delays no scrape.
//
// The scrapes of many nodes are spread over their interval, apart from the first and the early ones,
// and so are these requests. A request that failed is repeated after each of the next scrapes, but
// not for long.
func (s *Scraper) fetchStorage(ctx context.Context, t *target, kind Kind) {
	if s.Storage.Interval == 0 || kind == Early || !s.storageReady() {
		return
	}
	start := time.Now()
	begins := false
	t.unlessDeleted(func() {
		state := &t.storage
		retries := state.attempts.Failures > 0 && state.attempts.Failures <= fastRetries
		due := retries || start.Sub(state.started) >= s.Storage.Interval-s.Interval/2
		if begins = due && !state.running; begins {
			state.running, state.started = true, start
		}
	})
	if !begins {
		return
	}
	name := t.node.Load().Name
	timing, err := s.fetchAndPut(ctx, t, s.Fetcher.FetchStorage, func(r *usage.Scrape) { s.Storage.Sink.Put(name, r) })
	if ctx.Err() != nil {
		return
	}
	t.unlessDeleted(func() {
		state := &t.storage
		state.running = false
		state.attempts.Add(time.Now(), timing.Took, reason.Of(err), err)
		s.Storage.Observe(timing.Took, state.attempts.Reason)
		logger := klog.FromContext(ctx).WithValues("resource", "ephemeral-storage")
		logChange(logger, &state.log, name, &state.attempts)
	})
}

// storageReady reports whether requests for ephemeral storage may be sent. Nodes that are added later
// do not stop them.
func (s *Scraper) storageReady() bool {
	if !s.storing.Load() && s.Storage.Ready() && s.WarmedUp() {
		s.storing.Store(true)
	}
	return s.storing.Load()
}
