package inventory

import (
	"encoding/binary"
	"maps"
	"slices"
)

// shared interns values: it holds one copy of each for all objects with an equal one, for as long
// as such an object exists. Values with the same key are equal.
//
// The standard library's unique does not fit: it cannot share maps, and its handles, which objects
// would have to hold, take 36 bytes more per pod (of 324) in BenchmarkMemory.
type shared[T any] map[string]*sharedValue[T]

type sharedValue[T any] struct {
	value T
	refs  int // number of objects
}

// share returns the shared value with the key. Each call must be paired with a release.
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

// adopt replaces the labels and strings of an object by shared ones.
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

// canonical returns a string that is the same for equal labels only: the sorted keys and their
// values, each with its length.
func canonical(labels map[string]string) string {
	var b []byte
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := labels[key]
		b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
		b = append(binary.AppendUvarint(b, uint64(len(value))), value...)
	}
	return string(b)
}
