package adapter

import (
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"

	"github.com/kube-vitals/kube-vitals/pkg/prometheus"
)

// These configurations have the layouts that are in use.
const (
	// The manifests of prometheus-adapter: all series are from the kubelets' /metrics/resource.
	ownManifests = `
resourceRules:
  cpu:
    containerLabel: container
    containerQuery: |
      sum by (<<.GroupBy>>) (irate(container_cpu_usage_seconds_total{<<.LabelMatchers>>,container!="",pod!=""}[4m]))
    nodeQuery: sum by (<<.GroupBy>>) (irate(node_cpu_usage_seconds_total{<<.LabelMatchers>>}[4m]))
    resources: {overrides: {namespace: {resource: namespace}, node: {resource: node}, pod: {resource: pod}}}
  memory:
    containerLabel: container
    containerQuery: sum by (<<.GroupBy>>) (container_memory_working_set_bytes{<<.LabelMatchers>>,container!="",pod!=""})
    nodeQuery: sum by (<<.GroupBy>>) (node_memory_working_set_bytes{<<.LabelMatchers>>})
    resources: {overrides: {namespace: {resource: namespace}, node: {resource: node}, pod: {resource: pod}}}
  window: 5m
`
	ownConfig = `
preset: resource
queries:
  containerCPU: container_cpu_usage_seconds_total{container!="",pod!="",container!="POD"}
  containerMemory: container_memory_working_set_bytes{container!="",pod!="",container!="POD"}
  containerStartTime: container_start_time_seconds{container!="",pod!="",container!="POD"}
  nodeCPU: node_cpu_usage_seconds_total
  nodeMemory: node_memory_working_set_bytes
`
	// The default of its generator: nodes are the root cgroup. With other labels.
	rootCgroup = `
rules:
- {seriesQuery: 'requests_total{pod!=""}', metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'}
externalRules:
- {seriesQuery: queue_depth, metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>})'}
resourceRules:
  cpu:
    containerLabel: container_name
    containerQuery: sum(rate(container_cpu_usage_seconds_total{<<.LabelMatchers>>}[1m])) by (<<.GroupBy>>)
    nodeQuery: sum(rate(container_cpu_usage_seconds_total{<<.LabelMatchers>>, id='/'}[1m])) by (<<.GroupBy>>)
    resources: {template: "kube_<<.Resource>>", overrides: {host: {resource: nodes}}}
  memory:
    containerLabel: container_name
    containerQuery: sum(container_memory_working_set_bytes{<<.LabelMatchers>>}) by (<<.GroupBy>>)
    nodeQuery: sum(container_memory_working_set_bytes{<<.LabelMatchers>>,id='/'}) by (<<.GroupBy>>)
    resources: {template: "kube_<<.Resource>>", overrides: {host: {resource: nodes}}}
  window: 1m
`
	// kube-prometheus: containers are from /metrics/cadvisor, nodes from node-exporter. The name of the
	// node is that of the pod of node-exporter, or the label instance.
	kubePrometheusCPU = `
          sum by (<<.GroupBy>>) (
            1 - irate(node_cpu_seconds_total{mode="idle"}[60s])
            * on(namespace, pod) group_left(node) (node_namespace_pod:kube_pod_info:{<<.LabelMatchers>>})
          )
          or sum by (<<.GroupBy>>) (
            1 - irate(windows_cpu_time_total{mode="idle", job="windows-exporter",<<.LabelMatchers>>}[4m])
          )`
	kubePrometheusMemory = `
          sum by (<<.GroupBy>>) (
            node_memory_MemTotal_bytes{job="node-exporter",<<.LabelMatchers>>}
            - node_memory_MemAvailable_bytes{job="node-exporter",<<.LabelMatchers>>}
          )
          or sum by (<<.GroupBy>>) (
            windows_cs_physical_memory_bytes{job="windows-exporter",<<.LabelMatchers>>}
            - windows_memory_available_bytes{job="windows-exporter",<<.LabelMatchers>>}
          )`
	// The example in the values of prometheus-adapter's chart.
	chartCPU = `sum by (<<.GroupBy>>) (
            rate(node_cpu_seconds_total{mode!="idle",mode!="iowait",mode!="steal",<<.LabelMatchers>>}[3m]))`
	chartMemory = `sum by (<<.GroupBy>>) (avg_over_time(node_memory_MemTotal_bytes{<<.LabelMatchers>>}[3m])
            - avg_over_time(node_memory_MemAvailable_bytes{<<.LabelMatchers>>}[3m]))`
)

