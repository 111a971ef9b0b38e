package inventory

import "iter"

// maxSharedContainers limits the containers of a pod that shares their names with others.
// It bounds how long the Index is locked.
const maxSharedContainers = 64

// sharing holds one copy of each text for all objects with an equal one, for as long as such an
// object exists: labels, and names of namespaces, nodes and containers.
//
// The standard library's unique does not fit: its handles, which objects would have to hold, take
// 36 bytes more per pod in BenchmarkMemory.
type sharing map[string]*sharedText

type sharedText struct {
	text string
	refs int // number of times it was shared
}

// adopt replaces the texts of an object by shared ones.
func (s sharing) adopt(o *Object) {
	for text := range o.shared() {
		v := s[*text]
		if v == nil {
			v = &sharedText{text: *text}
			s[*text] = v
		}
		v.refs++
		*text = v.text
	}
}

// release undoes adopt. It does not change the object, which readers may hold.
func (s sharing) release(o *Object) {
	for text := range o.shared() {
		if v := s[*text]; v.refs > 1 {
			v.refs--
		} else {
			delete(s, *text)
		}
	}
}

// shared iterates over the texts of an object that it shares with others.
func (o *Object) shared() iter.Seq[*string] {
	return func(yield func(*string) bool) {
		if !yield(&o.Namespace) || !yield(&o.Node) || o.indexed && !yield((*string)(&o.Labels)) ||
			len(o.Containers) > maxSharedContainers {
			return
		}
		for i := range o.Containers {
			if !yield(&o.Containers[i].Name) {
				return
			}
		}
	}
}
