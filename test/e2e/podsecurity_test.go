package e2e

import (
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

// TestPodSecurity creates the pods of the chart in a namespace with the Pod Security Standard
// "restricted": the API server admits them without a warning.
func TestPodSecurity(t *testing.T) {
	t.Parallel()
	n := newRestrictedNamespace(t)
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
				if messages := n.create(t, spec); messages != "" {
					t.Errorf("%s: %s", name, messages)
				}
			}
		})
	}

	// Pods with more privileges are rejected.
	for name, change := range map[string]func(*corev1.PodSpec){
		"capability": func(p *corev1.PodSpec) {
			p.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
		},
		"host path": func(p *corev1.PodSpec) {
			p.Volumes = append(p.Volumes, corev1.Volume{Name: "node", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/"},
			}})
		},
		"privilege escalation": func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil },
		"root":                 func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.RunAsNonRoot = nil },
		"all capabilities":     func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.Capabilities = nil },
		"no seccomp profile":   func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.SeccompProfile = nil },
		"host network":         func(p *corev1.PodSpec) { p.HostNetwork = true },
	} {
		t.Run(name, func(t *testing.T) {
			spec := podsOfChart(t, filepath.Join(shared.Chart, "ci", "default-values.yaml"))["kube-vitals"]
			change(&spec)
			if messages := n.create(t, spec); !strings.Contains(messages, `PodSecurity "restricted:latest"`) {
				t.Errorf("got %q, want a violation of PodSecurity", messages)
			}
		})
	}
}

// restrictedNamespace is a namespace with a client that collects the API server's warnings.
type restrictedNamespace struct {
	name     string
	client   kubernetes.Interface
	warnings *warnings
}

func newRestrictedNamespace(t *testing.T) restrictedNamespace {
	t.Helper()
	n := restrictedNamespace{name: "restricted", warnings: &warnings{}}
	config := rest.CopyConfig(shared.REST)
	config.WarningHandler = n.warnings
	var err error
	if n.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	shared.createNamespaces(t, n.name)
	shared.kubectl(t, "label", "namespace", n.name,
		"pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/warn=restricted")
	return n
}

// create creates a pod, and a Deployment of such pods, in a dry run. It returns the API server's
// errors and warnings.
func (n restrictedNamespace) create(t *testing.T, spec corev1.PodSpec) string {
	t.Helper()
	spec.ServiceAccountName = "" // it does not exist in the namespace
	labels := map[string]string{"app": "test"}
	pod := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Name: "test", Labels: labels}, Spec: spec}
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	n.warnings.drain()
	var messages []string
	object := &corev1.Pod{ObjectMeta: pod.ObjectMeta, Spec: spec}
	if _, err := n.client.CoreV1().Pods(n.name).Create(t.Context(), object, dryRun); err != nil {
		messages = append(messages, err.Error())
	}
	if spec.RestartPolicy == "" || spec.RestartPolicy == corev1.RestartPolicyAlways { // required in a Deployment
		deployment := &appsv1.Deployment{
			ObjectMeta: pod.ObjectMeta,
			Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pod},
		}
		if _, err := n.client.AppsV1().Deployments(n.name).Create(t.Context(), deployment, dryRun); err != nil {
			messages = append(messages, err.Error())
		}
	}
	return strings.Join(append(messages, n.warnings.drain()...), "\n")
}

// podsOfChart returns the pods of the chart with a file of values, by the names of their objects.
// It leaves out hostNetwork, which a restricted namespace does not allow.
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

// warnings collects the API server's warnings.
type warnings struct {
	mu       sync.Mutex
	messages []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.messages = append(w.messages, text)
}

// drain returns the warnings since the last call.
func (w *warnings) drain() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	messages := w.messages
	w.messages = nil
	return messages
}
