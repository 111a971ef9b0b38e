package e2e

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// runProgram runs the built program without an environment.
func runProgram(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	path, err := shared.KubeVitals()
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut strings.Builder
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

func TestCommandLine(t *testing.T) {
	for _, test := range []struct {
		args       string
		code       int
		stdout     []string // parts of it
		stderr     []string
		notPrinted []string
	}{
		{args: "--help", stdout: []string{"--kubelet-insecure-tls", "--max-sample-age"}},
		{args: "--version", stdout: []string{"kube-vitals v"}},
		{args: "--no-such-flag", code: 1, stderr: []string{"no-such-flag"}},
		{args: "stray", code: 1, stderr: []string{"stray"}},
		{args: "", code: 1, stderr: []string{"--kubeconfig"}}, // outside of a cluster
		{ // all errors are reported at once
			args: "--metric-resolution=1s --kubelet-port=99999 --kubelet-preferred-address-types=Nowhere " +
				"--node-selector=a=b=c --kubelet-certificate-authority=/none --kubelet-insecure-tls",
			code: 1,
			stderr: []string{
				"--metric-resolution", "--kubelet-port", "Nowhere", "--node-selector", "--kubelet-insecure-tls",
			},
			notPrinted: []string{"goroutine", "Usage"},
		},
	} {
		t.Run(test.args, func(t *testing.T) {
			stdout, stderr, code := runProgram(t, strings.Fields(test.args)...)
			if code != test.code {
				t.Errorf("got exit status %d, want %d", code, test.code)
			}
			for _, want := range test.stdout {
				if !strings.Contains(stdout, want) {
					t.Errorf("%q is not in the output:\n%s", want, stdout)
				}
			}
			for _, want := range test.stderr {
				if !strings.Contains(stderr, want) {
					t.Errorf("%q is not in the error output:\n%s", want, stderr)
				}
			}
			for _, text := range test.notPrinted {
				if strings.Contains(stderr, text) {
					t.Errorf("%q is in the error output:\n%s", text, stderr)
				}
			}
		})
	}
}
