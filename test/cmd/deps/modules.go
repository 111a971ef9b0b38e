package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// module is a folder with a go.mod whose requirements are downloaded.
type module struct {
	folder   string
	commands [][]string // of go, which download what is missing
	cache    string     // Go's module cache
	retry    retry
	out      io.Writer
}

var (
	toolLines = regexp.MustCompile(`(?m)^tool\b`)
	errStall  = errors.New("no byte arrived any more")
)

// newModule returns the module in a folder. What its packages, tests and tools import is downloaded;
// if it has none of these, all that go.mod requires.
func newModule(ctx context.Context, folder string, r retry, out io.Writer) (*module, error) {
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return nil, err
	}
	m := &module{folder: folder, retry: r, out: out}
	packages, err := m.output(ctx, "list", "-e", "-find", "./...")
	if err != nil {
		return nil, err
	}
	if len(packages) > 0 {
		m.commands = append(m.commands, []string{"list", "-deps", "-test", "./..."})
	}
	if toolLines.Match(text) {
		m.commands = append(m.commands, []string{"list", "-deps", "tool"})
	}
	if len(m.commands) == 0 {
		m.commands = [][]string{{"mod", "download"}}
	}
	cache, err := m.output(ctx, "env", "GOMODCACHE")
	m.cache = filepath.Join(strings.TrimSpace(string(cache)), "cache")
	return m, err
}

// download downloads what the module cache does not have.
func (m *module) download(ctx context.Context) error {
	if m.isComplete(ctx) {
		return nil
	}
	before, started := m.cached(), time.Now()
	fmt.Fprintf(m.out, "downloading modules of %s\n", m.folder)
	pause, without := m.retry.pause, 0 // attempts without progress
	for {
		last := m.cached()
		err := m.attempt(ctx, before)
		now := m.cached()
		if m.isComplete(ctx) {
			fmt.Fprintf(m.out, "  %s: %s in %s\n", m.folder, now.since(before), time.Since(started).Round(time.Second))
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil { // what is missing cannot be downloaded by these commands
			err = errors.New("modules are missing after the download")
		}
		if without++; now.files > last.files {
			pause, without = m.retry.pause, 0
		}
		if without == m.retry.attempts {
			return fmt.Errorf("download modules of %s: %w: run the command again, which continues, "+
				"or set GOPROXY to another module proxy", m.folder, err)
		}
		fmt.Fprintf(m.out, "  %s: %v; next attempt in %s\n", m.folder, err, pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		pause *= 2
	}
}

// isComplete reports whether the commands find everything in the module cache. Their other errors,
// such as those of a source file, are those of the build.
func (m *module) isComplete(ctx context.Context) bool {
	for _, command := range m.commands {
		cmd := m.command(ctx, command...)
		cmd.Env = append(cmd.Env, "GOPROXY=off")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if cmd.Run() != nil && strings.Contains(stderr.String(), "GOPROXY=off") {
			return false
		}
	}
	return true
}

// attempt runs the commands. It ends one that receives nothing.
func (m *module) attempt(ctx context.Context, before content) error {
	for _, command := range m.commands {
		if err := m.watch(m.command(ctx, command...), before); err != nil {
			return err
		}
	}
	return nil
}

func (m *module) watch(cmd *exec.Cmd, before content) error {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	const looks, reportEvery = 10, 10 * time.Second // looks: in the time of a stall
	ticker := time.NewTicker(m.retry.stall / looks)
	defer ticker.Stop()
	last, idle, reported := int64(-1), 0, time.Now()
	for {
		select {
		case err := <-ended:
			if err != nil {
				err = firstError(stderr.String(), err)
			}
			return err
		case <-ticker.C:
		}
		now := m.cached()
		if moved := now.bytes + transferred(cmd.Process.Pid); moved != last {
			last, idle = moved, 0
		} else if idle++; idle >= looks {
			_ = cmd.Cancel()
			return fmt.Errorf("%w for %s: %w", errStall, m.retry.stall, <-ended)
		}
		if time.Since(reported) >= reportEvery {
			reported = time.Now()
			fmt.Fprintf(m.out, "  %s: %s\n", m.folder, now.since(before))
		}
	}
}

// command returns a go command, which ends with everything that it has started, such as git.
func (m *module) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = m.folder
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.SysProcAttr = group()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// output returns the output of a go command that needs no network.
func (m *module) output(ctx context.Context, args ...string) ([]byte, error) {
	cmd := m.command(ctx, args...)
	cmd.Env = append(cmd.Env, "GOPROXY=off")
	output, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = firstError(string(exit.Stderr), err)
	}
	if err != nil {
		return nil, fmt.Errorf("go %s in %s: %w", args[0], m.folder, err)
	}
	return output, nil
}

// firstError returns the first line of go's output that is not about its progress, or else err.
func firstError(output string, err error) error {
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "go: downloading") && !strings.HasPrefix(line, "go: warning") {
			return errors.New(strings.TrimPrefix(line, "go: "))
		}
	}
	return err
}

// content is what a module cache has.
type content struct {
	files   int // that are complete
	modules int // of files, the archives
	bytes   int64
}

func (c content) since(before content) string {
	const mega = 1e6
	return fmt.Sprintf("%d modules, %.0f MB", c.modules-before.modules, float64(c.bytes-before.bytes)/mega)
}

// cached returns what the module cache has. It may change meanwhile.
func (m *module) cached() (c content) {
	_ = filepath.WalkDir(m.cache, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil //nolint:nilerr // go has removed the file
		}
		if info, err := entry.Info(); err == nil {
			c.bytes += info.Size()
		}
		switch filepath.Ext(path) {
		case ".tmp", ".lock":
			return nil
		case ".zip":
			c.modules++
		}
		c.files++
		return nil
	})
	return c
}

// transferred returns how many bytes a process has read and written, also from and to sockets; 0: unknown.
// Nothing moves while it waits for the network only.
func transferred(pid int) (sum int64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var n int64
		if _, err := fmt.Sscanf(line, "rchar: %d", &n); err == nil {
			sum += n
		} else if _, err := fmt.Sscanf(line, "wchar: %d", &n); err == nil {
			sum += n
		}
	}
	return sum
}
