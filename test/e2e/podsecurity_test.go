package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
)

// TestPodSecurity shows the pods of the chart to a namespace that takes none but those of the Pod
// Security Standard "restricted": the real API server takes them without a warning.
func TestPodSecurity(t *testing.T) {
	t.Parallel()
	n := restrictedNamespace(t)
	settings, err := filepath.Glob(filepath.Join(shared.Chart, "ci", "*-values.yaml"))
	if err != nil || len(settings) == 0 {
		t.Fatalf("the chart has no settings for tests (%v)", err)
	}
	for _, values := range settings {
		t.Run(strings.TrimSuffix(filepath.Base(values), "-values.yaml"), func(t *testing.T) {
			pods := podsOfChart(t, values)
			if len(pods) == 0 {
				t.Fatal("the chart has no pods")
			}
			for name, spec := range pods {
				if complaints := n.complaints(t, spec); complaints != "" {
					t.Errorf("%s: %s", name, complaints)
				}
			}
		})
	}

	// Would a pod with more rights be found?
	for name, loosen := range map[string]func(*corev1.PodSpec){
		"a capability": func(p *corev1.PodSpec) {
			p.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
		},
		"the node's files": func(p *corev1.PodSpec) {
			p.Volumes = append(p.Volumes, corev1.Volume{Name: "node", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/"},
			}})
		},
		"privilege escalation": func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil },
		"root":                 func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.RunAsNonRoot = nil },
		"all capabilities":     func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.Capabilities = nil },
		"seccomp":              func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.SeccompProfile = nil },
		"the node's network":   func(p *corev1.PodSpec) { p.HostNetwork = true },
	} {
		t.Run(name, func(t *testing.T) {
			spec := podsOfChart(t, filepath.Join(shared.Chart, "ci", "default-values.yaml"))["kube-vitals"]
			loosen(&spec)
			if complaints := n.complaints(t, spec); !strings.Contains(complaints, `PodSecurity "restricted:latest"`) {
				t.Errorf("it is taken: %q", complaints)
			}
		})
	}
}

// restricted is a namespace, seen by a client that hears what the API server warns of.
type restricted struct {
	name     string
	client   kubernetes.Interface
	warnings *warnings
}

func restrictedNamespace(t *testing.T) restricted {
	t.Helper()
	n := restricted{name: "restricted", warnings: &warnings{}}
	config := rest.CopyConfig(shared.REST)
	config.WarningHandler = n.warnings
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	n.client = client
	if err := shared.CreateNamespace(t.Context(), n.name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the test's own context has ended
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if err := client.CoreV1().Namespaces().Delete(ctx, n.name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	kubectl(t, "label", "namespace", n.name,
		"pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/warn=restricted")
	return n
}

// complaints are what the API server says against such a pod, and against a Deployment of such
// pods. Nothing is made.
func (n restricted) complaints(t *testing.T, spec corev1.PodSpec) string {
	t.Helper()
	spec.ServiceAccountName = "" // the namespace has not got it
	labels := map[string]string{"app": "shown"}
	pod := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Name: "shown", Labels: labels}, Spec: spec}
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	n.warnings.take()
	var said []string
	if _, err := n.client.CoreV1().Pods(n.name).Create(t.Context(), &corev1.Pod{ObjectMeta: pod.ObjectMeta, Spec: spec}, dry); err != nil {
		said = append(said, err.Error())
	}
	if spec.RestartPolicy == "" || spec.RestartPolicy == corev1.RestartPolicyAlways { // as those of a Deployment have to be
		deployment := &appsv1.Deployment{
			ObjectMeta: pod.ObjectMeta,
			Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pod},
		}
		if _, err := n.client.AppsV1().Deployments(n.name).Create(t.Context(), deployment, dry); err != nil {
			said = append(said, err.Error())
		}
	}
	return strings.Join(append(said, n.warnings.take()...), "\n")
}

// podsOfChart are the pods that the chart makes by these values, by the names of the objects.
// Whoever asks for the node's network by hostNetwork cannot have it in such a namespace; here
// nobody does.
func podsOfChart(t *testing.T, values string) map[string]corev1.PodSpec {
	t.Helper()
	manifest, err := shared.Run(t.Context(), binaries.Helm, "template", "kube-vitals", shared.Chart,
		"--values", values, "--set", "hostNetwork.enabled=false")
	if err != nil {
		t.Fatal(err)
	}
	pods := map[string]corev1.PodSpec{}
	for _, text := range strings.Split(manifest, "\n---\n") {
		var kind metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
	}
	return pods
}

// warnings collects what the API server warns of.
type warnings struct {
	mu   sync.Mutex
	said []string
}

// HandleWarningHeader is a rest.WarningHandler's.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

// take gives what was said since it was last asked.
func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	said := w.said
	w.said = nil
	return said
}
