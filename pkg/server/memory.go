package server

import (
	"context"
	"os"
	"runtime/debug"
	"time"
)

const (
	// gcPercent makes the garbage collector run when the heap has grown by so much. What lives here lives long, and what a
	// scrape or an answer leaves behind is little beside it, so that collecting more often than Go does by default (100)
	// costs some thousandths of a core and saves a third of the memory. GOGC overrides it, GOMEMLIMIT works as ever.
	gcPercent = 30
	// startGarbage is when what only the start needed is given back, after the server is ready.
	startGarbage = 15 * time.Second
)

// collectOften sets how the garbage collector works, unless the user has.
func collectOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// giveBack gives back, after a while, what only the start needed: the lists of all pods and nodes, a handshake with every
// kubelet, and the pages of the executable that the libraries' initialization is in.
func giveBack(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(startGarbage):
		debug.FreeOSMemory()
		unmapExecutable()
	}
}
