package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// The objects that the server writes: the caBundle, or the whole content.
var (
	writtenBundles = []string{"apiservice/v1.metrics.k8s.io", "apiservice/v1beta1.metrics.k8s.io"}
	writtenData    = []string{"secret/" + servingSecret, "configmap/" + servingConfigMap, "configmap/" + pinsConfigMap}
)

// TestGitOps applies the manifest of the chart again in each way that GitOps tools do, and looks at
// what the server has written: the caBundles, the serving certificate and the pins. Applying neither
// changes it nor shows it as a difference. Replacing clears it, and the server writes it again. Helm
// removes everything that the chart has created.
func TestGitOps(t *testing.T) {
	t.Parallel()
	g := &gitOps{pinned: pinned{testCluster: newCluster(t)}, manifest: filepath.Join(t.TempDir(), "manifest.yaml")}
	g.createNode(t, "first", g.startKubelet(t, "first").at)
	objects := g.objectNames(t)
	g.installWith(t, []string{"kubelet.tls=pin"}, "--max-sample-age=10m") // for a busy machine
	g.awaitMetrics(t, "node", "first")
	g.awaitMetrics(t, "node", "node")
	g.writeManifest(t)
	eventually(t, "all content to be written", func(ctx context.Context) error {
		_, err := g.state(ctx)
		return err
	})

	g.testFieldManager(t)
	serverSide := []string{"--server-side", "--force-conflicts", "--field-manager=argocd-controller"}
	t.Run("kubectl apply", func(t *testing.T) {
		g.testUnchanged(t, func() error { return g.run(t, binaries.Kubectl, "apply", "--filename", g.manifest) })
		g.testNoDifference(t)
	})
	t.Run("server-side apply by another manager", func(t *testing.T) {
		g.testUnchanged(t, func() error {
			return g.run(t, binaries.Kubectl, append([]string{"apply", "--filename", g.manifest}, serverSide...)...)
		})
		g.testNoDifference(t, serverSide...)
	})
	t.Run("helm upgrade", func(t *testing.T) {
		g.testUnchanged(t, func() error {
			return g.Helm(t.Context(), "upgrade", "apiService.annotations.touched=yes")
		})
	})
	t.Run("helm upgrade --force", func(t *testing.T) {
		g.testMended(t, func() error {
			return g.run(t, binaries.Helm, append([]string{"upgrade", cluster.Release, g.Chart, inNamespace,
				"--reuse-values", "--force"}, cluster.Routed()...)...)
		})
	})
	t.Run("kubectl replace", func(t *testing.T) {
		g.testMended(t, func() error {
			err := g.run(t, binaries.Kubectl, "replace", "--filename", g.manifest)
			for err != nil && strings.Contains(err.Error(), "(Conflict)") {
				// The server has written one object because another one was replaced. Tools try again.
				err = g.run(t, binaries.Kubectl, "replace", "--filename", g.manifest)
			}
			return err
		})
	})
	t.Run("helm uninstall", func(t *testing.T) { g.testUninstall(t, objects) })
}

// gitOps is a cluster that applies the manifest of the release again.
type gitOps struct {
	pinned
	manifest string // a file
}

// writeManifest writes the objects of the release as helm has installed them.
func (g *gitOps) writeManifest(t *testing.T) {
	t.Helper()
	rendered, err := g.Run(t.Context(), binaries.Helm, "get", "manifest", cluster.Release, inNamespace)
	must(t, err)
	must(t, os.WriteFile(g.manifest, []byte(rendered), 0o600))
}

// run runs a program of the cluster.
func (g *gitOps) run(t *testing.T, program string, args ...string) error {
	_, err := g.Run(t.Context(), program, args...)
	return err
}

// state returns what the server has written, by object. It is an error if something is missing.
func (g *gitOps) state(ctx context.Context) (map[string]string, error) {
	state := map[string]string{}
	read := func(path string, names ...string) error {
		for _, name := range names {
			content, err := g.Kubectl(ctx, "get", name, inNamespace, "--output=jsonpath="+path)
			if err == nil && content == "" {
				err = errors.New("it is empty")
			}
			if err != nil {
				return fmt.Errorf("%s of %s: %w", path, name, err)
			}
			state[name] = content
		}
		return nil
	}
	if err := errors.Join(read("{.spec.caBundle}", writtenBundles...), read("{.data}", writtenData...)); err != nil {
		return nil, err
	}
	var pins map[string]string
	if err := json.Unmarshal([]byte(state["configmap/"+pinsConfigMap]), &pins); err != nil {
		return nil, err
	}
	// The entry of the other node, whose certificate a CA verifies, returns with the next connection.
	if state["configmap/"+pinsConfigMap] = pins["first"]; !strings.HasPrefix(pins["first"], "sha256:") {
		return nil, fmt.Errorf("got pins %v, want a key of the first node", pins)
	}
	return state, nil
}

