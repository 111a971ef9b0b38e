package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// clientProgram returns the path of a program in the folder that CLIENTS names. `make clients` builds
// them.
func clientProgram(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("CLIENTS")
	if dir == "" {
		t.Skip("needs the clients of `make clients`")
	}
	return filepath.Join(dir, name)
}

// clientSource returns the folder of a client in the source tree.
func clientSource(name string) string { return filepath.Join(shared.Checkout, "test", "clients", name) }

// clientOutput is what a client has read.
type clientOutput struct {
	Nodes []metricsv1beta1.NodeMetrics
	Pods  []metricsv1beta1.PodMetrics
	Top   map[string]struct{ CPU, Memory float64 } // of pods, in cores and bytes
}

// TestClients reads the fixture with clients of other languages and of old versions.
func TestClients(t *testing.T) {
	t.Parallel()
	const pods = "app=" + fixture
	kubectl := clientProgram(t, "kubectl")
	useFixture(t)
	t.Run("kubectl-1.20", func(t *testing.T) { testOldKubectl(t, kubectl) })
	for _, version := range []string{"0.24", "0.30"} {
		program := clientProgram(t, "clientset-"+version)
		for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
			t.Run("clientset-"+version+" "+contentType, func(t *testing.T) {
				checkClient(t, shared.runClient(t, "", program, contentType, fixtureLabel, fixture, pods))
			})
		}
	}
	t.Run("python", func(t *testing.T) {
		// Debian's package is for Debian's interpreter.
		const python = "/usr/bin/python3"
		checkClient(t, shared.runClient(t, "", python, clientSource("python/client.py"), fixtureLabel, fixture, pods))
	})
	t.Run("node", func(t *testing.T) {
		node, err := exec.LookPath("node")
		must(t, err)
		out := shared.runClient(t, clientProgram(t, "node"), node, "client.mjs", fixture)
		checkClient(t, out)
		if len(out.Top) != len(out.Pods) {
			t.Errorf("top: got %d pods, want %d", len(out.Top), len(out.Pods))
		}
		// The library's own sums leave out sidecars.
		type usage struct{ cpu, memory float64 } // in millicores and MiB
		for name, want := range map[string]usage{"alpha": {300, 192}, "beta": {400, 256}, "gamma": {100, 512}} {
			top := out.Top[name]
			if cpu, memory := top.CPU*1000, top.Memory/(1<<20); math.Abs(cpu-want.cpu) > want.cpu/100 || memory != want.memory {
				t.Errorf("top: pod %s: got %gm and %g MiB, want %g and %g", name, cpu, memory, want.cpu, want.memory)
			}
		}
	})
}

// runClient runs a client in a folder, and decodes its output.
func (c *testCluster) runClient(t *testing.T, dir, program string, args ...string) (out clientOutput) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "HOME="+c.Dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", cmd, err, &stderr)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("%s: %v in\n%s", cmd, err, text)
	}
	return out
}

// checkClient compares what a client has read with the fixture: usage, timestamps, windows, labels.
func checkClient(t *testing.T, out clientOutput) {
	t.Helper()
	checkPods(t, out.Pods)
	want := map[string]string{swapNode: "swap", noSwapNode: "none"}
	for i := range out.Nodes {
		node := &out.Nodes[i]
		label, ok := want[node.Name]
		if !ok {
			continue // a client that cannot select nodes
		}
		delete(want, node.Name)
		if node.Labels[fixtureLabel] != label {
			t.Errorf("node %s: got labels %v, want %s=%s among them", node.Name, node.Labels, fixtureLabel, label)
		}
		checkNode(t, node.Name, node.Usage, node.Timestamp.Time, node.Window.Duration)
	}
	if len(want) > 0 {
		t.Errorf("missing nodes: %v", want)
	}
}

