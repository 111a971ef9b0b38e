package server

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"

	"k8s.io/klog/v2"
)

// unmapExecutable takes the pages of the executable out of the resident set. Those that are needed come back from the page
// cache, at a fraction of a microsecond each; most are not needed after the start.
func unmapExecutable() {
	ranges, err := executableRanges()
	if err != nil {
		klog.Background().V(2).Info("Cannot give back the memory of the executable's start", "err", err)
		return
	}
	for _, r := range ranges {
		// A private mapping that cannot be written to is equal to its file: nothing is lost.
		_ = madviseDontNeed(r.start, r.end-r.start) // it is a help, not needed
	}
}

type addressRange struct{ start, end uintptr }

// executableRanges gives where the parts of the executable lie that cannot be written to.
func executableRanges() ([]addressRange, error) {
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer func() { _ = maps.Close() }() // it was only read
	var ranges []addressRange
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var r addressRange
		var mode string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &r.start, &r.end, &mode); err != nil {
			return nil, fmt.Errorf("/proc/self/maps has the line %q: %w", lines.Text(), err)
		}
		if strings.HasSuffix(lines.Text(), " "+path) && (mode == "r-xp" || mode == "r--p") {
			ranges = append(ranges, r)
		}
	}
	return ranges, lines.Err()
}

func madviseDontNeed(start, length uintptr) error {
	_, _, errno := syscall.Syscall(syscall.SYS_MADVISE, start, length, syscall.MADV_DONTNEED)
	if errno != 0 {
		return errno
	}
	return nil
}
