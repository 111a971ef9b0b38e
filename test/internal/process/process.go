// Package process runs programs for tests, on Linux: each with its own process group and log, and none
// outlives the test program. It also polls conditions and reads the CPU time and memory of
// processes.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// tailLines is the number of log lines that an error repeats.
const tailLines = 15

// Config configures a program.
type Config struct {
	Path string   // the executable
	Args []string // without the program's name
	Env  []string // additional variables
	Log  string   // its output is appended to this file
}

// Process is a program that has been started.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended
	err  error         // how it ended; valid after done is closed
}

// Start starts a program.
func Start(cfg Config) (*Process, error) {
	name := filepath.Base(cfg.Path)
	log, err := os.OpenFile(cfg.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: open its log: %w", name, err)
	}
	defer log.Close() //nolint:errcheck // the program has its own descriptor

	cmd := exec.Command(cfg.Path, cfg.Args...) //nolint:noctx // Stop and Kill end it
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), cfg.Env...)
	p := &Process{name: name, log: cfg.Log, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// run starts the program and waits for it on one thread: Linux sends the program's death signal when the
// thread that started it ends, not when its process does.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	close(p.done)
}

// Done returns a channel that is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running returns nil while the program runs, and afterwards an error with the end of its log.
func (p *Process) Running() error {
	select {
	case <-p.done:
		status := p.err
		if status == nil {
			status = errors.New("exit status 0")
		}
		return fmt.Errorf("%s has ended: %w%s", p.name, status, p.Tail())
	default:
		return nil
	}
}

// Log returns everything that the program has logged.
func (p *Process) Log() (string, error) {
	text, err := os.ReadFile(p.log)
	return string(text), err
}

// Tail returns the end of the log as a suffix for an error message: a heading and indented lines.
func (p *Process) Tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Sprintf("; its log cannot be read: %v", err)
	}
	lines := strings.Split(string(bytes.TrimSpace(text)), "\n")
	lines = lines[max(0, len(lines)-tailLines):]
	return fmt.Sprintf("; the end of %s:\n    %s", p.log, strings.Join(lines, "\n    "))
}

// Stop sends SIGTERM, and SIGKILL after the grace period. It returns how the program ended: nil for
// exit status 0.
func (p *Process) Stop(grace time.Duration) error {
	p.Signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		p.Signal(syscall.SIGKILL) // ends what is left in its process group
		return p.err
	case <-timer.C:
		p.Kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM%s", p.name, grace, p.Tail())
	}
}

// Kill ends the program and everything that it started.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Signal sends a signal to the program's process group, if any process is left in it.
func (p *Process) Signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// CheckExecutable returns an error if the value of a flag is not an executable file.
func CheckExecutable(flag, path string) error {
	if info, err := os.Stat(path); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s: there is no executable %q; build it first", flag, path)
	}
	return nil
}
