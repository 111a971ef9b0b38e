package process

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func shell(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(Config{Path: "/bin/sh", Args: []string{"-c", script}, Log: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func TestStopReturnsHowItEnded(t *testing.T) {
	t.Parallel()
	p := shell(t, `trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done`)
	awaitLog(t, p, "ready")
	if err := p.Running(); err != nil {
		t.Errorf("Running() = %v while it runs", err)
	}
	if err := p.Stop(10 * time.Second); err != nil {
		t.Errorf("Stop() = %v, want nil for exit status 0", err)
	}
}

func TestStopEndsWhatDoesNotListen(t *testing.T) {
	t.Parallel()
	p := shell(t, `trap '' TERM; echo ready; while :; do sleep 0.01; done`)
	awaitLog(t, p, "ready")
	err := p.Stop(50 * time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "did not end within 50ms") {
		t.Errorf("Stop() = %v, want that it did not end in time", err)
	}
}

func TestRunningTellsTheEndOfTheLog(t *testing.T) {
	t.Parallel()
	p := shell(t, `echo the port is taken; exit 3`)
	<-p.Done()
	err := p.Running()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(err.Error(), "the port is taken") {
		t.Errorf("Running() = %v, want exit status 3 and the log", err)
	}
}

func TestKillEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	p := shell(t, "sleep 1000 >"+fifo+" & wait")
	pipe, err := os.Open(fifo) // waits until sleep has it open
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	p.Kill()
	if _, err := io.ReadAll(pipe); err != nil { // waits until nobody has it open any more
		t.Fatal(err)
	}
}

func TestStartSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := Start(Config{Path: "/nonexistent/program", Log: filepath.Join(t.TempDir(), "log")})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "cannot start program") {
		t.Errorf("Start() = %v, want that program is not there", err)
	}
}

func awaitLog(t *testing.T, p *Process, want string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		text, err := os.ReadFile(p.log)
		if err == nil && strings.Contains(string(text), want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q does not appear in the log: %q, %v", want, text, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
