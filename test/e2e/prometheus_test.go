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
	"path/filepath"
	"strings"
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
// go, an outage of Prometheus, and the series of /metrics/cadvisor.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	c := newPrometheusCluster(t)
	c.checkEngine(t, func() { c.startPrometheus(t) })
	t.Run("cadvisor", c.testCadvisor)
}

// checkEngine tests a cluster whose metrics come from an engine. restart starts the engine again
// after it was killed.
func (c *prometheusCluster) checkEngine(t *testing.T, restart func()) {
	t.Helper()
	c.createNamespaces(t, "shop", "depot")
	c.createPods(t, "shop", "node-01", "cart", "web")
	c.createPods(t, "depot", "node-02", "search")

	t.Run("kubectl top", func(t *testing.T) {
		pods := c.kubectl(t, "top", "pods", "--namespace=shop", "--containers", "--no-headers")
		t.Logf("kubectl top pods --containers:\n%s", pods)
		want := []string{"cart main 250m 100Mi", "cart side 0m 8Mi", "web main 250m 100Mi", "web side 0m 8Mi"}
		if !equalTables(pods, want) {
			t.Errorf("got\n%s\nwant\n%s", pods, strings.Join(want, "\n"))
		}
		eventually(t, "right metrics of nodes", func(ctx context.Context) error {
			nodes, err := c.Kubectl(ctx, "top", "nodes", "--no-headers")
			if err != nil {
				return err
			}
			// 100m and 512 MiB without pods; 3 nodes of 8 cores and 32 GiB.
			want := []string{"node-01 600m 7% 728Mi 2%", "node-02 350m 4% 620Mi 1%", "node-03 100m 1% 512Mi 1%"}
			if !equalTables(nodes, want) {
				return fmt.Errorf("got\n%s\nwant\n%s", nodes, strings.Join(want, "\n"))
			}
			t.Logf("kubectl top nodes:\n%s", nodes)
			return nil
		})
	})
	t.Run("agreement with kubelets", func(t *testing.T) { c.checkAgreement(t, true) })
	t.Run("deleted pod", func(t *testing.T) {
		c.kubectl(t, "delete", "pod", "web", "--namespace=shop", "--grace-period=0", "--force")
		eventually(t, "the metrics of the deleted pod to vanish", func(ctx context.Context) error {
			pods, err := c.Kubectl(ctx, "top", "pods", "--namespace=shop", "--no-headers")
			if err == nil && (strings.Contains(pods, "web") || !strings.Contains(pods, "cart")) {
				err = fmt.Errorf("got\n%s", pods)
			}
			return err
		})
	})
	t.Run("outage", func(t *testing.T) {
		c.prometheus.Kill()
		eventually(t, "a failed refresh", func(ctx context.Context) error {
			out, err := c.Kubectl(ctx, "get", "--raw", "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods/cart")
			if err != nil {
				return fmt.Errorf("metrics must stand until they expire: %w", err)
			}
			if !strings.Contains(c.server.Tail(), `reason="connect-refused"`) {
				return errors.New("not logged yet; " + out)
			}
			return nil
		})
		restart()
		eventually(t, "metrics from after the outage", func(ctx context.Context) error {
			if !strings.Contains(c.server.Tail(), "The engine can be read again") {
				return errors.New("not logged yet")
			}
			_, err := c.Kubectl(ctx, "top", "pod", "cart", "--namespace=shop")
			return err
		})
	})
}

// prometheusCluster is a cluster with a Prometheus.
type prometheusCluster struct {
	*testCluster
	prometheus *process.Process
	port       int
}

func newPrometheusCluster(t *testing.T) *prometheusCluster {
	t.Helper()
	if _, err := prometheusBinary(); err != nil {
		t.Fatal(err)
	}
	c := newEngineCluster(t)
	c.startPrometheus(t)
	c.installWithEngine(t)
	return c
}

// newEngineCluster starts a cluster for an engine.
func newEngineCluster(t *testing.T) *prometheusCluster {
	t.Helper()
	base := startBare(t, cluster.Config{Nodes: simulation.Nodes(prometheusNodes)})
	return &prometheusCluster{testCluster: base, port: freePort(t)}
}

