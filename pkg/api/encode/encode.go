// Package encode writes PodMetrics, NodeMetrics and lists of them as JSON and protobuf, without
// creating the typed objects.
//
// Creating typed objects and encoding them by reflection is nearly all of what a long list costs.
// An Item or List is a runtime.CacheableObject, so the API server library lets it encode itself. It
// does so if the client accepts unindented JSON or protobuf. For anything else (YAML, indented
// JSON, a table) it creates the typed object, and the library encodes that.
//
// The output is byte for byte that of the library's encoders; the tests compare both.
package encode

import (
	"io"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Kind is the kind of an Item. That of a List has the suffix "List".
type Kind string

// The kinds of items.
const (
	NodeMetrics Kind = "NodeMetrics"
	PodMetrics  Kind = "PodMetrics"
)

// Encoder creates Items and Lists. It can be used by several goroutines at the same time.
type Encoder struct {
	formats map[runtime.Identifier]format // by the library's name of an encoder
	writers sync.Pool                     // of *writer
}

// format is one of the formats of Items and Lists.
type format struct {
	apiVersion string // "metrics.k8s.io/v1"
	protobuf   bool   // false: unindented JSON
}

// NewEncoder returns an Encoder for an API group in these versions.
func NewEncoder(serializer runtime.NegotiatedSerializer, versions []schema.GroupVersion) *Encoder {
	e := &Encoder{formats: map[runtime.Identifier]format{}}
	for _, version := range versions {
		for _, info := range serializer.SupportedMediaTypes() {
			if info.MediaType != runtime.ContentTypeJSON && info.MediaType != runtime.ContentTypeProtobuf {
				continue
			}
			id := serializer.EncoderForVersion(info.Serializer, version).Identifier()
			e.formats[id] = format{version.String(), info.MediaType == runtime.ContentTypeProtobuf}
		}
	}
	return e
}

// Item is a PodMetrics or NodeMetrics whose typed object has not been created.
type Item struct {
	Object   *inventory.Object
	Usage    Usage
	Further  Further
	response *response // set by NewItem and Add
}

// Further is the usage of further resources, sorted by name: of a node in one element, of a pod in
// one element for each of its containers. It is nil if there is none.
type Further [][]usage.Resource

// of returns the resources of the container with that index, or of a node, whose index is 0.
func (e Further) of(i int) []usage.Resource {
	if i < len(e) {
		return e[i]
	}
	return nil
}

// Total returns the sum of a resource over the containers, or nil if none has it.
func (e Further) Total(name string) *usage.Resource {
	var total *usage.Resource
	for _, resources := range e {
		for _, r := range resources {
			switch {
			case r.Name != name:
			case total == nil:
				total = &r
			default:
				total.Value = usage.Sum(total.Value, r.Value)
			}
		}
	}
	return total
}

// List is a PodMetricsList or NodeMetricsList whose typed object has not been created. The library
// finds Items by reflection; the element type must implement runtime.Object.
type List struct {
	metav1.ListMeta
	Items    []Item
	response *response

	// Selected is the number of objects of all pages, with and without an Item, and Select returns them.
	// Only the first page has them, and they are not encoded. Select is a function, so that a response
	// that is being written does not keep the objects of all pages in memory.
	Selected int
	Select   func() ([]*inventory.Object, error)
}

// response is what all items of a response have in common.
type response struct {
	encoder *Encoder
	kind    Kind
	now     usage.Time // the time of the request, which is served as creationTimestamp
}

// NewItem returns a copy of an Item for the response to a request made at now.
func (e *Encoder) NewItem(kind Kind, now time.Time, i *Item) *Item {
	return &Item{i.Object, i.Usage, i.Further, &response{encoder: e, kind: kind, now: usage.At(now)}}
}

// NewList returns an empty List, with room for size items, of a request made at now.
func (e *Encoder) NewList(kind Kind, now time.Time, size int) *List {
	return &List{Items: make([]Item, 0, size), response: &response{encoder: e, kind: kind, now: usage.At(now)}}
}

// Add appends a copy of an Item to the List.
func (l *List) Add(i *Item) {
	l.Items = append(l.Items, Item{i.Object, i.Usage, i.Further, l.response})
}

// AsList returns a List of the Item alone.
func (i *Item) AsList() *List { return &List{Items: []Item{*i}, response: i.response} }

var (
	_ runtime.CacheableObject   = (*Item)(nil)
	_ metav1.ObjectMetaAccessor = (*Item)(nil)
	_ runtime.CacheableObject   = (*List)(nil)
	_ metav1.ListInterface      = (*List)(nil)
)

// selfEncoder is an Item or List.
type selfEncoder interface {
	writeJSON(w *writer, apiVersion string) error
	writeProtobuf(w *writer, apiVersion string) error
	GetObject() runtime.Object
}

// encode writes o in the format of that identifier. If o does not encode itself in that format,
// fallback encodes the typed object.
func (r *response) encode(
	o selfEncoder, id runtime.Identifier, fallback func(runtime.Object, io.Writer) error, out io.Writer,
) error {
	format, ok := r.encoder.formats[id]
	if !ok {
		return fallback(o.GetObject(), out)
	}
	w := r.encoder.writer(out, r.now)
	defer r.encoder.release(w)
	if format.protobuf {
		return o.writeProtobuf(w, format.apiVersion)
	}
	return o.writeJSON(w, format.apiVersion)
}

// CacheEncode implements runtime.CacheableObject. It caches nothing.
func (i *Item) CacheEncode(
	id runtime.Identifier, encode func(runtime.Object, io.Writer) error, out io.Writer,
) error {
	return i.response.encode(i, id, encode, out)
}

// GetObject implements runtime.CacheableObject. It returns the typed object.
func (i *Item) GetObject() runtime.Object { return i.Usage.typed(i.meta(), i.Further) }

// GetObjectKind implements runtime.Object.
func (i *Item) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Everything that an Item points to is immutable.
func (i *Item) DeepCopyObject() runtime.Object {
	c := *i
	return &c
}

// GetObjectMeta implements metav1.ObjectMetaAccessor. The library creates PartialObjectMetadata
// from it.
func (i *Item) GetObjectMeta() metav1.Object {
	meta := i.meta()
	return &meta
}

// meta returns the metadata of an Item.
func (i *Item) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: i.Object.Namespace, Name: i.Object.Name, Labels: i.Object.Labels.Map(),
		CreationTimestamp: metav1.NewTime(i.response.now.Time()),
	}
}

