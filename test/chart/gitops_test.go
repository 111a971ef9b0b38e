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
		moved       = "HelmRelease kube-system/metrics-server"
	)
	for object, want := range map[string]fields{
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
		moved: {
			"spec.releaseName": "metrics-server", "spec.values.nameOverride": "metrics-server",
			"spec.values.apiService.insecureSkipTLSVerify": true,
		},
	} {
		examples.want(t, object, want)
	}
	values := examples.value(t, application, "spec.source.helm.valuesObject")
	if other := examples.value(t, release, "spec.values"); !reflect.DeepEqual(values, other) {
		t.Errorf("Argo CD sets %v, Flux %v", values, other)
	}
	encoded, err := yaml.Marshal(values)
	must(t, err)
	file := filepath.Join(t.TempDir(), "values.yaml")
	must(t, os.WriteFile(file, encoded, 0o600))
	objs := mustHelm(t, withValues(file)...)
	objs.want(t, deployment, fields{"spec.replicas": 2.0})
	// What the server writes is not in the manifest, so that no tool compares or resets it.
	for object, field := range map[string]string{
		"APIService v1.metrics.k8s.io": "spec.caBundle", "APIService v1beta1.metrics.k8s.io": "spec.caBundle",
		"Secret kube-system/kube-vitals-serving": "data", "ConfigMap kube-system/kube-vitals-ca": "data",
		"ConfigMap kube-system/kube-vitals-kubelet-pins": "data",
	} {
		objs.want(t, object, fields{field: nil})
	}
}
