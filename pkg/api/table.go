package api

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"
)

// row is one line of a table, before it is known which columns there are.
type row struct {
	object runtime.Object
	name   string
	window time.Duration
	sum    corev1.ResourceList
}

// podTable gives the table of a PodMetrics or PodMetricsList. A pod's figures are the sums over its containers.
func podTable(object runtime.Object) *metav1.Table {
	list, ok := object.(*metrics.PodMetricsList)
	if !ok {
		list = &metrics.PodMetricsList{Items: []metrics.PodMetrics{*object.(*metrics.PodMetrics)}}
	}
	rows := make([]row, len(list.Items))
	for i := range list.Items {
		pod := &list.Items[i]
		sum := corev1.ResourceList{}
		for _, c := range pod.Containers {
			for name, q := range c.Usage {
				q.Add(sum[name])
				sum[name] = q
			}
		}
		rows[i] = row{pod, pod.Name, pod.Window.Duration, sum}
	}
	return table(list.ListMeta, rows)
}

// nodeTable gives the table of a NodeMetrics or NodeMetricsList.
func nodeTable(object runtime.Object) *metav1.Table {
	list, ok := object.(*metrics.NodeMetricsList)
	if !ok {
		list = &metrics.NodeMetricsList{Items: []metrics.NodeMetrics{*object.(*metrics.NodeMetrics)}}
	}
	rows := make([]row, len(list.Items))
	for i := range list.Items {
		node := &list.Items[i]
		rows[i] = row{node, node.Name, node.Window.Duration, node.Usage}
	}
	return table(list.ListMeta, rows)
}

func table(meta metav1.ListMeta, rows []row) *metav1.Table {
	swap := anySwap(rows)
	t := &metav1.Table{ListMeta: meta, ColumnDefinitions: columns(swap), Rows: make([]metav1.TableRow, len(rows))}
	for i, r := range rows {
		cells := []any{r.name, millicores(r.sum), mebibytes(r.sum, corev1.ResourceMemory), r.window.Round(time.Millisecond).String()}
		if swap {
			cells = append(cells, mebibytes(r.sum, resourceSwap))
		}
		t.Rows[i] = metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: r.object}}
	}
	return t
}

// columns gives the columns of a table. That for swap is there only where there is any, and shown only with `-o wide`.
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

func anySwap(rows []row) bool {
	for _, r := range rows {
		if _, ok := r.sum[resourceSwap]; ok {
			return true
		}
	}
	return false
}

// millicores prints as `kubectl top` does.
func millicores(l corev1.ResourceList) string {
	q := l[corev1.ResourceCPU]
	return fmt.Sprintf("%dm", q.MilliValue())
}

// mebibytes prints as `kubectl top` does; a missing figure as `kubectl get` does.
func mebibytes(l corev1.ResourceList, name corev1.ResourceName) string {
	q, ok := l[name]
	if !ok {
		return "<none>"
	}
	return fmt.Sprintf("%dMi", q.Value()/(1<<20))
}
