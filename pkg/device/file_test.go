package device

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func parse(t testing.TB, text string) *File {
	t.Helper()
	f, err := Parse([]byte(text), "/etc/devices")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestOverrides checks that fields and resources of the file replace those of the preset.
func TestOverrides(t *testing.T) {
	e := parse(t, `exporters:
- preset: dcgm
  name: mig
  namespace: monitoring
  podSelector: app.kubernetes.io/name in (dcgm-exporter)
  port: 9401
  scheme: https
  tls: {caFile: "", serverName: dcgm-exporter.monitoring.svc}
  interval: 30s
  maxAge: 2m
  labels: {pod: [pod_name]}
  resources:
  - {resource: nvidia.com/gpu, series: DCGM_FI_PROF_GR_ENGINE_ACTIVE, max: 1.5, combine: max}
  - {resource: nvidia.com/gpu-memory, series: "-"}
  - {resource: example.org/power, series: DCGM_FI_DEV_POWER_USAGE}
`).Exporters[0]
	if e.Namespace != "monitoring" || e.Port != "9401" || e.TLS.ServerName != "dcgm-exporter.monitoring.svc" ||
		e.Timeout != defaultTimeout || e.MaxAge != 2*time.Minute || !reflect.DeepEqual(e.Labels.Pod, []string{"pod_name"}) ||
		!reflect.DeepEqual(e.Labels.Container, []string{"container"}) {
		t.Errorf("got %+v", e)
	}
	want := []Resource{
		{
			Resource: "nvidia.com/gpu", Series: "DCGM_FI_PROF_GR_ENGINE_ACTIVE", Scale: 1, Unit: "number", Combine: "max",
			Max: 1.5,
		},
		{Resource: "example.org/power", Series: "DCGM_FI_DEV_POWER_USAGE", Scale: 1, Unit: "number", Combine: "sum"},
	}
	if !reflect.DeepEqual(e.Resources, want) {
		t.Errorf("got %+v, want %+v", e.Resources, want)
	}
}

// TestMistakes checks that all mistakes of a file are reported at once, and none else.
func TestMistakes(t *testing.T) {
	complete := func(fields string) string {
		return "exporters: [{name: x, namespace: n, podSelector: a=b, port: 1, " + fields + "}]"
	}
	resources := func(text string) string { return complete("resources: [{" + text + "}]") }
	for text, want := range map[string][]string{
		"":              {"exporters is empty"},
		"exporters: []": {"exporters is empty"},
		"a: [":          {"the file is not a valid configuration"},
		"exporters: [{preset: dcgm, prot: 1}, {preset: dcgm, interval: x}]\nmore: 1": {
			"field prot not found in type", "line 1: cannot unmarshal !!str `x` into time.Duration", "field more not found"},
		"exporters: [{preset: rocm}]": {`exporter "rocm": preset is "rocm", but must be dcgm`},
		"exporters: [{preset: rocm}, {preset: dcgm, port: 0}]": {
			`exporter "rocm": preset is "rocm", but must be dcgm`, `exporter "dcgm": port is "0"`},
		"exporters: [{}]": {
			`exporters[0]: name is ""`, "namespace is", "podSelector is empty", `port is ""`, "resources is empty"},
		"exporters: [{preset: dcgm, podSelector: 'a in b', port: 70000, path: metrics, scheme: ftp}]": {
			"podSelector: unable to parse", `port is "70000"`, `path is "metrics"`, `scheme is "ftp"`},
		"exporters: [{preset: dcgm, port: metrics}]": {`port is "metrics", but must be a number`}, // the pod would choose it
		"exporters: [{preset: dcgm, path: '/m?x=1', tls: {insecureSkipVerify: true}}]": {
			`path is "/m?x=1"`, "tls has no effect without scheme: https"},
		"exporters: [{preset: dcgm, scheme: https, tls: {caFile: none}}]": {"tls: unable to read CA cert"},
		"exporters: [{preset: dcgm, interval: 1s}]":                       {"interval is 1s, but must be from 5s"},
		"exporters: [{preset: dcgm, interval: -1s}]":                      {"interval is -1s, but must be from 5s"},
		"exporters: [{preset: dcgm, interval: 1h}]":                       {"interval is 1h0m0s, but must be"},
		"exporters: [{preset: dcgm, interval: 1s, timeout: 6s, maxAge: 1s}]": {
			"interval is 1s, but must be from 5s", "timeout is 6s, but must be above 0 and at most the interval, 5s",
			"maxAge is 1s, but must be at least twice the interval, so 10s"},
		"exporters: [{preset: dcgm, interval: 1h, timeout: -1s, maxAge: 3h}]": {
			"interval is 1h", "timeout is -1s", "maxAge is 3h0m0s"},
		"exporters: [{preset: dcgm, labels: {pod: [a-b, '']}}]": {`labels.pod: "a-b"`, `labels.pod: ""`},
		"exporters: [{preset: dcgm}, {preset: dcgm}]": {
			"another exporter has the same name", `resource "nvidia.com/gpu": exporter "dcgm" has it already`,
			`resource "nvidia.com/gpu-memory": exporter "dcgm" has it`},
		resources("resource: cpu, series: s"):               {`resource "cpu": it is not a name of a device`},
		resources("resource: memory, series: s"):            {`resource "memory": it is not`},
		resources("resource: ephemeral-storage, series: s"): {`resource "ephemeral-storage": it is not`},
		resources("resource: swap, series: s"):              {`resource "swap": it is not`},
		resources("resource: a/b/c, series: s"):             {`resource "a/b/c": it is not`},
		resources("resource: 'x.org/ä', series: s"):         {`resource "x.org/ä": it is not`},
		resources("resource: kubernetes.io/a, series: s"):   {"the domain kubernetes.io is reserved"},
		resources("resource: a.kubernetes.io/a, series: s"): {"the domain kubernetes.io is reserved"},
		resources("resource: x.org/a, series: '-'"):         {`series is "-"`},
		resources("resource: x.org/a, series: 'a{b}', scale: -1, max: .nan, unit: mb, combine: avg"): {
			`series is "a{b}"`, "scale is -1", "max is NaN", `unit is "mb"`, `combine is "avg"`},
		resources("resource: x.org/a, series: s, scale: .inf"): {"scale is +Inf"},
		complete("resources: [{resource: x.org/a, series: s}, {resource: x.org/a, series: t}]"): {
			`resource "x.org/a": exporter "x" has it already`},
	} {
		_, err := Parse([]byte(text), "")
		if err == nil {
			t.Errorf("%s: got no error", text)
			continue
		}
		const header = "the file is not a valid configuration: yaml: unmarshal errors:\n"
		lines := strings.Split(strings.TrimPrefix(err.Error(), header), "\n")
		if len(lines) != len(want) {
			t.Errorf("%s: got %d errors, want %d:\n%v", text, len(lines), len(want), err)
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: got no %q in\n%v", text, part, err)
			}
		}
	}
}

