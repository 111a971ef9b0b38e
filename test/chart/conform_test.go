package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestSchemas checks everything that the chart renders, and manifests/, against the schemas of three
// versions of Kubernetes and of the custom resources. `make verify` makes the schemas.
func TestSchemas(t *testing.T) {
	root := os.Getenv("SCHEMAS")
	if root == "" {
		t.Skip("set SCHEMAS to the folder of the schemas, as make verify does")
	}
	versions, err := filepath.Glob(filepath.Join(root, "v*"))
	if err != nil || len(versions) != 3 {
		t.Fatalf("got %q in SCHEMAS, error %v; want 3 versions", versions, err)
	}
	for _, schemas := range versions {
		t.Run(filepath.Base(schemas), func(t *testing.T) {
			t.Run("rejects", func(t *testing.T) { rejectsInvalidObjects(t, schemas) })
			for _, file := range valuesFiles(t) {
				t.Run(filepath.Base(file), func(t *testing.T) {
					args := slices.DeleteFunc(slices.Clone(helmTemplate), func(arg string) bool { return arg == "--no-hooks" })
					text, err := helm(t, append(args, "--kube-version", filepath.Base(schemas), "--values", file)...)
					must(t, err)
					conform(t, schemas, text)
				})
			}
			t.Run("manifests", func(t *testing.T) {
				conform(t, schemas, kustomize(t, "base",
					[]string{"cert-manager", "high-availability", "insecure-kubelets", "prometheus"}))
				for _, name := range overlays(t) {
					conform(t, schemas, kustomize(t, "overlays/"+name, nil))
				}
			})
		})
	}
}

// rejectsInvalidObjects checks that the schemas reject unknown fields, wrong types and unknown kinds.
func rejectsInvalidObjects(t *testing.T, schemas string) {
	const valid = `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 1, targetPort: a}]}}`
	conform(t, schemas, []byte(valid))
	for _, invalid := range []string{
		`{apiVersion: v1, kind: Servize, metadata: {name: a}}`,
		`{apiVersion: v2, kind: Service, metadata: {name: a}}`,
		`{apiVersion: v1, kind: Service, metadata: {nam: a}}`,
		`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {prots: []}}`,
		`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: a}]}}`,
		`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{targetPort: 1}]}}`,
		`{apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor, metadata: {name: a}, spec: {selectors: {}}}`,
		`{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {name: a}, spec: {secretName: 1}}`,
	} {
		if _, err := kubeconform(t, schemas, []byte(invalid)); err == nil {
			t.Errorf("got no error for %s", invalid)
		}
	}
}

// conform fails the test if an object does not match its schema, or has none.
func conform(t *testing.T, schemas string, text []byte) {
	t.Helper()
	if out, err := kubeconform(t, schemas, text); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func kubeconform(t *testing.T, schemas string, text []byte) ([]byte, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	must(t, os.WriteFile(file, text, 0o600))
	return run(t, "KUBECONFORM", "kubeconform", "-strict", "-schema-location",
		filepath.Join(schemas, "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json"), file)
}
