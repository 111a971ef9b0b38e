package engine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	promconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v2"
)

// File is the content of the configuration file. All fields are optional.
type File struct {
	// Preset names the series that the engine has: "resource" (the default), those of the kubelets'
	// /metrics/resource, or "cadvisor", those of /metrics/cadvisor.
	Preset string `yaml:"preset"`

	// Matchers are labels and their values that are added to each query of the preset, for engines
	// with the series of several clusters.
	Matchers map[string]string `yaml:"matchers"`

	// Labels names the labels that identify nodes and containers.
	Labels Labels `yaml:"labels"`

	// Queries replaces queries of the preset. Each is a selector of series, such as
	// `up{job="kubelet"}`; "-" removes an optional one.
	Queries map[kind]string `yaml:"queries"`

	// Timeout bounds one query. By default, it is defaultTimeout, or the interval if that is less.
	Timeout time.Duration `yaml:"timeout"`

	// MaxResponseBytes bounds one response after decompression; by default defaultMaxResponseBytes.
	MaxResponseBytes int64 `yaml:"maxResponseBytes"`

	// HTTP is how to connect to the engine, in the format of Prometheus' own configuration:
	// https://prometheus.io/docs/prometheus/latest/configuration/configuration/#http_config.
	HTTP promconfig.HTTPClientConfig `yaml:"http"`
}

// Labels names labels.
type Labels struct {
	// Node are the labels that may have the name or the address of the node. The first one that a
	// series has counts. By default, they are node and instance.
	Node []string `yaml:"node"`

	// By default, these are namespace, pod and container.
	Namespace string `yaml:"namespace"`
	Pod       string `yaml:"pod"`
	Container string `yaml:"container"`
}

// The defaults of File.
const (
	defaultTimeout          = 10 * time.Second
	defaultMaxResponseBytes = 512 << 20 // streamed: 300,000 containers take 200 MB, but little memory

	minResponseBytes = 64 << 10
	noQuery          = "-" // removes an optional query
)

// kind is what the series of a query are. It is the name of the query in File.Queries.
type kind string

// The kinds of queries. queryAll sets the order of sending.
const (
	containerCPU       kind = "containerCPU"
	containerMemory    kind = "containerMemory"
	containerStartTime kind = "containerStartTime"
	containerSwap      kind = "containerSwap"
	nodeCPU            kind = "nodeCPU"
	nodeMemory         kind = "nodeMemory"
	nodeSwap           kind = "nodeSwap"
)

// isCounter reports whether all samples of the range count, not only the latest.
func (k kind) isCounter() bool { return k == containerCPU || k == nodeCPU }

func (k kind) isOfNode() bool { return k == nodeCPU || k == nodeMemory || k == nodeSwap }

// isOptional reports whether the metrics of a container or node are complete without the series.
func (k kind) isOptional() bool {
	return k == containerStartTime || k == containerSwap || k == nodeSwap
}

// presets returns the queries of the presets. The kubelets' /metrics/resource has no label id, and
// /metrics/cadvisor has the same names of metrics with one. In the latter, the series of whole pods
// and slices have no image.
func presets() map[string]map[kind]string {
	const container = `{container!="",container!="POD",image!=""}`
	return map[string]map[kind]string{
		"resource": {
			containerCPU:       `container_cpu_usage_seconds_total{container!="",id=""}`,
			containerMemory:    `container_memory_working_set_bytes{container!="",id=""}`,
			containerStartTime: `container_start_time_seconds{container!="",id=""}`,
			containerSwap:      `container_swap_usage_bytes{container!=""}`,
			nodeCPU:            `node_cpu_usage_seconds_total{}`,
			nodeMemory:         `node_memory_working_set_bytes{}`,
			nodeSwap:           `node_swap_usage_bytes{}`,
		},
		"cadvisor": {
			containerCPU:       "container_cpu_usage_seconds_total" + container,
			containerMemory:    "container_memory_working_set_bytes" + container,
			containerStartTime: "container_start_time_seconds" + container,
			nodeCPU:            `container_cpu_usage_seconds_total{id="/"}`,
			nodeMemory:         `container_memory_working_set_bytes{id="/"}`,
		},
	}
}

// ParseFile parses the configuration file and sets its defaults. Names of files in it are relative
// to dir. The error has all mistakes.
func ParseFile(content []byte, dir string) (*File, error) {
	f := &File{HTTP: promconfig.DefaultHTTPClientConfig}
	if err := yaml.UnmarshalStrict(content, f); err != nil {
		return nil, fmt.Errorf("the file is not a valid configuration: %w", withoutValues(err))
	}
	f.HTTP.SetDirectory(dir)
	f.setDefaults()
	return f, errors.Join(f.validate()...)
}

// quotedValue is a value of the wrong type in an error of the YAML package.
var quotedValue = regexp.MustCompile("(?s) `.*` into ")

