package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// TestVictoriaMetrics does the same as TestPrometheus with VictoriaMetrics, which scrapes the
// simulated kubelets and a node-exporter, too.
func TestVictoriaMetrics(t *testing.T) {
	t.Parallel()
	binary := victoriaMetricsBinary(t)
	c := newEngineCluster(t)
	exporter := c.startNodeExporter(t)
	start := func() {
		c.startEngine(t, process.Config{Path: binary, Args: []string{
			"-promscrape.config=" + c.writeScrapeConfig(t, exporter), "-storageDataPath=" + c.File("victoria-metrics"),
			fmt.Sprintf("-httpListenAddr=127.0.0.1:%d", c.port), "-retentionPeriod=1d", "-memory.allowedBytes=256MB",
		}}, "/health")
	}
	start()
	c.installWithEngine(t)
	c.checkEngine(t, start)

	t.Run("node-exporter", func(t *testing.T) {
		// The file is replaced while the server runs.
		const config = "labels: {node: [node]}\nnodes: node-exporter\n"
		if err := os.WriteFile(c.File("prometheus-config.yaml"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the metrics of node-exporter", func(ctx context.Context) error {
			node, err := c.Kubectl(ctx, "top", "node", "node-03", "--no-headers")
			if err != nil {
				return err
			}
			if want := []string{"node-03 750m 9% 600Mi 1%"}; !equalTables(node, want) {
				return fmt.Errorf("got\n%s\nwant\n%s", node, strings.Join(want, "\n"))
			}
			t.Logf("kubectl top node: %s", node)
			return nil
		})
	})
}

// victoriaMetricsBinary returns the path in the environment variable VICTORIA_METRICS, which the
// Makefile sets, or that of the installed program. It skips the test if there is none. CI must have
// one.
func victoriaMetricsBinary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("VICTORIA_METRICS"); path != "" {
		return path
	}
	path, err := exec.LookPath("victoria-metrics")
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatal("no VictoriaMetrics: install it with apt-get install victoria-metrics")
	default:
		t.Skip("no VictoriaMetrics: run make e2e, or install it with apt-get install victoria-metrics")
	}
	return path
}

// startNodeExporter starts a node-exporter of node-03 that reports two CPUs with 750 millicores
// together, and returns the configuration for scraping it.
func (c *prometheusCluster) startNodeExporter(t *testing.T) map[string]any {
	t.Helper()
	started := time.Now()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		seconds := time.Since(started).Seconds()
		for mode, rate := range map[string]float64{"user": 0.25, "system": 0.125, "idle": 0.5, "iowait": 0.125} {
			for cpu := range 2 {
				fmt.Fprintf(w, "node_cpu_seconds_total{cpu=\"%d\",mode=\"%s\"} %f\n", cpu, mode, 1000+rate*seconds)
			}
		}
		fmt.Fprintf(w, "node_memory_MemTotal_bytes %d\nnode_memory_MemAvailable_bytes %d\n", 1000<<20, 400<<20)
	}))
	t.Cleanup(server.Close)
	return map[string]any{"job_name": "node-exporter", "static_configs": []map[string]any{{
		"targets": []string{server.Listener.Addr().String()}, "labels": map[string]string{"node": "node-03"},
	}}}
}
