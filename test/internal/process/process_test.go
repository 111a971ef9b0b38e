package process

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shell(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(Config{Path: "/bin/sh", Args: []string{"-c", script}, Log: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// awaitReady waits until the program has logged "ready".
func awaitReady(t *testing.T, p *Process) {
	t.Helper()
	if err := p.Poll(t.Context(), 10*time.Second, "the log", func(context.Context) error {
		text, err := p.Log()
		if err == nil && !strings.Contains(text, "ready") {
			err = errors.New(text)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	p := shell(t, `trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done`)
	awaitReady(t, p)
	if err := p.Running(); err != nil {
		t.Errorf("Running() = %v, want nil", err)
	}
	if err := p.Stop(10 * time.Second); err != nil {
		t.Errorf("Stop() = %v, want nil for exit status 0", err)
	}

	p = shell(t, `trap '' TERM; echo ready; while :; do sleep 0.01; done`)
	awaitReady(t, p)
	if err := p.Stop(50 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "did not end within 50ms") {
		t.Errorf("Stop() of a program that ignores SIGTERM = %v", err)
	}
}

func TestRunningAfterTheEnd(t *testing.T) {
	t.Parallel()
	p := shell(t, `echo port is in use; exit 3`)
	<-p.Done()
	pollErr := p.Poll(t.Context(), time.Hour, "anything", func(context.Context) error { return errNotYet })
	for call, err := range map[string]error{"Running()": p.Running(), "Poll()": pollErr} {
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(err.Error(), "port is in use") {
			t.Errorf("%s = %v, want exit status 3 and the log", call, err)
		}
	}
}

func TestKillEndsTheProcessGroup(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	p := shell(t, "sleep 1000 >"+fifo+" & wait")
	pipe, err := os.Open(fifo) // blocks until sleep has opened it
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	p.Kill()
	if _, err := io.ReadAll(pipe); err != nil { // blocks until no process has it open
		t.Fatal(err)
	}
}

func TestStartMissingProgram(t *testing.T) {
	t.Parallel()
	_, err := Start(Config{Path: "/nonexistent/program", Log: filepath.Join(t.TempDir(), "log")})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "start program") {
		t.Errorf("Start() = %v, want that the program does not exist", err)
	}
}

var errNotYet = errors.New("not yet")

func TestPoll(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		deadline time.Duration // of the context
		tries    int           // until the function succeeds
		takes    time.Duration // each of them
		want     string        // error
		waited   time.Duration
	}{
		{"success", time.Hour, 3, 0, "", 2 * minPause},
		{"slow function", time.Hour, 3, 150 * time.Millisecond, "", 1950 * time.Millisecond},
		{"slower function", time.Hour, 3, 5 * time.Second, "", 3*5*time.Second + 2*maxPause},
		{"timeout", time.Hour, 1e6, 0, "waited 1m0s for the moon: not yet", time.Minute},
		{"interruption", time.Second, 1e6, 0, "interrupted while waiting for the moon: not yet", time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), test.deadline)
				defer cancel()
				started, tries, got := time.Now(), 0, ""
				if err := Poll(ctx, time.Minute, "the moon", func(ctx context.Context) error {
					time.Sleep(test.takes)
					if tries++; tries >= test.tries {
						return nil
					}
					if ctx.Err() != nil {
						return ctx.Err() // less informative than the error before
					}
					return errNotYet
				}); err != nil {
					got = err.Error()
				}
				if got != test.want || time.Since(started) != test.waited {
					t.Errorf("Poll() = %q after %s, want %q after %s", got, time.Since(started), test.want, test.waited)
				}
			})
		})
	}
}

// TestUsage reads what /proc reports of a program that has used some CPU and opened one more file.
func TestUsage(t *testing.T) {
	t.Parallel()
	p := shell(t, `exec 9</dev/zero; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo ready; sleep 1000`)
	awaitReady(t, p)
	u, err := p.Usage()
	if err != nil || u.CPU < 10*time.Millisecond || u.Anonymous == 0 || u.Anonymous >= u.Resident ||
		u.Resident > u.Peak || u.Received == 0 || u.Descriptors < 4 {
		t.Errorf("Usage() = %+v and %v", u, err)
	}
	p.Kill()
	if u, err := p.Usage(); err == nil {
		t.Errorf("Usage() = %+v after the end", u)
	}
}