// rules returns ownManifests with other queries: those that are not empty.
func rules(queries ...string) string { return rulesOf(ownManifests, queries...) }

func rulesOf(base string, queries ...string) string {
	var f file
	if err := yaml.Unmarshal([]byte(base), &f); err != nil {
		panic(err)
	}
	for i, field := range []*string{&f.ResourceRules.CPU.ContainerQuery, &f.ResourceRules.CPU.NodeQuery,
		&f.ResourceRules.Memory.ContainerQuery, &f.ResourceRules.Memory.NodeQuery} {
		if queries[i] != "" {
			*field = queries[i]
		}
	}
	text, err := yaml.Marshal(map[string]any{"resourceRules": f.ResourceRules})
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestConvert(t *testing.T) {
	const windows = "the series of windows-exporter are left out"
	tests := []struct {
		name, in    string
		want        string   // the configuration
		differences []string // parts of them, in order
		notes       []string
	}{
		{name: "manifests of prometheus-adapter", in: ownManifests, want: ownConfig},
		{name: "ConfigMap", want: ownConfig,
			in: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: adapter-config}\ndata:\n  config.yaml: |" +
				strings.ReplaceAll(ownManifests, "\n", "\n    ")},
		{name: "generator of prometheus-adapter", in: rootCgroup, want: `
preset: cadvisor
labels:
  node: [host, node, instance]
  namespace: kube_namespace
  pod: kube_pod
  container: container_name
queries:
  containerCPU: container_cpu_usage_seconds_total{container_name!="",container_name!="POD"}
  containerMemory: container_memory_working_set_bytes{container_name!="",container_name!="POD"}
  containerStartTime: container_start_time_seconds{container_name!="",container_name!="POD"}
  nodeCPU: container_cpu_usage_seconds_total{id='/'}
  nodeMemory: container_memory_working_set_bytes{id='/'}
`, notes: []string{"rules: 1 of custom.metrics.k8s.io", "externalRules: 1 of external.metrics.k8s.io"}},
		{name: "kube-prometheus", in: rules("", kubePrometheusCPU, "", kubePrometheusMemory), want: `
preset: cadvisor
nodes: node-exporter
matchers:
  job: node-exporter
queries:
  containerCPU: container_cpu_usage_seconds_total{container!="",pod!="",container!="POD"}
  containerMemory: container_memory_working_set_bytes{container!="",pod!="",container!="POD"}
  containerStartTime: container_start_time_seconds{container!="",pod!="",container!="POD"}
  nodeCPU: node_cpu_seconds_total{mode!="idle"}
`, notes: []string{windows, windows}},
		{name: "chart", in: rules("", chartCPU, "sum by (<<.GroupBy>>) (avg_over_time(container_memory_working_set_bytes"+
			`{container!="",<<.LabelMatchers>>}[3m]))`, chartMemory), want: `
preset: cadvisor
nodes: node-exporter
queries:
  containerCPU: container_cpu_usage_seconds_total{container!="",pod!="",container!="POD"}
  containerMemory: container_memory_working_set_bytes{container!="",container!="POD"}
  containerStartTime: container_start_time_seconds{container!="",pod!="",container!="POD"}
  nodeCPU: node_cpu_seconds_total{mode!="idle",mode!="iowait",mode!="steal"}
`, notes: []string{"memory.containerQuery: avg_over_time", "memory.nodeQuery: avg_over_time"}},
		{name: "prefix and matchers", in: rules(
			`max by (<<.GroupBy>>) (rate(pa_container_cpu_usage_seconds_total{container=~"a|b",cluster='x'}[5m]))`,
			`1 - rate(node_cpu_seconds_total{mode='idle',job=~"a|b",<<.LabelMatchers>>}[5m])`,
			`my:memory{<<.LabelMatchers>>,container!=''}`, ``), want: `
preset: cadvisor
nodes: node-exporter
queries:
  containerCPU: pa_container_cpu_usage_seconds_total{container=~"a|b",cluster='x'}
  containerMemory: my:memory{container!='',container!="POD"}
  containerStartTime: pa_container_start_time_seconds{container=~"a|b",cluster='x'}
  nodeCPU: node_cpu_seconds_total{mode!='idle',job=~"a|b"}
  nodeMemory: node_memory_working_set_bytes
`},
		{name: "recorded counter", in: rules(`irate(my_cpu{<<.LabelMatchers>>}[5m])`, "", "", ""), want: `
preset: resource
queries:
  containerCPU: my_cpu{container!="",container!="POD"}
  containerMemory: container_memory_working_set_bytes{container!="",pod!="",container!="POD"}
  containerStartTime: '-'
  nodeCPU: node_cpu_usage_seconds_total
  nodeMemory: node_memory_working_set_bytes
`},
		{name: "all mistakes at once", in: rulesOf(strings.NewReplacer("containerLabel: container\n    containerQuery: sum",
			"containerLabel: name\n    containerQuery: sum", "pod: {resource: pod}", "pod: {resource: pods, group: x}").
			Replace(ownManifests),
			`sum by (<<.GroupBy>>) (irate(container_cpu_usage_seconds_total[5m])) * 1000`,
			`label_replace(rate(node_cpu_usage_seconds_total[5m]), "node", "$1", "instance", "(.*)")`,
			`sum by (<<.GroupBy>>) (`,
			`sum by (<<.GroupBy>>) (node_memory_MemTotal_bytes - node_memory_MemFree_bytes)`), want: `
preset: cadvisor
`, differences: []string{"cpu.containerQuery: sum(irate(S)) * 1000 has no equivalent, where S is container_cpu",
			"memory.containerQuery: it is not PromQL: it ends too early",
			"cpu.nodeQuery: label_replace(rate(S)",
			"memory.nodeQuery: S - S has no equivalent, where S is node_memory_MemTotal_bytes, node_memory_MemFree_bytes",
			"resources: a label for pod is missing",
			"containerLabel: the label for container is container for cpu and name for memory"}},
		{name: "many series of a node", in: rules("", `sum(rate(container_cpu_usage_seconds_total[1m]))`, "",
			`sum(node_memory_MemTotal_bytes{job!="x"}) - sum(node_memory_MemAvailable_bytes{job!="x"})`), want: `
preset: cadvisor
nodes: node-exporter
queries:
  containerCPU: container_cpu_usage_seconds_total{container!="",pod!="",container!="POD"}
  containerMemory: container_memory_working_set_bytes{container!="",pod!="",container!="POD"}
  containerStartTime: container_start_time_seconds{container!="",pod!="",container!="POD"}
  nodeCPU: container_cpu_usage_seconds_total
`, differences: []string{`add id="/"`, `job!="x" cannot be added`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Convert([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			text, err := yaml.Marshal(got.Config)
			if err != nil {
				t.Fatal(err)
			}
			if want := strings.TrimPrefix(tt.want, "\n"); string(text) != want {
				t.Errorf("got\n%s\nwant\n%s", text, want)
			}
			if _, err := prometheus.ParseFile(text, ""); err != nil {
				t.Error(err)
			}
			var differences []string
			for _, d := range got.Differences {
				differences = append(differences, d.Error())
			}
			compare(t, "differences", differences, tt.differences)
			compare(t, "notes", got.Notes, tt.notes)
		})
	}
}

// compare checks that each text contains the wanted part.
func compare(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.EqualFunc(got, want, strings.Contains) {
		t.Errorf("%s: got\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestConvertErrors(t *testing.T) {
	tests := []struct{ in, want string }{
		{"a: [", "not a configuration of prometheus-adapter"},
		{"[]", "not a configuration of prometheus-adapter"},
		{"", "no resourceRules"},
		{"rules: []", "no resourceRules"},
		{"kind: Deployment", "this is a Deployment"},
		{"kind: ConfigMap\ndata: {a: x, b: y}", "no key config.yaml; its keys are a, b"},
		{"kind: ConfigMap\ndata: {a: 'rules: []'}", "no resourceRules"},
		{"resourceRules: {cpus: {}}", "field cpus not found"},
	}
	for _, tt := range tests {
		if _, err := Convert([]byte(tt.in)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got error %v, want %q", tt.in, err, tt.want)
		}
	}
}
