package decode

import (
	"bytes"
	"errors"
	"math"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// maxPodContainers limits the memory for one pod, whatever a kubelet sends. Objects that the API server
// can store have fewer.
const maxPodContainers = 4096

// value is a function that is called with a decoded value.
type value[T any] func(*T, error)

func (f value[T]) UnmarshalJSONFrom(d *jsontext.Decoder) error { return f.decode(d, new(T)) }

// decode decodes the next value into v. It consumes all of the value, also if that cannot be decoded.
func (f value[T]) decode(d *jsontext.Decoder, v *T) error {
	if kind := d.PeekKind(); kind != '{' && kind != 'n' {
		f(v, errNoObject)
		return d.SkipValue()
	}
	depth := d.StackDepth()
	*v = *new(T)
	err := json.UnmarshalDecode(d, v)
	if _, isSemantic := errors.AsType[*json.SemanticError](err); err != nil && !isSemantic {
		return err
	}
	f(v, err)
	for d.StackDepth() > depth {
		if _, err := d.ReadToken(); err != nil {
			return err
		}
	}
	return nil
}

// values is a function that is called with each element of an array.
type values[T any] func(*T, error)

func (f values[T]) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	element := new(T)
	return readArray(d, func() error { return value[T](f).decode(d, element) })
}

// readArray calls read before each element of an array. Null is an array without elements.
func readArray(d *jsontext.Decoder, read func() error) error {
	switch start, err := d.ReadToken(); {
	case err != nil || start.Kind() == 'n':
		return err
	case start.Kind() != '[':
		return errNoArray
	}
	for d.PeekKind() != ']' { // it returns 0 at an error, which read returns
		if err := read(); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// list is an array. It cannot be decoded if it has more than maxPodContainers elements.
type list[T any] []T

func (l *list[T]) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	*l = nil
	return readArray(d, func() error {
		if len(*l) == maxPodContainers {
			return errTooMany
		}
		*l = append(*l, *new(T))
		return json.UnmarshalDecode(d, &(*l)[len(*l)-1])
	})
}

// name is a string. Nil means that it is missing.
type name []byte

func (n *name) UnmarshalText(text []byte) error {
	*n = bytes.Clone(text)
	return nil
}

// timestamp is a time that may be missing.
type timestamp struct {
	present bool
	date    time.Time // zero if it is not valid
}

func (t *timestamp) UnmarshalText(text []byte) error {
	t.present = true
	if t.date.UnmarshalText(text) != nil {
		t.date = time.Time{}
	}
	return nil
}

// time returns the time of a sample; 0 if it is missing or not valid. It skips one that is not valid.
func (s *state) time(t timestamp) (at usage.NodeTime, ok bool) {
	if !t.present {
		return 0, true
	}
	at = usage.NodeAt(t.date)
	if at != 0 && at <= s.latest {
		return at, true
	}
	s.skip(usage.BadTime)
	if at != 0 {
		s.future = at
	}
	return 0, false
}

// isSize reports whether a value is missing or can be carried by the API. It skips any other.
func (s *state) isSize(value *uint64) bool {
	if value != nil && *value > math.MaxInt64 {
		s.skip(usage.BadValue)
		return false
	}
	return true
}