// installWithEngine installs kube-vitals, which reads the engine.
func (c *prometheusCluster) installWithEngine(t *testing.T) {
	t.Helper()
	// In the chart's Secret; the process reads this copy.
	const config = "labels: {node: [node]}\n"
	if err := os.WriteFile(c.File("prometheus-config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c.installWith(t, []string{"source.type=prometheus",
		fmt.Sprintf("source.prometheus.url=http://127.0.0.1:%d", c.port), "source.prometheus.config.labels.node={node}"})
}

// prometheusBinary returns the path in the environment variable PROMETHEUS, which the Makefile sets.
func prometheusBinary() (string, error) {
	path := os.Getenv("PROMETHEUS")
	if path == "" {
		return "", errors.New("set PROMETHEUS to the path of the program prometheus, or run make e2e, which builds it")
	}
	return filepath.Abs(path)
}

// writeScrapeConfig writes the configuration of an engine that scrapes the kubelets as an
// administrator, and other targets. It returns the name of the file.
func (c *prometheusCluster) writeScrapeConfig(t *testing.T, others ...map[string]any) string {
	t.Helper()
	nodes, err := c.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var targets []map[string]any
	for i := range nodes.Items {
		n := &nodes.Items[i]
		targets = append(targets, map[string]any{
			"targets": []string{fmt.Sprintf("%s:%d", n.Status.Addresses[0].Address,
				n.Status.DaemonEndpoints.KubeletEndpoint.Port)},
			"labels": map[string]string{"node": n.Name},
		})
	}
	config, err := json.Marshal(map[string]any{
		"global": map[string]any{"scrape_interval": "3s", "scrape_timeout": "3s"},
		"scrape_configs": append(others, map[string]any{
			"job_name": "kubelet", "scheme": "https", "metrics_path": "/metrics/resource", "static_configs": targets,
			"tls_config":    map[string]any{"ca_file": c.File("ca.crt")},
			"authorization": map[string]any{"credentials": c.REST.BearerToken},
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	file := c.File("prometheus.yaml") // YAML includes JSON
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// startPrometheus starts Prometheus, and waits until it is ready.
func (c *prometheusCluster) startPrometheus(t *testing.T) {
	t.Helper()
	binary, err := prometheusBinary()
	if err != nil {
		t.Fatal(err)
	}
	c.startEngine(t, process.Config{Path: binary, Args: []string{
		"--config.file=" + c.writeScrapeConfig(t), "--storage.tsdb.path=" + c.File("tsdb"),
		fmt.Sprintf("--web.listen-address=127.0.0.1:%d", c.port),
	}}, "/-/ready")
}

// startEngine starts an engine, and waits until it is ready.
func (c *prometheusCluster) startEngine(t *testing.T, config process.Config, readyPath string) {
	t.Helper()
	config.Log = c.File("engine.log")
	var err error
	if c.prometheus, err = process.Start(config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.prometheus.Kill)
	url := fmt.Sprintf("http://127.0.0.1:%d%s", c.port, readyPath)
	err = c.prometheus.Poll(t.Context(), timeout, "the engine to be ready", func(ctx context.Context) error {
		_, _, err := cluster.Get(ctx, http.DefaultClient, url, "*/*")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkAgreement compares the metrics from Prometheus with those of another server that scrapes the
// kubelets: they must agree within 1 %. Some presets have no swap.
func (c *prometheusCluster) checkAgreement(t *testing.T, hasSwap bool) {
	t.Helper()
	binary, err := c.KubeVitals()
	if err != nil {
		t.Fatal(err)
	}
	direct, err := c.StartStandalone(binary, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(direct.Process.Kill)
	const pods, nodes = "/apis/metrics.k8s.io/v1beta1/pods", "/apis/metrics.k8s.io/v1beta1/nodes"
	eventually(t, "both sources to agree", func(ctx context.Context) error {
		wantPods, err := cluster.GetObject[metricsv1beta1.PodMetricsList](ctx, direct, pods, cluster.TypeJSON)
		if err != nil {
			return err
		}
		wantNodes, err := cluster.GetObject[metricsv1beta1.NodeMetricsList](ctx, direct, nodes, cluster.TypeJSON)
		if err != nil {
			return err
		}
		var gotPods metricsv1beta1.PodMetricsList
		var gotNodes metricsv1beta1.NodeMetricsList
		if err := c.decode(ctx, pods, &gotPods); err != nil {
			return err
		}
		if err := c.decode(ctx, nodes, &gotNodes); err != nil {
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
