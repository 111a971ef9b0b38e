package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// TestVictoriaMetrics does the same as TestPrometheus with VictoriaMetrics, which scrapes the
// simulated kubelets, too.
func TestVictoriaMetrics(t *testing.T) {
	t.Parallel()
	binary := victoriaMetricsBinary(t)
	c := newEngineCluster(t)
	start := func() {
		c.startEngine(t, process.Config{Path: binary, Args: []string{
			"-promscrape.config=" + c.writeScrapeConfig(t, "/metrics/resource"),
			"-storageDataPath=" + c.File("victoria-metrics"),
			fmt.Sprintf("-httpListenAddr=127.0.0.1:%d", c.port), "-retentionPeriod=1d", "-memory.allowedBytes=256MB",
		}}, "/health")
	}
	start()
	c.installWith(t, c.values())
	c.checkEngine(t)
	c.checkOutage(t, func() {}, start)
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
