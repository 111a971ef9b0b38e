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

// postings maps the key of a label to the objects that have it.
type postings map[string]*posting

type posting struct {
	total   int                  // number of objects with the label, with any value
	byValue map[string][]*Object // each sorted by name
}

// put adds o and returns the object that it replaces, or nil.
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

// append adds an object whose name sorts after all others.
func (n *namespace) append(o *Object) {
	n.objects = append(n.objects, o)
	for key, value := range o.Labels {
		p := n.byLabel.posting(key)
		p.total++
		p.byValue[value] = append(p.byValue[value], o)
	}
}

// remove removes an object, which must be in n.
func (n *namespace) remove(o *Object) {
	i, _ := find(n.objects, o.Name)
	n.objects = slices.Delete(n.objects, i, i+1)
	n.byLabel.remove(o)
}

// demand is the part of a label requirement that an index can answer: a key with one of the values,
// or with any value.
type demand struct {
	key      string
	values   []string
	anyValue bool
}

// demandsOf returns the demands of the requirements, and whether an object that meets the demands
// always matches the selector. Requirements that objects without the label can meet, such as !=,
// have no demand.
func demandsOf(requirements labels.Requirements) (demands []demand, exact bool) {
	exact = len(requirements) <= 1
	for i := range requirements {
		switch r := &requirements[i]; r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			values := r.ValuesUnsorted()
			slices.Sort(values)
			demands = append(demands, demand{key: r.Key(), values: slices.Compact(values)})
		case selection.Exists:
			demands = append(demands, demand{key: r.Key(), anyValue: true})
		case selection.GreaterThan, selection.LessThan:
			demands = append(demands, demand{key: r.Key(), anyValue: true})
			exact = false
		default:
			exact = false
		}
	}
	return demands, exact
}

// candidates appends lists of objects to dst, each sorted by name. Together they contain every
// object that meets all demands: they are the objects that meet the rarest demand, or, if meetOne
// is false, all objects. Because the caller holds a lock, the search for the rarest demand is
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
	p := n.byLabel[demands[rarest].key]
	if size == 0 {
		return dst, true
	}
	if demands[rarest].anyValue {
		for _, objects := range p.byValue {
			dst = append(dst, objects)
		}
		return dst, true
	}
	for _, value := range demands[rarest].values {
		if objects := p.byValue[value]; len(objects) > 0 {
			dst = append(dst, objects)
		}
	}
	return dst, true
}

// count returns the number of objects that meet a demand.
func (p postings) count(d *demand) int {
	found := p[d.key]
	switch {
	case found == nil:
		return 0
	case d.anyValue:
		return found.total
	}
	sum := 0
	for _, value := range d.values {
		sum += len(found.byValue[value])
	}
	return sum
}

func (p postings) insert(o *Object) {
	for key, value := range o.Labels {
		found := p.posting(key)
		objects := found.byValue[value]
		i, _ := find(objects, o.Name)
		found.byValue[value] = slices.Insert(objects, i, o)
		found.total++
	}
}

func (p postings) remove(o *Object) {
	for key, value := range o.Labels {
		found := p[key]
		objects := found.byValue[value]
		i, _ := find(objects, o.Name)
		if objects = slices.Delete(objects, i, i+1); len(objects) > 0 {
			found.byValue[value] = objects
		} else {
			delete(found.byValue, value)
		}
		if found.total--; found.total == 0 {
			delete(p, key)
		}
	}
}

func (p postings) posting(key string) *posting {
	found := p[key]
	if found == nil {
		found = &posting{byValue: map[string][]*Object{}}
		p[key] = found
	}
	return found
}

// find returns the position of name in objects, which are sorted by name, and whether it was found.
func find(objects []*Object, name string) (int, bool) {
	return slices.BinarySearchFunc(objects, name, func(o *Object, name string) int {
		return strings.Compare(o.Name, name)
	})
}
