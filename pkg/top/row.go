package top

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// value is a number plus 1. 0 is an unknown number.
type value int64

func number(n int64) value { return value(min(n, math.MaxInt64-1) + 1) }

func (v value) known() bool { return v != 0 }

// n returns the number. Of an unknown one, it is 0.
func (v value) n() int64 { return int64(max(v, 1)) - 1 }

// plus returns the sum of what is known, at most the largest number.
func (v value) plus(o value) value {
	if !v.known() || !o.known() {
		return max(v, o)
	}
	return number(v.n() + min(o.n(), math.MaxInt64-v.n()))
}

// MarshalJSON implements json.Marshaler. Unknown values are left out.
func (v value) MarshalJSON() ([]byte, error) { return json.Marshal(v.n()) }

// amount has CPU in nanocores, or memory in bytes.
type amount [len(suffixes) + 4]value

// The values of an amount.
const (
	usage = iota
	request
	limit
	allocatable // of nodes
	percent     // part of whole
	part        // usage of what has a request; of nodes: that has allocatable
	whole       // request of what has usage; of nodes: allocatable
	near        // number of pods that use nine tenths of their bound
	bound       // limit of a pod, if everything in it has one
)

// suffixes are the names of the first values, in JSON and in --sort-by.
var suffixes = [...]string{"usage", "request", "limit", "allocatable", "percent"}

// MarshalJSON implements json.Marshaler.
func (a amount) MarshalJSON() ([]byte, error) {
	known := map[string]value{}
	for i, name := range suffixes {
		if a[i].known() {
			known[name] = a[i]
		}
	}
	return json.Marshal(known)
}

// The resources of a row. The autoscaler and kubectl top round CPU up to thousandths of a core.
var (
	resources = [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
	scales    = [...]resource.Scale{resource.Nano, 0}
	units     = [...]int64{1_000_000, 1}
)

// row is a line of the table, and an item of the JSON: docs/top.md.
type row struct {
	Namespace   string                       `json:"namespace,omitempty"`
	APIVersion  string                       `json:"apiVersion,omitempty"`
	Kind        string                       `json:"kind,omitempty"`
	Name        string                       `json:"name,omitempty"`
	Container   string                       `json:"container,omitempty"`
	Node        string                       `json:"node,omitempty"` // of a pod
	Objects     value                        `json:"objects,omitzero"`
	WithMetrics int64                        `json:"withMetrics"`
	CPU         amount                       `json:"cpu"`
	Memory      amount                       `json:"memory"`
	Further     map[string]resource.Quantity `json:"further,omitempty"`
	Sampled     time.Time                    `json:"sampled,omitzero"` // the oldest
	Autoscalers []autoscaler                 `json:"autoscalers,omitempty"`
	Missing     map[string]int               `json:"withoutMetrics,omitempty"` // number of objects by reason
	Message     string                       `json:"message,omitempty"`        // of one object

	owner   *metav1.OwnerReference // the controller of a pod; nil: there is none
	ended   bool                   // of a pod
	passing bool                   // of an init container that ends before the others start, or an ephemeral container
}

func (r *row) amounts() [len(resources)]*amount { return [...]*amount{&r.CPU, &r.Memory} }

// set sets one value of each resource that a list has.
func (r *row) set(which int, list corev1.ResourceList) {
	for i, a := range r.amounts() {
		a[which] = cmp.Or(in(list, i), a[which])
	}
}

// in returns the value of a resource in a list, at most the largest number.
func in(list corev1.ResourceList, resource int) value {
	q, ok := list[resources[resource]]
	switch {
	case !ok:
		return 0
	case q.AsApproximateFloat64()*math.Pow10(-int(scales[resource])) >= math.MaxInt64:
		return number(math.MaxInt64)
	}
	return number(max(0, q.ScaledValue(scales[resource])))
}

// add adds the numbers of another row.
func (r *row) add(o *row) {
	r.Objects, r.WithMetrics = r.Objects.plus(o.Objects), r.WithMetrics+o.WithMetrics
	for i, a := range r.amounts() {
		for j := range a {
			a[j] = a[j].plus(o.amounts()[i][j])
		}
	}
	if !o.Sampled.IsZero() && (r.Sampled.IsZero() || o.Sampled.Before(r.Sampled)) {
		r.Sampled = o.Sampled
	}
	if r.Further == nil && o.Further != nil {
		r.Further = map[string]resource.Quantity{}
	}
	for name, q := range o.Further {
		sum := r.Further[name].DeepCopy()
		sum.Add(q)
		r.Further[name] = sum
	}
	if r.Missing == nil && o.Missing != nil {
		r.Missing = map[string]int{}
	}
	for reason, n := range o.Missing {
		r.Missing[reason] += n
	}
}

// use sets the usage to what was measured.
func (r *row) use(m *measured) {
	r.WithMetrics, r.Sampled, r.Further, r.Missing = 1, m.at, m.further, nil
	for i, a := range r.amounts() {
		of, isNode := a[request], r.Kind == "Node"
		if isNode {
			of = a[allocatable]
		}
		if a[usage] = m.usage[i]; !a[usage].known() {
			r.WithMetrics, r.Missing = 0, map[string]int{noMetrics: 1}
			continue
		}
		if of.known() {
			a[part], a[whole] = a[usage], of
		}
		if a[bound].known() && float64(a[usage].n()) >= 0.9*float64(a[bound].n()) {
			a[near] = number(1)
		}
	}
}

// finish sets the percentages, rounded down.
func (r *row) finish() {
	for i, a := range r.amounts() {
		if of := a[whole].n() / units[i]; of > 0 {
			n := roundUp(a[part].n(), units[i])
			a[percent] = number(min(n/of, math.MaxInt64/100) * 100)
			if n < math.MaxInt64/100 {
				a[percent] = number(n * 100 / of)
			}
		}
	}
}

func roundUp(n, unit int64) int64 { return n/unit + min(1, n%unit) }

// group returns the sums of pods by what they belong to.
func group(pods []*row, of func(*row) *row) []*row {
	rows := map[id]*row{}
	for _, p := range pods {
		g := of(p)
		id := g.id()
		if rows[id] == nil {
			rows[id] = g
		}
		rows[id].add(p)
		for _, a := range g.Autoscalers {
			if !slices.Contains(rows[id].Autoscalers, a) {
				rows[id].Autoscalers = append(rows[id].Autoscalers, a)
			}
		}
	}
	return slices.Collect(maps.Values(rows))
}

// parseOrder parses --sort-by, such as memory or cpu-percent. The resource is -1 for name.
func parseOrder(by string) (resource, value int, ok bool) {
	name, suffix, _ := strings.Cut(by, "-")
	resource = slices.Index(resources[:], corev1.ResourceName(name))
	value = slices.Index(suffixes[:], cmp.Or(suffix, suffixes[usage]))
	return resource, value, by == "name" || resource >= 0 && value >= 0
}

// order sorts rows. Large values come first, and unknown ones last.
func order(rows []*row, by string) {
	resource, which, _ := parseOrder(by)
	key := func(r *row) value {
		if resource < 0 {
			return 0
		}
		return r.amounts()[resource][which]
	}
	slices.SortFunc(rows, func(a, b *row) int {
		return cmp.Or(cmp.Compare(key(b), key(a)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Name, b.Name), cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Container, b.Container))
	})
}
