package process

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kube-vitals/kube-vitals/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestKillEndsTheProcessGroup(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	script := "sleep 1000 >" + fifo + " & wait"
	p, err := Start(Config{Path: "/bin/sh", Args: []string{"-c", script}, Log: filepath.Join(dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
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
