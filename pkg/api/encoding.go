package api

import (
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// encoding is one way of writing an answer.
type encoding struct {
	apiVersion string // "metrics.k8s.io/v1"
	protobuf   bool   // else it is JSON without white space
}

// encodings are those in which entries write themselves.
type encodings struct {
	known   map[runtime.Identifier]encoding // by what the library calls an encoder for a version and content type
	writers sync.Pool                       // of *writer
}

// newEncodings asks a group for the names of its encoders for JSON and protobuf. Pretty JSON, YAML
// and whatever else there is have other names.
func newEncodings(group *genericapiserver.APIGroupInfo) *encodings {
	e := &encodings{known: map[runtime.Identifier]encoding{}}
	for _, version := range group.PrioritizedVersions {
		for _, info := range group.NegotiatedSerializer.SupportedMediaTypes() {
			if info.MediaType != runtime.ContentTypeJSON && info.MediaType != runtime.ContentTypeProtobuf {
				continue
			}
			id := group.NegotiatedSerializer.EncoderForVersion(info.Serializer, version).Identifier()
			e.known[id] = encoding{version.String(), info.MediaType == runtime.ContentTypeProtobuf}
		}
	}
	return e
}

// pieceSize is how much is collected before it is written. The library compresses an answer if the
// first piece of it is larger than 128 KiB, so a piece must be larger than that if the answer is,
// and only then.
const pieceSize = 128 << 10

// writer collects the bytes of one answer and writes them in pieces, so that a long list is never
// in memory as a whole.
type writer struct {
	out    io.Writer
	buffer []byte  // for what is collected; owned by whoever appends to it
	labels []label // for sorting
	texts  labelTexts
	dates  calendar

	// The time of creation, which is the same for all entries of an answer.
	createdJSON     []byte // nothing if it is zero
	createdProtobuf []byte
}

// label is one label of an object.
type label struct{ key, value string }

// labelTexts keeps labels as they were written last. Objects with equal labels share one map, and
// those whose names are near each other, such as the pods of a Deployment, mostly do.
type labelTexts [64]struct {
	of   uintptr // the map; valid as long as the answer that holds it
	text []byte
}

// writer gives one for an answer of the moment now. It is to be handed back by done.
func (e *encodings) writer(out io.Writer, now metav1.Time) *writer {
	w, ok := e.writers.Get().(*writer)
	if !ok {
		w = &writer{}
	}
	w.out = out
	w.createdJSON, w.createdProtobuf = appendTimeJSON(w.createdJSON[:0], now), appendTimeProtobuf(w.createdProtobuf[:0], now)
	return w
}

// done takes a writer back, with its buffer unless something extraordinary has made that large.
func (e *encodings) done(w *writer) {
	clear(w.labels[:cap(w.labels)])
	for i := range w.texts {
		w.texts[i].of = 0
	}
	w.out = nil
	if cap(w.buffer) <= 4*pieceSize {
		e.writers.Put(w)
	}
}

// spill writes b if it is a piece, and gives what b was or an empty buffer to go on with.
func (w *writer) spill(b []byte) ([]byte, error) {
	if len(b) <= pieceSize {
		return b, nil
	}
	_, err := w.out.Write(b)
	return b[:0], err
}

// flush writes b, which is the end of the answer.
func (w *writer) flush(b []byte) error {
	w.buffer = b[:0]
	_, err := w.out.Write(b)
	return err
}

// written gives labels as write appends them, which is to be the same for a whole answer. It is
// valid until the next call.
func (w *writer) written(labels map[string]string, write func(*writer, []byte, map[string]string) []byte) []byte {
	if len(labels) == 0 {
		return nil
	}
	id := reflect.ValueOf(labels).Pointer()
	slot := &w.texts[(id>>4^id>>10)%uintptr(len(w.texts))]
	if slot.of != id {
		slot.of, slot.text = id, write(w, slot.text[:0], labels)
	}
	return slot.text
}

// sorted gives labels by key. It is valid until the next call.
func (w *writer) sorted(labels map[string]string) []label {
	w.labels = w.labels[:0]
	for key, value := range labels {
		w.labels = append(w.labels, label{key, value})
	}
	slices.SortFunc(w.labels, func(a, b label) int { return strings.Compare(a.key, b.key) })
	return w.labels
}
