package api

import (
	"context"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// noSwap is shown for a missing value, as in `kubectl get`.
const noSwap = "<none>"

// ConvertToTable implements rest.TableConvertor. The rows hold Items, from which the library
// creates what the options request; only whole objects must be created here.
func (c *collection) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	list, ok := object.(*encode.List)
	if !ok {
		list = object.(*encode.Item).AsList()
	}
	c.warnOfMissing(ctx, list)
	totals := make([]usage.Amount, len(list.Items))
	swap := false
	for i := range list.Items {
		totals[i] = list.Items[i].Usage.Total()
		swap = swap || totals[i].HasSwap
	}
	table := &metav1.Table{ListMeta: list.ListMeta, Rows: make([]metav1.TableRow, len(list.Items))}
	o, _ := options.(*metav1.TableOptions)
	if o == nil || !o.NoHeaders {
		table.ColumnDefinitions = columns(swap)
	}
	for i := range list.Items {
		item := &list.Items[i]
		row := metav1.TableRow{Cells: cells(item.Object.Name, &totals[i], swap)}
		row.Object.Object = item
		if o != nil && o.IncludeObject == metav1.IncludeObject {
			row.Object.Object = item.GetObject()
		}
		table.Rows[i] = row
	}
	return table, nil
}

// columns returns the columns of a table. The column for swap exists only if there is swap, and
// kubectl shows it only with `-o wide`.
func columns(swap bool) []metav1.TableColumnDefinition {
	columns := []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "Name of the node or pod."},
		{Name: "CPU(cores)", Type: "string",
			Description: "Mean CPU usage over the window, in thousandths of a core, rounded up."},
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

// cells returns a row of a table.
func cells(name string, total *usage.Amount, swap bool) []any {
	cells := []any{
		name, millicores(total.CPUNanocores), mebibytes(total.Memory), total.Window.Round(time.Millisecond).String(),
	}
	switch {
	case swap && total.HasSwap:
		return append(cells, mebibytes(total.Swap))
	case swap:
		return append(cells, noSwap)
	}
	return cells
}

// millicores formats CPU as `kubectl top` does: rounded up.
func millicores(nanocores uint64) string {
	const milli = 1_000_000
	return strconv.FormatUint((nanocores+milli-1)/milli, 10) + "m"
}

// mebibytes formats memory as `kubectl top` does: rounded down.
func mebibytes(bytes uint64) string { return strconv.FormatUint(bytes>>20, 10) + "Mi" }
