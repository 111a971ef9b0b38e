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

// measureScaleAgent measures a Prometheus in agent mode: it scrapes the same metrics of all kubelets
// at the same interval, with a token and verified TLS, keeps no samples and sends them to a receiver,
// which discards them.
func measureScaleAgent(ctx context.Context, b *bench, executable string, _ []string, row *scaleRow) error {
	row.Server += "-agent"
	received := newReceiver()
	defer received.Close()
	e, err := b.startAgent(ctx, executable, received.URL)
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
	series, err := e.readMetric(ctx, "prometheus_agent_active_series")
	if err != nil {
		return err
	}
	if want := float64(3*row.Nodes + 4*row.Containers); series < want || received.requests.Load() == 0 {
		return fmt.Errorf("%.0f active series and %d requests to the receiver, want at least %.0f and 1: %w",
			series, received.requests.Load(), want, errors.New("scrapes fail"))
	}
	goroutines, err := e.readMetric(ctx, "go_goroutines")
	row.Goroutines = int(goroutines)
	return err
}

// startAgent starts a Prometheus in agent mode that writes to a URL.
func (b *bench) startAgent(ctx context.Context, executable, writeTo string) (*engine, error) {
	ports, err := cluster.FreePorts(1)
	if err != nil {
		return nil, err
	}
	token, config := b.cluster.File("agent-token"), b.cluster.File("agent.yaml")
	if err := os.WriteFile(token, []byte(b.cluster.REST.BearerToken), 0o600); err != nil {
		return nil, err
	}
	job := b.scrapeConfig()
	job["authorization"] = map[string]any{"credentials_file": token}
	text, err := json.Marshal(map[string]any{
		"scrape_configs": []map[string]any{job}, "remote_write": []map[string]any{{"url": writeTo}},
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(config, text, 0o600); err != nil { // YAML includes JSON
		return nil, err
	}
	logf("starting %s as an agent", executable)
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	e := &engine{url: "http://" + address}
	e.process, err = b.cluster.StartProcess(executable, "--agent", "--config.file="+config,
		"--storage.agent.path="+b.cluster.File("agent"), "--web.listen-address="+address)
	if err != nil {
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
