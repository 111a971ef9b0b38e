package doctor

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestFlag checks that the flags of a server are found in all places that set them.
func TestFlag(t *testing.T) {
	w := &workload{spec: &corev1.PodSpec{Containers: []corev1.Container{{
		Name: "metrics-server", Image: "registry.example/kube-vitals",
		Env: []corev1.EnvVar{
			{Name: "KUBE_VITALS_TLS_SECRET", Value: "serving"}, {Name: "KUBE_VITALS_DEPLOYMENT", Value: "first"},
			{Name: "KUBE_VITALS_KUBELET_PINS"}, {Name: "TLS_NAMES", Value: "x"},
		},
		Command: []string{"/kube-vitals", "--metric-resolution", "20s"},
		Args:    []string{"--deployment=last", "--kubelet-insecure-tls"},
	}}}}
	for flag, want := range map[string]string{
		"--tls-secret": "serving", "--deployment": "last", "--kubelet-pins": "", "--tls-names": "",
		"--metric-resolution": "20s", "--kubelet-insecure-tls": "true",
	} {
		if got := w.flag(flag); got != want {
			t.Errorf("%s: got %q, want %q", flag, got, want)
		}
	}
}