func TestManyExporters(t *testing.T) {
	var text strings.Builder
	text.WriteString("exporters:\n")
	for i := range maxExporters + 1 {
		fmt.Fprintf(&text, "- {name: e%d, namespace: n, podSelector: a=b, port: 1, "+
			"resources: [{resource: x.org/r%d, series: s}]}\n", i, i)
	}
	if _, err := Parse([]byte(text.String()), ""); err == nil || !strings.Contains(err.Error(), "at most 32") {
		t.Errorf("got %v", err)
	}
}

func TestConvert(t *testing.T) {
	number, bytes := Resource{Scale: 0.01, Max: 100}, Resource{Scale: 1 << 20, Unit: unitBytes}
	for _, c := range []struct {
		resource Resource
		value    float64
		want     uint64
		ok       bool
	}{
		{number, 0, 0, true},
		{number, 37, 370, true},
		{number, 100, 1000, true},
		{number, 99.96, 1000, true},
		{number, 0.04, 0, true},
		{number, 101, 0, false},
		{number, -1, 0, false},
		{number, math.NaN(), 0, false},
		{number, math.Inf(1), 0, false},
		{number, math.Inf(-1), 0, false},
		{number, 2147483632, 0, false}, // DCGM's value of an unknown integer
		{Resource{Scale: 1}, 9223372036854775794, 0, false},
		{Resource{Scale: 1}, math.MaxFloat64, 0, false},
		{Resource{Scale: math.MaxFloat64}, math.MaxFloat64, 0, false},
		{bytes, 69982, 69982 << 20, true},
		{bytes, 1e9, 0, false},
	} {
		if got, ok := c.resource.convert(c.value); got != c.want || ok != c.ok {
			t.Errorf("%v of %+v: got %d, %t, want %d, %t", c.value, c.resource, got, ok, c.want, c.ok)
		}
	}
	if number.unit() != usage.Milli || bytes.unit() != usage.Bytes {
		t.Error("got a wrong unit")
	}
}

// TestDocumentedFiles parses the configurations in docs/devices.md, as files or as values of the
// chart. One of them has the values of the preset.
func TestDocumentedFiles(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "devices.md"))
	if err != nil {
		t.Fatal(err)
	}
	found, isPreset := 0, false
	preset := parse(t, "exporters: [{preset: dcgm}]")
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		content, isValue := strings.CutPrefix(block[1], "devices:\n")
		if !isValue && !strings.HasPrefix(content, "exporters:") {
			continue
		}
		found++
		f, err := Parse([]byte(content), "/etc/devices")
		if err != nil {
			t.Errorf("%v in\n%s", err, content)
		}
		isPreset = isPreset || strings.Contains(content, "maxAge:") && reflect.DeepEqual(f, preset)
	}
	if found < 3 || !isPreset {
		t.Errorf("docs/devices.md has %d configurations, with %+v: %v", found, preset, isPreset)
	}
}
