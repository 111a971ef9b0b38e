package engine

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestRun runs the loop: no query before the API server's objects are known, then refreshes, with
// failures in between, while nodes come and go and the health is read.
func TestRun(t *testing.T) {
	f := newFixture(t, "")
	f.put("app", "", -20, 100, -5, 103)
	failures := make(chan int) // in a row
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
	f.Refreshed = func(Result) {
		select {
		case failures <- f.Overall().Failures:
		case <-ctx.Done():
		}
	}
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
				o, all := f.Overall(), f.Nodes()
				if !o.LastSuccess.IsZero() && (len(all) != 1 || o.Engine.Series["containerCPU"] != 1 || all[0].Failures != 0) {
					t.Errorf("got %+v, %+v", o, all)
					return
				}
			}
		}
	})
	if n := <-failures; n != 0 || !f.WarmedUp() || f.Alive() != nil {
		t.Errorf("the first refresh: got %d failures, warm: %v, alive: %v", n, f.WarmedUp(), f.Alive())
	}
	f.wantPod("app 200 15s")
	f.set(func() {
		f.respond = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }
	})
	first := <-failures
	for first == 0 { // this one may have been sent before
		first = <-failures
	}
	if next := <-failures; first != 1 || next != 2 || !f.WarmedUp() {
		t.Errorf("got %d and %d failures in a row, want 1 and 2", first, next)
	}
	f.set(func() { f.respond = nil })
	for n := range failures {
		if n == 0 {
			break
		}
	}
	close(stop)
	cancel()
	work.Wait()
	f.setNext(time.Now().Add(-f.maxDuration - 2*time.Minute - time.Second))
	if f.Alive() == nil {
		t.Error("the loop is alive, but has not refreshed for a long time")
	}
}
