package inventory

import (
	"encoding/binary"
	"maps"
	"slices"
)

// shared holds each value once for all objects that have an equal one, and only as long as one of them does. Values with the
// same key are equal. The standard library's unique does not fit: a string that it returned may outlive its entry there, and
// is then no longer shared.
type shared[T any] map[string]*sharedValue[T]

type sharedValue[T any] struct {
	value T
	refs  int // number of objects that have it
}

// share returns the value that stands for all with that key. Each call must be paired with a release.
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

// shareLabels returns the map that stands for all labels equal to these: the pods of a Deployment, for example, have equal ones.
func (x *Index) shareLabels(labels map[string]string) map[string]string {
	if len(labels) == 0 {
		return nil
	}
	return x.labels.share(canonical(labels), labels)
}

func (x *Index) releaseLabels(labels map[string]string) {
	if len(labels) > 0 {
		x.labels.release(canonical(labels))
	}
}

// canonical returns the same text for equal labels only: keys in order, each string after its length.
func canonical(labels map[string]string) string {
	var b []byte
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := labels[key]
		b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
		b = append(binary.AppendUvarint(b, uint64(len(value))), value...)
	}
	return string(b)
}
