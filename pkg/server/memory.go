package server

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// residentMemory returns the resident memory (RSS) of this process in bytes, and 0 if it cannot be read.
func residentMemory() uint64 {
	self, err := procfs.Self()
	if err != nil {
		return 0
	}
	stat, err := self.Stat()
	if err != nil {
		return 0
	}
	return uint64(stat.ResidentMemory())
}

// memoryLimit returns the memory limit of the container in bytes: the lowest limit of the cgroup of this
// process and of the cgroups around it that are visible here. It returns 0 if there is none or if it
// cannot be read. It reads the files of the kernel each time, since a Pod can be resized. The shares of responses,
// of connections and of the Go runtime are those of the limit at the start.
func memoryLimit() uint64 { return memoryLimitIn("/") }

// LimitMemory lowers the memory limit of the Go runtime to nine tenths of that of the container, so that it collects
// garbage before the kernel kills the process. Users may set a lower one (GOMEMLIMIT).
func LimitMemory() { limitMemory(memoryLimit()) }

// limitMemory is LimitMemory with the limit of the container; 0: none.
func limitMemory(container uint64) {
	if limit := int64(container / 10 * 9); limit > 0 && limit < debug.SetMemoryLimit(-1) {
		debug.SetMemoryLimit(limit)
	}
}

// noMemoryLimit is the lowest value that stands for no limit. Version 1 of cgroups has the highest
// number of whole pages in an int64.
const noMemoryLimit = math.MaxInt64 >> 1

// memoryLimitIn is memoryLimit with a directory in place of /.
func memoryLimitIn(root string) uint64 {
	fs, err := procfs.NewFS(filepath.Join(root, procfs.DefaultMountPoint))
	if err != nil {
		return 0
	}
	self, err := fs.Self()
	if err != nil {
		return 0
	}
	groups, err := self.Cgroups()
	if err != nil {
		return 0
	}
	lowest, mounted := uint64(noMemoryLimit), filepath.Join(root, "sys/fs/cgroup")
	for _, g := range groups {
		switch {
		case g.HierarchyID == 0: // version 2
			lowest = min(lowest, memoryLimitOf(mounted, g.Path, "memory.max"))
		case slices.Contains(g.Controllers, "memory"):
			lowest = min(lowest, memoryLimitOf(filepath.Join(mounted, "memory"), g.Path, "memory.limit_in_bytes"))
		}
	}
	if lowest >= noMemoryLimit {
		return 0
	}
	return lowest
}

// memoryLimitOf returns the lowest limit of a cgroup and of its parents, as far as the directory shows them:
// a container sees its own cgroup in place of the root. A file that is missing or that has no number,
// such as "max", stands for no limit.
func memoryLimitOf(dir, group, file string) uint64 {
	lowest := uint64(noMemoryLimit)
	for path := filepath.Join("/", group); ; path = filepath.Dir(path) {
		if text, err := os.ReadFile(filepath.Join(dir, path, file)); err == nil {
			if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil {
				lowest = min(lowest, n)
			}
		}
		if path == "/" {
			return lowest
		}
	}
}
