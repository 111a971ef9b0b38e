package api

import (
	"encoding/binary"
	"math/bits"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// The messages written here are byte for byte what the generated code makes of the typed objects,
// which is what the tests compare them with. Kubernetes writes fields that are empty, too.
//
// A message stands behind its length. Those of small messages are written when they are known,
// behind the fact; that of a whole list must be known before its first piece is written, which is
// what the size functions are for.

// field gives the tag of a field that holds a message or string.
func field(number byte) byte { return number<<3 | 2 }

// varintField gives the tag of a field that holds an integer.
func varintField(number byte) byte { return number << 3 }

func (e *entry[U]) writeProtobuf(w *writer, apiVersion string) error {
	b, err := appendEnvelope(w.buffer[:0], e.answer.name, apiVersion, e.sizeProtobuf(w))
	if err != nil {
		return err
	}
	return w.flush(appendEnvelopeEnd(e.appendProtobuf(b, w)))
}

func (l *entryList[U]) writeProtobuf(w *writer, apiVersion string) error {
	meta, err := l.Marshal()
	if err != nil {
		return err
	}
	size := sizeOfField(len(meta))
	for i := range l.Items {
		size += sizeOfField(l.Items[i].sizeProtobuf(w))
	}
	b, err := appendEnvelope(w.buffer[:0], l.answer.name+"List", apiVersion, size)
	if err != nil {
		return err
	}
	b = append(b, field(1))
	b = binary.AppendUvarint(b, uint64(len(meta)))
	b = append(b, meta...)
	for i := range l.Items {
		b = append(b, field(2), 0)
		start := len(b)
		b = endMessage(l.Items[i].appendProtobuf(b, w), start)
		if b, err = w.spill(b); err != nil {
			return err
		}
	}
	return w.flush(appendEnvelopeEnd(b))
}

// appendEnvelope appends what stands before a message of that size: the runtime.Unknown that says
// what it is.
func appendEnvelope(b []byte, kind, apiVersion string, size int) ([]byte, error) {
	typeMeta := runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}
	text, err := typeMeta.Marshal()
	if err != nil {
		return nil, err
	}
	b = append(b, "k8s\x00"...)
	b = append(b, field(1))
	b = binary.AppendUvarint(b, uint64(len(text)))
	b = append(b, text...)
	b = append(b, field(2))
	return binary.AppendUvarint(b, uint64(size)), nil
}

// appendEnvelopeEnd appends the content encoding and content type, which are empty.
func appendEnvelopeEnd(b []byte) []byte { return append(b, field(3), 0, field(4), 0) }

// appendProtobuf appends an entry's message.
func (e *entry[U]) appendProtobuf(b []byte, w *writer) []byte {
	b = append(b, field(1), 0)
	start := len(b)
	b = endMessage(w.appendMetaProtobuf(b, e.object), start)

	end, length := e.answer.period(e.usage)
	b = append(b, field(2), 0)
	start = len(b)
	b = endMessage(appendInstantProtobuf(b, end), start)

	b = append(b, field(3), 0)
	start = len(b)
	b = append(b, varintField(1))
	b = endMessage(binary.AppendUvarint(b, uint64(length)), start)

	return e.answer.figuresProtobuf(b, e.usage)
}

// sizeProtobuf gives the size of an entry's message.
func (e *entry[U]) sizeProtobuf(w *writer) int {
	end, length := e.answer.period(e.usage)
	return sizeOfField(w.metaSize(e.object)) +
		sizeOfField(instantSize(end)) +
		sizeOfField(1+varintSize(uint64(length))) +
		e.answer.figuresSize(e.usage)
}

// appendMetaProtobuf appends an object's identity.
func (w *writer) appendMetaProtobuf(b []byte, o *inventory.Object) []byte {
	b = appendStringField(b, field(1), o.Name)
	b = append(b, field(2), 0) // generateName
	b = appendStringField(b, field(3), o.Namespace)
	b = append(b, field(4), 0, field(5), 0, field(6), 0, varintField(7), 0) // selfLink, uid, resourceVersion, generation
	b = append(b, field(8), byte(len(w.createdProtobuf)))
	b = append(b, w.createdProtobuf...)
	return append(b, w.written(o.Labels, (*writer).appendLabelsProtobuf)...)
}

// appendLabelsProtobuf appends labels as entries of a map.
func (w *writer) appendLabelsProtobuf(b []byte, labels map[string]string) []byte {
	for _, l := range w.sorted(labels) {
		b = append(b, field(11), 0)
		start := len(b)
		b = appendStringField(b, field(1), l.key)
		b = endMessage(appendStringField(b, field(2), l.value), start)
	}
	return b
}

