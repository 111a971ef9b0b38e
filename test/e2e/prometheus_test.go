package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// prometheusNodes are the nodes of the cluster whose kubelets a real Prometheus scrapes.
const prometheusNodes = 3

// TestPrometheus reads the metrics of a cluster through a real Prometheus that scrapes the simulated
// kubelets: kubectl top, agreement with a server that scrapes the same kubelets, pods that come and
// go, the real HorizontalPodAutoscaler, an outage of Prometheus, and the series of /metrics/cadvisor.
// The outage must not change the number of replicas, and all tools must name it.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	c := newPrometheusCluster(t)
	c.checkEngine(t)
	for _, a := range autoscalings() {
		c.createNamespaces(t, a.namespace)
	}
	concurrently(t, map[string]func(*testing.T){
		"node without series": c.testNodeWithoutSeries,
		"scale up": func(t *testing.T) {
			each(t, autoscalings(), func(t *testing.T, a autoscaling) {
				a.create(t, c.testCluster)
				a.awaitReplicas(t, c.testCluster, a.idle, 1)
				a.awaitReplicas(t, c.testCluster, a.busy, 4)
				a.awaitEqualUsage(t, c.testCluster, 4)
			})
		},
	})
	if t.Failed() {
		return
	}
	c.checkOutage(t, func() {
		each(t, autoscalings(), func(t *testing.T, a autoscaling) {
			a.setLoad(t, c.testCluster, a.idle) // the metrics that stand do not have it
			a.awaitInactive(t, c.testCluster, 4)
		})
		c.checkDiagnosis(t)
	}, func() { c.startPrometheus(t) })
	c.checkRecovery(t)
	each(t, autoscalings(), func(t *testing.T, a autoscaling) {
		a.awaitReplicas(t, c.testCluster, a.idle, 1)
		a.checkRescales(t, c.testCluster)
	})
	t.Run("queries of the dashboard and the alerts", func(t *testing.T) { c.awaitQueries(t, isEngineQuery) })
	t.Run("cadvisor", c.testCadvisor)
}

const cartPath = cluster.V1beta1 + "/namespaces/shop/pods/cart"

// checkEngine tests a cluster whose metrics come from an engine.
func (c *prometheusCluster) checkEngine(t *testing.T) {
	t.Helper()
	c.createNamespaces(t, "shop", "depot")
	c.createPods(t, "shop", "node-01", "cart", "web")
	c.createPods(t, "depot", "node-02", "search")

	t.Run("kubectl top", func(t *testing.T) {
		c.awaitOutput(t, hasRows("cart main 250m 100Mi", "cart side 0m 8Mi", "web main 250m 100Mi", "web side 0m 8Mi"),
			"top", "pods", "--namespace=shop", "--containers", "--no-headers")
		// 100m and 512 MiB without pods; 3 nodes of 8 cores and 32 GiB.
		c.awaitOutput(t, hasRows("node-01 600m 7% 728Mi 2%", "node-02 350m 4% 620Mi 1%", "node-03 100m 1% 512Mi 1%"),
			"top", "nodes", "--no-headers")
	})
	t.Run("agreement with kubelets", func(t *testing.T) { c.checkAgreement(t, true) })
	t.Run("deleted pod", func(t *testing.T) {
		c.kubectl(t, "delete", "pod", "web", "--namespace=shop", "--grace-period=0", "--force")
		c.awaitOutput(t, hasRows("cart 250m 108Mi"), "top", "pods", "--namespace=shop", "--no-headers")
	})
}

// checkOutage kills the engine and starts it again: metrics stand until they expire, and come back.
func (c *prometheusCluster) checkOutage(t *testing.T, during, restart func()) {
	t.Helper()
	c.prometheus.Kill()
	eventually(t, "a failed refresh", func(ctx context.Context) error {
		if _, err := c.get(ctx, cartPath); err != nil {
			return fmt.Errorf("metrics must stand until they expire: %w", err)
		}
		if !strings.Contains(c.server.Tail(), `reason="connect-refused"`) {
			return errors.New("not logged yet")
		}
		return nil
	})
	during()
	before, err := c.server.Log() // may have a recovery already
	must(t, err)
	restart()
	eventually(t, "a recovery in the log", func(context.Context) error {
		log, err := c.server.Log()
		if err == nil && !strings.Contains(strings.TrimPrefix(log, before), "The engine can be read again") {
			err = errors.New("not logged yet")
		}
		return err
	})
	c.awaitOutput(t, has("cart"), "top", "pod", "cart", "--namespace=shop")
}

