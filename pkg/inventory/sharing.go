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

	// Memory of canonical:
	sorted []string
	key    []byte
}

func newSharing() sharing {
	return sharing{labels: shared[map[string]string]{}, strings: shared[string]{}}
}

// adopt replaces the labels and strings of an object by shared ones.
func (s *sharing) adopt(o *Object) {
	if len(o.Labels) > 0 {
		o.Labels = s.shareLabels(o.Labels)
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
		s.labels.release(string(s.canonical(o.Labels)))
	}
	s.strings.release(o.Namespace)
	s.strings.release(o.Node)
	for i := range o.Containers {
		s.strings.release(o.Containers[i].Name)
	}
}

// shareLabels returns the shared labels that are equal to the given ones. It does not allocate if
// there are any.
func (s *sharing) shareLabels(labels map[string]string) map[string]string {
	key := s.canonical(labels)
	if v := s.labels[string(key)]; v != nil {
		v.refs++
		return v.value
	}
	return s.labels.share(string(key), labels)
}

// canonical returns a text that is the same for equal labels only: the sorted keys and their values,
// each with its length. It is valid until the next call.
func (s *sharing) canonical(labels map[string]string) []byte {
	s.sorted = slices.AppendSeq(s.sorted[:0], maps.Keys(labels))
	slices.Sort(s.sorted)
	s.key = s.key[:0]
	for _, key := range s.sorted {
		value := labels[key]
		s.key = append(binary.AppendUvarint(s.key, uint64(len(key))), key...)
		s.key = append(binary.AppendUvarint(s.key, uint64(len(value))), value...)
	}
	clear(s.sorted) // strings that nothing else may need
	return s.key
}