// withoutValues returns the error of a file without the values that it quotes: they may be
// credentials.
func withoutValues(err error) error {
	if _, isURL := errors.AsType[*url.Error](err); isURL {
		return errors.New("http: proxy_url or oauth2 has an invalid URL, which is not shown because it may have a " +
			"password (write special characters in it as %XX)")
	}
	if types, ok := errors.AsType[*yaml.TypeError](err); ok {
		for i, text := range types.Errors {
			types.Errors[i] = quotedValue.ReplaceAllString(text, " into ")
		}
	}
	return err
}

func (f *File) setDefaults() {
	f.Preset = cmp.Or(f.Preset, "resource")
	if len(f.Labels.Node) == 0 {
		f.Labels.Node = []string{"node", "instance"}
	}
	f.Labels.Namespace = cmp.Or(f.Labels.Namespace, "namespace")
	f.Labels.Pod = cmp.Or(f.Labels.Pod, "pod")
	f.Labels.Container = cmp.Or(f.Labels.Container, "container")
	f.MaxResponseBytes = cmp.Or(f.MaxResponseBytes, defaultMaxResponseBytes)
}

// selectorForm is a name, matchers in braces, or both. The engine checks the matchers.
var selectorForm = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)?\s*` +
	`(\{([^{}"']|"([^"\\]|\\.)*"|'([^'\\]|\\.)*')*\})?$`)

// validate returns all mistakes.
func (f *File) validate() []error {
	var mistakes []error
	check := func(wrong bool, format string, args ...any) {
		if wrong {
			mistakes = append(mistakes, fmt.Errorf(format, args...))
		}
	}
	names := slices.Sorted(maps.Keys(presets()))
	check(!slices.Contains(names, f.Preset), "preset is %q, but must be one of %s", f.Preset, strings.Join(names, ", "))
	checkLabels := func(field string, names ...string) {
		for _, name := range names {
			check(!model.LegacyValidation.IsValidLabelName(name), "%s: %q is not a name of a label", field, name)
		}
	}
	checkLabels("matchers", slices.Sorted(maps.Keys(f.Matchers))...)
	checkLabels("labels.node", f.Labels.Node...)
	checkLabels("labels.namespace", f.Labels.Namespace)
	checkLabels("labels.pod", f.Labels.Pod)
	checkLabels("labels.container", f.Labels.Container)
	check(f.Timeout < 0 || f.Timeout > maxTimeout, "timeout is %v, but must be above 0 and at most %v",
		f.Timeout, maxTimeout)
	check(f.MaxResponseBytes < minResponseBytes, "maxResponseBytes is %d, but must be at least %d",
		f.MaxResponseBytes, minResponseBytes)
	known := presets()["resource"] // it has all
	for _, k := range slices.Sorted(maps.Keys(f.Queries)) {
		query := strings.TrimSpace(f.Queries[k])
		switch {
		case known[k] == "":
			check(true, "queries: %q is not a query; the queries are %q", k, slices.Sorted(maps.Keys(known)))
		case query == noQuery:
			check(!k.isOptional(), "queries.%s is required", k)
		default:
			check(query == "" || !selectorForm.MatchString(query), "queries.%s: %q is not a selector of series, such as "+
				"container_cpu_usage_seconds_total{job=\"kubelet\"}: rates are computed from raw samples, so functions, "+
				"aggregations and ranges are not possible", k, query)
		}
	}
	return mistakes
}

// query returns the expression of a query, or "" if there is none. The CPU counters come with all
// samples in the range, the other series with the latest. The range ends after the engine's present
// time: a node's clock may be ahead.
func (f *File) query(k kind, window time.Duration) string {
	text := strings.TrimSpace(f.Queries[k])
	if text == "" {
		text = f.withMatchers(presets()[f.Preset][k])
	}
	if text == "" || text == noQuery {
		return ""
	}
	period := fmt.Sprintf("[%ds] offset -%ds", int((window+maxAhead)/time.Second), int(maxAhead/time.Second))
	if k.isCounter() {
		return text + period
	}
	return "last_over_time(" + text + period + ")"
}

// withMatchers adds the matchers of the file to a query of a preset.
func (f *File) withMatchers(query string) string {
	matchers := "{"
	for _, name := range slices.Sorted(maps.Keys(f.Matchers)) {
		matchers += name + "=" + strconv.Quote(f.Matchers[name]) + "," // may be the last: engines accept that
	}
	return strings.Replace(query, "{", matchers, 1)
}

// ParseURL parses the address of the engine: everything before /api/v1.
func ParseURL(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil: // it quotes the address, which may have a password
		return nil, errors.New("it is not a URL, such as https://prometheus.monitoring.svc:9090")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("it must start with http:// or https://")
	case u.Host == "":
		return nil, errors.New("it has no host")
	case u.User != nil:
		return nil, errors.New("it has credentials, which the list of processes would show, " +
			"unlike those of http.basic_auth in the configuration file")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("it has a query or a fragment after the path")
	}
	return u, nil
}
