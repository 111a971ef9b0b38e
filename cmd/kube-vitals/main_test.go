package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// asProgram makes the test binary run main, with its own arguments.
const asProgram = "KUBE_VITALS_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program returns a command that runs the program until ctx is done.
func program(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// TestStopBeforeSync checks that the log starts with the version and the flags, and that a stop
// before any response of the API server logs no error and exits with 0.
func TestStopBeforeSync(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			requested := make(chan struct{}, 1) // the ConfigMap that an informer waits for
			apiServer := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "/configmaps") {
					select {
					case requested <- struct{}{}:
					default:
					}
				}
				_, _ = io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
			}))
			defer apiServer.Close()
			file := filepath.Join(t.TempDir(), "kubeconfig")
			text := strings.ReplaceAll(kubeconfig, "https://127.0.0.1:1", apiServer.URL)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}

			cmd := program(t.Context(), "--kubeconfig="+file,
				"--bind-address="+ownAddress, fmt.Sprintf("--secure-port=%d", freePort(t)),
				"--shutdown-delay-duration=0s", "--logging-format="+format, "--metric-resolution=20s")
			cmd.Env = append(cmd.Env, "KUBE_VITALS_SERVICE=kube-vitals.kube-system.svc")
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			exited := make(chan struct{})
			var signalled sync.WaitGroup
			signalled.Go(func() {
				select {
				case <-requested:
					if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
						t.Error(err)
					}
				case <-exited:
					t.Error("the program exited by itself")
				}
			})
			var lines []string
			for scanner := bufio.NewScanner(stderr); scanner.Scan(); {
				lines = append(lines, scanner.Text())
			}
			close(exited)
			signalled.Wait()
			log := strings.Join(lines, "\n")
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v:\n%s", err, log)
			}
			for _, line := range lines {
				unhandled := strings.Contains(line, `"logger":"UnhandledError"`) || strings.Contains(line, "Unable to sync")
				// client-go logs that the stop canceled a LIST if it notices that before the stop.
				canceled := strings.Contains(line, `failed to list *v1.`) && strings.Contains(line, ": context canceled")
				if (strings.HasPrefix(line, "E") || unhandled) && !canceled {
					t.Errorf("a normal stop logged %s", line)
				}
			}
			for _, want := range []string{"Starting kube-vitals", "version", version, "--metric-resolution=20s",
				"--service=kube-vitals.kube-system.svc"} {
				if len(lines) == 0 || !strings.Contains(lines[0], want) {
					t.Errorf("got no %q in the first line of\n%s", want, log)
				}
			}
		})
	}
}

// ownAddress is one that no other test listens on, so that none can take a free port.
const ownAddress = "127.83.0.1"

// freePort returns a port of ownAddress that nothing listens on.
func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", ownAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// TestPortInUse checks that the error names the flag for another port.
func TestPortInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	text, err := program(t.Context(), "--kubeconfig="+filepath.Join(writeFiles(t), "kubeconfig"),
		"--bind-address=127.0.0.1", "--secure-port="+port).CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	last := lines[len(lines)-1]
	const cure = "choose another port with --secure-port"
	if err == nil || !strings.Contains(last, ":"+port) || !strings.Contains(last, cure) {
		t.Errorf("got error %v, output\n%s", err, text)
	}
}

func TestPortCure(t *testing.T) {
	listen := func(err error) error { // as the library reports it
		err = &net.OpError{Op: "listen", Net: "tcp", Err: os.NewSyscallError("bind", err)}
		err = fmt.Errorf("failed to listen on 0.0.0.0:443: %v", err) //nolint:errorlint // as the library does
		return fmt.Errorf("cannot serve HTTPS: failed to create listener: %w", err)
	}
	for _, test := range []struct {
		err  error
		want string
	}{
		{listen(syscall.EADDRINUSE), "another port with --secure-port"},
		{listen(syscall.EACCES), "a port above 1023 with --secure-port"},
		{listen(syscall.EADDRNOTAVAIL), "--bind-address"},
		{listen(syscall.EMFILE), ""},
		{&os.PathError{Op: "open", Path: "f", Err: syscall.EACCES}, ""},
	} {
		if cure := portCure(test.err); !strings.Contains(cure, test.want) || (cure == "") != (test.want == "") {
			t.Errorf("%v: got the cure %q, want one with %q", test.err, cure, test.want)
		}
	}
}
