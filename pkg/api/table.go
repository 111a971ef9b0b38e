package api

import (
	"math"
	"math/bits"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// total is what a row of a table shows: a node's figures, or the sums over a pod's containers.
type total struct {
	nanocores, memory, swap uint64
	hasSwap                 bool
}

func (t total) plus(a *usage.Amount) total {
	t.nanocores = plus(t.nanocores, a.CPUNanocores)
	t.memory = plus(t.memory, a.Memory)
	if a.HasSwap {
		t.swap, t.hasSwap = plus(t.swap, a.Swap), true
	}
	return t
}

// plus stops at the greatest number.
func plus(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, uint64(clamp(b)), 0)
	if carry > 0 {
		return math.MaxUint64
	}
	return sum
}

func podTotal(p *usage.Pod) total {
	var t total
	for i := range p.Containers {
		t = t.plus(&p.Containers[i].Amount)
	}
	return t
}

// alone gives a list of nothing but the entry.
func (e *entry[U]) alone() *entryList[U] {
	return &entryList[U]{Items: []entry[U]{*e}, answer: e.answer}
}

// table gives the entries as a table. Its rows hold the entries, of which the library makes what
// the options ask for; only whole objects must be made here.
func (l *entryList[U]) table(options *metav1.TableOptions) *metav1.Table {
	swap := l.anySwap()
	t := &metav1.Table{ListMeta: l.ListMeta, Rows: make([]metav1.TableRow, len(l.Items))}
	if !options.NoHeaders {
		t.ColumnDefinitions = columns(swap)
	}
	for i := range l.Items {
		e := &l.Items[i]
		var object runtime.Object = e
		if options.IncludeObject == metav1.IncludeObject {
			object = e.GetObject()
		}
		t.Rows[i] = metav1.TableRow{Cells: e.cells(swap), Object: runtime.RawExtension{Object: object}}
	}
	return t
}

// columns gives the columns of a table. That for swap is there only where there is any, and shown
// only with `-o wide`.
func columns(swap bool) []metav1.TableColumnDefinition {
	columns := []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "Name of the node or pod."},
		{Name: "CPU(cores)", Type: "string", Description: "Mean CPU usage over the window, in thousandths of a core, rounded up."},
		{Name: "Memory(bytes)", Type: "string", Description: "Memory working set."},
		{Name: "Window", Type: "string", Description: "Time over which the CPU usage is the mean."},
	}
	if swap {
		columns = append(columns, metav1.TableColumnDefinition{
			Name: "Swap(bytes)", Type: "string", Description: "Swap in use.", Priority: 1,
		})
	}
	return columns
}

func (l *entryList[U]) anySwap() bool {
	for i := range l.Items {
		if l.answer.total(l.Items[i].usage).hasSwap {
			return true
		}
	}
	return false
}

// cells gives an entry's row.
func (e *entry[U]) cells(swap bool) []any {
	total := e.answer.total(e.usage)
	_, window := e.answer.period(e.usage)
	cells := []any{
		e.object.Name,
		string(appendMillicores(nil, total.nanocores)),
		string(appendMebibytes(nil, total.memory)),
		window.Round(time.Millisecond).String(),
	}
	switch {
	case swap && total.hasSwap:
		cells = append(cells, string(appendMebibytes(nil, total.swap)))
	case swap:
		cells = append(cells, noSwap)
	}
	return cells
}

// noSwap stands for a missing figure, as it does with `kubectl get`.
const noSwap = "<none>"

// appendMillicores prints as `kubectl top` does: rounded up.
func appendMillicores(b []byte, nanocores uint64) []byte {
	const milli = 1_000_000
	n := nanocores / milli
	if nanocores%milli > 0 {
		n++
	}
	return append(strconv.AppendUint(b, n, 10), 'm')
}

// appendMebibytes prints as `kubectl top` does: rounded down.
func appendMebibytes(b []byte, bytes uint64) []byte {
	return append(strconv.AppendUint(b, bytes>>20, 10), "Mi"...)
}
