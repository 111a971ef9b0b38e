package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// cgroup is a memory cgroup with a limit.
type cgroup struct {
	dir   string
	files cgroupFiles
}

// cgroupFiles are the names of the files in a memory cgroup.
type cgroupFiles struct{ limit, peak, events string }

var (
	cgroupV1 = cgroupFiles{"memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"}
	cgroupV2 = cgroupFiles{"memory.max", "memory.peak", "memory.events"}
)

// newCgroup creates a memory cgroup. That needs root and a cgroup filesystem that is writable.
func newCgroup(limit uint64) (*cgroup, error) {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	parent, files := cgroupParent(string(self))
	c := &cgroup{filepath.Join(parent, fmt.Sprintf("kube-vitals-bench-%d", os.Getpid())), files}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(c.dir, files.limit), []byte(strconv.FormatUint(limit, 10)), 0o600); err != nil {
		return nil, errors.Join(err, os.Remove(c.dir))
	}
	return c, nil
}

// cgroupParent returns the folder for a new memory cgroup, from /proc/self/cgroup. In
// version 1 that is the cgroup of this process. In version 2 it is the one around it, since a cgroup
// that has processes cannot have children with limits.
func cgroupParent(self string) (dir string, files cgroupFiles) {
	for line := range strings.Lines(self) {
		if _, path, ok := strings.Cut(strings.TrimSpace(line), ":memory:"); ok {
			return filepath.Join("/sys/fs/cgroup/memory", path), cgroupV1
		}
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			dir = filepath.Join("/sys/fs/cgroup", filepath.Dir(path))
		}
	}
	return dir, cgroupV2
}

// peak returns the highest memory so far in MiB, and how many processes the kernel has killed.
func (c *cgroup) peak() (mib, kills uint64, err error) {
	peak, peakErr := os.ReadFile(filepath.Join(c.dir, c.files.peak))
	events, eventsErr := os.ReadFile(filepath.Join(c.dir, c.files.events))
	if err := errors.Join(peakErr, eventsErr); err != nil {
		return 0, 0, err
	}
	_, after, _ := strings.Cut("\n"+string(events), "\noom_kill ")
	_, peakErr = fmt.Sscan(string(peak), &mib)
	_, eventsErr = fmt.Sscan(after, &kills)
	return mib >> 20, kills, errors.Join(peakErr, eventsErr)
}

// launcher writes a script that runs an executable in the cgroup. The executable is a copy that was made in the cgroup,
// so that its pages in memory count against the limit, as they do after a restart of a node.
func (c *cgroup) launcher(executable, dir string) (script string, err error) {
	join := fmt.Sprintf("echo $$ > '%s/cgroup.procs'\n", c.dir)
	limited := filepath.Join(dir, "limited-"+filepath.Base(executable))
	//nolint:noctx // it ends at once
	output, err := exec.Command("/bin/sh", "-c", join+`exec cp "$0" "$1"`, executable, limited).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("copy the server in its cgroup: %w: %s", err, output)
	}
	text := fmt.Sprintf("#!/bin/sh\n%sexec '%s' \"$@\"\n", join, limited)
	return limited + ".sh", os.WriteFile(limited+".sh", []byte(text), 0o755)
}