// prometheusCluster is a cluster with a Prometheus.
type prometheusCluster struct {
	*testCluster
	prometheus *process.Process
	port       int
}

func newPrometheusCluster(t *testing.T) *prometheusCluster {
	t.Helper()
	c := newEngineCluster(t, "prometheus")
	c.startPrometheus(t)
	c.installWith(t, c.values())
	return c
}

// newEngineCluster starts a cluster for an engine. It skips the test if the engine's program is missing.
func newEngineCluster(t *testing.T, program string) *prometheusCluster {
	t.Helper()
	engineBinary(t, program)
	base := startBare(t, cluster.Config{Nodes: simulation.Nodes(prometheusNodes)})
	return &prometheusCluster{testCluster: base, port: freePort(t)}
}

// values returns the values of the chart that make kube-vitals read the engine.
func (c *prometheusCluster) values() []string {
	return []string{"source.type=prometheus", fmt.Sprintf("source.prometheus.url=http://127.0.0.1:%d", c.port),
		"source.prometheus.config.labels.node={node}"}
}

// writeScrapeConfig writes the configuration of an engine that scrapes paths of the kubelets as an
// administrator. It returns the name of the file.
func (c *prometheusCluster) writeScrapeConfig(t *testing.T, paths ...string) string {
	t.Helper()
	nodes, err := c.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	var targets, jobs []map[string]any
	for i := range nodes.Items {
		n := &nodes.Items[i]
		address := fmt.Sprintf("%s:%d", n.Status.Addresses[0].Address, n.Status.DaemonEndpoints.KubeletEndpoint.Port)
		targets = append(targets, map[string]any{
			"targets": []string{address}, "labels": map[string]string{"node": n.Name},
		})
	}
	for _, path := range paths {
		jobs = append(jobs, map[string]any{
			"job_name": filepath.Base(path), "scheme": "https", "metrics_path": path, "static_configs": targets,
			"tls_config":    map[string]any{"ca_file": c.File("ca.crt")},
			"authorization": map[string]any{"credentials": c.REST.BearerToken},
		})
	}
	config, err := json.Marshal(map[string]any{
		"global": map[string]any{"scrape_interval": "3s", "scrape_timeout": "3s"}, "scrape_configs": jobs,
	})
	must(t, err)
	file := c.File("prometheus.yaml") // YAML includes JSON
	must(t, os.WriteFile(file, config, 0o600))
	return file
}

// engineBinary returns the path of an engine in PATH, where the Makefile puts the program of Debian's
// package. It skips the test if there is none. CI must have it.
func engineBinary(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatalf("%v: install it with apt-get install %s", err, program)
	default:
		t.Skipf("%v: run make deps, or install it with apt-get install %s", err, program)
	}
	path, err = filepath.Abs(path)
	must(t, err)
	return path
}

// startPrometheus starts Prometheus, and waits until it is ready.
func (c *prometheusCluster) startPrometheus(t *testing.T) {
	t.Helper()
	c.startEngine(t, process.Config{Path: engineBinary(t, "prometheus"), Args: []string{
		"--config.file=" + c.writeScrapeConfig(t, "/metrics/resource"), "--storage.tsdb.path=" + c.File("tsdb"),
		fmt.Sprintf("--web.listen-address=127.0.0.1:%d", c.port),
	}}, "/-/ready")
}

// startEngine starts an engine, and waits until it is ready.
func (c *prometheusCluster) startEngine(t *testing.T, config process.Config, readyPath string) {
	t.Helper()
	config.Log = c.File("engine.log")
	var err error
	c.prometheus, err = process.Start(config)
	must(t, err)
	t.Cleanup(c.prometheus.Kill)
	url := fmt.Sprintf("http://127.0.0.1:%d%s", c.port, readyPath)
	must(t, c.prometheus.Poll(t.Context(), timeout, "the engine to be ready", func(ctx context.Context) error {
		_, _, err := cluster.Get(ctx, http.DefaultClient, url, "*/*")
		return err
	}))
}

