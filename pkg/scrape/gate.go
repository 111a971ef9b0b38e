package scrape

import (
	"context"
	"sync"
	"time"
)

// patience is how long a scrape may keep its place in the gate. A kubelet on this planet answers much faster.
const patience = 500 * time.Millisecond

// gate bounds how many scrapes are busy at the same time. One that takes longer than patience is not busy but waits for a
// slow kubelet: it goes on, and its place goes to another one. So hanging nodes, however many, delay the others but little.
type gate chan struct{}

func newGate(places int) gate { return make(gate, places) }

// enter waits for a place. It says how to give it back, or false if the context ended first.
func (g gate) enter(ctx context.Context) (leave func(), ok bool) {
	select {
	case g <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	giveBack := sync.OnceFunc(func() { <-g })
	timer := time.AfterFunc(patience, giveBack)
	return func() {
		timer.Stop()
		giveBack()
	}, true
}
