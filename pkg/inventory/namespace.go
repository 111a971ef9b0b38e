package inventory

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// namespace holds the objects of one namespace.
type namespace struct {
	objects []*Object // sorted by name
	byLabel postings
}

// postings leads from a label's key and value to the objects that carry it, sorted by name.
type postings map[string]map[string][]*Object

// put takes o in and gives the object whose place it took, or nil.
func (n *namespace) put(o *Object) *Object {
	i, found := find(n.objects, o.Name)
	if !found {
		n.objects = slices.Insert(n.objects, i, o)
		n.byLabel.insert(o)
		return nil
	}
	old := n.objects[i]
	n.objects[i] = o
	n.byLabel.remove(old)
	n.byLabel.insert(o)
	return old
}

// remove takes the object of that name out and gives it, or nil.
func (n *namespace) remove(name string) *Object {
	i, found := find(n.objects, name)
	if !found {
		return nil
	}
	old := n.objects[i]
	n.objects = slices.Delete(n.objects, i, i+1)
	n.byLabel.remove(old)
	return old
}

// match appends the objects that the selector matches to dst, sorted by name. It starts from the rarest label that the
// selector demands; only one that demands none (!=, notin, !key) looks at every object.
func (n *namespace) match(dst []*Object, selector labels.Selector) []*Object {
	requirements, selectable := selector.Requirements()
	if !selectable {
		return dst
	}
	candidates, indexed := n.objects, false
	for i := range requirements {
		if found, ok := n.byLabel.candidates(&requirements[i], len(candidates)); ok {
			candidates, indexed = found, true
		}
	}
	if len(requirements) == 0 || len(requirements) == 1 && indexed && exact(requirements[0].Operator()) {
		return append(dst, candidates...)
	}
	for _, o := range candidates {
		if selector.Matches(labels.Set(o.Labels)) {
			dst = append(dst, o)
		}
	}
	return dst
}

// exact says whether the candidates of a requirement with that operator are all of them matches.
func exact(op selection.Operator) bool {
	return op != selection.GreaterThan && op != selection.LessThan
}

// candidates gives the objects that can meet a requirement, sorted by name, if the index knows them and they are not more
// than limit.
func (p postings) candidates(r *labels.Requirement, limit int) ([]*Object, bool) {
	values := p[r.Key()]
	var lists [][]*Object
	switch r.Operator() {
	case selection.Equals, selection.DoubleEquals, selection.In:
		for value := range r.Values() {
			lists = append(lists, values[value])
		}
	case selection.Exists, selection.GreaterThan, selection.LessThan:
		for _, list := range values {
			lists = append(lists, list)
		}
	default:
		return nil, false
	}
	sum := 0
	for _, list := range lists {
		sum += len(list)
	}
	if sum > limit {
		return nil, false
	}
	if len(lists) == 1 {
		return lists[0], true
	}
	union := slices.Concat(lists...)
	slices.SortFunc(union, byName)
	return union, true
}

// append takes in an object whose name sorts after those of all that are there.
func (p postings) append(o *Object) {
	for key, value := range o.Labels {
		values := p.values(key)
		values[value] = append(values[value], o)
	}
}

func (p postings) insert(o *Object) {
	for key, value := range o.Labels {
		values := p.values(key)
		i, _ := find(values[value], o.Name)
		values[value] = slices.Insert(values[value], i, o)
	}
}

func (p postings) remove(o *Object) {
	for key, value := range o.Labels {
		values := p[key]
		list := values[value]
		if i, found := find(list, o.Name); found {
			values[value] = slices.Delete(list, i, i+1)
		}
		if len(values[value]) == 0 {
			delete(values, value)
		}
		if len(values) == 0 {
			delete(p, key)
		}
	}
}

func (p postings) values(key string) map[string][]*Object {
	values := p[key]
	if values == nil {
		values = map[string][]*Object{}
		p[key] = values
	}
	return values
}

func byName(a, b *Object) int { return strings.Compare(a.Name, b.Name) }

// find gives the place of name in objects, which are sorted by name, and whether it is there.
func find(objects []*Object, name string) (int, bool) {
	return slices.BinarySearchFunc(objects, name, func(o *Object, name string) int { return strings.Compare(o.Name, name) })
}