// checkAgreement compares the metrics from Prometheus with those of another server that scrapes the
// kubelets: they must agree within 1 %. Some presets have no swap.
func (c *prometheusCluster) checkAgreement(t *testing.T, hasSwap bool) {
	t.Helper()
	binary, err := c.KubeVitals()
	must(t, err)
	direct, err := c.StartStandalone(binary, 5*time.Second)
	must(t, err)
	t.Cleanup(direct.Process.Kill)
	eventually(t, "both sources to agree", func(ctx context.Context) error {
		const pods, nodes = cluster.V1beta1 + "/pods", cluster.V1beta1 + "/nodes"
		wantPods, podsErr := cluster.GetObject[metricsv1beta1.PodMetricsList](ctx, direct, pods, cluster.TypeJSON)
		wantNodes, nodesErr := cluster.GetObject[metricsv1beta1.NodeMetricsList](ctx, direct, nodes, cluster.TypeJSON)
		var gotPods metricsv1beta1.PodMetricsList
		var gotNodes metricsv1beta1.NodeMetricsList
		err := errors.Join(podsErr, nodesErr, c.decode(ctx, pods, &gotPods), c.decode(ctx, nodes, &gotNodes))
		if err != nil {
			return err
		}
		want, got := usages(wantPods, wantNodes), usages(&gotPods, &gotNodes)
		if !hasSwap {
			maps.DeleteFunc(want, func(name string, _ resource.Quantity) bool { return strings.HasSuffix(name, "/swap") })
		}
		if len(want) < 2*(3*2+prometheusNodes) {
			return fmt.Errorf("the server that scrapes kubelets has %d values only", len(want))
		}
		return compareUsages(got, want)
	})
}

func (c *prometheusCluster) decode(ctx context.Context, path string, into any) error {
	body, err := c.get(ctx, path)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// usages returns all values by their names.
func usages(pods *metricsv1beta1.PodMetricsList, nodes *metricsv1beta1.NodeMetricsList) map[string]resource.Quantity {
	all := map[string]resource.Quantity{}
	for i := range pods.Items {
		for _, c := range pods.Items[i].Containers {
			for name, q := range c.Usage {
				all[strings.Join([]string{pods.Items[i].Namespace, pods.Items[i].Name, c.Name, string(name)}, "/")] = q
			}
		}
	}
	for i := range nodes.Items {
		for name, q := range nodes.Items[i].Usage {
			all[nodes.Items[i].Name+"/"+string(name)] = q
		}
	}
	return all
}

// compareUsages returns the differences of more than 1 %.
func compareUsages(got, want map[string]resource.Quantity) error {
	var differences []error
	for name, w := range want {
		g, ok := got[name]
		if !ok {
			differences = append(differences, fmt.Errorf("%s is missing", name))
		} else if d := math.Abs(g.AsApproximateFloat64() - w.AsApproximateFloat64()); d > w.AsApproximateFloat64()/100 {
			differences = append(differences, fmt.Errorf("%s is %v, want %v", name, &g, &w))
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			differences = append(differences, fmt.Errorf("%s is only in the engine's metrics", name))
		}
	}
	return errors.Join(differences...)
}

// testCadvisor reads the series of the kubelets' /metrics/cadvisor from Prometheus: they must lead to
// the same metrics as /metrics/resource, also after a container has restarted. One pod is on node-02,
// whose kubelet reports sandboxes differently.
func (c *prometheusCluster) testCadvisor(t *testing.T) {
	c.writeScrapeConfig(t, "/metrics/resource", "/metrics/cadvisor")
	c.prometheus.Signal(syscall.SIGHUP) // it reads the file again
	c.createNamespaces(t, "attic")
	c.createPods(t, "attic", "node-01", "box")
	// The file is replaced while the server runs. Metrics without swap are those of the new preset.
	config := []byte("{preset: cadvisor, labels: {node: [node]}}")
	must(t, os.WriteFile(c.File(cluster.Release+"-prometheus-config.yaml"), config, 0o600))
	c.checkAgreement(t, false)
	c.Simulation.Kubelet("node-01").Restart("shop", "cart", "main")
	restarted := time.Now()
	eventually(t, "metrics of a restarted container", func(ctx context.Context) error {
		var pod metricsv1beta1.PodMetrics
		if err := c.decode(ctx, cartPath, &pod); err != nil {
			return err
		}
		for _, container := range pod.Containers {
			cores := container.Usage.Cpu().AsApproximateFloat64()
			if container.Name == "main" && math.Abs(cores-0.25) > 0.0025 { // before, at, and after the restart
				t.Errorf("got %v cores", cores)
			}
		}
		// A window that starts after the restart has nothing of the container that ended.
		if start := pod.Timestamp.Add(-pod.Window.Duration); len(pod.Containers) != 2 || start.Before(restarted) {
			return fmt.Errorf("got %d containers and the window from %v to %v, the restart was at %v", len(pod.Containers),
				start, pod.Timestamp, restarted)
		}
		return nil
	})
}
