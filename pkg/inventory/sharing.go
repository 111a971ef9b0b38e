package inventory

import (
	"encoding/binary"
	"maps"
	"slices"
)

// shared holds each value once for all objects that have an equal one, and only as long as one of
// them does. Values with the same key are equal. The standard library's unique does not fit: a
// string that it returned may outlive its entry there, and is then no longer shared.
type shared[T any] map[string]*sharedValue[T]

type sharedValue[T any] struct {
	value T
	refs  int // number of objects that have it
}

// share returns the value that stands for all with that key. Each call must be paired with a
// release.
func (s shared[T]) share(key string, value T) T {
	v := s[key]
	if v == nil {
		v = &sharedValue[T]{value: value}
		s[key] = v
	}
	v.refs++
	return v.value
}

func (s shared[T]) release(key string) {
	if v := s[key]; v.refs > 1 {
		v.refs--
	} else {
		delete(s, key)
	}
}

// sharing holds the labels and strings that objects share.
type sharing struct {
	labels  shared[map[string]string]
	strings shared[string] // names of namespaces, nodes and containers
}

func newSharing() sharing {
	return sharing{labels: shared[map[string]string]{}, strings: shared[string]{}}
}

// adopt makes an object share its labels and strings with the others.
func (s *sharing) adopt(o *Object) {
	if len(o.Labels) > 0 {
		o.Labels = s.labels.share(canonical(o.Labels), o.Labels)
	}
	o.Namespace = s.strings.share(o.Namespace, o.Namespace)
	o.Node = s.strings.share(o.Node, o.Node)
	for i := range o.Containers {
		o.Containers[i].Name = s.strings.share(o.Containers[i].Name, o.Containers[i].Name)
	}
}

// release undoes adopt. It does not change the object, which readers may hold.
func (s *sharing) release(o *Object) {
	if len(o.Labels) > 0 {
		s.labels.release(canonical(o.Labels))
	}
	s.strings.release(o.Namespace)
	s.strings.release(o.Node)
	for i := range o.Containers {
		s.strings.release(o.Containers[i].Name)
	}
}

// Batch makes objects that share what is equal in them, so that a list needs little memory on its
// way into an Index. The zero Batch is not valid; use NewBatch.
type Batch struct{ sharing }

// NewBatch returns a Batch without objects.
func NewBatch() *Batch { return &Batch{newSharing()} }

// NewObject is like the function NewObject.
func (b *Batch) NewObject(obj any) (*Object, error) {
	o, err := NewObject(obj)
	if err == nil {
		b.adopt(o)
	}
	return o, err
}

// canonical returns the same text for equal labels only: keys in order, each string after its
// length.
func canonical(labels map[string]string) string {
	var b []byte
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := labels[key]
		b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
		b = append(binary.AppendUvarint(b, uint64(len(value))), value...)
	}
	return string(b)
}
