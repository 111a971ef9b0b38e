package e2e

import (
	"fmt"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// TestVictoriaMetrics does the same as TestPrometheus with VictoriaMetrics, which scrapes the
// simulated kubelets, too.
func TestVictoriaMetrics(t *testing.T) {
	t.Parallel()
	binary := engineBinary(t, "victoria-metrics")
	c := newEngineCluster(t, "victoria-metrics")
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
