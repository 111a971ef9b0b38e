// Package process runs the programs of a test cluster. Each has a process group and a log of its
// own, and none outlives the program that started it, however that ends.
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

// tailLines is how much of a log an error repeats.
const tailLines = 15

// Config says what to run.
type Config struct {
	Path string   // the program
	Args []string // without its name
	Env  []string // added to this process's environment
	Log  string   // the file that its output is appended to
}

// Process is a program that has been started.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended; read it after done
}

// Start starts a program.
func Start(cfg Config) (*Process, error) {
	name := filepath.Base(cfg.Path)
	log, err := os.OpenFile(cfg.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot start %s without a log: %w", name, err)
	}
	defer log.Close() //nolint:errcheck // the program has a descriptor of its own

	cmd := exec.Command(cfg.Path, cfg.Args...) //nolint:noctx // Stop ends it, in good order
	cmd.Env = append(os.Environ(), cfg.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes()
	p := &Process{name: name, log: cfg.Log, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	return p, nil
}

// run starts the program and waits for it on one thread: Linux ends the program when the thread
// that started it ends, not when its process does, so that thread must stay.
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

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID is its process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Running returns nil while the program runs, and afterwards an error with the end of its log.
func (p *Process) Running() error {
	select {
	case <-p.done:
		how := p.err
		if how == nil {
			how = errors.New("exit status 0")
		}
		return fmt.Errorf("%s has ended: %w%s", p.name, how, p.Tail())
	default:
		return nil
	}
}

// Tail is the end of the log, as the end of an error: a line that introduces it, and indented
// lines.
func (p *Process) Tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Sprintf("; its log cannot be read: %v", err)
	}
	lines := strings.Split(string(bytes.TrimSpace(text)), "\n")
	lines = lines[max(0, len(lines)-tailLines):]
	return fmt.Sprintf("; the end of %s:\n    %s", p.log, strings.Join(lines, "\n    "))
}

// Stop asks the program to end, ends it by force after a time of grace, and returns how it ended:
// nil for exit status 0.
func (p *Process) Stop(grace time.Duration) error {
	p.signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		p.signal(syscall.SIGKILL) // whatever it has left behind in its group
		return p.err
	case <-timer.C:
		p.Kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM%s", p.name, grace, p.Tail())
	}
}

// Pause makes the program stand still. Its connections stay open, and the system goes on accepting
// new ones for it.
func (p *Process) Pause() { p.signal(syscall.SIGSTOP) }

// Resume ends a pause.
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

// Kill ends the program and all that it has started.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// signal signals the group. It fails only where nobody is left in it.
func (p *Process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }
