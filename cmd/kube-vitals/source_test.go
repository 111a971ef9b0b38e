package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSource(t *testing.T) {
	c, err := parse()
	if err != nil || c.Prometheus != nil {
		t.Fatalf("by default: got %+v, %v, want kubelets", c.Prometheus, err)
	}
	c, err = parse("--source=prometheus", "--prometheus-url=http://p:9090", "--prometheus-config=f", "--node-selector=a=b",
		"--missing-metrics-warnings", "--node-events", "--deployment=d")
	if err != nil || c.Prometheus == nil || c.Prometheus.URL != "http://p:9090" || c.Prometheus.File != "f" ||
		c.MaxSampleAge != 150*time.Second || c.RateWindow != 0 || !c.MissingMetricsWarnings || c.EventDeployment != "d" {
		t.Errorf("got %+v, maximum age %v, %v", c.Prometheus, c.MaxSampleAge, err)
	}
}

func TestSourceErrors(t *testing.T) {
	checkErrors(t, map[string][]string{
		"--source=x":                {`--source is "x", but must be kubelet or prometheus`},
		"--source=prometheus":       {"--prometheus-url is required"},
		"--prometheus-url=http://p": {"--prometheus-url has no effect without --source=prometheus"},
		"--prometheus-config=f":     {"--prometheus-config has no effect"},
		"--source=prometheus --prometheus-url=http://p --max-sample-age=35s": {"--max-sample-age must be at least 40s"},
		"--source=prometheus --prometheus-url=http://p --rate-window=15s": {
			"--rate-window has no effect with --source=prometheus, which does not connect to kubelets: remove it"},
		"--source=prometheus --prometheus-url=p:9090 --kubelet-port=1 --kubelet-insecure-tls": {
			"--prometheus-url: it must start with http://", "--kubelet-port has no effect with --source=prometheus",
			"--kubelet-insecure-tls has no effect"},
	})
}

func TestPrometheusFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("preset: x\ntimeout: 2h\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := parsed(t, "--source=prometheus", "--prometheus-url=http://p", "--prometheus-config="+file)
	o.checkFiles()
	text := fmt.Sprint(o.errs)
	for _, want := range []string{"--prometheus-config: " + file, `preset is "x"`, "timeout is 2h"} {
		if !strings.Contains(text, want) {
			t.Errorf("got %s, want %q", text, want)
		}
	}
}
