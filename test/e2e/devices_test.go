package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

const (
	gpuNamespace = "gpu-operator" // of the exporters, as in the preset
	gpuNodes     = 2
	gpusOnNode   = 8

	// gpuWorkload is a Deployment whose container app uses a GPU, and its autoscaler. NAMESPACE and
	// METRIC are replaced.
	gpuWorkload = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NAMESPACE}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
      annotations: {simulation.kube-vitals/cpu: 100m, simulation.kube-vitals/memory: 64Mi}
    spec:
      containers:
        - {name: app, image: simulated, resources: {limits: {nvidia.com/gpu: 1}}}
        - {name: proxy, image: simulated}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: NAMESPACE}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 1
  maxReplicas: 4
  metrics: [METRIC]
`
	// gpuExporter is the pod of a NODE's exporter, which listens at the node's address.
	gpuExporter = `apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: gpu-operator, labels: {app: nvidia-dcgm-exporter}}
spec:
  nodeName: NODE
  hostNetwork: true
  containers: [{name: nvidia-dcgm-exporter, image: simulated, ports: [{name: metrics, containerPort: PORT}]}]
`
)

// gpuAutoscalings returns tests of the autoscaler, whose target is half a GPU.
func gpuAutoscalings() []autoscaling {
	const container = "{type: ContainerResource, containerResource: {name: nvidia.com/gpu, container: app, "
	return []autoscaling{
		{namespace: "gpu-pods", metric: "{type: Resource, " +
			"resource: {name: nvidia.com/gpu, target: {type: AverageValue, averageValue: 500m}}}"},
		{namespace: "gpu-container", metric: container + "target: {type: AverageValue, averageValue: 500m}}}"},
		{namespace: "gpu-utilization", metric: container + "target: {type: Utilization, averageUtilization: 50}}}"},
	}
}

// gpus simulates the GPUs of the nodes, and their exporters.
type gpus struct {
	c    *testCluster
	load atomic.Uint64 // of each Deployment, in percent of a GPU
	hang atomic.Bool   // whether the exporters do not respond

	port      int                     // of all exporters
	exporters map[string]*http.Server // by name of the pod
}

// TestDevices scales Deployments by the utilization of GPUs, with the real HorizontalPodAutoscaler
// and simulated exporters. Faults of the exporters must not change CPU and memory. The server also
// serves ephemeral-storage.
func TestDevices(t *testing.T) {
	t.Parallel()
	g := startGPUs(t)
	concurrently(t, map[string]func(*testing.T){"storage": g.c.testStorage, "gpus": g.test})
}

func (g *gpus) test(t *testing.T) {
	c := g.c
	for _, a := range gpuAutoscalings() {
		c.createNamespaces(t, a.namespace)
		manifest := strings.NewReplacer("NAMESPACE", a.namespace, "METRIC", a.metric).Replace(gpuWorkload)
		must(t, c.Apply(t.Context(), manifest))
	}
	g.load.Store(20)
	g.awaitGPUs(t, 1, "200m")
	g.load.Store(200)
	g.awaitGPUs(t, 4, "500m")
	each(t, gpuAutoscalings(), func(t *testing.T, a autoscaling) {
		c.awaitAutoscaler(t, a.namespace, func(s *autoscalingv2.HorizontalPodAutoscalerStatus) bool {
			return s.CurrentReplicas == 4 && s.DesiredReplicas == 4
		})
		g.awaitUsage(t, a.namespace, "nvidia.com/gpu-memory", 4, "1Gi")
	})

	// An update replaces the exporters one after the other.
	for node := range gpuNodes {
		name := fmt.Sprintf("exporter-%d", node)
		c.kubectl(t, "delete", "pod", name, "--namespace", gpuNamespace)
		g.exporters[name].Close()
		g.startExporter(t, node, name+"-new")
		g.awaitUsage(t, "gpu-pods", "nvidia.com/gpu", 4, "500m")
	}
	g.load.Store(180) // within the tolerance of the autoscaler
	g.awaitGPUs(t, 4, "450m")

	before := time.Now()
	g.hang.Store(true)
	each(t, gpuAutoscalings(), func(t *testing.T, a autoscaling) { g.awaitExpiry(t, a.namespace, before) })
	g.checkReplicas(t, 4)
	c.awaitQueries(t, isDeviceQuery)
	g.hang.Store(false)
	g.awaitGPUs(t, 4, "450m")
	g.checkReplicas(t, 4)
}

// startGPUs starts a cluster whose nodes have GPUs and exporters, and installs kube-vitals.
func startGPUs(t *testing.T) *gpus {
	t.Helper()
	g := &gpus{
		c: startBare(t, cluster.Config{Nodes: simulation.Nodes(gpuNodes)}), port: freePort(t),
		exporters: map[string]*http.Server{},
	}
	t.Cleanup(g.close)
	g.c.createNamespaces(t, gpuNamespace)
	for node := range gpuNodes {
		g.c.kubectl(t, "patch", "node", nodeName(node), "--subresource=status", "--type=merge", "--patch", fmt.Sprintf(
			`{"status": {"capacity": {"nvidia.com/gpu": "%d"}, "allocatable": {"nvidia.com/gpu": "%[1]d"}}}`, gpusOnNode))
		g.startExporter(t, node, fmt.Sprintf("exporter-%d", node))
	}
	exporter := "devices.exporters[0]."
	g.c.installWith(t, []string{exporter + "preset=dcgm",
		exporter + fmt.Sprint("port=", g.port), exporter + "interval=5s", exporter + "timeout=2s",
		"ephemeralStorage.enabled=true", "ephemeralStorage.interval=10s"})
	return g
}

func nodeName(i int) string { return simulation.Nodes(i + 1)[i].Name }

// startExporter starts an exporter of a node, and creates its pod.
func (g *gpus) startExporter(t *testing.T, node int, name string) {
	t.Helper()
	object, err := g.c.Client.CoreV1().Nodes().Get(t.Context(), nodeName(node), metav1.GetOptions{})
	must(t, err)
	listener, err := net.Listen("tcp", net.JoinHostPort(object.Status.Addresses[0].Address, fmt.Sprint(g.port)))
	must(t, err)
	server := &http.Server{
		ReadHeaderTimeout: timeout,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if g.hang.Load() {
				<-r.Context().Done()
				return
			}
			if r.Header.Get("Authorization") != "" {
				t.Error("the exporter received credentials")
			}
			if err := g.write(r.Context(), w, object.Name); err != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}),
	}
	go server.Serve(listener)
	g.exporters[name] = server
	manifest := strings.NewReplacer("NAME", name, "NODE", object.Name, "PORT", fmt.Sprint(g.port)).Replace(gpuExporter)
	must(t, g.c.Apply(t.Context(), manifest))
}

func (g *gpus) close() {
	for _, server := range g.exporters {
		server.Close()
	}
}

// write writes the response of a node's exporter. The pods of a Deployment share its load.
func (g *gpus) write(ctx context.Context, w io.Writer, node string) error {
	pods, err := g.c.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		return err
	}
	replicas := map[string]uint64{}
	var users []*corev1.Pod
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
			continue
		}
		replicas[pod.Namespace]++
		if pod.Spec.NodeName == node {
			users = append(users, pod)
		}
	}
	series := func(name string, value func(*corev1.Pod) uint64, idle string) {
		fmt.Fprintf(w, "# HELP %s A field of DCGM.\n# TYPE %[1]s gauge\n", name)
		for gpu := range gpusOnNode {
			labels := fmt.Sprintf(`gpu="%d",UUID="GPU-%[1]d",device="nvidia%[1]d",modelName="NVIDIA H100 80GB HBM3",`+
				`Hostname="%s",DCGM_FI_DRIVER_VERSION="550.90.07"`, gpu, node)
			if gpu >= len(users) {
				fmt.Fprintf(w, "%s{%s} %s\n", name, labels, idle)
				continue
			}
			pod := users[gpu]
			fmt.Fprintf(w, "%s{%s,container=\"app\",namespace=\"%s\",pod=\"%s\"} %d\n", name, labels, pod.Namespace, pod.Name,
				value(pod))
		}
	}
	series("DCGM_FI_DEV_GPU_UTIL", func(p *corev1.Pod) uint64 {
		return min(g.load.Load()/replicas[p.Namespace], 100)
	}, "0")
	series("DCGM_FI_DEV_SM_CLOCK", func(*corev1.Pod) uint64 { return 1980 }, "345")
	series("DCGM_FI_DEV_FB_USED", func(*corev1.Pod) uint64 { return 1024 }, "8")
	return nil
}

// usage returns the metrics of the pods in a namespace, in JSON.
func (g *gpus) usage(ctx context.Context, namespace string) ([]metricsv1beta1.PodMetrics, error) {
	body, err := g.c.get(ctx, cluster.V1beta1+"/namespaces/"+namespace+"/pods")
	var list metricsv1beta1.PodMetricsList
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err == nil && len(list.Items) == 0 {
		err = errors.New("no pod has metrics")
	}
	return list.Items, err
}

// awaitGPUs waits until all pods have a utilization of their GPU.
func (g *gpus) awaitGPUs(t *testing.T, pods int, want string) {
	t.Helper()
	each(t, gpuAutoscalings(), func(t *testing.T, a autoscaling) {
		g.awaitUsage(t, a.namespace, "nvidia.com/gpu", pods, want)
	})
}

// awaitExpiry waits until no pod has the utilization of a GPU. The metrics of CPU and memory are newer
// than the given time.
func (g *gpus) awaitExpiry(t *testing.T, namespace string, than time.Time) {
	t.Helper()
	eventually(t, "expired values of GPUs in "+namespace, func(ctx context.Context) error {
		pods, err := g.usage(ctx, namespace)
		for i := range pods {
			if err := checkCPU(&pods[i]); err != nil {
				t.Error(err)
			}
			if _, ok := pods[i].Containers[0].Usage["nvidia.com/gpu"]; ok || !pods[i].Timestamp.After(than) {
				return fmt.Errorf("pod %s has at %v %v", pods[i].Name, pods[i].Timestamp, pods[i].Containers)
			}
		}
		return err
	})
}

// awaitUsage waits until each pod has the usage of a device in the container app, and 0 in proxy.
func (g *gpus) awaitUsage(t *testing.T, namespace, resource string, pods int, want string) {
	t.Helper()
	eventually(t, resource+" in "+namespace, func(ctx context.Context) error {
		list, err := g.usage(ctx, namespace)
		if err != nil {
			return err
		}
		for i := range list {
			if err := checkCPU(&list[i]); err != nil {
				return err
			}
			for _, container := range list[i].Containers {
				value, ok := container.Usage[corev1.ResourceName(resource)]
				if ok && (container.Name == "app" && value.String() == want || container.Name == "proxy" && value.IsZero()) {
					continue
				}
				return fmt.Errorf("pod %s, container %s: got %v, want %s", list[i].Name, container.Name, container.Usage, want)
			}
		}
		if len(list) != pods {
			return fmt.Errorf("%d pods have metrics, want %d", len(list), pods)
		}
		return nil
	})
}

// checkCPU checks the CPU and memory of a pod's containers.
func checkCPU(pod *metricsv1beta1.PodMetrics) error {
	for _, container := range pod.Containers {
		cpu, memory := container.Usage.Cpu().MilliValue(), container.Usage.Memory().String()
		if cpu < 95 || cpu > 105 || memory != "64Mi" {
			return fmt.Errorf("pod %s, container %s: got %v", pod.Name, container.Name, container.Usage)
		}
	}
	return nil
}

// checkReplicas checks the number of replicas of all Deployments.
func (g *gpus) checkReplicas(t *testing.T, want int) {
	t.Helper()
	for _, a := range gpuAutoscalings() {
		got := g.c.kubectl(t, "get", "deployment", "web", "--namespace", a.namespace, "--output=jsonpath={.spec.replicas}")
		if got != fmt.Sprint(want) {
			t.Errorf("%s: got %s replicas, want %d", a.namespace, got, want)
		}
	}
}
