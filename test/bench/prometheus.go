package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
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

	onRequest         bool    // the server queries Prometheus for each request
	coresAlone, cores float64 // without the server, and with the server but without requests
	rss, peak         float64 // with the server
	rssRequests       float64 // after the requests to the server
	refreshes         refreshes
}

// useEngine returns the flags of a server that reads its metrics from Prometheus, which is started if
// it does not run. The second server does so if it is prometheus-adapter.
func (c *cost) useEngine(ctx context.Context, executable string, first bool) (flags []string, err error) {
	adapter, err := cluster.IsPrometheusAdapter(executable)
	switch {
	case err != nil:
		return nil, err
	case adapter && c.prometheus == "":
		return nil, fmt.Errorf("%s is prometheus-adapter, which needs -prometheus", executable)
	case c.prometheus == "" || !first && !adapter:
		c.stopEngine() // this server must not share the machine with it
		return nil, nil
	case c.shared == nil:
		if c.shared, err = c.startEngine(ctx); err != nil {
			return nil, err
		}
	}
	c.engine = &engine{
		process: c.shared.process, url: c.shared.url, coresAlone: c.shared.coresAlone, onRequest: adapter,
	}
	flags = []string{"--prometheus-url=" + c.engine.url}
	if !adapter {
		c.name += " " + cluster.SourcePrometheus
		return append(flags, cluster.SourcePrometheus), nil
	}
	rules := c.cluster.File("adapter.yaml")
	return append(flags, "--config="+rules), os.WriteFile(rules, []byte(cluster.AdapterRules), 0o600)
}

func (b *bench) stopEngine() {
	if b.shared != nil {
		b.shared.process.Kill()
		b.shared = nil
	}
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
	return json.Marshal(map[string]any{"scrape_configs": []map[string]any{b.scrapeConfig()}})
}

// scrapeConfig returns the job that scrapes all kubelets.
func (b *bench) scrapeConfig() map[string]any {
	targets := make([]map[string]any, b.nodes)
	for i := range targets {
		targets[i] = map[string]any{
			"targets": []string{fmt.Sprintf("%s:%d", kubelettest.Address(i), b.kubeletPort)},
			"labels":  map[string]string{"node": objects.NodeName(i)},
		}
	}
	return map[string]any{
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
	}
}

// measure measures Prometheus while the server is measured by f.
func (e *engine) measure(f func() error) error {
	cpu, elapsed, err := cpuTime(e.process, f)
	if err != nil {
		return errors.Join(err, e.process.Running())
	}
	e.cores = cpu.Seconds() / elapsed.Seconds()
	if e.rss, err = e.memory(); err != nil {
		return err
	}
	peak, err := process.PeakResident(e.process.PID())
	e.peak = float64(peak) / (1 << 20)
	return err
}

// memory returns the resident memory of Prometheus.
func (e *engine) memory() (rss float64, err error) {
	total, err := process.Resident(e.process.PID())
	return float64(total) / (1 << 20), err
}

// refreshes are all refreshes of a server since its start, and how long they took in total.
type refreshes struct{ number, failed, seconds float64 }

// mean returns the mean duration in milliseconds.
func (r refreshes) mean() float64 { return 1e3 * r.seconds / max(r.number, 1) }

// refreshes returns zeros for a server that is not kube-vitals.
func (c *cost) refreshes(ctx context.Context) (r refreshes, err error) {
	const duration = "kube_vitals_engine_refresh_duration_seconds"
	var succeeded float64
	for name, value := range map[string]*float64{
		duration + "_sum": &r.seconds, duration + "_count": &r.number,
		`kube_vitals_engine_refreshes_total{reason="",result="success"}`: &succeeded,
	} {
		if *value, err = c.readMetric(ctx, name); err != nil {
			return r, err
		}
	}
	r.failed = r.number - succeeded
	return r, nil
}
