package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestGitOpsExamples renders the chart with the values of the examples in docs/gitops.md, which are the
// same for each tool. End-to-end tests check what tools do to the objects.
func TestGitOpsExamples(t *testing.T) {
	var page []string
	for i, block := range strings.Split(string(mustRead(t, "../../docs/gitops.md")), "```") {
		if example, ok := strings.CutPrefix(block, "yaml\n"); ok && i%2 == 1 {
			page = append(page, example)
		}
	}
	examples := parse(t, []byte(strings.Join(page, "\n---\n")))
	const (
		application = "Application argocd/kube-vitals"
		release     = "HelmRelease kube-system/kube-vitals"
		repository  = "OCIRepository kube-system/kube-vitals"
	)
	for object, fields := range map[string]map[string]any{
		application: {
			"spec.source.repoURL": "ghcr.io/kube-vitals/charts", "spec.source.chart": "kube-vitals",
			"spec.source.targetRevision":                       "0.2.0",
			"spec.destination.namespace":                       "kube-system",
			"spec.syncPolicy.syncOptions.0":                    "ServerSideApply=true",
			"spec.ignoreDifferences.0.managedFieldsManagers.0": "kube-vitals",
		},
		release: {"spec.chartRef.kind": "OCIRepository", "spec.chartRef.name": "kube-vitals", "spec.upgrade": nil},
		repository: {
			"spec.url": "oci://ghcr.io/kube-vitals/charts/kube-vitals", "spec.ref.tag": "0.2.0",
		},
	} {
		for path, want := range fields {
			if got := examples.value(t, object, path); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s: got %v, want %v", object, path, got, want)
			}
		}
	}
	values := examples.value(t, application, "spec.source.helm.valuesObject")
	if other := examples.value(t, release, "spec.values"); !reflect.DeepEqual(values, other) {
		t.Errorf("Argo CD sets %v, Flux %v", values, other)
	}
	encoded, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := helm(t, append(helmTemplate[:len(helmTemplate):len(helmTemplate)], "--values", file)...)
	if err != nil {
		t.Fatal(err)
	}
	objs := parse(t, text)
	if replicas := objs.value(t, deployment, "spec.replicas"); replicas != 2.0 {
		t.Errorf("got %v replicas, want 2", replicas)
	}
	// What the server writes is not in the manifest, so that no tool compares or resets it.
	for object, field := range map[string]string{
		"APIService v1.metrics.k8s.io": "spec.caBundle", "APIService v1beta1.metrics.k8s.io": "spec.caBundle",
		"Secret kube-system/kube-vitals-serving": "data", "ConfigMap kube-system/kube-vitals-ca": "data",
		"ConfigMap kube-system/kube-vitals-kubelet-pins": "data",
	} {
		if got := objs.value(t, object, field); got != nil {
			t.Errorf("%s: %s: got %v, want none", object, field, got)
		}
	}
}
