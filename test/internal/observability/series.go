package observability

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Series are those that a server exposes: name of the series → name of a label → its values.
type Series map[string]map[string]map[string]bool

var label = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)

// ParseSeries reads the text of /metrics. Values with escapes stay as they are written there.
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

// ofPrometheus are series that Prometheus makes itself, with the labels that may be looked at.
var ofPrometheus = map[string][]string{
	"up":     nil,
	"ALERTS": {"alertname", "alertstate"},
}

// Missing says what a query refers to and the server does not expose: a series, a label, or a value
// that a label never has.
func (s Series) Missing(q Query, r Reference) (complaints []string) {
	known := slices.Clone(targetLabels) // of the result
	for _, selector := range r.Selectors {
		complaints = append(complaints, s.missing(selector)...)
		known = slices.AppendSeq(known, maps.Keys(s[selector.Metric]))
	}
	for _, name := range slices.Concat(r.Labels, q.Shown) {
		if !slices.Contains(known, name) {
			complaints = append(complaints, fmt.Sprintf("none of its series has the label %s", name))
		}
	}
	return complaints
}

func (s Series) missing(selector Selector) (complaints []string) {
	labels, exposed := s[selector.Metric]
	own, foreign := ofPrometheus[selector.Metric]
	if !exposed && !foreign {
		return []string{fmt.Sprintf("there is no series %s", selector.Metric)}
	}
	for _, name := range selector.Labels {
		value, demanded := selector.Equals[name]
		switch {
		case slices.Contains(targetLabels, name) || slices.Contains(own, name):
		case labels[name] == nil:
			complaints = append(complaints, fmt.Sprintf("%s has no label %s", selector.Metric, name))
		case demanded && !labels[name][value]:
			complaints = append(complaints, fmt.Sprintf("%s of %s is never %q, but one of %q",
				name, selector.Metric, value, slices.Sorted(maps.Keys(labels[name]))))
		}
	}
	return complaints
}
