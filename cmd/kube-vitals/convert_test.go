package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"

	"github.com/kube-vitals/kube-vitals/pkg/prometheus"
)

// adapterConfig is a configuration of prometheus-adapter. FORM is replaced.
const adapterConfig = `
resourceRules:
  cpu:
    containerLabel: container
    containerQuery: sum by (<<.GroupBy>>) (irate(container_cpu_usage_seconds_total{<<.LabelMatchers>>,pod!=""}[4m]))
    nodeQuery: sum by (<<.GroupBy>>) (FORM(node_cpu_usage_seconds_total{<<.LabelMatchers>>}[4m]))
    resources: {template: <<.Resource>>}
  memory:
    containerLabel: container
    containerQuery: sum by (<<.GroupBy>>) (container_memory_working_set_bytes{<<.LabelMatchers>>})
    nodeQuery: sum by (<<.GroupBy>>) (node_memory_working_set_bytes{<<.LabelMatchers>>})
    resources: {template: <<.Resource>>}
  window: 5m
`

func TestConvert(t *testing.T) {
	equal := strings.ReplaceAll(adapterConfig, "FORM", "rate")
	different := strings.ReplaceAll(adapterConfig, "FORM", "deriv")
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(equal), 0o600); err != nil {
		t.Fatal(err)
	}
	const (
		nodes  = "\n  nodeCPU: node_cpu_usage_seconds_total\n"
		values = "source:\n  type: prometheus\n  prometheus:\n    url: http://engine:9090\n    config:\n" +
			"      preset: resource\n"
	)
	tests := []struct {
		args     []string
		in       string
		code     int
		out, err string // parts of the output and of the error
	}{
		{[]string{"--help"}, "", exitConverted, "convert-prometheus-adapter [flags] [FILE]", ""},
		{[]string{"--version"}, "", exitConverted, "kube-vitals v0.0.0-dev", ""},
		{[]string{"--unknown"}, "", exitNotConverted, "", "--help"},
		{[]string{"--output=json", file, "more"}, "", exitNotConverted, "",
			"--output must be config or helm, but is \"json\"\n" + `unexpected argument "more"`},
		{[]string{"--prometheus-url=http://engine:9090", file}, "", exitNotConverted, "", "no effect without --output=helm"},
		{[]string{"-o", "helm", "--prometheus-url=engine", file}, "", exitNotConverted, "", "it must start with http"},
		{[]string{"missing"}, "", exitNotConverted, "", "missing"},
		{[]string{file}, "", exitConverted, nodes, ""},
		{nil, equal, exitConverted, nodes, ""},
		{[]string{"-"}, equal, exitConverted, nodes, ""},
		{[]string{"-"}, different, exitDiffers, "nodeMemory: ", "differs: resourceRules.cpu.nodeQuery: deriv(S) has no"},
		{[]string{"-"}, "rules: []", exitNotConverted, "", "nothing to convert"},
		{[]string{"-"}, strings.Repeat("#", maxAdapterConfig+1), exitNotConverted, "", "more than 4194304 bytes"},
		{[]string{"-"}, strings.ReplaceAll(equal, "containerLabel: container", "containerLabel: a-b"), exitNotConverted, "",
			`not a valid configuration of kube-vitals: labels.container: "a-b" is not a name`},
		{[]string{"-o", "helm", "--prometheus-url=http://engine:9090", file}, "", exitConverted, values, ""},
	}
	for _, tt := range tests {
		var out, errOut bytes.Buffer
		code := runConvert(tt.args, strings.NewReader(tt.in), &out, &errOut)
		if code != tt.code || !strings.Contains(out.String(), tt.out) || !strings.Contains(errOut.String(), tt.err) ||
			(tt.out == "") != (out.Len() == 0) || (tt.err == "") != (errOut.Len() == 0) {
			t.Errorf("%q: got exit code %d, output\n%s\nerror\n%s", tt.args, code, &out, &errOut)
		}
	}
}

// TestOverlays checks the configurations in manifests/overlays.
func TestOverlays(t *testing.T) {
	files, err := filepath.Glob("../../manifests/overlays/*/values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("got %d files, error %v", len(files), err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var values struct {
			Source struct {
				Prometheus struct {
					URL    string        `yaml:"url"`
					Config yaml.MapSlice `yaml:"config"`
				} `yaml:"prometheus"`
			} `yaml:"source"`
		}
		if err := yaml.Unmarshal(content, &values); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		engine := values.Source.Prometheus
		if engine.URL == "" {
			continue
		}
		if _, err := prometheus.ParseURL(engine.URL); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		config, err := yaml.Marshal(engine.Config)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkPrometheusFile(config); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
