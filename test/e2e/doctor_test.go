package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
)

// doctorReport is the JSON of kubectl vitals doctor.
type doctorReport struct {
	Version string
	Server  struct{ Kind, Namespace, Service string }
	Checks  []doctorCheck
	Summary struct{ OK, Failed, Skipped int }
	Install struct {
		Distribution string
		Presets      []string
		Command      string
	}
}

type doctorCheck struct {
	ID, Status, Reason, Seen, Cure, URL string
	Objects                             []string
}

// vitals runs the plugin of kubectl, and returns its exit code and output. No request times out on a busy machine.
func (c *testCluster) vitals(ctx context.Context, program string, args ...string) (code int, output string, err error) {
	cmd := exec.CommandContext(ctx, program, append(args, "--timeout=10m")...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	if stderr.Len() > 0 {
		err = errors.Join(err, errors.New(stderr.String()))
	}
	return cmd.ProcessState.ExitCode(), string(out), err
}

// examine runs kubectl vitals doctor -o json.
func (c *testCluster) examine(ctx context.Context) (code int, report doctorReport, err error) {
	return c.report(ctx, "doctor")
}

// report runs a command of kubectl vitals with -o json.
func (c *testCluster) report(ctx context.Context, args ...string) (code int, report doctorReport, err error) {
	program, err := c.Plugin()
	if err != nil {
		return 0, report, err
	}
	code, out, err := c.vitals(ctx, program, append(args, "--output=json")...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &report)
	}
	return code, report, err
}

// awaitHealthy waits until doctor finds nothing broken.
func (c *testCluster) awaitHealthy(t *testing.T) {
	t.Helper()
	eventually(t, "doctor to find nothing broken", func(ctx context.Context) error {
		code, report, err := c.examine(ctx)
		if err == nil && (code != 0 || report.Summary.Failed > 0) {
			err = fmt.Errorf("exit code %d: %+v", code, report.Checks)
		}
		return err
	})
}

// awaitFailure waits until doctor reports a failed check with the reason, and returns it.
func (c *testCluster) awaitFailure(t *testing.T, id, reason string) (found doctorCheck) {
	t.Helper()
	eventually(t, fmt.Sprintf("doctor to find %s: %s", id, reason), func(ctx context.Context) error {
		code, report, err := c.examine(ctx)
		if err != nil {
			return err
		}
		for _, check := range report.Checks {
			if check.ID == id && check.Reason == reason && check.Status == "failed" && code == 1 {
				found = check
				return nil
			}
		}
		return fmt.Errorf("exit code %d: %+v", code, report.Checks)
	})
	if found.Cure == "" || found.URL == "" {
		t.Errorf("no cure or URL: %+v", found)
	}
	return found
}

