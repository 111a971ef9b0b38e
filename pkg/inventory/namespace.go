package inventory

import (
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// namespace holds the objects of one namespace.
type namespace struct {
	objects   []*Object // sorted by name
	byLabel   postings  // the indexed ones
	unindexed []*Object // those with labels that are not indexed, sorted by name
}

// postings maps the text of a label, see Labels, to the objects that have it, sorted by name.
type postings map[string][]*Object

// put adds o and returns the object that it replaces, or nil.
func (n *namespace) put(o *Object) *Object {
	i, found := find(n.objects, o.Name)
	if !found {
		n.objects = slices.Insert(n.objects, i, o)
		n.index(o)
		return nil
	}
	old := n.objects[i]
	n.objects[i] = o
	if old.indexed && o.indexed && old.Labels == o.Labels {
		n.byLabel.replace(o)
		return old
	}
	n.unindex(old)
	n.index(o)
	return old
}

// append adds an object whose name sorts after all others.
func (n *namespace) append(o *Object) {
	n.objects = append(n.objects, o)
	n.index(o)
}

// remove removes an object, which must be in n.
func (n *namespace) remove(o *Object) {
	i, _ := find(n.objects, o.Name)
	n.objects = slices.Delete(n.objects, i, i+1)
	n.unindex(o)
}

// index makes selectors find an object.
func (n *namespace) index(o *Object) {
	switch {
	case o.indexed:
		n.byLabel.insert(o)
	case o.Labels != "":
		n.unindexed = insert(n.unindexed, o)
	}
}

// unindex undoes index.
func (n *namespace) unindex(o *Object) {
	switch {
	case o.indexed:
		n.byLabel.remove(o)
	case o.Labels != "":
		i, _ := find(n.unindexed, o.Name)
		n.unindexed = slices.Delete(n.unindexed, i, i+1)
	}
}

// demand is the part of a label requirement that an index can answer: a label with one of the values.
type demand struct {
	key    string
	values []string
}

// demandsOf returns the demands of the requirements, and whether an object that meets the demands
// always matches the selector. Other requirements, such as !=, have no demand. Most objects meet
// them, or have such a key, so an index would not help much.
func demandsOf(requirements labels.Requirements) (demands []demand, exact bool) {
	exact = len(requirements) <= 1
	for i := range requirements {
		switch r := &requirements[i]; r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			values := r.ValuesUnsorted()
			slices.Sort(values)
			demands = append(demands, demand{key: r.Key(), values: slices.Compact(values)})
		default:
			exact = false
		}
	}
	return demands, exact
}

// candidates appends lists of objects to dst, each sorted by name. Together they contain every
// object that meets all demands: they are the objects that meet the rarest demand, or, if meetOne
// is false, also others. Because the caller holds a lock, the search for the rarest demand is
// limited to as many steps as there are objects.
func (n *namespace) candidates(dst [][]*Object, demands []demand) (lists [][]*Object, meetOne bool) {
	rarest, size, steps := -1, len(n.objects), 0
	for i := range demands {
		if steps += max(1, len(demands[i].values)); steps > len(n.objects) {
			break
		}
		if count := n.byLabel.count(&demands[i]); count <= size {
			rarest, size = i, count
		}
	}
	if rarest < 0 {
		return append(dst, n.objects), false
	}
	if len(n.unindexed) > 0 {
		dst = append(dst, n.unindexed)
	}
	for objects := range n.byLabel.lists(&demands[rarest]) {
		dst = append(dst, objects)
	}
	return dst, len(n.unindexed) == 0
}

// lists iterates over lists of objects that meet a demand. No object is in two of them.
func (p postings) lists(d *demand) iter.Seq[[]*Object] {
	return func(yield func([]*Object) bool) {
		text := append(make([]byte, 0, maxLabelBytes), d.key...)
		text = append(text, keyEnd...)
		for _, value := range d.values {
			if objects := p[string(append(text, value...))]; len(objects) > 0 && !yield(objects) {
				return
			}
		}
	}
}

// count returns the number of objects that meet a demand.
func (p postings) count(d *demand) int {
	sum := 0
	for objects := range p.lists(d) {
		sum += len(objects)
	}
	return sum
}

func (p postings) insert(o *Object) {
	for text := range o.Labels.texts() {
		objects, ok := p[text]
		if !ok {
			text = strings.Clone(text) // does not keep all labels of o in memory
		}
		p[text] = insert(objects, o)
	}
}

// replace replaces an object of the same name and with the same labels as o.
func (p postings) replace(o *Object) {
	for text := range o.Labels.texts() {
		objects := p[text]
		i, _ := find(objects, o.Name)
		objects[i] = o
	}
}

func (p postings) remove(o *Object) {
	for text := range o.Labels.texts() {
		objects := p[text]
		i, _ := find(objects, o.Name)
		if objects = slices.Delete(objects, i, i+1); len(objects) > 0 {
			p[text] = objects
		} else {
			delete(p, text)
		}
	}
}

// insert returns objects, which are sorted by name, with o.
func insert(objects []*Object, o *Object) []*Object {
	if n := len(objects); n == 0 || objects[n-1].Name < o.Name { // as in a list
		return append(objects, o)
	}
	i, _ := find(objects, o.Name)
	return slices.Insert(objects, i, o)
}

// find returns the position of name in objects, which are sorted by name, and whether it was found.
func find(objects []*Object, name string) (int, bool) {
	return slices.BinarySearchFunc(objects, name, func(o *Object, name string) int {
		return strings.Compare(o.Name, name)
	})
}
