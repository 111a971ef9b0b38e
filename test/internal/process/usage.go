package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is the unit of CPU time in /proc, the same on every Linux that Go runs on.
const ticksPerSecond = 100

// CPUTime returns the CPU time of a process in user and in kernel mode, to 10 ms.
func CPUTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
	}
	// The second field is the name in parentheses; utime and stime are the 14th and 15th.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	user, userErr := strconv.ParseInt(string(fields[11]), 10, 64)
	system, systemErr := strconv.ParseInt(string(fields[12]), 10, 64)
	if err := errors.Join(userErr, systemErr); err != nil {
		return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
	}
	return time.Duration(user+system) * time.Second / ticksPerSecond, nil
}

// Resident returns the resident memory (RSS) of a process in bytes.
func Resident(pid int) (uint64, error) { return memory(pid, "VmRSS:") }

// Anonymous returns the resident memory of a process that no file backs (RssAnon) in bytes: its heap
// and stacks. The kernel can take back the rest, most of which is the program's code.
func Anonymous(pid int) (uint64, error) { return memory(pid, "RssAnon:") }

// PeakResident returns the highest resident memory that a process has had, in bytes.
func PeakResident(pid int) (uint64, error) { return memory(pid, "VmHWM:") }

func memory(pid int, name string) (bytes uint64, err error) {
	kib, err := field(pid, "status", name)
	return kib << 10, err
}

// ReadBytes returns how many bytes a process has read from files and sockets.
func ReadBytes(pid int) (uint64, error) { return field(pid, "io", "rchar:") }

// field returns the number in a line of a file in /proc.
func field(pid int, file, name string) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, fmt.Errorf("read %s of process %d: %w", file, pid, err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		}
	}
	return 0, fmt.Errorf("read %s of process %d: it has ended", file, pid)
}

// Descriptors returns the number of open files and sockets of a process.
func Descriptors(pid int) (int, error) {
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, fmt.Errorf("count open files of process %d: %w", pid, err)
	}
	return len(files), nil
}
