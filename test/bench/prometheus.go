package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// engineStartTimeout bounds the time until Prometheus is ready.
const engineStartTimeout = time.Minute

// engine is a Prometheus that scrapes all kubelets, and what it costs in cores and MiB.
type engine struct {
	process *process.Process
	url     string

	coresAlone, cores float64 // without and with the queries of the server
	rss, peak         float64 // with them
	refresh           float64 // mean duration of a refresh of the server in milliseconds
}

// startEngine starts Prometheus, waits until it has samples, and measures what it costs to scrape.
func (b *bench) startEngine(ctx context.Context) (*engine, error) {
	ports, err := cluster.FreePorts(1)
	if err != nil {
		return nil, err
	}
	config, err := b.engineConfig()
	if err != nil {
		return nil, err
	}
	file := b.cluster.File("prometheus.yaml") // YAML includes JSON
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	logf("starting %s", b.prometheus)
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	e := &engine{url: "http://" + address}
	e.process, err = b.cluster.StartProcess(b.prometheus, "--config.file="+file,
		"--storage.tsdb.path="+b.cluster.File("tsdb"), "--web.listen-address="+address)
	if err != nil {
		return nil, err
	}
	if err := e.process.Poll(ctx, engineStartTimeout, "Prometheus to be ready", e.isReady); err != nil {
		return nil, err
	}
	logf("waiting for the samples of three intervals")
	if err := sleep(ctx, 3*b.resolution); err != nil {
		return nil, err
	}
	logf("measuring %d intervals of Prometheus without queries", b.rounds)
	var cores []float64
	for range b.rounds {
		cpu, elapsed, err := cpuTime(e.process, func() error { return sleep(ctx, b.resolution) })
		if err != nil {
			return nil, errors.Join(err, e.process.Running())
		}
		cores = append(cores, cpu.Seconds()/elapsed.Seconds())
	}
	e.coresAlone = median(cores)
	return e, nil
}

// isReady returns nil if Prometheus is ready.
func (e *engine) isReady(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+"/-/ready", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// engineConfig returns the configuration that docs/prometheus.md recommends.
func (b *bench) engineConfig() ([]byte, error) {
	targets := make([]map[string]any, b.nodes)
	for i := range targets {
		targets[i] = map[string]any{
			"targets": []string{fmt.Sprintf("%s:%d", kubelettest.Address(i), b.kubeletPort)},
			"labels":  map[string]string{"node": objects.NodeName(i)},
		}
	}
	return json.Marshal(map[string]any{
		"scrape_configs": []map[string]any{{
			"job_name": "kubelet-resource", "scheme": "https", "metrics_path": kubelettest.ResourcePath,
			"scrape_interval": b.resolution.String(), "scrape_timeout": min(b.resolution, 10*time.Second).String(),
			"tls_config":     map[string]any{"ca_file": b.cluster.File(cluster.KubeletCAFile)},
			"static_configs": targets,
			"metric_relabel_configs": []map[string]any{{
				"source_labels": []string{"__name__"}, "action": "keep",
				"regex": "container_cpu_usage_seconds_total|container_memory_working_set_bytes|" +
					"container_start_time_seconds|container_swap_usage_bytes|node_cpu_usage_seconds_total|" +
					"node_memory_working_set_bytes|node_swap_usage_bytes",
			}},
		}},
	})
}

// measure measures Prometheus while the server is measured by f.
func (e *engine) measure(ctx context.Context, c *cost, f func() error) error {
	sumBefore, countBefore, err := c.refreshes(ctx)
	if err != nil {
		return err
	}
	cpu, elapsed, err := cpuTime(e.process, f)
	if err != nil {
		return errors.Join(err, e.process.Running())
	}
	sum, count, err := c.refreshes(ctx)
	if err != nil {
		return err
	}
	if count > countBefore {
		e.refresh = 1e3 * (sum - sumBefore) / (count - countBefore)
	}
	e.cores = cpu.Seconds() / elapsed.Seconds()
	rss, err := process.Resident(e.process.PID())
	if err != nil {
		return err
	}
	peak, err := process.PeakResident(e.process.PID())
	e.rss, e.peak = float64(rss)/(1<<20), float64(peak)/(1<<20)
	return err
}

// refreshes returns the duration of all refreshes of the server in seconds, and their number.
func (c *cost) refreshes(ctx context.Context) (sum, count float64, err error) {
	const name = "kube_vitals_engine_refresh_duration_seconds"
	if sum, err = c.readMetric(ctx, name+"_sum"); err == nil {
		count, err = c.readMetric(ctx, name+"_count")
	}
	return sum, count, err
}