// TestDoctor examines a cluster before an installation, runs the command that this prints, and breaks
// one thing at a time: doctor names it, and the cure repairs it. At first, the API server has no
// request-header CA.
func TestDoctor(t *testing.T) {
	t.Parallel()
	const requestHeaderCA = "--requestheader-client-ca-file"
	c := newCluster(t, requestHeaderCA+"=")
	check := c.awaitFailure(t, "aggregation", "request-header-ca-missing")
	if !strings.Contains(check.Cure, requestHeaderCA) {
		t.Errorf("got %+v", check)
	}
	c.StopAPIServer()
	must(t, c.RestartAPIServer(t.Context(), requestHeaderCA+"="+c.File("front-proxy-ca.crt")))
	check = c.awaitFailure(t, "installation", "not-installed")
	if !strings.Contains(check.Cure, "kubectl vitals preflight") {
		t.Errorf("got %+v", check)
	}

	c.testPreflight(t)
	t.Run("admission", c.testAdmissionPolicy)
	c.uninstall(t)

	c.install(t, "--max-sample-age=10m") // for a busy machine
	c.awaitHealthy(t)
	c.awaitTop(t)
	c.checkHealthyOutput(t)
	t.Run("APIService to another Service", func(t *testing.T) {
		c.patchAPIService(t, "v1beta1", `{"spec": {"service": {"name": "metrics-server"}}}`)
		check := c.awaitFailure(t, "apiservice", "apiservice-elsewhere")
		if want := "kube-system/metrics-server instead of kube-system/kube-vitals"; !strings.Contains(check.Seen, want) {
			t.Errorf("got %+v, want %s", check, want)
		}
		patch := fmt.Sprintf(`{"spec":{"service":{"namespace":"kube-system","name":"kube-vitals","port":%s}}}`,
			c.server.Port())
		if !strings.Contains(check.Cure, patch) {
			t.Errorf("got the cure %s, want %s in it", check.Cure, patch)
		}
		c.patchAPIService(t, "v1beta1", patch)
		c.awaitHealthy(t)
	})
	t.Run("foreign caBundle", func(t *testing.T) {
		// kube-vitals would write its own again.
		c.kubectl(t, "delete", "clusterrolebinding", "system:kube-vitals")
		c.awaitDenied(t)
		bundle := base64.StdEncoding.EncodeToString(kubelettest.NewCA().PEM())
		c.patchAPIService(t, "v1beta1", fmt.Sprintf(`{"spec": {"caBundle": %q}}`, bundle))
		check := c.awaitFailure(t, "certificate", "ca-bundle-foreign")
		if !strings.Contains(check.Seen, "caBundle of v1beta1.metrics.k8s.io") {
			t.Errorf("got %+v", check)
		}
		must(t, c.Upgrade(t.Context()))
		c.awaitHealthy(t)
	})
	t.Run("no API server", func(t *testing.T) {
		c.StopAPIServer()
		if code, report := c.preflight(t); code != 2 || report.Checks[0].Reason != "api-server-unreachable" ||
			report.Install.Command != "" {
			t.Errorf("got exit code %d, %+v", code, report)
		}
	})
}

// patchAPIService applies a merge patch to the APIService of a version.
func (c *testCluster) patchAPIService(t *testing.T, version, patch string) {
	t.Helper()
	c.kubectl(t, "patch", "apiservice", version+".metrics.k8s.io", "--type=merge", "--patch", patch)
}

// awaitDenied waits until kube-vitals can no longer write a caBundle: the API server reads changes of roles late.
func (c *testCluster) awaitDenied(t *testing.T) {
	t.Helper()
	eventually(t, "patches of the APIService to be denied", func(ctx context.Context) error {
		out, errs, err := c.kubectlWithErrors(ctx, "auth", "can-i", "patch", "apiservices/v1.metrics.k8s.io", "--as="+account)
		if strings.TrimSpace(out) != "no" {
			return errors.Join(err, fmt.Errorf("got %q: %s", out, errs))
		}
		return nil
	})
}

// stranger returns the flag for a kubeconfig of a user without permissions.
func (c *testCluster) stranger(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, c.WriteUserKubeconfig(file, "stranger", ""))
	return "--kubeconfig=" + file
}

// checkHealthyOutput checks the text for a healthy cluster, also of a user without permissions.
func (c *testCluster) checkHealthyOutput(t *testing.T) {
	t.Helper()
	plugin, err := c.Plugin()
	must(t, err)
	eventually(t, "the output of doctor", func(ctx context.Context) error {
		code, text, err := c.vitals(ctx, plugin, "doctor")
		if err != nil || code != 0 || strings.ContainsAny(text, "✗\x1b\r") || !strings.Contains(text, "✓ certificate ") {
			return errors.Join(err, fmt.Errorf("got exit code %d\n%s", code, text))
		}
		return nil
	})
	code, text, err := c.vitals(t.Context(), plugin, "doctor", c.stranger(t))
	if err != nil || code != 2 || strings.Contains(text, "✗") || !strings.Contains(text,
		`you cannot get resource "apiservices"`) {
		t.Errorf("without permissions: got exit code %d, %v\n%s", code, err, text)
	}
	code, _, err = c.vitals(t.Context(), plugin, "doctor", "--kubeconfig", filepath.Join(t.TempDir(), "missing"))
	if code != 2 || err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Errorf("without a kubeconfig: got exit code %d, %v, want 2", code, err)
	}
}
