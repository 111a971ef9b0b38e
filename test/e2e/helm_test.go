package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// TestHelm installs, upgrades and uninstalls the chart with the real helm, in a cluster of its own:
// a cluster has metrics.k8s.io only once.
func TestHelm(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	run := func(program string, args ...string) string {
		t.Helper()
		output, err := c.Run(t.Context(), program, args...)
		if err != nil {
			t.Fatal(err)
		}
		return output
	}
	before := objects(t, c)

	// Start installs the chart, and fails unless the API server then verifies the certificate and
	// finds the API available.
	s, err := c.Install(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := run(binaries.Kubectl, "get", "apiservice", "v1.metrics.k8s.io", "--output",
		"jsonpath={.spec.insecureSkipTLSVerify}{.spec.caBundle}"); got == "" || strings.HasPrefix(got, "true") {
		t.Errorf("the API server does not verify the certificate: %s", got)
	}
	awaitTop(t, c)

	certificate := run(binaries.Kubectl, "get", "secret", "kube-vitals-serving", "--namespace", cluster.Namespace, "--output", "jsonpath={.data}")
	if !strings.Contains(certificate, "tls.crt") {
		t.Errorf("the server has put nothing into its Secret: %q", certificate)
	}
	if err := c.Upgrade(t.Context(), "podLabels.upgraded=yes", "revisionHistoryLimit=3"); err != nil {
		t.Fatal(err)
	}
	if got := run(binaries.Kubectl, "get", "deployment", cluster.Release, "--namespace", cluster.Namespace, "--output",
		"jsonpath={.spec.template.metadata.labels.upgraded}"); got != "yes" {
		t.Errorf("the upgrade did not reach the pods' labels: %q", got)
	}
	if run(binaries.Kubectl, "get", "secret", "kube-vitals-serving", "--namespace", cluster.Namespace, "--output", "jsonpath={.data}") != certificate {
		t.Error("the upgrade changed the certificate")
	}
	awaitTop(t, c)

	run(binaries.Helm, "uninstall", cluster.Release, "--namespace", cluster.Namespace, "--wait")
	if err := s.Stop(shutdownBound); err != nil {
		t.Errorf("kube-vitals did not end as it should: %v", err)
	}
	err = process.Poll(t.Context(), soon, "all objects to go", func(context.Context) error {
		if left := difference(objects(t, c), before); len(left) > 0 {
			return fmt.Errorf("these are left: %s", strings.Join(left, " "))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if lost := difference(before, objects(t, c)); len(lost) > 0 {
		t.Errorf("these are gone, though they were there before: %s", strings.Join(lost, " "))
	}
}

// awaitTop waits until kubectl top shows the cluster's node.
func awaitTop(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	err := process.Poll(t.Context(), soon, "kubectl top nodes", func(ctx context.Context) error {
		table, err := c.Kubectl(ctx, "top", "nodes", "--no-headers")
		if err == nil && !strings.HasPrefix(table, "node ") {
			err = errors.New(table)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// objects names all objects of a cluster but those that come and go by themselves.
func objects(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	kinds, err := c.Kubectl(t.Context(), "api-resources", "--verbs=list", "--output=name")
	if err != nil {
		t.Fatal(err)
	}
	passing := []string{"events", "events.events.k8s.io", "leases.coordination.k8s.io", "nodes.metrics.k8s.io", "pods.metrics.k8s.io"}
	wanted := slices.DeleteFunc(strings.Fields(kinds), func(kind string) bool { return slices.Contains(passing, kind) })
	names, err := c.Kubectl(t.Context(), "get", strings.Join(wanted, ","), "--all-namespaces", "--output",
		`jsonpath={range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{"\n"}{end}`)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(names)
}

// difference is what is in a and not in b.
func difference(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}
