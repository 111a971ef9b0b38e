package encode

import (
	"io"
	"runtime"
	"unsafe"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// chunkSize is the number of bytes that are collected before they are written. The library
// compresses a response if its first chunk is larger than 128 KiB. So the first chunk must be
// larger than that if the whole response is.
const chunkSize = 128 << 10

// writer collects the bytes of one response and writes them in chunks, so that a long list is never
// in memory as a whole.
type writer struct {
	out    io.Writer
	buffer []byte // reused by the next response, as all below
	text   []byte // of encodeLabels
	labels labelCache

	now     usage.Time // the creationTimestamp of all items
	nowJSON []byte
}

// maxCachedBytes is the size of the longest encoded labels that are kept for other objects.
const maxCachedBytes = 4 << 10

// labelCache keeps encoded labels. Objects with equal labels share one text, and objects whose names
// are similar, such as the pods of a Deployment, usually have equal labels.
type labelCache [64]struct {
	id      uintptr // the address of the text, which the response keeps alive; 0: the slot is empty
	encoded []byte
}

// writer returns a writer for a response of the time now. The caller must release it.
func (e *Encoder) writer(out io.Writer, now usage.Time) *writer {
	w, ok := e.writers.Get().(*writer)
	if !ok {
		w = &writer{}
	}
	w.out, w.now = out, now
	w.nowJSON = appendTimeJSON(w.nowJSON[:0], now.Time())
	return w
}

// release makes the writer available to other responses, unless its buffers have become very large.
func (e *Encoder) release(w *writer) {
	for i := range w.labels {
		w.labels[i].id = 0
	}
	w.out = nil
	if cap(w.buffer) <= 4*chunkSize && cap(w.text) <= chunkSize {
		e.writers.Put(w)
	}
}

// flushIfFull writes b if it exceeds a chunk. It returns the buffer to continue with: b or an empty
// one.
func (w *writer) flushIfFull(b []byte) ([]byte, error) {
	if len(b) <= chunkSize {
		return b, nil
	}
	_, err := w.out.Write(b)
	return b[:0], err
}

// finish writes b, the end of the response.
func (w *writer) finish(b []byte) error {
	w.buffer = b[:0]
	_, err := w.out.Write(b)
	return err
}

// encodeLabels returns labels as appendLabels encodes them, which must be the same function for a
// whole response. The result is valid until the next call.
func (w *writer) encodeLabels(
	labels inventory.Labels, appendLabels func([]byte, inventory.Labels) []byte,
) []byte {
	if labels == "" {
		return nil
	}
	id := uintptr(unsafe.Pointer(unsafe.StringData(string(labels)))) //nolint:gosec // only compared
	// The texts often lie at equal distances. Multiplication by the golden ratio spreads them.
	slot := &w.labels[uint64(id)*0x9e3779b97f4a7c15>>32%uint64(len(w.labels))]
	if slot.id != id {
		w.text = appendLabels(w.text[:0], labels)
		if len(w.text) > maxCachedBytes {
			return w.text
		}
		slot.id, slot.encoded = id, append(slot.encoded[:0], w.text...)
	}
	return slot.encoded
}

// prefetch reads what encoding the next Items reads, if i is the first of usage.ReadAhead.
func prefetch(items []Item, i int) {
	if i%usage.ReadAhead != 0 {
		return
	}
	items = items[i:min(i+usage.ReadAhead, len(items))]
	read := 0 // without it, the compiler would remove the reads
	for i := range items {
		o := items[i].Object
		read += len(o.Namespace) + len(o.Name) + int(o.UID[0])
		if p, ok := items[i].Usage.(*Pod); ok {
			read += len(p.Containers) + int(p.Window)
		}
	}
	for i := range items {
		if name := items[i].Object.Name; name != "" {
			read += int(name[0])
		}
		if p, ok := items[i].Usage.(*Pod); ok {
			for j := range p.Containers {
				read += int(p.Containers[j].Memory) + int(p.Containers[j].Window)
			}
		}
	}
	runtime.KeepAlive(read)
}
