package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// TestHelm installs, upgrades and uninstalls the chart in its own cluster: metrics.k8s.io exists
// once in a cluster.
func TestHelm(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	before := objectNames(t, c)
	c.install(t) // fails unless the APIServices become available
	if got := c.kubectl(t, "get", "apiservice", "v1.metrics.k8s.io", "--output",
		"jsonpath={.spec.insecureSkipTLSVerify}{.spec.caBundle}"); got == "" || strings.HasPrefix(got, "true") {
		t.Errorf("the API server does not verify the certificate: %s", got)
	}
	c.awaitTop(t)
	getSecret := []string{"get", "secret", servingSecret, inNamespace, "--output=jsonpath={.data}"}
	secret := c.kubectl(t, getSecret...)
	if !strings.Contains(secret, "tls.crt") {
		t.Errorf("the server's Secret has no certificate: %q", secret)
	}

	if err := c.Upgrade(t.Context(), "podLabels.upgraded=yes", "revisionHistoryLimit=3"); err != nil {
		t.Fatal(err)
	}
	if got := c.kubectl(t, "get", "deployment", cluster.Release, inNamespace, "--output",
		"jsonpath={.spec.template.metadata.labels.upgraded}"); got != "yes" {
		t.Errorf("pod label after the upgrade: got %q, want yes", got)
	}
	if c.kubectl(t, getSecret...) != secret {
		t.Error("the upgrade changed the certificate")
	}
	c.awaitTop(t)

	c.uninstall(t)
	if err := c.server.Stop(shutdownTimeout); err != nil {
		t.Errorf("kube-vitals exits with %v", err)
	}
	eventually(t, "all objects to be deleted", func(context.Context) error {
		if left := difference(objectNames(t, c), before); len(left) > 0 {
			return fmt.Errorf("left: %s", strings.Join(left, " "))
		}
		return nil
	})
	if deleted := difference(before, objectNames(t, c)); len(deleted) > 0 {
		t.Errorf("objects that are not the chart's were deleted: %s", strings.Join(deleted, " "))
	}
}

// uninstall uninstalls the chart.
func (c *testCluster) uninstall(t *testing.T) {
	t.Helper()
	_, err := c.Run(t.Context(), binaries.Helm, "uninstall", cluster.Release, inNamespace, "--wait")
	if err != nil {
		t.Fatal(err)
	}
}

// objectNames returns the names of all objects of a cluster except those that come and go by
// themselves.
func objectNames(t *testing.T, c *testCluster) []string {
	t.Helper()
	kinds := c.kubectl(t, "api-resources", "--verbs=list", "--output=name")
	ignored := []string{
		"events", "events.events.k8s.io", "leases.coordination.k8s.io", "nodes.metrics.k8s.io", "pods.metrics.k8s.io",
	}
	wanted := slices.DeleteFunc(strings.Fields(kinds), func(kind string) bool { return slices.Contains(ignored, kind) })
	names := c.kubectl(t, "get", strings.Join(wanted, ","), "--all-namespaces", "--output",
		`jsonpath={range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{"\n"}{end}`)
	return strings.Fields(names)
}

// difference returns the elements of a that are not in b.
func difference(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}