func (w *writer) metaSize(o *inventory.Object) int {
	const empty = 5 * 2
	return empty + sizeOfField(len(o.Name)) + sizeOfField(len(o.Namespace)) + sizeOfField(len(w.createdProtobuf)) +
		len(w.written(o.Labels, (*writer).appendLabelsProtobuf))
}

// podFiguresProtobuf appends the containers of a pod.
func podFiguresProtobuf(b []byte, p *usage.Pod) []byte {
	for i := range p.Containers {
		b = append(b, field(4), 0)
		start := len(b)
		b = appendStringField(b, field(1), p.Containers[i].Name)
		b = endMessage(appendUsageProtobuf(b, field(2), &p.Containers[i].Amount), start)
	}
	return b
}

func podFiguresSize(p *usage.Pod) int {
	size := 0
	for i := range p.Containers {
		size += sizeOfField(sizeOfField(len(p.Containers[i].Name)) + usageSize(&p.Containers[i].Amount))
	}
	return size
}

// nodeFiguresProtobuf appends the resources of a node.
func nodeFiguresProtobuf(b []byte, n *usage.Node) []byte {
	return appendUsageProtobuf(b, field(4), &n.Amount)
}

func nodeFiguresSize(n *usage.Node) int { return usageSize(&n.Amount) }

// appendUsageProtobuf appends resources as entries of a map in the field of that tag.
func appendUsageProtobuf(b []byte, tag byte, a *usage.Amount) []byte {
	b = appendResource(b, tag, "cpu", cpuQuantity(a.CPUNanocores))
	b = appendResource(b, tag, "memory", bytesQuantity(a.Memory))
	if a.HasSwap {
		b = appendResource(b, tag, "swap", bytesQuantity(a.Swap))
	}
	return b
}

func usageSize(a *usage.Amount) int {
	size := resourceSize("cpu", cpuQuantity(a.CPUNanocores)) + resourceSize("memory", bytesQuantity(a.Memory))
	if a.HasSwap {
		size += resourceSize("swap", bytesQuantity(a.Swap))
	}
	return size
}

// appendResource appends one resource. None of its messages is longer than the 127 bytes that a
// length of one byte can say.
func appendResource(b []byte, tag byte, name string, q quantity) []byte {
	size := q.len()
	b = append(b, tag, byte(len(name)+size+6), field(1), byte(len(name)))
	b = append(b, name...)
	b = append(b, field(2), byte(size+2), field(1), byte(size))
	return q.append(b)
}

func resourceSize(name string, q quantity) int { return len(name) + q.len() + 8 }

// appendTimeProtobuf appends the time of creation.
func appendTimeProtobuf(b []byte, t metav1.Time) []byte {
	if t.IsZero() {
		return b
	}
	return appendSeconds(b, t.Unix())
}

// appendInstantProtobuf appends a time, to the second.
func appendInstantProtobuf(b []byte, t usage.Time) []byte {
	if t == 0 {
		return b
	}
	return appendSeconds(b, floorDiv(int64(t), int64(time.Second)))
}

func appendSeconds(b []byte, seconds int64) []byte {
	b = binary.AppendUvarint(append(b, varintField(1)), uint64(seconds))
	return append(b, varintField(2), 0) // nanoseconds, which Kubernetes leaves out
}

func instantSize(t usage.Time) int {
	if t == 0 {
		return 0
	}
	return 1 + varintSize(uint64(floorDiv(int64(t), int64(time.Second)))) + 2
}

func appendStringField(b []byte, tag byte, s string) []byte {
	b = append(b, tag)
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// endMessage puts the length of the message that begins at start into the byte before it, and makes
// room if that is too small for it.
func endMessage(b []byte, start int) []byte {
	size := len(b) - start
	if size < 1<<7 {
		b[start-1] = byte(size)
		return b
	}
	var room [binary.MaxVarintLen64]byte
	more := varintSize(uint64(size)) - 1
	b = append(b, room[:more]...)
	copy(b[start+more:], b[start:start+size])
	binary.PutUvarint(b[start-1:], uint64(size))
	return b
}

// sizeOfField gives the size of a field that holds size bytes: its tag, their length, and them.
func sizeOfField(size int) int { return 1 + varintSize(uint64(size)) + size }

func varintSize(n uint64) int { return (bits.Len64(n|1) + 6) / 7 }
