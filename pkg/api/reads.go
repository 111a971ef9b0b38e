package api

import (
	"iter"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
)

// selects reports whether a query selects objects by name or by label, and is not one for all nodes
// or for all pods of a namespace.
func (q *query) selects() bool {
	_, named := q.fields.RequiresExactMatch(fieldName)
	return named || !q.labels.Empty()
}

// noteRead reports the read of objects that a query selects, or that a GET names.
func (c *collection) noteRead(objects ...*inventory.Object) {
	if c.config.NoteRead != nil && len(objects) > 0 {
		c.config.NoteRead(c.nodesOf(objects))
	}
}

// nodesOf returns the nodes that report the objects. Neighbours with the same node count once.
func (c *collection) nodesOf(objects []*inventory.Object) iter.Seq[string] {
	return func(yield func(string) bool) {
		last := ""
		for _, o := range objects {
			node := o.Node
			if !c.NamespaceScoped() {
				node = o.Name
			}
			if node != last && !yield(node) {
				return
			}
			last = node
		}
	}
}
