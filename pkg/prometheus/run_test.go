package prometheus

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

type observerFunc func(Result)

func (f observerFunc) Refreshed(r Result) { f(r) }

// TestRun runs the loop: no query before the API server's objects are known, then refreshes, with
// failures in between, while nodes come and go.
func TestRun(t *testing.T) {
	f := newFixture(t, "")
	f.put("app", "", -20, 100, -5, 103)
	results := make(chan Result)
	ctx, cancel := context.WithCancel(t.Context())
	var syncs atomic.Int32
	f.Interval = 20 * time.Millisecond
	f.Synced = func() bool {
		f.set(func() {
			if syncs.Load() < 3 && len(f.requests) > 0 {
				t.Error("sent a query before the nodes and pods were known")
			}
		})
		return syncs.Add(1) >= 3
	}
	f.Observer = observerFunc(func(r Result) {
		select {
		case results <- r:
		case <-ctx.Done():
		}
	})
	var work sync.WaitGroup
	work.Go(func() { f.Source.Run(ctx) })
	stop := make(chan struct{})
	work.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				f.Set(newNode("n2", "10.0.0.2"))
				f.Set(newNode("n3", "10.0.0.2")) // the same address
				f.Delete("n2")
				f.Delete("n3")
			}
		}
	})
	if r := <-results; r.Err != nil || r.Nodes != 1 || !f.WarmedUp() || f.Alive() != nil {
		t.Errorf("the first refresh: got %+v, warm: %v, alive: %v", r, f.WarmedUp(), f.Alive())
	}
	f.wantPod("app 200 15s")
	f.set(func() {
		f.respond = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }
	})
	failed := <-results
	for failed.Err == nil { // this one may have been sent before
		failed = <-results
	}
	if next := <-results; failed.Failures != 1 || next.Failures != 2 || !f.WarmedUp() {
		t.Errorf("got %d and %d failures in a row, want 1 and 2", failed.Failures, next.Failures)
	}
	f.set(func() { f.respond = nil })
	recovered := <-results
	for recovered.Err != nil {
		recovered = <-results
	}
	if recovered.Failures != 0 {
		t.Errorf("got %d failures after a success", recovered.Failures)
	}
	close(stop)
	cancel()
	work.Wait()
}
