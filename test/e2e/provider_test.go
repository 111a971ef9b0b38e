package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// TestBesideProvider installs, upgrades and removes kube-vitals with v1 only, while the provider of the cluster has
// v1beta1, restores its objects all the time, and clients read that version. kubectl top reads v1 as soon as there is
// one. A kube-vitals without a release is the provider's server.
func TestBesideProvider(t *testing.T) {
	t.Parallel()
	if version := os.Getenv("KUBERNETES"); version != "" && !strings.HasPrefix(version, "1.37") {
		t.Skip("kubectl reads v1 from 1.37 on")
	}
	c := newCluster(t)
	provider := c.startProvider(t)
	manifest := provider.access() + "---" + provider.apiService()
	must(t, c.Apply(t.Context(), manifest))
	c.awaitTop(t)
	reads := func(version string) func(context.Context) error {
		return func(ctx context.Context) error {
			body, err := c.get(ctx, "/apis/metrics.k8s.io/"+version+"/nodes")
			if err == nil && !bytes.Contains(body, []byte(`"name":"node"`)) {
				err = fmt.Errorf("the node is missing: %s", body)
			}
			return err
		}
	}
	var restored atomic.Int64
	load := startLoad(t, map[string]func(context.Context) error{
		"request for v1beta1": reads("v1beta1"),
		"restore": func(ctx context.Context) error {
			time.Sleep(time.Second) // the pace of the provider; that of a real one is about a minute
			err := c.Apply(ctx, manifest)
			if err == nil {
				restored.Add(1)
			}
			return err
		},
	})

	before := restored.Load()
	c.installWith(t, []string{"apiService.versions={v1}"})
	c.awaitVersion(t, "v1")
	upgrade := startLoad(t, map[string]func(context.Context) error{"request for v1": reads("v1")})
	must(t, c.Helm(t.Context(), "upgrade", "apiService.annotations.touched=yes"))
	c.awaitVersion(t, "v1")
	upgrade.stop()
	eventually(t, "doctor to find a server beside kube-vitals", func(ctx context.Context) error {
		code, report, err := c.examine(ctx)
		isBeside := func(c doctorCheck) bool { return c.Reason == "apiservice-elsewhere" && c.Status == "warning" }
		if err == nil && (code != 0 || !slices.ContainsFunc(report.Checks, isBeside)) {
			err = fmt.Errorf("exit code %d: %+v", code, report.Checks)
		}
		return err
	})

	// The provider begins to serve v1, too.
	c.patchAPIService(t, "v1", provider.patch())
	eventually(t, "the server to log that", func(context.Context) error {
		log, err := c.server.Log()
		if n := strings.Count(log, "The APIService leads elsewhere"); err == nil && n != 1 {
			err = fmt.Errorf("it does %d times", n)
		}
		return err
	})
	// Doctor advises what docs/distributions.md does, and takes neither version from the provider: the release no
	// longer has v1, and the object stays.
	eventually(t, "the advice of doctor, once v1 is available again", func(ctx context.Context) error {
		_, report, err := c.examine(ctx)
		var cures []string
		for _, check := range report.Checks {
			if check.ID == "apiservice" {
				cures = append(cures, check.Cure)
			}
		}
		const keep = "kubectl annotate apiservice v1.metrics.k8s.io helm.sh/resource-policy=keep"
		if advice := strings.Join(cures, "\n"); err == nil && (strings.Contains(advice, "kubectl patch") ||
			!strings.Contains(advice, keep)) {
			err = fmt.Errorf("it is\n%s", advice)
		}
		return err
	})
	c.kubectl(t, "annotate", "apiservice", "v1.metrics.k8s.io", "helm.sh/resource-policy=keep")
	must(t, c.Helm(t.Context(), "upgrade", "apiService.create=false"))
	if got := c.kubectl(t, "get", "apiservice", "v1.metrics.k8s.io", "--output=jsonpath={.spec.service.name}"); got !=
		"metrics-server" {
		t.Errorf("v1 leads to %q, want the provider's Service", got)
	}
	c.kubectl(t, "delete", "apiservice", "v1.metrics.k8s.io")

	_, err := c.Run(t.Context(), binaries.Helm, "uninstall", cluster.Release, inNamespace)
	must(t, err)
	c.awaitVersion(t, "v1beta1")
	eventually(t, "the provider to restore its objects as often as in 10 minutes", func(context.Context) (err error) {
		if n := restored.Load() - before; n < 10 {
			err = fmt.Errorf("it has done so %d times", n)
		}
		return err
	})
	load.stop()
	for _, path := range []string{
		"/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io",
		"/api/v1/namespaces/" + cluster.Namespace + "/services/metrics-server",
	} {
		body, err := c.get(t.Context(), path)
		var object metav1.PartialObjectMetadata
		must(t, err)
		must(t, json.Unmarshal(body, &object))
		for _, entry := range object.ManagedFields {
			if !strings.HasPrefix(entry.Manager, "kubectl") && entry.Subresource != "status" {
				t.Errorf("%s was written by %s: %s", path, entry.Manager, entry.FieldsV1)
			}
		}
	}
}

// startProvider starts the provider's server, and returns its objects.
func (c *testCluster) startProvider(t *testing.T) otherServer {
	t.Helper()
	executable, err := c.KubeVitals()
	must(t, err)
	s, err := c.StartStandalone(executable, 15*time.Second)
	must(t, err)
	address, err := url.Parse(s.URL)
	must(t, err)
	provider := metricsServer(address.Port())
	provider.labels += ", addonmanager.kubernetes.io/mode: Reconcile"
	return provider
}

// awaitVersion waits until kubectl top reads a version of the API.
func (c *testCluster) awaitVersion(t *testing.T, version string) {
	t.Helper()
	command := c.Binary(binaries.Kubectl) + " top nodes --v=6 2>&1"
	eventually(t, "kubectl to read "+version, func(ctx context.Context) error {
		output, err := c.Run(ctx, "/bin/sh", "-c", command)
		if err == nil && !strings.Contains(output, "/apis/metrics.k8s.io/"+version+"/nodes") {
			err = fmt.Errorf("got %s", output)
		}
		return err
	})
}
