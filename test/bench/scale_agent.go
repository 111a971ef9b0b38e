package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// agentProgram is what agents differ in.
type agentProgram struct {
	name string // in the CSV file
	args func(b *bench, sendTo, address string) []string
	// remoteWrite is whether the URL to send to is in the configuration.
	remoteWrite bool
	// scraped is the metric that shows that all kubelets are scraped, and its smallest value.
	scraped func(*scaleRow) (metric string, least float64)
}

// agentPrograms are the agents that can be measured, by the names of their programs.
func agentPrograms() map[string]agentProgram {
	return map[string]agentProgram{
		"prometheus": {
			name: "prometheus-agent",
			args: func(b *bench, _, address string) []string {
				return []string{
					"--agent", "--config.file=" + b.cluster.File(agentFile), "--storage.agent.path=" + b.cluster.File("agent"),
					"--web.listen-address=" + address,
				}
			},
			remoteWrite: true,
			scraped: func(r *scaleRow) (string, float64) {
				return "prometheus_agent_active_series", float64(3*r.Nodes + 4*r.Containers)
			},
		},
		"vmagent": {
			name: "vmagent",
			args: func(b *bench, sendTo, address string) []string {
				return []string{
					"-promscrape.config=" + b.cluster.File(agentFile), "-remoteWrite.tmpDataPath=" + b.cluster.File("vmagent"),
					"-remoteWrite.url=" + sendTo, "-httpListenAddr=" + address,
				}
			},
			scraped: func(r *scaleRow) (string, float64) {
				return `vm_promscrape_targets{type="static_configs", status="up"}`, float64(r.Nodes)
			},
		},
	}
}

// agentFile is the configuration of an agent.
const agentFile = "agent.yaml"

// measureScaleAgent measures a Prometheus in agent mode, or vmagent: it scrapes the same metrics of
// all kubelets at the same interval, with a token and verified TLS, keeps no samples and sends them
// to a receiver, which discards them.
func measureScaleAgent(ctx context.Context, b *bench, executable string, _ []string, row *scaleRow) error {
	program, known := agentPrograms()[row.Server]
	if !known {
		return errors.New("is neither prometheus nor vmagent")
	}
	row.Server = program.name
	received := newReceiver()
	defer received.Close()
	e, err := b.startAgent(ctx, program, executable, received.URL)
	if err != nil {
		return err
	}
	defer e.process.Kill()
	logf("waiting for a steady state")
	if err := sleep(ctx, 3*b.resolution); err != nil {
		return err
	}
	logf("measuring %d intervals", b.rounds)
	pid := e.process.PID()
	row.Received, err = receivedPerSecond(pid, func() error {
		return e.measure(func() error { return sleep(ctx, time.Duration(b.rounds)*b.resolution) })
	})
	if err != nil {
		return err
	}
	row.RSS, row.CPU, row.Peak = e.rss, e.cores, e.peak
	if row.Descriptors, err = process.Descriptors(pid); err != nil {
		return err
	}
	metric, least := program.scraped(row)
	scraped, err := e.readMetric(ctx, metric)
	if err != nil {
		return err
	}
	if requests := received.requests.Load(); scraped < least || requests == 0 {
		return fmt.Errorf("does not scrape all kubelets: %s is %g instead of %g, and the receiver got %d requests",
			metric, scraped, least, requests)
	}
	goroutines, err := e.readMetric(ctx, "go_goroutines")
	row.Goroutines = int(goroutines)
	return err
}

// startAgent starts an agent that sends samples to a URL.
func (b *bench) startAgent(ctx context.Context, program agentProgram, executable, sendTo string) (*engine, error) {
	ports, err := cluster.FreePorts(1)
	if err != nil {
		return nil, err
	}
	token := b.cluster.File("agent-token")
	if err := os.WriteFile(token, []byte(b.cluster.REST.BearerToken), 0o600); err != nil {
		return nil, err
	}
	job := b.scrapeConfig()
	job["authorization"] = map[string]any{"credentials_file": token}
	config := map[string]any{"scrape_configs": []map[string]any{job}}
	if program.remoteWrite {
		config["remote_write"] = []map[string]any{{"url": sendTo}}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(b.cluster.File(agentFile), text, 0o600); err != nil { // YAML includes JSON
		return nil, err
	}
	logf("starting %s as an agent", executable)
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	e := &engine{url: "http://" + address}
	if e.process, err = b.cluster.StartProcess(executable, program.args(b, sendTo, address)...); err != nil {
		return nil, err
	}
	return e, e.process.Poll(ctx, engineStartTimeout, "the agent to be ready", e.isReady)
}

// readMetric returns the value of a metric of Prometheus itself.
func (e *engine) readMetric(ctx context.Context, name string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("%s/metrics has no %s", e.url, name)
}

// receiver accepts remote writes and discards them.
type receiver struct {
	*httptest.Server
	requests atomic.Int64
}

func newReceiver() *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if _, err := io.Copy(io.Discard, request.Body); err == nil {
			r.requests.Add(1)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	return r
}
