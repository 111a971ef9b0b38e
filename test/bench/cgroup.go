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

// cgroup is a memory cgroup with a limit, of version 1 or 2.
type cgroup struct {
	dir   string
	files cgroupFiles
}

// cgroupFiles are the names of the files in a memory cgroup.
type cgroupFiles struct{ limit, swap, usage, peak, events string }

var (
	cgroupV1 = cgroupFiles{
		limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", peak: "memory.max_usage_in_bytes",
		events: "memory.oom_control",
	}
	cgroupV2 = cgroupFiles{
		limit: "memory.max", swap: "memory.swap.max", usage: "memory.current", peak: "memory.peak", events: "memory.events",
	}
)

// newCgroup creates a memory cgroup. That needs root and a cgroup filesystem that is writable.
func newCgroup(limit uint64) (*cgroup, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	parent, files, err := cgroupParent(string(text))
	if err != nil {
		return nil, err
	}
	c := &cgroup{filepath.Join(parent, fmt.Sprintf("kube-vitals-bench-%d", os.Getpid())), files}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, err
	}
	err = c.write(files.limit, strconv.FormatUint(limit, 10))
	if err == nil && files.swap != "" {
		if err = c.write(files.swap, "0"); errors.Is(err, os.ErrNotExist) {
			err = nil // the kernel does not account swap
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.remove())
	}
	return c, nil
}

// cgroupParent returns the folder in which a memory cgroup can be created, from /proc/self/cgroup. In
// version 1 that is the cgroup of this process. In version 2 it is the one around it, since a cgroup
// that has processes cannot have children with limits.
func cgroupParent(self string) (dir string, files cgroupFiles, err error) {
	for line := range strings.Lines(self) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && fields[1] == "memory" {
			return filepath.Join("/sys/fs/cgroup/memory", fields[2]), cgroupV1, nil
		}
	}
	for line := range strings.Lines(self) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return filepath.Join("/sys/fs/cgroup", filepath.Dir(path)), cgroupV2, nil
		}
	}
	return "", files, errors.New("/proc/self/cgroup: there is no memory cgroup")
}

func (c *cgroup) write(file, text string) error {
	return os.WriteFile(filepath.Join(c.dir, file), []byte(text), 0o600)
}

// bytes returns the number in a file.
func (c *cgroup) bytes(file string) (uint64, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// kills returns how many processes the kernel has killed because memory ran out.
func (c *cgroup) kills() (int, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, c.files.events))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return 0, fmt.Errorf("%s: there is no oom_kill in %q", c.files.events, text)
}

// remove deletes the cgroup, whose processes must have ended.
func (c *cgroup) remove() error { return os.Remove(c.dir) }

// launcher writes a script that runs an executable in the cgroup with the limit for Go's heap that the
// chart sets. The executable is a copy that was made in the cgroup, so that its pages in memory count
// against the limit, as they do after a restart of a node. Without a cgroup, only the limit for the
// heap is set.
func launcher(c *cgroup, executable, dir string, limit uint64) (script string, err error) {
	join := ""
	if c != nil {
		join = fmt.Sprintf("echo $$ > '%s/cgroup.procs'\n", c.dir)
		duplicate := filepath.Join(dir, "limited-"+filepath.Base(executable))
		//nolint:noctx // it ends at once
		output, err := exec.Command("/bin/sh", "-c", join+`exec cp "$0" "$1"`, executable, duplicate).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("copy the server in its cgroup: %w: %s", err, output)
		}
		executable = duplicate
	}
	script = filepath.Join(dir, filepath.Base(executable)+".sh")
	text := fmt.Sprintf("#!/bin/sh\n%sGOMEMLIMIT=%dMiB exec '%s' \"$@\"\n", join, limit*9/10>>20, executable)
	return script, os.WriteFile(script, []byte(text), 0o755)
}
