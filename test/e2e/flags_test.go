package e2e

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// program runs the built program as someone at a terminal would.
func program(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	path, err := shared.KubeVitals()
	if err != nil {
		t.Fatal(err)
	}
	var out, complaint strings.Builder
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), complaint.String(), cmd.ProcessState.ExitCode()
}

func TestWrongFlagsAreAllToldAtOnce(t *testing.T) {
	_, stderr, code := program(t, "--metric-resolution=1s", "--kubelet-port=99999", "--kubelet-preferred-address-types=Nowhere",
		"--node-selector=a=b=c", "--kubelet-certificate-authority=/none", "--kubelet-insecure-tls")
	if code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	for _, flag := range []string{"--metric-resolution", "--kubelet-port", "Nowhere", "--node-selector", "--kubelet-insecure-tls"} {
		if !strings.Contains(stderr, flag) {
			t.Errorf("nothing is said of %s:\n%s", flag, stderr)
		}
	}
	if strings.Contains(stderr, "goroutine") || strings.Contains(stderr, "Usage") {
		t.Errorf("a stack trace or the whole usage:\n%s", stderr)
	}
}

func TestUnknownFlagsAndArguments(t *testing.T) {
	for _, args := range [][]string{{"--no-such-flag"}, {"stray"}} {
		if _, stderr, code := program(t, args...); code != 1 || !strings.Contains(stderr, strings.TrimLeft(args[0], "-")) {
			t.Errorf("%v: exit status %d: %s", args, code, stderr)
		}
	}
}

func TestOutsideOfAClusterItAsksForAKubeconfig(t *testing.T) {
	if _, stderr, code := program(t); code != 1 || !strings.Contains(stderr, "--kubeconfig") {
		t.Errorf("exit status %d: %s", code, stderr)
	}
}

func TestHelpAndVersion(t *testing.T) {
	if stdout, _, code := program(t, "--help"); code != 0 || !strings.Contains(stdout, "--kubelet-insecure-tls") || !strings.Contains(stdout, "--max-sample-age") {
		t.Errorf("--help: exit status %d:\n%s", code, stdout)
	}
	if stdout, _, code := program(t, "--version"); code != 0 || !strings.HasPrefix(stdout, "kube-vitals v") {
		t.Errorf("--version: exit status %d: %s", code, stdout)
	}
}
