package adapter

import (
	"regexp"
	"slices"
	"strings"
)

// The forms of queries whose meaning is known, without the aggregation around them. A container or
// node usually has one series, for which all aggregations are the same.
var (
	aggregation = regexp.MustCompile(`^(?:sum|avg|max|min)\((.*)\)$`)
	rateForm    = regexp.MustCompile(`^i?rate\(S\)$`)
	valueForm   = regexp.MustCompile(`^(?:S|last_over_time\(S\)|(avg_over_time)\(S\))$`)

	// Of node-exporter, which reports idle time by CPU, and available memory. The join finds the node
	// of the pod of node-exporter.
	idleForm = regexp.MustCompile(
		`^(?:1 - i?rate\(S\)|\(1 - i?rate\(S\)\))(?: \* on\([a-z_,]*\) group_left\([a-z_,]*\) S)?$`)
	availableForm = regexp.MustCompile(`^(?:S - S|(avg_over_time)\(S\) - avg_over_time\(S\)|sum\(S\) - sum\(S\))$`)
)

const (
	exporterCPU       = "node_cpu_seconds_total"
	exporterTotal     = "node_memory_MemTotal_bytes"
	exporterAvailable = "node_memory_MemAvailable_bytes"

	cpuMetric       = "container_cpu_usage_seconds_total"
	startTimeMetric = "container_start_time_seconds"

	nodeExporter = "node-exporter" // a value of Config.Nodes
)

// queryOf parses a query of a rule and returns the alternative for Linux, or false if there is none.
func (c *conversion) queryOf(field, template string) (query, bool) {
	queries, err := parseQuery(template)
	if err != nil {
		c.differ(field, "%w: correct it, and convert it again", err)
		return query{}, false
	}
	windows := func(q query) bool {
		return slices.ContainsFunc(q.selectors, func(s selector) bool { return strings.HasPrefix(s.metric, "windows_") })
	}
	linux := slices.DeleteFunc(slices.Clone(queries), windows)
	if len(linux) < len(queries) {
		c.note("resourceRules.%s: the series of windows-exporter are left out: nodes with Windows have the metrics that "+
			"their kubelets report, or none", field)
	}
	if len(linux) != 1 {
		c.differ(field, "it has %d alternatives, joined by \"or\": write one selector for all into queries", len(linux))
		return query{}, false
	}
	q := linux[0]
	if m := aggregation.FindStringSubmatch(q.form); m != nil && balanced(m[1]) {
		q.form = m[1]
	}
	return q, true
}

// balanced reports whether each parenthesis is closed after it was opened.
func balanced(form string) bool {
	depth := 0
	for _, r := range form {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth < 0 {
			return false
		}
	}
	return depth == 0
}

func (c *conversion) unknown(field string, q query) {
	names := make([]string, len(q.selectors))
	for i, s := range q.selectors {
		names[i] = s.String()
	}
	c.differ(field, "%s has no equivalent, where S is %s: kube-vitals reads series and computes rates itself. Select "+
		"series of the same meaning in queries: a counter of seconds for CPU, bytes for memory", q.form,
		strings.Join(names, ", "))
}

// averaged notes that a query returns the mean of several samples.
func (c *conversion) averaged(field, function string) {
	if function != "" {
		c.note("resourceRules.%s: %s is left out: kube-vitals serves the newest sample", field, function)
	}
}

// containers sets the queries of containers.
func (c *conversion) containers(rules *resourceRules) {
	label := rules.CPU.ContainerLabel
	if q, ok := c.queryOf("cpu.containerQuery", rules.CPU.ContainerQuery); ok {
		if rateForm.MatchString(q.form) {
			s := ofContainers(q.selectors[0], label)
			c.Config.Queries.ContainerCPU = s.String()
			if prefix, found := strings.CutSuffix(s.metric, cpuMetric); found {
				s.metric = prefix + startTimeMetric
				c.Config.Queries.ContainerStartTime = s.String()
			} else {
				c.Config.Queries.ContainerStartTime = "-"
			}
		} else {
			c.unknown("cpu.containerQuery", q)
		}
	}
	const field = "memory.containerQuery"
	if q, ok := c.queryOf(field, rules.Memory.ContainerQuery); ok {
		if m := valueForm.FindStringSubmatch(q.form); m != nil {
			c.averaged(field, m[1])
			c.Config.Queries.ContainerMemory = ofContainers(q.selectors[0], rules.Memory.ContainerLabel).String()
		} else {
			c.unknown(field, q)
		}
	}
}

