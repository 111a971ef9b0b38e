package server

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// minGCPercent makes the garbage collector run when the heap has grown by so much. What lives here lives long, and what a
	// scrape or an answer leaves behind is little beside it, so that collecting more often than Go does by default (100)
	// costs some thousandths of a core and saves a third of the memory.
	minGCPercent = 25
	// garbage is how many bytes of it there may always be: a small heap would be collected with every few answers.
	garbage = 8 << 20
	// startGarbage is when what only the start needed is given back, after the server is ready.
	startGarbage = 15 * time.Second
	// tuneInterval is how often the collector is set by the size of the heap, and what the heap does not need is given back.
	tuneInterval = 30 * time.Second
)

// collectOften sets how the garbage collector works as long as little is known, unless the user has by GOGC. GOMEMLIMIT works
// as ever.
func collectOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(minGCPercent)
	}
}

// saveMemory gives back, after a while, what only the start needed: the lists of all pods and nodes, a handshake with every
// kubelet, and the pages of the executable that the libraries' initialization is in. From then on, it has the garbage
// collector work by the size of the heap.
func saveMemory(ctx context.Context) {
	if !pause(ctx, startGarbage) {
		return
	}
	debug.FreeOSMemory()
	unmapExecutable()
	for {
		live, free := heap()
		if os.Getenv("GOGC") == "" {
			debug.SetGCPercent(gcPercent(live))
		}
		if free > live/8 {
			debug.FreeOSMemory() // the runtime itself takes minutes, and keeps a tenth
		}
		if !pause(ctx, tuneInterval) {
			return
		}
	}
}

// gcPercent is the growth at which to collect a heap of so many bytes.
func gcPercent(live uint64) int {
	return int(min(100, max(minGCPercent, garbage*100/max(live, 1))))
}

// heap gives the bytes that the last collection left, and those that are unused and not given back.
func heap() (live, free uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64(), samples[1].Value.Uint64()
}

// pause waits, and says whether the context goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
