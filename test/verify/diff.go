package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// absent stands for a value that one side does not have; null is a value.
type absent struct{}

// differences lists where the chart's objects and the manifests' part, one line for each place, in
// a fixed order.
func differences(chart, manifests objects) []string {
	var lines []string
	for _, id := range keys(chart, manifests) {
		c, inChart := chart[id]
		m, inManifests := manifests[id]
		switch {
		case !inManifests:
			lines = append(lines, id+": only in the chart")
		case !inChart:
			lines = append(lines, id+": only in the manifests")
		default:
			for _, line := range differ("", c, m) {
				lines = append(lines, id+": "+line)
			}
		}
	}
	return lines
}

// differ walks two decoded values down to the places where they part; path says where they stand.
func differ(path string, chart, manifests any) []string {
	switch c := chart.(type) {
	case map[string]any:
		if m, ok := manifests.(map[string]any); ok {
			return differInMap(path, c, m)
		}
	case []any:
		if m, ok := manifests.([]any); ok {
			return differInList(path, c, m)
		}
	}
	if reflect.DeepEqual(chart, manifests) {
		return nil
	}
	return []string{fmt.Sprintf("%s: the chart has %s, the manifests have %s", path, show(chart), show(manifests))}
}

func differInMap(path string, chart, manifests map[string]any) []string {
	var lines []string
	for _, key := range keys(chart, manifests) {
		lines = append(lines, differ(join(path, key), value(chart, key), value(manifests, key))...)
	}
	return lines
}

// differInList compares lists of one length element by element. Where the lengths differ, positions
// say little, so it names the elements that only one list has.
func differInList(path string, chart, manifests []any) []string {
	var lines []string
	if len(chart) == len(manifests) {
		for i := range chart {
			lines = append(lines, differ(fmt.Sprintf("%s[%d]", path, i), chart[i], manifests[i])...)
		}
		return lines
	}
	for _, e := range without(chart, manifests) {
		lines = append(lines, fmt.Sprintf("%s: only the chart has %s", path, show(e)))
	}
	for _, e := range without(manifests, chart) {
		lines = append(lines, fmt.Sprintf("%s: only the manifests have %s", path, show(e)))
	}
	return lines
}

// without returns the elements of list that are left when each of other has taken away one equal to
// itself.
func without(list, other []any) []any {
	list = slices.Clone(list)
	for _, o := range other {
		if i := slices.IndexFunc(list, func(e any) bool { return reflect.DeepEqual(e, o) }); i >= 0 {
			list = slices.Delete(list, i, i+1)
		}
	}
	return list
}

// keys returns the keys of both maps, sorted.
func keys[V any](a, b map[string]V) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}

func value(m map[string]any, key string) any {
	if v, ok := m[key]; ok {
		return v
	}
	return absent{}
}

// join appends a key to a path, in quotes where the key itself has dots, as those of labels.
func join(path, key string) string {
	switch {
	case path == "":
		return key
	case strings.ContainsAny(key, "./"):
		return path + "[" + strconv.Quote(key) + "]"
	default:
		return path + "." + key
	}
}

func show(v any) string {
	if _, ok := v.(absent); ok {
		return "nothing"
	}
	text, err := json.Marshal(v)
	if err != nil { // nothing that was decoded from YAML
		return fmt.Sprint(v)
	}
	return string(text)
}
