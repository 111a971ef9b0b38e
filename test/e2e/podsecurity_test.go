package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
)

// TestPodSecurity creates the pods of the chart in a namespace with the Pod Security Standard
// "restricted": the API server admits them without a warning.
func TestPodSecurity(t *testing.T) {
	t.Parallel()
	const namespace = "restricted"
	shared.createNamespaces(t, namespace)
	shared.kubectl(t, "label", "namespace", namespace,
		"pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/warn=restricted")
	values, err := filepath.Glob(filepath.Join(shared.Chart, "ci", "*-values.yaml"))
	if err != nil || len(values) == 0 {
		t.Fatalf("the chart has no values for tests: %v", err)
	}
	for _, file := range values {
		t.Run(strings.TrimSuffix(filepath.Base(file), "-values.yaml"), func(t *testing.T) {
			pods := podsOfChart(t, file)
			if len(pods) == 0 {
				t.Fatal("the chart has no pods")
			}
			for name, spec := range pods {
				if err := createDryRun(t, namespace, spec); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}

	spec := podsOfChart(t, filepath.Join(shared.Chart, "ci", "default-values.yaml"))["kube-vitals"]
	spec.Containers[0].SecurityContext.RunAsNonRoot = nil
	err = createDryRun(t, namespace, spec)
	if err == nil || !strings.Contains(err.Error(), `PodSecurity "restricted:latest"`) {
		t.Errorf("a pod that may run as root: got %v, want a violation of PodSecurity", err)
	}
}

// createDryRun creates a pod, and a Deployment of such pods, without effect. It returns the API server's
// errors and warnings.
func createDryRun(t *testing.T, namespace string, spec corev1.PodSpec) error {
	t.Helper()
	spec.ServiceAccountName = "" // it does not exist in the namespace
	labels := map[string]string{"app": "test"}
	meta := metav1.ObjectMeta{Name: "test", Labels: labels}
	objects := []runtime.Object{
		&corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: meta, Spec: spec},
	}
	if spec.RestartPolicy == "" || spec.RestartPolicy == corev1.RestartPolicyAlways { // required in a Deployment
		objects = append(objects, &appsv1.Deployment{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
			ObjectMeta: meta,
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: meta, Spec: spec},
			},
		})
	}
	file := filepath.Join(t.TempDir(), "manifest.yaml")
	var manifest []byte
	for _, object := range objects {
		text, err := yaml.Marshal(object)
		must(t, err)
		manifest = append(append(manifest, "---\n"...), text...)
	}
	must(t, os.WriteFile(file, manifest, 0o600))
	_, err := shared.Kubectl(t.Context(), "create", "--namespace", namespace,
		"--dry-run=server", "--warnings-as-errors", "-f", file)
	return err
}

// podsOfChart returns the pods of the chart with a file of values, by the names of their objects.
// It leaves out hostNetwork, which a restricted namespace does not allow.
func podsOfChart(t *testing.T, values string) map[string]corev1.PodSpec {
	t.Helper()
	manifest, err := shared.Run(t.Context(), binaries.Helm, "template", "kube-vitals", shared.Chart,
		"--values", values, "--set", "image.tag=dev,hostNetwork.enabled=false")
	must(t, err)
	pods := map[string]corev1.PodSpec{}
	for _, text := range strings.Split(manifest, "\n---\n") {
		var kind metav1.PartialObjectMetadata
		must(t, yaml.Unmarshal([]byte(text), &kind))
		switch kind.Kind {
		case "Pod":
			var pod corev1.Pod
			err = yaml.UnmarshalStrict([]byte(text), &pod)
			pods[kind.Name] = pod.Spec
		case "Deployment":
			var deployment appsv1.Deployment
			err = yaml.UnmarshalStrict([]byte(text), &deployment)
			pods[kind.Name] = deployment.Spec.Template.Spec
		}
		must(t, err)
	}
	return pods
}