// CacheEncode implements runtime.CacheableObject. It caches nothing.
func (l *List) CacheEncode(
	id runtime.Identifier, encode func(runtime.Object, io.Writer) error, out io.Writer,
) error {
	return l.response.encode(l, id, encode, out)
}

// GetObject implements runtime.CacheableObject. It returns the typed list.
func (l *List) GetObject() runtime.Object {
	if l.response.kind == NodeMetrics {
		list := &metrics.NodeMetricsList{ListMeta: l.ListMeta, Items: make([]metrics.NodeMetrics, len(l.Items))}
		for i := range l.Items {
			list.Items[i] = *l.Items[i].GetObject().(*metrics.NodeMetrics)
		}
		return list
	}
	list := &metrics.PodMetricsList{ListMeta: l.ListMeta, Items: make([]metrics.PodMetrics, len(l.Items))}
	for i := range l.Items {
		list.Items[i] = *l.Items[i].GetObject().(*metrics.PodMetrics)
	}
	return list
}

// GetObjectKind implements runtime.Object.
func (l *List) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Everything that the Items point to is immutable.
func (l *List) DeepCopyObject() runtime.Object {
	c, meta := *l, l.ListMeta
	c.ListMeta, c.Items = *meta.DeepCopy(), slices.Clone(l.Items)
	return &c
}