// mustState returns what the server has written.
func (g *gitOps) mustState(t *testing.T) map[string]string {
	t.Helper()
	state, err := g.state(t.Context())
	must(t, err)
	return state
}

// testFieldManager checks that tools can recognize what the server has written by its field manager.
func (g *gitOps) testFieldManager(t *testing.T) {
	for _, name := range slices.Concat(writtenBundles, writtenData) {
		managers := g.kubectl(t, "get", name, inNamespace, "--show-managed-fields",
			"--output=jsonpath={.metadata.managedFields[*].manager}")
		if !slices.Contains(strings.Fields(managers), "kube-vitals") {
			t.Errorf("%s has the field managers %s", name, managers)
		}
	}
}

// list lists the nodes through the API server.
func (g *gitOps) list(ctx context.Context) error {
	body, err := g.get(ctx, "/apis/metrics.k8s.io/v1beta1/nodes")
	text := string(body)
	if err == nil && (!strings.Contains(text, `"name":"first"`) || !strings.Contains(text, `"name":"node"`)) {
		err = fmt.Errorf("a node is missing: %s", body)
	}
	return err
}

// testUnchanged runs a tool, which changes nothing that the server has written. No request fails meanwhile.
func (g *gitOps) testUnchanged(t *testing.T, tool func() error) {
	before := g.mustState(t)
	load := startLoad(t, map[string]func(context.Context) error{"list of nodes": g.list})
	must(t, tool())
	if after := g.mustState(t); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the tool has changed what the server wrote: got %v, want %v", after, before)
	}
	load.stop()
}

// testNoDifference compares the manifest with the cluster, as tools do before they apply it.
func (g *gitOps) testNoDifference(t *testing.T, flags ...string) {
	out, err := g.Kubectl(t.Context(), append([]string{"diff", "--filename", g.manifest}, flags...)...)
	if err != nil || out != "" { // kubectl exits with 1 if there is a difference
		t.Errorf("error %v, differences:\n%s", err, out)
	}
}

// testMended runs a tool that replaces objects, and waits until the server has written their content
// again.
func (g *gitOps) testMended(t *testing.T, tool func() error) {
	before := g.mustState(t)
	must(t, tool())
	start := time.Now()
	eventually(t, "requests to be served", g.list)
	served := time.Since(start)
	var after map[string]string
	eventually(t, "the content to be written again", func(ctx context.Context) (err error) {
		after, err = g.state(ctx)
		return err
	})
	t.Logf("requests were served after %s, and all content was back after %s", served, time.Since(start))
	if secret := "secret/" + servingSecret; after[secret] == before[secret] {
		t.Error("the Secret has the same content as before: the tool has not cleared it, so this proves nothing")
	}
	if pins := "configmap/" + pinsConfigMap; after[pins] != before[pins] {
		t.Errorf("got pins %s, want %s", after[pins], before[pins])
	}
}

// testUninstall removes the release, and compares the objects of the cluster with those before.
func (g *gitOps) testUninstall(t *testing.T, before []string) {
	g.uninstall(t)
	if err := g.server.Stop(g.shutdownTimeout()); err != nil {
		t.Errorf("kube-vitals exits with %v", err)
	}
	eventually(t, "all objects to be deleted", func(context.Context) error {
		if left := difference(g.objectNames(t), before); len(left) > 0 {
			return fmt.Errorf("left: %s", strings.Join(left, " "))
		}
		return nil
	})
	if deleted := difference(before, g.objectNames(t)); len(deleted) > 0 {
		t.Errorf("objects that are not the chart's were deleted: %s", strings.Join(deleted, " "))
	}
}

// uninstall uninstalls the chart.
func (c *testCluster) uninstall(t *testing.T) {
	t.Helper()
	_, err := c.Run(t.Context(), binaries.Helm, "uninstall", cluster.Release, inNamespace, "--wait")
	must(t, err)
}

// objectNames returns the names of all objects of a cluster except those that come and go by
// themselves.
func (c *testCluster) objectNames(t *testing.T) []string {
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
