package observability

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Series has the series that a server exposes: name → label → values.
type Series map[string]map[string]map[string]bool

var label = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)

// ParseSeries parses the text of /metrics. It does not unescape label values.
func ParseSeries(text string) Series {
	all := Series{}
	for line := range strings.Lines(text) {
		end := strings.IndexAny(line, "{ ")
		if end <= 0 || line[0] == '#' {
			continue
		}
		labels := all[line[:end]]
		if labels == nil {
			labels = map[string]map[string]bool{}
			all[line[:end]] = labels
		}
		if line[end] != '{' {
			continue
		}
		for _, match := range label.FindAllStringSubmatch(line[end:], -1) {
			if labels[match[1]] == nil {
				labels[match[1]] = map[string]bool{}
			}
			labels[match[1]][match[2]] = true
		}
	}
	return all
}

// targetLabels are the labels of the target. Prometheus Operator sets them, except cluster, which is
// an external label.
var targetLabels = []string{"cluster", "job", "namespace", "pod", "instance"}

// synthetic has the series that Prometheus adds, with their labels.
var synthetic = map[string][]string{
	"up":     nil,
	"ALERTS": {"alertname", "alertstate"},
}

// Missing returns descriptions of what a query refers to and the server does not expose: a series,
// a label, or a value of a label.
func (s Series) Missing(q Query, r Reference) (missing []string) {
	known := slices.Clone(targetLabels) // labels of the result
	for _, selector := range r.Selectors {
		missing = append(missing, s.missingFrom(selector)...)
		known = slices.AppendSeq(known, maps.Keys(s[selector.Metric]))
	}
	for _, name := range slices.Concat(r.Labels, q.Shown) {
		if !slices.Contains(known, name) {
			missing = append(missing, fmt.Sprintf("no series has the label %s", name))
		}
	}
	return missing
}

func (s Series) missingFrom(selector Selector) (missing []string) {
	labels, isExposed := s[selector.Metric]
	added, isSynthetic := synthetic[selector.Metric]
	if !isExposed && !isSynthetic {
		return []string{fmt.Sprintf("no series %s", selector.Metric)}
	}
	for _, name := range selector.Labels {
		value, ok := selector.Equals[name]
		switch {
		case slices.Contains(targetLabels, name) || slices.Contains(added, name):
		case labels[name] == nil:
			missing = append(missing, fmt.Sprintf("%s has no label %s", selector.Metric, name))
		case ok && !labels[name][value]:
			missing = append(missing, fmt.Sprintf("%s of %s is never %q, only one of %q",
				name, selector.Metric, value, slices.Sorted(maps.Keys(labels[name]))))
		}
	}
	return missing
}
