package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metrics "k8s.io/metrics/pkg/client/clientset/versioned"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// The namespace and nodes of TestDiagnosis. The kubelet of selfSigned has its own certificate.
const (
	explained  = "explained"
	selfSigned = "broken-tls-self-signed"
	excluded   = "excluded"
	excludedBy = "kube-vitals.test/excluded" // a label
)

// testPods checks what kubectl prints for pods without metrics.
func (d *diagnosis) testPods(t *testing.T) {
	d.createPods(t, explained, oneNode, "web", "failed", "crashing")
	d.addPod(t, "pending", "schedulerName: none")
	d.addPod(t, "unreachable", "nodeName: "+selfSigned)
	d.addPod(t, "outside", "nodeName: "+excluded)
	d.setStatuses(t)

	const clock = `(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC \(\d+m?\d*s`
	for _, test := range []struct{ object, reason, text string }{ // arguments of kubectl top; a regular expression
		{"pod none", "pod-not-found", `podmetrics.metrics.k8s.io "none" not found: ` +
			`the pod does not exist in namespace "explained" \(check its name and namespace\)`},
		{"pod pending", "pod-pending", `the pod has been pending since ` + clock +
			`\): container "main" waits: ImagePullBackOff \(`},
		{"pod failed", "pod-failed", `the pod failed at ` + clock +
			` ago\): Evicted \(see its status with kubectl describe pod\)`},
		{"pod crashing", "containers-not-running",
			`no container of the pod is running: container "main" waits: CrashLoopBackOff \(`},
		{"pod unreachable", "tls-self-signed", `the metrics of its node "` + selfSigned + `" cannot be read since ` + clock +
			`\): the kubelet's certificate is self-signed \(set serverTLSBootstrap in the kubelet's configuration`},
		{"pod outside", "not-selected",
			`its node "excluded" is not selected for scraping \(change the node's labels or --node-selector\)`},
		{"node none", "node-not-found",
			`nodemetrics.metrics.k8s.io "none" not found: the node does not exist \(check its name, `},
	} {
		d.awaitExplanation(t, test.object, test.reason, test.text)
	}

	// A pod that has just started, and that its kubelet never reports.
	d.Simulation.Kubelet(oneNode).SetFaults(hidePod("new"))
	// This explanation ends after 15 seconds. A kubectl that is slow to start may miss it.
	client, err := metrics.NewForConfig(d.REST)
	must(t, err)
	starting := make(chan error, 1)
	go func() {
		want := explanation("pod-starting", `container "main" started \d+s ago; metrics are expected within \d+s`)
		starting <- process.Poll(t.Context(), timeout, "the pod to start", func(ctx context.Context) error {
			_, err := client.MetricsV1beta1().PodMetricses(explained).Get(ctx, "new", metav1.GetOptions{})
			if err == nil {
				return errors.New("it has metrics")
			}
			if !want.MatchString(err.Error()) {
				return err
			}
			return nil
		})
	}()
	d.addPod(t, "new", "nodeName: "+oneNode)
	must(t, <-starting)
	d.awaitExplanation(t, "pod new", "no-containers",
		`the kubelet of node "node" responded at `+clock+` ago\), but does not report the pod`)

	d.checkCauses(t)
	d.checkWarnings(t)
	d.checkTenant(t)

	d.Simulation.Kubelet(oneNode).SetFaults() // the cure is to wait
	d.awaitMetrics(t, "pod", "new")
}

// createNode creates a Node object whose kubelet the test runs itself, at this address.
func (c *testCluster) createNode(t *testing.T, name string, at netip.AddrPort) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at.Addr().String()}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(at.Port())}},
	}}
	if _, err := c.Client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// hidePod makes a kubelet report nothing of a pod.
func hidePod(name string) kubelettest.Fault {
	return kubelettest.Edit(func(text []byte) []byte {
		var kept [][]byte
		for line := range bytes.Lines(text) {
			if !bytes.Contains(line, []byte(`pod="`+name+`"`)) {
				kept = append(kept, line)
			}
		}
		return bytes.Join(kept, nil)
	})
}

// addPod creates a pod. Where is a part of its spec.
func (c *testCluster) addPod(t *testing.T, name, where string) {
	t.Helper()
	must(t, c.Apply(t.Context(), fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s},
		spec: {%s, containers: [{name: main, image: none}]}}`, name, explained, where)))
}

// setStatuses makes pods pending, failed and crashing.
func (c *testCluster) setStatuses(t *testing.T) {
	t.Helper()
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 137, Reason: "Error", FinishedAt: metav1.NewTime(time.Now().Add(-5 * time.Second)),
	}}
	for name, set := range map[string]func(*corev1.PodStatus){
		"pending": func(s *corev1.PodStatus) {
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "none", State: waiting("ImagePullBackOff")}}
		},
		"failed": func(s *corev1.PodStatus) {
			s.Phase, s.Reason = corev1.PodFailed, "Evicted"
			for i := range s.ContainerStatuses {
				s.ContainerStatuses[i].State = ended
			}
		},
		"crashing": func(s *corev1.PodStatus) {
			for i := range s.ContainerStatuses {
				s.ContainerStatuses[i].State = waiting("CrashLoopBackOff")
			}
		},
	} {
		eventually(t, "the status of "+name, func(ctx context.Context) error {
			pods := c.Client.CoreV1().Pods(explained)
			pod, err := pods.Get(ctx, name, metav1.GetOptions{})
			if err == nil {
				set(&pod.Status)
				_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
			}
			return err
		})
	}
	for _, container := range []string{"main", "side"} { // a crashing container does not use anything
		c.Simulation.Kubelet("node").RemoveContainer(explained, "crashing", container)
	}
}

// explanation matches a message with the text and the address of the reason's documentation.
func explanation(reason, text string) *regexp.Regexp {
	return regexp.MustCompile(text + `.*; see https://github\.com/.*/docs/troubleshooting\.md#` + reason + `\n?$`)
}

