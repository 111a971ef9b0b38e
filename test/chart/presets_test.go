package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// glob returns the files in the chart that match a pattern.
func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chart, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("got %d files %s, error %v", len(files), pattern, err)
	}
	return files
}

// presetFiles returns the files of values for distributions.
func presetFiles(t *testing.T) []string { return glob(t, "presets/*.yaml") }

// valuesFiles returns the presets and the files of values in ci.
func valuesFiles(t *testing.T) []string {
	return append(glob(t, "ci/*-values.yaml"), presetFiles(t)...)
}

// TestPresets checks what the presets change. End-to-end tests install them.
func TestPresets(t *testing.T) {
	const ca = "/etc/kube-vitals/kubelet-ca/ca-bundle.crt"
	for preset, wants := range map[string]fields{
		"eks-fargate": {container + "args.0": "--secure-port=10251", container + "ports.0.containerPort": 10251.0},
		"host-network": {
			pod + "hostNetwork": true, pod + "dnsPolicy": "ClusterFirstWithHostNet",
			container + "args.0": "--secure-port=4443", container + "ports.0.containerPort": 4443.0,
			"spec.strategy.rollingUpdate": map[string]any{"maxSurge": 0.0, "maxUnavailable": 1.0},
		},
		"openshift": {
			container + "securityContext.runAsUser": nil, container + "securityContext.runAsGroup": nil,
			container + "securityContext.runAsNonRoot": true,
			container + "args.4":                       "--kubelet-certificate-authority=" + ca,
			container + "volumeMounts.0.mountPath":     filepath.Dir(ca),
			pod + "volumes.0.configMap.name":           "kubelet-serving-ca",
		},
		"gardener": {
			container + "args.4":                   "--kubelet-certificate-authority=" + ca,
			container + "volumeMounts.0.mountPath": filepath.Dir(ca),
			pod + "volumes.0.configMap.name":       "kubelet-serving-ca",
		},
	} {
		mustHelm(t, withValues(filepath.Join(chart, "presets", preset+".yaml"))...).want(t, deployment, wants)
	}
	// Other servers own v1beta1 of these distributions.
	foreign := map[string]bool{"aks": true, "gardener": true, "gke": true, "openshift": true}
	page := mustRead(t, "../../docs/distributions.md")
	for _, file := range presetFiles(t) {
		preset := strings.TrimSuffix(filepath.Base(file), ".yaml")
		objs := mustHelm(t, withValues(file)...)
		for _, name := range metricsAPIServices {
			_, exists := objs["APIService "+name.(string)]
			if want := !foreign[preset] || name == "v1.metrics.k8s.io"; exists != want {
				t.Errorf("%s: APIService %s exists: %t", preset, name, exists)
			}
		}
		if strings.Contains(strings.Join(strings.Fields(string(mustRead(t, file))), " "), "insecureTLS: true") {
			t.Errorf("%s disables the verification of kubelets", preset)
		}
		// A section, and a row of the table, which several presets can share.
		for _, text := range []string{"## " + preset + "$", `\|[^|]*\[` + preset + `\]\(#` + preset + `\)`} {
			if !regexp.MustCompile("(?m)^" + text).Match(page) {
				t.Errorf("docs/distributions.md: there is no %q", text)
			}
		}
	}
}

func mustRead(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	must(t, err)
	return content
}
