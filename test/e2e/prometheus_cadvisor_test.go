package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"syscall"
	"testing"
	"time"

	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// testCadvisor reads the series of the kubelets' /metrics/cadvisor from Prometheus: they must lead to
// the same metrics as /metrics/resource, also after a container has restarted. One pod is on node-02,
// whose kubelet reports sandboxes differently.
func (c *prometheusCluster) testCadvisor(t *testing.T) {
	c.scrapeCadvisor(t)
	c.createNamespaces(t, "attic")
	c.createPods(t, "attic", "node-01", "box")
	// The file is replaced while the server runs. Metrics without swap are those of the new preset.
	const config = "{preset: cadvisor, labels: {node: [node]}}"
	if err := os.WriteFile(c.File("prometheus-config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c.checkAgreement(t, false)
	t.Logf("kubectl top pods --containers:\n%s", c.kubectl(t, "top", "pods", "--namespace=shop", "--containers"))

	c.Simulation.Kubelet("node-01").Restart("shop", "cart", "main")
	restarted := time.Now()
	eventually(t, "metrics of a restarted container", func(ctx context.Context) error {
		var pod metricsv1beta1.PodMetrics
		if err := c.decode(ctx, "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods/cart", &pod); err != nil {
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

// scrapeCadvisor makes Prometheus scrape /metrics/cadvisor of the kubelets too, so that it has the
// series of both presets.
func (c *prometheusCluster) scrapeCadvisor(t *testing.T) {
	t.Helper()
	file := c.File("prometheus.yaml")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Global json.RawMessage  `json:"global"`
		Jobs   []map[string]any `json:"scrape_configs"`
	}
	if err := json.Unmarshal(content, &config); err != nil {
		t.Fatal(err)
	}
	job := maps.Clone(config.Jobs[len(config.Jobs)-1])
	job["job_name"], job["metrics_path"] = "cadvisor", "/metrics/cadvisor"
	config.Jobs = append(config.Jobs, job)
	if content, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	c.prometheus.Signal(syscall.SIGHUP) // it reads the file again
}
