package inventory

import (
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// namespace maps keys to lists of objects of one namespace, each sorted by name and not empty. The
// key of the objects that have a label is the text of the label, see Labels. The lists are pointers,
// since a map with a key takes over that of a later assignment: the new key is a part of all labels of an
// object, and would keep them in memory.
type namespace map[string]*[]*Object

// The keys of other lists. No label has such a text.
const (
	allObjects = ""
	unindexed  = labelEnd // objects with labels that are not indexed
)

// keys iterates over the keys of the lists that contain an object.
func (o *Object) keys() iter.Seq[string] {
	return func(yield func(string) bool) {
		switch {
		case !yield(allObjects):
		case o.indexed:
			strings.Lines(string(o.Labels))(yield)
		case o.Labels != "":
			yield(unindexed)
		}
	}
}

// list returns the list of a key. There may be none, nor a map.
func (n namespace) list(key string) []*Object {
	if objects := n[key]; objects != nil {
		return *objects
	}
	return nil
}

// put adds an object to its lists. It replaces an object of the same name there.
func (n namespace) put(o *Object) {
	for key := range o.keys() {
		objects := n[key]
		if objects == nil {
			n[strings.Clone(key)] = &[]*Object{o}
		} else if (*objects)[len(*objects)-1].Name < o.Name { // as in a list
			*objects = append(*objects, o)
		} else if i, found := find(*objects, o.Name); found {
			(*objects)[i] = o
		} else {
			*objects = slices.Insert(*objects, i, o)
		}
	}
}

// remove removes an object from its lists, except where put has replaced it.
func (n namespace) remove(o *Object) {
	for key := range o.keys() {
		objects := n[key]
		i, _ := find(*objects, o.Name)
		if (*objects)[i] != o {
			continue
		}
		if *objects = slices.Delete(*objects, i, i+1); len(*objects) == 0 {
			delete(n, key)
		}
	}
}

// term is a requirement that an index can answer: a label with one of the values.
type term struct {
	key    string
	values []string
}

// termsOf returns the terms of the requirements. Others, such as !=, have none: most objects
// meet them, or have such a key, so an index would not help much.
func termsOf(requirements labels.Requirements) (terms []term) {
	for i := range requirements {
		switch r := &requirements[i]; r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			values := r.ValuesUnsorted()
			slices.Sort(values)
			terms = append(terms, term{key: r.Key(), values: slices.Compact(values)})
		}
	}
	return terms
}

// candidates appends lists of objects to dst, each sorted by name. Together they contain every
// object that meets all terms; if exact is set, they contain no other. They are the objects that
// meet the rarest term, and those that are not indexed. Because the caller holds a lock, the search
// for the rarest term is limited to as many steps as there are objects.
func (n namespace) candidates(dst [][]*Object, terms []term) (lists [][]*Object, exact bool) {
	all, others := n.list(allObjects), n.list(unindexed)
	rarest, size, steps := -1, len(all), 0
	for i := range terms {
		if steps += max(1, len(terms[i].values)); steps > len(all) {
			break
		}
		count := 0
		for objects := range n.meeting(&terms[i]) {
			count += len(objects)
		}
		if count <= size {
			rarest, size = i, count
		}
	}
	if rarest < 0 {
		return append(dst, all), len(terms) == 0
	}
	if len(others) > 0 {
		dst = append(dst, others)
	}
	for objects := range n.meeting(&terms[rarest]) {
		dst = append(dst, objects)
	}
	return dst, len(terms) == 1 && len(others) == 0
}

// meeting iterates over lists of objects that meet a term. No object is in two of them.
func (n namespace) meeting(d *term) iter.Seq[[]*Object] {
	return func(yield func([]*Object) bool) {
		text := append(make([]byte, 0, maxLabelBytes), d.key...)
		text = append(text, keyEnd...)
		for _, value := range d.values {
			if objects := n[string(append(append(text, value...), labelEnd...))]; objects != nil && !yield(*objects) {
				return
			}
		}
	}
}

// find returns the position of name in objects, which are sorted by name, and whether it was found.
func find(objects []*Object, name string) (int, bool) {
	return slices.BinarySearchFunc(objects, name, func(o *Object, name string) int {
		return strings.Compare(o.Name, name)
	})
}
