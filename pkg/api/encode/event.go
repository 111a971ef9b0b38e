package encode

import (
	"bytes"
	"io"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Event is the object of a watch event. Watchers share it: it is encoded once for all whose
// responses have the same format, unless that depends on the user, as tables do.
//
// The library encodes a watch event in two steps. It first asks the object to encode the whole
// event, and for this encodes the object itself, transformed if the client wants a table or only
// the metadata.
type Event struct {
	Item

	mu      sync.Mutex
	encoded map[runtime.Identifier][]byte // nil: nothing is kept
}

// NewEvent returns an Event. Its encoded forms are kept if it is shared, until Release.
func NewEvent(item Item, shared bool) *Event {
	e := &Event{Item: item}
	if shared {
		e.encoded = map[runtime.Identifier][]byte{}
	}
	return e
}

// Shared reports whether encoded forms are kept.
func (e *Event) Shared() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.encoded != nil
}

// Release drops the encoded forms.
func (e *Event) Release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.encoded = nil
}

// CacheEncode implements runtime.CacheableObject. It encodes the whole event.
func (e *Event) CacheEncode(
	id runtime.Identifier, encode func(runtime.Object, io.Writer) error, out io.Writer,
) error {
	e.mu.Lock()
	encoded := e.encoded[id]
	e.mu.Unlock()
	if encoded == nil {
		// No lock is held meanwhile: a table may need an access review.
		var buffer bytes.Buffer
		object := &eventObject{Item: &e.Item}
		if err := encode(object, &buffer); err != nil {
			return err
		}
		encoded = buffer.Bytes()
		if object.encodedItself {
			e.mu.Lock()
			if e.encoded != nil {
				e.encoded[id] = encoded
			}
			e.mu.Unlock()
		}
	}
	_, err := out.Write(encoded) // in one call: it is a frame
	return err
}

// eventObject is the object in an Event that is being encoded.
type eventObject struct {
	*Item
	encodedItself bool
}

// CacheEncode implements runtime.CacheableObject.
func (o *eventObject) CacheEncode(
	id runtime.Identifier, encode func(runtime.Object, io.Writer) error, out io.Writer,
) error {
	if _, ok := o.response.encoder.formats[id]; !ok {
		return encode(&Transformable{o.Item}, out)
	}
	o.encodedItself = true
	return o.Item.CacheEncode(id, encode, out)
}

// Transformable is an Item that the library transforms, for example to a table. If it does not, the
// typed object is encoded.
type Transformable struct{ *Item }

// CacheEncode implements runtime.CacheableObject.
func (t *Transformable) CacheEncode(
	_ runtime.Identifier, encode func(runtime.Object, io.Writer) error, out io.Writer,
) error {
	return encode(t.GetObject(), out)
}

var (
	_ runtime.CacheableObject   = (*Event)(nil)
	_ runtime.CacheableObject   = (*eventObject)(nil)
	_ runtime.CacheableObject   = (*Transformable)(nil)
	_ metav1.ObjectMetaAccessor = (*Transformable)(nil)
)

// IsSame reports whether two Items with the same name are of the same object.
func (i *Item) IsSame(other *Item) bool {
	return i.Object == other.Object || i.Object.UID == other.Object.UID
}

// IsEqual reports whether two Items of the same object are served with the same content. Versions
// do not count.
func (i *Item) IsEqual(other *Item) bool {
	return (i.Usage == other.Usage || i.Usage.equal(other.Usage)) && i.HasEqualLabels(other) &&
		slices.EqualFunc(i.Extra, other.Extra, func(a, b []usage.Resource) bool { return slices.Equal(a, b) })
}

// HasEqualLabels reports whether two Items have the same labels.
func (i *Item) HasEqualLabels(other *Item) bool {
	return i.Object == other.Object || i.Object.Labels == other.Object.Labels
}

// Refresh makes an Item that is equal to an older one be served as that: with its version.
func (i *Item) Refresh(older *Item) { i.Version, i.response = older.Version, older.response }