// testOldKubectl runs kubectl 1.20, which is older than metrics.k8s.io/v1 and than swap.
func testOldKubectl(t *testing.T, kubectl string) {
	const inFixture = "--namespace=" + fixture
	run := func(args ...string) string {
		t.Helper()
		out, err := shared.Run(t.Context(), kubectl, args...)
		must(t, err)
		return out
	}
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"top", "nodes", "--selector=" + fixtureLabel}, []string{
			"NAME CPU(cores) CPU(%) MEMORY(bytes) MEMORY(%)", // as equalTables reads CPU%
			"node-n 500m 6% 768Mi 2%", "node-s 530m 6% 1232Mi 3%",
		}},
		{[]string{"top", "pods", inFixture, "--sort-by=cpu"}, []string{
			"NAME CPU(cores) MEMORY(bytes)",
			"beta 400m 256Mi", "alpha 300m 192Mi", "gamma 130m 528Mi",
		}},
		{[]string{"top", "pod", "alpha", inFixture, "--containers"}, []string{
			"POD NAME CPU(cores) MEMORY(bytes)",
			"alpha app 250m 128Mi", "alpha proxy 50m 64Mi",
		}},
		{[]string{"get", "nodemetrics", "--selector=" + fixtureLabel, "--output=custom-columns=NAME:.metadata.name"},
			[]string{"NAME", noSwapNode, swapNode}},
	} {
		if got := run(test.args...); !equalTables(got, test.want) {
			t.Errorf("kubectl %s: got\n%s\nwant\n%s", strings.Join(test.args, " "), got, strings.Join(test.want, "\n"))
		}
	}
	header, rows, _ := strings.Cut(run("get", "podmetrics", inFixture), "\n")
	if got := strings.Join(strings.Fields(header), " "); got != "NAME CPU(CORES) MEMORY(BYTES) WINDOW" ||
		strings.Count(rows, "\n") != len(shared.Simulation.Pods(fixture)) {
		t.Errorf("kubectl get podmetrics: got\n%s\n%s", header, rows)
	}
	read := func(into any, args ...string) {
		t.Helper()
		var list struct{ Items json.RawMessage }
		text := run(args...)
		if err := errors.Join(json.Unmarshal([]byte(text), &list), json.Unmarshal(list.Items, into)); err != nil {
			t.Fatalf("kubectl %s: %v in\n%s", strings.Join(args, " "), err, text)
		}
	}
	var out clientOutput
	read(&out.Nodes, "get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes")
	read(&out.Pods, "get", "podmetrics", inFixture, "--output=json")
	checkClient(t, out)
}

// applyFiles applies files of a Go module that a client is built from.
func (c *testCluster) applyFiles(t *testing.T, client, module string, files ...string) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module)
	list.Dir = clientSource(client)
	dir, err := list.Output()
	if err != nil {
		t.Fatalf("%s: %v", list, err)
	}
	for _, file := range files {
		c.kubectl(t, "apply", "--server-side", "--filename",
			filepath.Join(strings.TrimSpace(string(dir)), filepath.FromSlash(file)))
	}
}

// startClient starts a program with a token of a ServiceAccount in the namespace of kube-vitals.
func (c *testCluster) startClient(t *testing.T, program, account string, args ...string) *process.Process {
	t.Helper()
	kubeconfig := c.accountKubeconfig(t, cluster.Namespace, account)
	p, err := c.StartProcess(program, append(args, "--kubeconfig="+kubeconfig)...)
	must(t, err)
	logOnFailure(t, p)
	return p
}

// busyDeployment has one pod, on the node named busy. The pod uses 5 cores and 3 GiB.
const busyDeployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
      annotations: {simulation.kube-vitals/cpu: "5", simulation.kube-vitals/memory: 3Gi}
    spec:
      nodeSelector: {kubernetes.io/hostname: busy}
      containers: [{name: app, image: simulated, resources: {requests: {cpu: 100m, memory: 64Mi}}}]
`

// newBusyCluster starts a cluster with kube-vitals and two nodes: node is idle, and busy runs
// busyDeployment.
func newBusyCluster(t *testing.T) *testCluster {
	t.Helper()
	c := newCluster(t)
	must(t, c.Simulation.AddNode(t.Context(), simulation.Node{Name: "busy"}))
	c.install(t)
	must(t, c.Apply(t.Context(), busyDeployment))
	eventually(t, "metrics of the nodes", func(ctx context.Context) error {
		table, err := c.Kubectl(ctx, "top", "nodes", "--no-headers")
		if err == nil && !equalTables(table, []string{"busy 5100m 63% 3584Mi 10%", "node 100m 1% 512Mi 1%"}) {
			err = errors.New(table)
		}
		return err
	})
	return c
}

// TestVerticalPodAutoscaler runs the recommender and the updater of the VerticalPodAutoscaler, with the objects and
// permissions of its installation.
func TestVerticalPodAutoscaler(t *testing.T) {
	t.Parallel()
	program, updater := clientProgram(t, "recommender"), clientProgram(t, "updater")
	c := newBusyCluster(t)
	c.applyFiles(t, "vpa", "k8s.io/autoscaler/vertical-pod-autoscaler",
		"deploy/vpa-v1-crd-gen.yaml", "deploy/vpa-rbac.yaml")
	eventually(t, "a VerticalPodAutoscaler", func(ctx context.Context) error { // once the API server knows the kind
		return c.Apply(ctx, `apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: web, namespace: default}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  updatePolicy: {updateMode: "Off"}