// awaitExplanation waits until kubectl top fails with an explanation.
func (c *testCluster) awaitExplanation(t *testing.T, object, reason, text string) {
	t.Helper()
	want := explanation(reason, text)
	var got string
	eventually(t, fmt.Sprintf("kubectl top %s to fail with %s", object, want), func(ctx context.Context) error {
		var err error
		args := append([]string{"top", "--namespace=" + explained}, strings.Fields(object)...)
		_, got, err = c.kubectlWithErrors(ctx, args...)
		if err == nil {
			return errors.New("it succeeds")
		}
		if !want.MatchString(got) {
			return errors.New(got)
		}
		return nil
	})
	if strings.Contains(got, "127.") || strings.Contains(got, "x509") {
		t.Errorf("the message has an address or the text of an error: %s", got)
	}
}

// kubectlWithErrors runs kubectl, and returns both outputs.
func (c *testCluster) kubectlWithErrors(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, c.Binary(binaries.Kubectl), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "HOME="+c.Dir, "KUBERC=off")
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// checkCauses checks that clients find the reason in the details of the error.
func (c *testCluster) checkCauses(t *testing.T) {
	t.Helper()
	client, err := metrics.NewForConfig(c.REST)
	must(t, err)
	_, err = client.MetricsV1beta1().PodMetricses(explained).Get(t.Context(), "unreachable", metav1.GetOptions{})
	cause, ok := apierrors.StatusCause(err, "tls-self-signed")
	if !apierrors.IsNotFound(err) || !ok || !strings.Contains(cause.Message, "the kubelet's certificate is self-signed") {
		t.Errorf("got %v with cause %+v, want the cause tls-self-signed", err, cause)
	}
}

// checkWarnings checks what kubectl get warns of.
func (c *testCluster) checkWarnings(t *testing.T) {
	t.Helper()
	for resource, parts := range map[string][]string{
		"nodemetrics": {"Warning: 4 of 5 nodes have no metrics: 4 that cannot be read"},
		"podmetrics": {
			"Warning: 4 of 5 pods have no metrics: ", "1 on 1 node that cannot be read (" + selfSigned + ": tls-self-signed)",
			"1 on 1 node that is not scraped", "1 without a running container",
		},
	} {
		eventually(t, "the warnings of kubectl get "+resource, func(ctx context.Context) error {
			_, got, err := c.kubectlWithErrors(ctx, "get", resource, "--namespace", explained)
			for _, part := range parts {
				if err != nil || !strings.Contains(got, part) {
					return errors.Join(err, fmt.Errorf("got %s, want %q", got, part))
				}
			}
			return nil
		})
	}
}

// checkTenant checks that a user who may read metrics but not pods learns no reasons.
func (c *testCluster) checkTenant(t *testing.T) {
	t.Helper()
	kubeconfig := c.File("tenant.kubeconfig")
	must(t, c.WriteUserKubeconfig(kubeconfig, "tenant", ""))
	c.kubectl(t, "create", "role", "tenant", "--namespace", explained, "--verb=get,list", "--resource=pods.metrics.k8s.io")
	c.kubectl(t, "create", "rolebinding", "tenant", "--namespace", explained, "--role=tenant", "--user=tenant")
	as := []string{"--namespace", explained, "--kubeconfig", kubeconfig}
	for name, want := range map[string]string{
		"none":   `pod "none" is not running in namespace "explained"`,
		"failed": `pod "failed" is not running in namespace "explained"`,
		"unreachable": `pod "unreachable" is running in namespace "explained", ` +
			`but there are no current metrics of it from its node's kubelet`,
	} {
		want = fmt.Sprintf("Error from server (NotFound): podmetrics.metrics.k8s.io %q not found: %s\n", name, want)
		eventually(t, "the role to take effect", func(ctx context.Context) error {
			if _, got, err := c.kubectlWithErrors(ctx, append(as, "top", "pod", name)...); err == nil || got != want {
				return fmt.Errorf("got %s, want %s", got, want)
			}
			return nil
		})
	}
	eventually(t, "kubectl get podmetrics as a tenant", func(ctx context.Context) error {
		out, got, err := c.kubectlWithErrors(ctx, append(as, "get", "podmetrics")...)
		if err != nil || got != "" || !strings.Contains(out, "web ") {
			return errors.Join(err, fmt.Errorf("got\n%s%s, want the table without a warning", got, out))
		}
		return nil
	})
}
