package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kube-vitals/kube-vitals/internal/terminal"
)

const (
	unknown   = "-" // a cell without a value
	maxWhy    = 3   // reasons in a cell
	columnWhy = "NO METRICS"
)

// column is a column of the table.
type column struct {
	name string
	cell func(*row) string
	text bool // to the left

	// For narrow terminals.
	drop  int // columns with 1 are dropped first; 0: never
	least int // cells may be shortened to this width; 0: they are not

	bar func(*row) *amount // what the bar before the cell shows; nil: there is none

	width int
}

// lastDrop is of the column that is dropped last. After lastWideDrop, columns come closer first.
const (
	lastWideDrop = 5
	lastDrop     = 7
)

// columns returns the columns of a report. Outside of terminals they depend on the flags only.
func (c *Config) columns(r *report) (all []column) {
	wide := c.Output == "wide"
	isAny := func(f func(*row) bool) bool { return c.Screen.Size == nil || slices.ContainsFunc(r.Items, f) }
	text := func(shown bool, name string, least, drop int, cell func(*row) string) {
		if shown {
			all = append(all, column{name: name, cell: cell, text: true, least: least, drop: drop})
		}
	}
	text(c.Namespace == "" && (c.Kind == Pods || c.Kind == Workloads), "NAMESPACE", 9, 0, func(r *row) string {
		return or(r.Kind != "", terminal.Name(r.Namespace))
	})
	text(true, "NAME", 20, 0, func(r *row) string {
		switch {
		case r.Kind == "":
			return coverage(r, " of ") + " " + c.resource()
		case c.Kind == Workloads:
			return terminal.Name(r.kindAndName())
		}
		return terminal.Name(r.Name)
	})
	text(c.Containers, "CONTAINER", 9, 0, func(r *row) string { return or(r.Container != "", terminal.Name(r.Container)) })
	text(wide && c.Kind == Pods, "NODE", 0, 0, func(r *row) string { return or(r.Node != "", terminal.Name(r.Node)) })
	text(c.Kind == Workloads || c.Kind == Namespaces, "PODS", 0, 0, func(r *row) string { return coverage(r, "/") })
	for i, name := range []string{"CPU", "MEM"} {
		all = append(all, c.amountColumns(i, name)...)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Total.Further)) { // with -o wide
		// The server counts it in bytes: a quantity that is no multiple of 1024 does not show that.
		isBytes := slices.ContainsFunc(r.Items, func(r *row) bool { return r.Further[name].Format == resource.BinarySI })
		all = append(all, column{name: strings.ToUpper(terminal.Name(name)), cell: func(r *row) string {
			q, ok := r.Further[name]
			if isBytes {
				return or(ok, mebibytes(q.Value()))
			}
			return or(ok, q.String())
		}})
	}
	all = append(all, column{name: "AGE", drop: 1, cell: func(row *row) string {
		return or(!row.Sampled.IsZero(), duration.HumanDuration(max(0, r.Time.Sub(row.Sampled))))
	}})
	text(c.Kind == Workloads && isAny(func(r *row) bool { return len(r.Autoscalers) > 0 }), "HPA", 0, lastDrop,
		func(r *row) string {
			var all []string
			for _, a := range r.Autoscalers {
				all = append(all, plain(fmt.Sprintf("%s %s/%s", a.Metric, cmp.Or(a.Current, "?"), a.Target)))
			}
			return or(len(all) > 0, strings.Join(all, ", "))
		})
	text(isAny(func(r *row) bool { return len(r.Missing) > 0 }), columnWhy, 15, 0,
		func(r *row) string { return why(r, wide) })
	return all
}

// amountColumns returns the columns of one resource.
func (c *Config) amountColumns(resource int, name string) (all []column) {
	show := mebibytes
	if resource == 0 {
		show = func(n int64) string { return fmt.Sprintf("%dm", roundUp(n, units[0])) }
	}
	add := func(suffix string, value, drop int) {
		all = append(all, column{name: name + suffix, drop: drop, cell: func(r *row) string {
			v := r.amounts()[resource][value]
			return or(v.known(), show(v.n()))
		}})
	}
	add("", usage, 0)
	add("-REQ", request, 4+resource)
	if c.Kind != Nodes || c.Output == "wide" {
		add("-LIM", limit, 2+resource)
	}
	if c.Kind == Nodes {
		add("-ALLOC", allocatable, 6)
	}
	amount := func(r *row) *amount { return r.amounts()[resource] }
	return append(all, column{name: name + "%", bar: amount, cell: func(r *row) string {
		return or(amount(r)[percent].known(), fmt.Sprintf("%d%%", amount(r)[percent].n()))
	}})
}

// or returns the text of a value, if it is known.
func or(known bool, text string) string {
	if known {
		return text
	}
	return unknown
}

func mebibytes(n int64) string { return fmt.Sprintf("%dMi", n>>20) }

// coverage returns how many of how many objects have metrics.
func coverage(r *row, of string) string {
	if !r.Objects.known() {
		return fmt.Sprintf("%d%s?", r.WithMetrics, of)
	}
	return fmt.Sprintf("%d%s%d", r.WithMetrics, of, r.Objects.n())
}

// why returns the reasons for missing metrics, the most frequent first and those of pods that have ended last, or with
// -o wide the message of one object.
func why(r *row, wide bool) string {
	if wide && r.Message != "" {
		return plain(r.Message)
	}
	var all []string
	for _, reason := range slices.SortedFunc(maps.Keys(r.Missing), func(a, b string) int {
		return cmp.Or(cmp.Compare(ended(a), ended(b)), cmp.Compare(r.Missing[b], r.Missing[a]), cmp.Compare(a, b))
	}) {
		if len(all) == maxWhy {
			return strings.Join(all, ", ") + ", ..."
		}
		text := plain(reason)
		if r.Kind != "Pod" && r.Kind != "Node" {
			text = fmt.Sprintf("%d %s", r.Missing[reason], text)
		}
		all = append(all, text)
	}
	return or(len(all) > 0, strings.Join(all, ", "))
}

// ended returns 1 for a phase of pods that have ended, which do not count, and otherwise 0.
func ended(reason string) int {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		if strings.HasPrefix(reason, string(phase)) {
			return 1
		}
	}
	return 0
}

// plain returns a text that others choose as ASCII, so that each byte is one cell of a terminal.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII {
			return '?'
		}
		return r
	}, terminal.Printable(text[:min(len(text), 1000)]))
}
