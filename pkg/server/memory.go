package server

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// minGCPercent makes the garbage collector run when the heap has grown by so much. What lives
	// here lives long, and what a scrape or an answer leaves behind is little beside it, so that
	// collecting more often than Go does by default (100) costs some thousandths of a core and
	// saves a third of the memory.
	minGCPercent = 25
	// garbage is how many bytes of it there may always be: a small heap would be collected with
	// every few answers.
	garbage = 8 << 20
	// startGarbage is the time from ready to the return of the memory that only the start needed.
	startGarbage = 15 * time.Second
	// tuneInterval is the time between two looks at the size of the heap, which set the collector
	// and return unused memory.
	tuneInterval = 30 * time.Second
)

// collectOften sets the growth at which the garbage collector works until the size of the heap is
// known, unless the user has set GOGC. GOMEMLIMIT works as usual.
func collectOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(minGCPercent)
	}
}

// saveMemory returns to the operating system, after a while, the memory that only the start needed:
// the lists of all pods and nodes, and a handshake with every kubelet. From then on, it sets the
// garbage collector by the size of the heap. It leaves the mapped pages of the executable alone:
// some of them are written to when the executable is position independent.
func saveMemory(ctx context.Context) {
	if !pause(ctx, startGarbage) {
		return
	}
	debug.FreeOSMemory()
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

// gcPercent returns the growth, in percent, at which to collect a heap of live bytes.
func gcPercent(live uint64) int {
	return int(min(100, max(minGCPercent, garbage*100/max(live, 1))))
}

// heap returns the bytes that the last collection left, and those that are neither used nor
// returned to the operating system.
func heap() (live, free uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64(), samples[1].Value.Uint64()
}

// pause waits, and reports whether the context goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
