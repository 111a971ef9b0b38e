package api

import (
	"io"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// entry is something that exists, together with what it uses: a PodMetrics or NodeMetrics that was
// not made yet.
//
// To the API server library it is an object that writes its own bytes. It does so in the encodings
// that are known, which costs a fraction of making the typed object; for any other encoding, the
// typed object is made and written as usual.
type entry[U usage.Pod | usage.Node] struct {
	object *inventory.Object
	usage  *U
	answer *answer[U]
}

// entryList is a PodMetricsList or NodeMetricsList that was not made yet. The library finds Items
// by reflection: it wants them in a slice, and each to be an object.
type entryList[U usage.Pod | usage.Node] struct {
	metav1.ListMeta
	Items  []entry[U]
	oldest usage.Time // when the oldest of their samples was taken, by our clock; the moment of the request if there are none
	answer *answer[U]
}

// answer is what the entries of one answer have in common.
type answer[U usage.Pod | usage.Node] struct {
	*kind[U]
	now metav1.Time // the moment of the request, which is served as the time of creation
}

// kind says how the entries of one kind become what is served.
type kind[U usage.Pod | usage.Node] struct {
	name      string // "PodMetrics"
	encodings *encodings

	object func(e *entry[U]) runtime.Object
	list   func(l *entryList[U]) runtime.Object

	period func(*U) (end usage.Time, length time.Duration) // timestamp, by the node's clock, and window
	asOf   func(*U) usage.Time                             // when its oldest sample was taken, by our clock

	total func(*U) total // of its containers

	// What stands behind the period: the resources of a node, the containers of a pod.
	figuresJSON     func(b []byte, u *U) []byte
	figuresProtobuf func(b []byte, u *U) []byte
	figuresSize     func(u *U) int // what figuresProtobuf appends, in bytes
}

// self is an object that can write its own bytes.
type self interface {
	writeJSON(w *writer, apiVersion string) error
	writeProtobuf(w *writer, apiVersion string) error
	GetObject() runtime.Object
}

// write lets an object write itself, if the encoding of that name is known. If not, encode does it
// with the typed object.
func (a *answer[U]) write(o self, id runtime.Identifier, encode func(runtime.Object, io.Writer) error, out io.Writer) error {
	encoding, ok := a.encodings.known[id]
	if !ok {
		return encode(o.GetObject(), out)
	}
	w := a.encodings.writer(out, a.now)
	defer a.encodings.done(w)
	if encoding.protobuf {
		return o.writeProtobuf(w, encoding.apiVersion)
	}
	return o.writeJSON(w, encoding.apiVersion)
}

var (
	_ runtime.CacheableObject   = (*entry[usage.Pod])(nil)
	_ metav1.ObjectMetaAccessor = (*entry[usage.Pod])(nil)
	_ runtime.CacheableObject   = (*entryList[usage.Pod])(nil)
	_ metav1.ListInterface      = (*entryList[usage.Pod])(nil)
)

// CacheEncode implements runtime.CacheableObject. Nothing is cached.
func (e *entry[U]) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, out io.Writer) error {
	return e.answer.write(e, id, encode, out)
}

// GetObject implements runtime.CacheableObject: it makes the typed object.
func (e *entry[U]) GetObject() runtime.Object { return e.answer.object(e) }

// GetObjectKind implements runtime.Object.
func (e *entry[U]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. All that an entry leads to is immutable.
func (e *entry[U]) DeepCopyObject() runtime.Object {
	c := *e
	return &c
}

// GetObjectMeta implements metav1.ObjectMetaAccessor. The library makes PartialObjectMetadata of
// it.
func (e *entry[U]) GetObjectMeta() metav1.Object {
	meta := objectMeta(e.object, e.answer.now)
	return &meta
}

// CacheEncode implements runtime.CacheableObject. Nothing is cached.
func (l *entryList[U]) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, out io.Writer) error {
	return l.answer.write(l, id, encode, out)
}

// GetObject implements runtime.CacheableObject: it makes the typed list.
func (l *entryList[U]) GetObject() runtime.Object { return l.answer.list(l) }

// GetObjectKind implements runtime.Object.
func (l *entryList[U]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. All that the entries lead to is immutable.
func (l *entryList[U]) DeepCopyObject() runtime.Object {
	meta := l.ListMeta
	return &entryList[U]{ListMeta: *meta.DeepCopy(), Items: slices.Clone(l.Items), oldest: l.oldest, answer: l.answer}
}
