package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestManifests builds manifests/base with components and expects the objects that the chart
// renders with the values of these components.
func TestManifests(t *testing.T) {
	for _, components := range [][]string{
		{},
		{"cert-manager"},
		{"high-availability"},
		{"insecure-kubelets"},
		{"prometheus"},
		{"cert-manager", "high-availability", "insecure-kubelets"},
	} {
		t.Run(strings.Join(components, "+"), func(t *testing.T) {
			args := slices.Clone(helmTemplate)
			for _, c := range components {
				args = append(args, "--values", filepath.Join(manifests, "components", c, "values.yaml"))
			}
			rendered, err := helm(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			want, got := parse(t, rendered), parse(t, kustomize(t, components))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("chart (-) and manifests (+) differ:\n%s", diff)
			}
		})
	}
}

// kustomize builds a kustomization of manifests/base and components, as a user writes it in a
// folder elsewhere.
func kustomize(t *testing.T, components []string) []byte {
	t.Helper()
	folder, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	source, err := filepath.Abs(manifests)
	if err != nil {
		t.Fatal(err)
	}
	source, err = filepath.Rel(folder, source) // kustomize rejects absolute paths
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("resources:\n- %s/base\ncomponents:\n", source)
	for _, c := range components {
		text += fmt.Sprintf("- %s/components/%s\n", source, c)
	}
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	built, err := run(t, "KUSTOMIZE", "kustomize", "build", folder)
	if err != nil {
		t.Fatal(err)
	}
	return built
}
