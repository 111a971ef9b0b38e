package api

import (
	"context"
	"math"
	"strconv"
	"sync"
	"time"

	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// noValue is shown for a missing value, as in `kubectl get`.
const noValue = "<none>"

// ConvertToTable implements rest.TableConvertor. If the options request the objects, the library
// converts those of the rows. By default, they request metadata. The rows then have these as JSON, which
// the library writes as it is: to encode metadata by reflection would take half of the CPU.
func (c *collection) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	mayGetObjects := sync.OnceValue(func() bool { return c.mayGetObjects(ctx) })
	list, ok := object.(*encode.List)
	if !ok {
		list = object.(*encode.Item).AsList() // of a GET
	}
	c.warnOfMissing(ctx, list, mayGetObjects)
	l := c.layoutOf(list.Items, mayGetObjects)
	table := &metav1.Table{ListMeta: list.ListMeta, Rows: make([]metav1.TableRow, len(list.Items))}
	o, _ := options.(*metav1.TableOptions)
	if o == nil || !o.NoHeaders {
		table.ColumnDefinitions = l.columns()
	}
	now := c.config.Clock.At(c.config.Now())
	var metadata [][]byte
	m, _ := ctx.Value(negotiatedKey{}).(*negotiated)
	if m != nil && m.table != "" && (o == nil || o.IncludeObject == "" || o.IncludeObject == metav1.IncludeMetadata) {
		metadata = list.MetadataJSON(m.table)
	}
	placeholder := &metav1.PartialObjectMetadata{} // the library requires one also in rows with JSON
	for i := range list.Items {
		item, row := &list.Items[i], &table.Rows[i]
		row.Cells = l.cells(item, now)
		switch {
		case metadata != nil:
			row.Object = runtime.RawExtension{Raw: metadata[i], Object: placeholder}
		case o != nil && o.IncludeObject == metav1.IncludeObject:
			row.Object.Object = item.GetObject()
		default:
			row.Object.Object = item
		}
	}
	return table, nil
}

// layout is what differs between tables. It does not depend on the content of rows, except that a table without rows,
// which needs no access review, has no nodes: kubectl prints its header again for a page with other columns.
type layout struct {
	node    bool             // the nodes that pods are bound to
	further []usage.Resource // further resources, sorted by name, without values
}

// layoutOf returns the layout of a table with these items. It shows the nodes of pods only to users
// who may get the pods: PodMetrics do not contain them.
func (c *collection) layoutOf(items []encode.Item, mayGetObjects func() bool) layout {
	ofNodes, ofPods := c.config.View.ResourceNames()
	if !c.NamespaceScoped() {
		return layout{further: ofNodes}
	}
	return layout{node: len(items) > 0 && mayGetObjects(), further: ofPods}
}

// columns returns the definitions of the columns. Those with priority 1 are shown by kubectl only
// with `-o wide`. The columns that are always there come first.
func (l *layout) columns() []metav1.TableColumnDefinition {
	columns := []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "Name of the node or pod."},
		{Name: "CPU(cores)", Type: "string",
			Description: "Mean CPU usage over the window, in thousandths of a core, rounded up."},
		{Name: "Memory(bytes)", Type: "string", Description: "Memory working set."},
		{Name: "Window", Type: "string", Description: "Time over which the CPU usage is the mean."},
	}
	wide := func(name, description string) {
		columns = append(columns, metav1.TableColumnDefinition{
			Name: name, Type: "string", Description: description, Priority: 1,
		})
	}
	wide("Swap(bytes)", "Swap in use.")
	wide("Age(metrics)", "Time since the metrics were sampled.")
	if l.node {
		wide("Node", "Node that the pod is bound to.")
	}
	for _, r := range l.further {
		if r.Unit == usage.Bytes {
			wide(r.Name+"(bytes)", "Usage of "+r.Name+", in bytes.")
		} else {
			wide(r.Name, "Usage of "+r.Name+".")
		}
	}
	return columns
}

// cells returns the row of an item at the time now.
func (l *layout) cells(item *encode.Item, now usage.Time) []any {
	total := item.Usage.Total()
	cells := make([]any, 0, 7+len(l.further))
	cells = append(cells, item.Object.Name, millicores(total.CPUNanocores), mebibytes(total.Memory),
		total.Window.Round(time.Millisecond).String())
	swap := noValue
	if total.HasSwap {
		swap = mebibytes(total.Swap)
	}
	cells = append(cells, swap, duration.HumanDuration(max(0, now.Sub(item.Usage.SampledAt()))))
	if l.node {
		cells = append(cells, item.Object.Node)
	}
	for _, r := range l.further {
		switch total := item.Further.Total(r.Name); {
		case total == nil:
			cells = append(cells, noValue)
		case total.Unit == usage.Bytes:
			cells = append(cells, mebibytes(total.Value))
		default:
			cells = append(cells, milli(total.Value))
		}
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

// milli formats thousandths as metrics do: 1500m, 2.
func milli(value uint64) string {
	return quantity.NewMilliQuantity(int64(min(value, math.MaxInt64)), quantity.DecimalSI).String()
}
