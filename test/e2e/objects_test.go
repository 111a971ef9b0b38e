package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// TestChartObjects has the API server validate everything that the chart renders, and manifests/, as
// kubectl apply --validate=strict does, without creating it: fields and kinds that do not exist, and values
// that are invalid, are errors.
func TestChartObjects(t *testing.T) {
	t.Parallel()
	c := newAPIServer(t)
	c.applyDefinitions(t)
	c.kubectl(t, "create", "namespace", "monitoring")
	t.Run("rejects", c.rejectsInvalidObjects)
	manifests := map[string]string{} // by the files that they are made of
	for _, file := range append(c.valuesFiles(t), c.files(t, "test/chart/testdata/moving/values/*.yaml")...) {
		manifests[file] = c.render(t, file)
	}
	for _, pattern := range []string{"manifests/overlays/*", "manifests/base", "test/chart/testdata/moving/kustomize/*"} {
		for _, folder := range c.files(t, pattern) {
			manifests[folder] = c.kubectl(t, "kustomize", folder)
		}
	}
	for _, file := range c.files(t, "manifests/components/*/resources.yaml") {
		content, err := os.ReadFile(file)
		must(t, err)
		manifests[file] = string(content)
	}
	// A dry run creates nothing, so that one of the objects of all manifests proves as much as one of each.
	objects := map[string]bool{}
	for _, manifest := range manifests {
		for object := range strings.SplitSeq(manifest, "\n---\n") {
			objects[object] = true
		}
	}
	if err := c.dryRun(t.Context(), strings.Join(slices.Sorted(maps.Keys(objects)), "\n---\n")); err != nil {
		t.Error(err)
		for file, manifest := range manifests {
			t.Run(filepath.Base(file), func(t *testing.T) { must(t, c.dryRun(t.Context(), manifest)) })
		}
	}
}

// TestOldestAPI decodes what the chart renders for the oldest supported version of Kubernetes with the types
// of that version: fields and kinds that are newer are errors.
func TestOldestAPI(t *testing.T) {
	t.Parallel()
	const few = 10 // the fewest objects that any values render
	program := clientProgram(t, "objects")
	for _, file := range shared.valuesFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), program)
			cmd.Stdin = strings.NewReader(shared.render(t, file, "--kube-version=1.29.15"))
			output, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, output)
			}
			if n, err := strconv.Atoi(strings.TrimSpace(string(output))); err != nil || n < few {
				t.Errorf("got %q objects, error %v, want at least %d", output, err, few)
			}
		})
	}
}

// valuesFiles returns the presets, and the files of values in ci.
func (c *testCluster) valuesFiles(t *testing.T) []string {
	t.Helper()
	const chart = "charts/kube-vitals/"
	return append(c.files(t, chart+"ci/*-values.yaml"), c.files(t, chart+"presets/*.yaml")...)
}

// files returns the files or folders of the source tree that a pattern matches, which are some.
func (c *testCluster) files(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.Checkout, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("got %d files %s, error %v", len(files), pattern, err)
	}
	return files
}

// render returns what the chart renders with a file of values.
func (c *testCluster) render(t *testing.T, values string, args ...string) string {
	t.Helper()
	text, err := c.Run(t.Context(), binaries.Helm, append([]string{"template", "kube-vitals", c.Chart, inNamespace,
		"--set=image.tag=dev", "--values", values}, args...)...)
	must(t, err)
	return text
}

// newAPIServer starts etcd and an API server only. Objects of an installed chart would be merged with those of
// a dry run.
func newAPIServer(t *testing.T) *testCluster {
	t.Helper()
	c, err := cluster.New(t.Context(), cluster.Config{APIServerArgs: []string{
		"--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112", // some Services have both families
	}})
	must(t, err)
	t.Cleanup(c.Stop)
	must(t, c.StartEtcd(t.Context()))
	must(t, c.StartAPIServer(t.Context()))
	return &testCluster{Cluster: c}
}

// dryRun are the arguments of kubectl that validate a file.
var dryRun = []string{"apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f"}

func (c *testCluster) dryRun(ctx context.Context, manifest string) error {
	return c.RunWith(ctx, strings.NewReader(cluster.YAML+manifest), binaries.Kubectl,
		append(slices.Clone(dryRun), "-")...)
}

// applyDefinitions creates the CustomResourceDefinitions that the chart has objects of. The modules in
// test/tools/crds have them.
func (c *testCluster) applyDefinitions(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json")
	cmd.Dir = filepath.Join(c.Checkout, "test", "tools", "crds")
	output, err := cmd.Output()
	must(t, err)
	folders := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var module struct{ Path, Dir string }
		err := decoder.Decode(&module)
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		folders[module.Path] = module.Dir
	}
	certManager := filepath.Join(folders["github.com/cert-manager/cert-manager"], "deploy", "crds")
	operator := filepath.Join(folders["github.com/prometheus-operator/prometheus-operator"],
		"example", "prometheus-operator-crd")
	for _, file := range []string{
		certManager + "/cert-manager.io_certificates.yaml", certManager + "/cert-manager.io_issuers.yaml",
		operator + "/monitoring.coreos.com_podmonitors.yaml", operator + "/monitoring.coreos.com_prometheusrules.yaml",
		operator + "/monitoring.coreos.com_servicemonitors.yaml",
	} {
		// The annotation of a client-side apply would be too long.
		c.kubectl(t, "apply", "--server-side", "-f", file)
		eventually(t, "the definitions of "+file, func(ctx context.Context) error { // wait fails while conditions is null
			_, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=5s", "-f", file)
			return err
		})
	}
}

// rejectsInvalidObjects checks that unknown fields, wrong types and unknown kinds are errors.
func (c *testCluster) rejectsInvalidObjects(t *testing.T) {
	must(t, c.dryRun(t.Context(),
		`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 1, targetPort: a}]}}`))
	for _, invalid := range []string{
		`{apiVersion: v1, kind: Servize, metadata: {name: a}}`,
		`{apiVersion: v2, kind: Service, metadata: {name: a}}`,
		`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {prots: [], ports: [{port: 1}]}}`,
		`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: a}]}}`,
		`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{targetPort: 1}]}}`,
		`{apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor, metadata: {name: a},
			spec: {selector: {}, endpoints: [], endpoint: []}}`,
		`{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {name: a},
			spec: {secretName: 1, issuerRef: {name: a}}}`,
	} {
		if c.dryRun(t.Context(), invalid) == nil {
			t.Errorf("got no error for %s", invalid)
		}
	}
}
