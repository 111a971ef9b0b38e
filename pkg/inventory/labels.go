package inventory

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Labels are the labels of an object as one text. For each label, sorted by key, the text has the
// key, a keyEnd, the value, and a labelEnd, which makes it a line. So equal labels have equal texts.
//
// Tenants choose how many labels a pod has. A map of short labels takes seven times the size that
// they have in protobuf, the text less than that size.
type Labels string

var _ labels.Labels = Labels("")

// The characters of labels are letters, digits, '-', '_', '.' and '/'.
const (
	keyEnd   = "\x00"
	labelEnd = "\n"
)

// NewLabels returns the labels of a map. It returns no labels if one of them has a keyEnd or a
// labelEnd, which the API server does not allow.
func NewLabels(set map[string]string) Labels {
	if len(set) == 0 {
		return ""
	}
	keys := make([]string, 0, 32) // on the stack
	for key := range set {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	text := make([]byte, 0, 512)
	for _, key := range keys {
		text = append(append(text, key...), keyEnd...)
		text = append(append(text, set[key]...), labelEnd...)
	}
	l := string(text)
	if strings.Count(l, keyEnd) != len(set) || strings.Count(l, labelEnd) != len(set) {
		return ""
	}
	return Labels(l)
}

// Len returns the number of labels.
func (l Labels) Len() int { return strings.Count(string(l), labelEnd) }

// All iterates over the labels, sorted by key.
func (l Labels) All() iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		for text := range strings.Lines(string(l)) {
			if key, value, _ := strings.Cut(text, keyEnd); !yield(key, strings.TrimSuffix(value, labelEnd)) {
				return
			}
		}
	}
}

// Map returns the labels as a map, or nil if there are none.
func (l Labels) Map() map[string]string {
	if l == "" {
		return nil
	}
	return maps.Collect(l.All())
}

// Lookup implements labels.Labels. It is a binary search, because a selector may look up many keys
// in an object with many labels.
func (l Labels) Lookup(key string) (value string, exists bool) {
	for rest := string(l); rest != ""; {
		start := strings.LastIndexByte(rest[:len(rest)/2], labelEnd[0]) + 1
		text, after, _ := strings.Cut(rest[start:], labelEnd)
		middle, value, _ := strings.Cut(text, keyEnd)
		switch strings.Compare(key, middle) {
		case 0:
			return value, true
		case -1:
			rest = rest[:start]
		default:
			rest = after
		}
	}
	return "", false
}

// Has implements labels.Labels.
func (l Labels) Has(key string) bool {
	_, exists := l.Lookup(key)
	return exists
}

// Get implements labels.Labels.
func (l Labels) Get(key string) string {
	value, _ := l.Lookup(key)
	return value
}
