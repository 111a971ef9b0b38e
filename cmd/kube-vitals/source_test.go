package main

import (
	"testing"
	"time"
)

func TestSource(t *testing.T) {
	c, err := parse()
	if err != nil || c.Prometheus != nil || c.Devices != nil {
		t.Fatalf("by default: got %+v, %+v, %v, want kubelets", c.Prometheus, c.Devices, err)
	}
	c, err = parse("--source=prometheus", "--prometheus-url=http://p:9090", "--prometheus-config=f", "--node-selector=a=b",
		"--missing-metrics-warnings", "--node-events", "--deployment=d", "--device-config=g")
	if err != nil || c.Prometheus == nil || c.Prometheus.URL != "http://p:9090" || c.Prometheus.File != "f" ||
		c.MaxSampleAge != 150*time.Second || c.RateWindow != 0 || !c.MissingMetricsWarnings || c.EventDeployment != "d" ||
		c.Devices == nil || c.Devices.File != "g" {
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
