package inventory

import (
	"encoding/binary"
	"maps"
	"slices"
)

// labelSets shares one map between all objects whose labels are equal: the pods of a Deployment, for one, are. The key
// is the labels' canonical form.
type labelSets map[string]*labelSet

type labelSet struct {
	labels map[string]string
	refs   int // how many objects share it
}

// share gives the map that stands for all labels equal to these. Each call is to be paired with a release.
func (s labelSets) share(labels map[string]string) map[string]string {
	if len(labels) == 0 {
		return nil
	}
	key := canonical(labels)
	set := s[key]
	if set == nil {
		set = &labelSet{labels: labels}
		s[key] = set
	}
	set.refs++
	return set.labels
}

func (s labelSets) release(labels map[string]string) {
	if len(labels) == 0 {
		return
	}
	key := canonical(labels)
	if s[key].refs--; s[key].refs == 0 {
		delete(s, key)
	}
}

// canonical is equal for equal labels only: keys in order, every string behind its length.
func canonical(labels map[string]string) string {
	var b []byte
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := labels[key]
		b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
		b = append(binary.AppendUvarint(b, uint64(len(value))), value...)
	}
	return string(b)
}
