package server

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: 100, 4 << 20: 100, 8 << 20: 100, 16 << 20: 50, 32 << 20: 25, 1 << 30: 25} {
		if got := gcPercent(live); got != want {
			t.Errorf("a heap of %d MiB is collected when it has grown by %d %%, want %d", live>>20, got, want)
		}
	}
	if live, _ := heap(); live == 0 {
		t.Error("the size of the heap is not known")
	}
}

// TestSaveMemoryLeavesTheExecutableAlone: some of its pages are relocated when it is position
// independent (-buildmode=pie), and do not come back from the file.
func TestSaveMemoryLeavesTheExecutableAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*tuneInterval)
		defer cancel()
		before := residentFile(t)
		saveMemory(ctx)
		if after := residentFile(t); after < before/2 {
			t.Errorf("%d KiB of mapped files are resident after, %d before", after, before)
		}
	})
}

// residentFile returns the KiB of mapped files in the process's resident set.
func residentFile(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "RssFile:"); ok {
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Skip("/proc/self/status has no RssFile")
	return 0
}