`)
	})
	c.startClient(t, program, "vpa-recommender",
		"--recommender-interval=1s", fmt.Sprintf("--address=127.0.0.1:%d", freePort(t)))
	eventually(t, "a recommendation", func(ctx context.Context) error {
		text, err := c.Kubectl(ctx, "get", "verticalpodautoscaler", "web", "--namespace=default",
			"--output=jsonpath={.status.recommendation.containerRecommendations}")
		var recommendation []struct {
			ContainerName string
			Target        map[corev1.ResourceName]resource.Quantity
		}
		if err == nil {
			err = json.Unmarshal([]byte(text), &recommendation)
		}
		if err == nil && (len(recommendation) != 1 || recommendation[0].ContainerName != "app") {
			err = fmt.Errorf("got %+v, want a recommendation for the container app", recommendation)
		}
		if err != nil {
			return err
		}
		// Before the first sample, it is the smallest that there is. Afterwards it is the upper bound of a histogram's
		// bucket, which is 5 % wide, plus 15 %.
		for name, used := range map[corev1.ResourceName]float64{corev1.ResourceCPU: 5, corev1.ResourceMemory: 3 << 30} {
			target := recommendation[0].Target[name]
			if ratio := target.AsApproximateFloat64() / used; ratio < 1.15*0.99 || ratio > 1.15*1.05*1.01 {
				return fmt.Errorf("%s: got a target of %s, which is %.2f times the usage, want 1.15 to 1.21", name, &target, ratio)
			}
		}
		return nil
	})

	// The pod requests less than the lower bound, and there is no webhook that would change the request of the next one.
	c.kubectl(t, "patch", "verticalpodautoscaler", "web", "--namespace=default", "--type=merge",
		`--patch={"spec":{"updatePolicy":{"updateMode":"Recreate","minReplicas":1}}}`)
	c.startClient(t, updater, "vpa-updater", "--updater-interval=1s", "--use-admission-controller-status=false",
		fmt.Sprintf("--address=127.0.0.1:%d", freePort(t)))
	c.awaitOutput(t, has("EvictedByVPA"), "get", "events", "--namespace=default", "--output=jsonpath={.items[*].reason}")
}

// TestDescheduler runs the descheduler in dry-run mode, with the permissions of its installation. It
// must see the usage of both nodes, and choose the pod of the busy one.
func TestDescheduler(t *testing.T) {
	t.Parallel()
	program := clientProgram(t, "descheduler")
	c := newBusyCluster(t)
	c.applyFiles(t, "descheduler", "sigs.k8s.io/descheduler", "kubernetes/base/rbac.yaml")
	policy := c.File("descheduler-policy.yaml")
	must(t, os.WriteFile(policy, []byte(`apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
metricsProviders: [{source: KubernetesMetrics}]
profiles:
- name: test
  pluginConfig:
  - name: LowNodeUtilization
    args:
      thresholds: {cpu: 20, memory: 20}
      targetThresholds: {cpu: 50, memory: 50}
      metricsUtilization: {source: KubernetesMetrics}
  plugins: {balance: {enabled: [LowNodeUtilization]}}
`), 0o600))
	p := c.startClient(t, program, "descheduler-sa", "--dry-run", "--descheduling-interval=1s", "--v=1",
		"--policy-config-file="+policy, "--disable-metrics", "--secure-port=0")
	evicted := regexp.MustCompile(`"Evicted pod in dry run mode" pod="default/web-.* node="busy"`)
	eventually(t, "the descheduler to choose a pod", func(context.Context) error {
		text, err := p.Log()
		if err != nil {
			return err
		}
		for node, want := range map[string]classification{
			"node": {"underutilized", 0.1, 512 << 20}, "busy": {"overutilized", 5.1, 3584 << 20},
		} {
			if err := want.check(node, text); err != nil {
				return err
			}
		}
		if !evicted.MatchString(text) {
			return errors.New("no pod was chosen")
		}
		return nil
	})
	if pods := c.kubectl(t, "get", "pods", "--namespace=default", "--output=name"); strings.Count(pods, "\n") != 1 {
		t.Errorf("pods after a dry run: %s", pods)
	}
}

// classification is what the descheduler logs of a node.
type classification struct {
	category    string
	cpu, memory float64 // usage in cores and bytes
}

// check finds the last classification of a node in a log.
func (c classification) check(node, log string) error {
	line := regexp.MustCompile(`"Node has been classified".* category="(\w+)" node="` + node + `" usage=({.*?}) usage`)
	lines := line.FindAllStringSubmatch(log, -1)
	if len(lines) == 0 {
		return fmt.Errorf("node %s has not been classified", node)
	}
	last := lines[len(lines)-1]
	var usage corev1.ResourceList
	if err := json.Unmarshal([]byte(last[2]), &usage); err != nil {
		return fmt.Errorf("%s: %w", last[0], err)
	}
	cpu, memory := usage.Cpu().AsApproximateFloat64(), usage.Memory().AsApproximateFloat64()
	if last[1] != c.category || math.Abs(cpu-c.cpu) > c.cpu/100 || math.Abs(memory-c.memory) > c.memory/100 {
		return fmt.Errorf("got %s, want %+v", last[0], c)
	}
	return nil
}
