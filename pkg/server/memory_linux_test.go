package server

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestUnmapExecutable(t *testing.T) {
	ranges, err := executableRanges()
	if err != nil || len(ranges) == 0 {
		t.Fatalf("no part of the executable is found: %v, %v", ranges, err)
	}
	before := residentFile(t)
	unmapExecutable()
	if after := residentFile(t); after >= before {
		t.Errorf("%d KiB of files are resident after, %d before", after, before)
	}
}

// residentFile gives the KiB of files that are in the process's resident set.
func residentFile(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
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
	t.Fatal("/proc/self/status has no RssFile")
	return 0
}
