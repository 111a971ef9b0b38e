package adapter

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v2"
)

// Config is the part of prometheus.File that a conversion sets, in the order of its fields in a
// file.
type Config struct {
	Preset   string            `yaml:"preset"`
	Nodes    string            `yaml:"nodes,omitempty"`
	Matchers map[string]string `yaml:"matchers,omitempty"`
	Labels   *Labels           `yaml:"labels,omitempty"`
	Queries  Queries           `yaml:"queries,omitempty"`
}

// Labels are names of labels. Fields with the default of package prometheus are empty.
type Labels struct {
	Node      []string `yaml:"node,omitempty,flow"`
	Namespace string   `yaml:"namespace,omitempty"`
	Pod       string   `yaml:"pod,omitempty"`
	Container string   `yaml:"container,omitempty"`
}

// Queries are selectors of series.
type Queries struct {
	ContainerCPU       string `yaml:"containerCPU,omitempty"`
	ContainerMemory    string `yaml:"containerMemory,omitempty"`
	ContainerStartTime string `yaml:"containerStartTime,omitempty"`
	NodeCPU            string `yaml:"nodeCPU,omitempty"`
	NodeMemory         string `yaml:"nodeMemory,omitempty"`
}

// Result is the outcome of a conversion.
type Result struct {
	Config Config
	// Differences are why kube-vitals with Config would serve other metrics than prometheus-adapter,
	// apart from their windows and timestamps. Each names the field and has a cure.
	Differences []error
	// Notes are about what is not in Config but does not change metrics.
	Notes []string
}

// file is prometheus-adapter's configuration.
type file struct {
	ResourceRules *resourceRules `yaml:"resourceRules"`
	Rules         []any          `yaml:"rules"`
	ExternalRules []any          `yaml:"externalRules"`
}

type resourceRules struct {
	CPU    rule   `yaml:"cpu"`
	Memory rule   `yaml:"memory"`
	Window string `yaml:"window"`
}

type rule struct {
	ContainerQuery string    `yaml:"containerQuery"`
	NodeQuery      string    `yaml:"nodeQuery"`
	Resources      resources `yaml:"resources"`
	ContainerLabel string    `yaml:"containerLabel"`
}

// resources maps resources to labels.
type resources struct {
	Template  string                   `yaml:"template"`
	Overrides map[string]groupResource `yaml:"overrides"`
	// Namespaced is for external metrics.
	Namespaced *bool `yaml:"namespaced"`
}

type groupResource struct {
	Group    string `yaml:"group"`
	Resource string `yaml:"resource"`
}

// Convert translates prometheus-adapter's configuration, or a ConfigMap with it. It returns an error
// if the content is neither, or has no rules for resource metrics.
func Convert(content []byte) (*Result, error) {
	content, err := unwrap(content)
	if err != nil {
		return nil, err
	}
	var f file
	if err := yaml.UnmarshalStrict(content, &f); err != nil {
		return nil, fmt.Errorf("this is not a configuration of prometheus-adapter: %w", err)
	}
	if f.ResourceRules == nil {
		return nil, errors.New("the configuration has no resourceRules, so prometheus-adapter does not serve " +
			"metrics.k8s.io with it: there is nothing to convert")
	}
	c := &conversion{}
	c.containers(f.ResourceRules)
	c.nodes(f.ResourceRules)
	c.labels(f.ResourceRules)
	for _, custom := range []struct {
		field, api string
		rules      []any
	}{{"rules", "custom.metrics.k8s.io", f.Rules}, {"externalRules", "external.metrics.k8s.io", f.ExternalRules}} {
		if len(custom.rules) > 0 {
			c.note("%s: %d of %s, which kube-vitals does not serve, are left out: keep prometheus-adapter for them, "+
				"without resourceRules", custom.field, len(custom.rules), custom.api)
		}
	}
	return &c.Result, nil
}

// unwrap returns the configuration in a ConfigMap, or the content if it is not one.
func unwrap(content []byte) ([]byte, error) {
	var object struct {
		Kind string            `yaml:"kind"`
		Data map[string]string `yaml:"data"`
	}
	if err := yaml.Unmarshal(content, &object); err != nil {
		return nil, fmt.Errorf("this is not a configuration of prometheus-adapter: %w", err)
	}
	switch object.Kind {
	case "":
		return content, nil
	case "ConfigMap":
	default:
		return nil, fmt.Errorf("this is a %s: the configuration of prometheus-adapter is in a ConfigMap", object.Kind)
	}
	for _, key := range slices.Sorted(maps.Keys(object.Data)) {
		if key == "config.yaml" || len(object.Data) == 1 {
			return []byte(object.Data[key]), nil
		}
	}
	return nil, fmt.Errorf("the ConfigMap has no key config.yaml; its keys are %s",
		strings.Join(slices.Sorted(maps.Keys(object.Data)), ", "))
}

// conversion is a conversion that goes on.
type conversion struct{ Result }

func (c *conversion) differ(field, format string, args ...any) {
	c.Differences = append(c.Differences, fmt.Errorf("resourceRules.%s: "+format, append([]any{field}, args...)...))
}

func (c *conversion) note(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
}

// labels sets the labels that identify nodes and containers. Only the container queries use those
// of containers, and only the node queries that of the node.
func (c *conversion) labels(rules *resourceRules) {
	labels := Labels{
		Namespace: c.sameLabel(rules, "resources", "namespace", func(r rule) string { return c.label(r, "namespace") }),
		Pod:       c.sameLabel(rules, "resources", "pod", func(r rule) string { return c.label(r, "pod") }),
		Container: c.sameLabel(rules, "containerLabel", "container", func(r rule) string { return r.ContainerLabel }),
	}
	defaults := []string{"node", "instance"}
	for _, r := range []rule{rules.CPU, rules.Memory} {
		if l := c.label(r, "node"); l != "" && !slices.Contains(append(labels.Node, defaults...), l) {
			labels.Node = append(labels.Node, l)
		}
	}
	if labels.Node != nil { // those of series of containers may have one of the defaults
		labels.Node = append(labels.Node, defaults...)
	}
	if labels.Node != nil || labels.Namespace+labels.Pod+labels.Container != "" {
		c.Config.Labels = &labels
	}
}

// sameLabel returns the label of both rules, or "" if it is the default.
func (c *conversion) sameLabel(rules *resourceRules, field, name string, of func(rule) string) string {
	cpu, memory := of(rules.CPU), of(rules.Memory)
	switch {
	case cpu == "" || memory == "":
		c.differ("cpu and memory", "%s: a label for %s is missing: add it to both rules, and convert them again", field, name)
		return ""
	case cpu != memory:
		c.differ("cpu and memory", "%s: the label for %s is %s for cpu and %s for memory, but kube-vitals has one for both: "+
			"relabel the series in Prometheus so that they have the same label", field, name, cpu, memory)
	}
	if cpu == name {
		return ""
	}
	return cpu
}

// label returns the label of a resource, or "".
func (c *conversion) label(r rule, resource string) string {
	for _, label := range slices.Sorted(maps.Keys(r.Resources.Overrides)) {
		o := r.Resources.Overrides[label]
		if o.Group == "" && strings.TrimSuffix(o.Resource, "s") == resource {
			return label
		}
	}
	if r.Resources.Template == "" {
		return ""
	}
	t, err := template.New("").Delims("<<", ">>").Parse(r.Resources.Template)
	if err != nil {
		return ""
	}
	var label strings.Builder
	if t.Execute(&label, struct{ Group, Resource string }{Resource: resource}) != nil {
		return ""
	}
	return label.String()
}
