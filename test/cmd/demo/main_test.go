package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestInterruptible(t *testing.T) {
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("broken")
	for _, test := range []struct {
		ctx  context.Context
		once bool
		want error
	}{
		{t.Context(), false, broken},
		{t.Context(), true, broken},
		{interrupted, false, nil},
		{interrupted, true, broken},
	} {
		if got := interruptible(test.ctx, broken, test.once); got != test.want { //nolint:errorlint // the very value
			t.Errorf("interrupted %v, once %t: got %v, want %v", test.ctx.Err(), test.once, got, test.want)
		}
		if got := interruptible(test.ctx, nil, test.once); got != nil {
			t.Errorf("interrupted %v, once %t: got %v without an error", test.ctx.Err(), test.once, got)
		}
	}
}

// goCommand replaces the go command of the Makefile. It builds a demo that exits with 0 after Ctrl-C,
// and other programs that do nothing. Its subcommand run exits with 1 after Ctrl-C, as go run does.
const goCommand = `#!/bin/sh
if [ "$1" = run ]; then trap 'exit 1' INT; echo READY; while :; do sleep 0.01; done; fi
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then
    mkdir -p "$(dirname "$2")"
    echo '#!/bin/sh' >"$2"
    case $2 in
      */demo) printf 'trap "echo stopped; exit 0" INT\necho READY\nwhile :; do sleep 0.01; done\n' >>"$2" ;;
    esac
    chmod +x "$2"
  fi
  shift
done
`

// TestCtrlC presses Ctrl-C in the terminal of make demo: it exits with 0, and make prints no error.
func TestCtrlC(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip(err)
	}
	makefile, err := filepath.Abs("../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir() // make runs here and does not change the checkout
	if err := os.Mkdir(filepath.Join(folder, "test"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "go"), []byte(goCommand), 0o700); err != nil {
		t.Fatal(err)
	}

	screen, terminal := openTerminal(t)
	cmd := exec.CommandContext(t.Context(), "make", "-f", makefile, "demo", "GO="+filepath.Join(folder, "go"), "ONCE=")
	cmd.Dir = folder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	var output strings.Builder
	pressed := false
	for buffer := make([]byte, 1024); ; {
		n, err := screen.Read(buffer)
		output.Write(buffer[:n])
		if err != nil { // EIO: all programs have closed the terminal
			break
		}
		if !pressed && strings.Contains(output.String(), "READY") {
			pressed = true
			if _, err := io.WriteString(screen, "\x03"); err != nil {
				t.Fatal(err)
			}
		}
	}
	text := output.String()
	if err := cmd.Wait(); err != nil || !strings.Contains(text, "stopped") || strings.Contains(text, "***") {
		t.Errorf("make demo: got error %v, want none; output:\n%s", err, text)
	}
}

// openTerminal returns both ends of a new pseudoterminal: the user's and the programs'.
func openTerminal(t *testing.T) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("open a pseudoterminal: %v", err)
	}
	t.Cleanup(func() { screen.Close() })
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetUint32(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return screen, terminal
}