// ofContainers excludes the series of whole pods and of their sandboxes, which prometheus-adapter
// returns, too, as containers without a name and of the name POD.
func ofContainers(s selector, label string) selector {
	s.matchers = slices.Clone(s.matchers)
	for _, m := range s.matchers {
		if m.label == label && m.operator != "!=" {
			return s
		}
	}
	for _, value := range []string{"", "POD"} {
		if label != "" && !s.has(label, "!=", value) {
			s.matchers = append(s.matchers, matcher{label, "!=", `"` + value + `"`})
		}
	}
	return s
}

// nodes sets the queries of nodes, and the preset. Series of containers have the same names in both
// layouts, so those of nodes decide.
func (c *conversion) nodes(rules *resourceRules) {
	c.Config.Preset = "cadvisor"
	if q, ok := c.queryOf("cpu.nodeQuery", rules.CPU.NodeQuery); ok {
		c.nodeCPU("cpu.nodeQuery", q)
	}
	if q, ok := c.queryOf("memory.nodeQuery", rules.Memory.NodeQuery); ok {
		c.nodeMemory("memory.nodeQuery", q)
	}
	metric, _, _ := strings.Cut(c.Config.Queries.NodeCPU, "{")
	if strings.HasSuffix(metric, "node_cpu_usage_seconds_total") {
		c.Config.Preset = "resource"
	}
}

func (c *conversion) nodeCPU(field string, q query) {
	s := q.selectors[0]
	switch {
	case s.metric == exporterCPU && idleForm.MatchString(q.form) && s.has("mode", "=", "idle"):
		s.matchers = slices.Clone(s.matchers)
		for i, m := range s.matchers {
			if m.label == "mode" { // 1 - idle is the sum of the other modes
				s.matchers[i].operator = "!="
			}
		}
		c.Config.Nodes = nodeExporter
		c.Config.Queries.NodeCPU = s.String()
	case s.metric == exporterCPU && rateForm.MatchString(q.form):
		c.Config.Nodes = nodeExporter
		c.Config.Queries.NodeCPU = s.String()
	case rateForm.MatchString(q.form):
		c.checkCgroup(field, s)
		c.Config.Queries.NodeCPU = s.String()
	default:
		c.unknown(field, q)
	}
}

func (c *conversion) nodeMemory(field string, q query) {
	if m := valueForm.FindStringSubmatch(q.form); m != nil {
		c.averaged(field, m[1])
		c.checkCgroup(field, q.selectors[0])
		c.Config.Queries.NodeMemory = q.selectors[0].String()
		return
	}
	m := availableForm.FindStringSubmatch(q.form)
	if m == nil || q.selectors[0].metric != exporterTotal || q.selectors[1].metric != exporterAvailable {
		c.unknown(field, q)
		return
	}
	c.averaged(field, m[1])
	c.Config.Nodes = nodeExporter // whose query for memory is this one
	for _, m := range q.selectors[0].matchers {
		value, err := m.unquote()
		if m.operator != "=" || err != nil {
			c.differ(field, "%s cannot be added to the query of node-exporter's memory: remove it, if all these series are of "+
				"your nodes", m)
			continue
		}
		if c.Config.Matchers == nil {
			c.Config.Matchers = map[string]string{}
		}
		c.Config.Matchers[m.label] = value // no other query is that of a preset
	}
}

// checkCgroup reports a selector of many series for each node, which prometheus-adapter adds.
func (c *conversion) checkCgroup(field string, s selector) {
	if strings.Contains(s.metric, "container_") && !s.has("id", "=", "/") {
		c.differ(field, "it adds the series of all cgroups of a node, so it counts pods more than once; kube-vitals reads "+
			"one series for each node: add id=\"/\" to the selector")
	}
}
