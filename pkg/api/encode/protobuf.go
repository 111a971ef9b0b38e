package encode

import (
	"encoding/binary"
	"math/bits"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// The generated encoders of Kubernetes write empty fields too, so these do.
//
// In protobuf, the length of a message precedes it. Small messages are appended first, and the
// length is filled in (endMessage). A whole list is written in chunks, so its length must be
// known in advance: this is what the size functions are for.

// lengthTag returns the tag of a field whose value has a length: a message or string.
func lengthTag(field byte) byte { return field<<3 | 2 }

// varintTag returns the tag of a field whose value is an integer.
func varintTag(field byte) byte { return field << 3 }

func (i *Item) writeProtobuf(w *writer, apiVersion string) error {
	b := appendEnvelope(w.buffer[:0], string(i.response.kind), apiVersion, i.sizeProtobuf(w))
	return w.finish(appendEnvelopeEnd(i.appendProtobuf(b, w)))
}

func (l *List) writeProtobuf(w *writer, apiVersion string) error {
	meta, err := l.Marshal()
	if err != nil {
		return err
	}
	size := fieldSize(len(meta))
	for i := range l.Items {
		prefetch(l.Items, i)
		size += fieldSize(l.Items[i].sizeProtobuf(w))
	}
	b := appendEnvelope(w.buffer[:0], string(l.response.kind)+"List", apiVersion, size)
	b = appendStringField(b, lengthTag(1), string(meta))
	for i := range l.Items {
		prefetch(l.Items, i)
		b = append(b, lengthTag(2), 0)
		start := len(b)
		b = endMessage(l.Items[i].appendProtobuf(b, w), start)
		if b, err = w.flushIfFull(b); err != nil {
			return err
		}
	}
	return w.finish(appendEnvelopeEnd(b))
}

// appendEnvelope appends what precedes an object of that size: the beginning of a runtime.Unknown,
// which has its type.
func appendEnvelope(b []byte, kind, apiVersion string, size int) []byte {
	b = append(b, "k8s\x00"...)
	b = append(b, lengthTag(1), 0)
	start := len(b)
	b = appendStringField(b, lengthTag(1), apiVersion)
	b = endMessage(appendStringField(b, lengthTag(2), kind), start)
	b = append(b, lengthTag(2))
	return binary.AppendUvarint(b, uint64(size))
}

// appendEnvelopeEnd appends an empty content encoding and content type.
func appendEnvelopeEnd(b []byte) []byte { return append(b, lengthTag(3), 0, lengthTag(4), 0) }

// appendProtobuf appends the message of an Item.
func (i *Item) appendProtobuf(b []byte, w *writer) []byte {
	b = append(b, lengthTag(1), 0)
	start := len(b)
	b = endMessage(w.appendMetaProtobuf(b, i), start)

	end, window := i.Usage.period()
	b = appendTimeField(b, lengthTag(2), end.Time())

	b = append(b, lengthTag(3), byte(1+varintSize(uint64(window))), varintTag(1))
	b = binary.AppendUvarint(b, uint64(window))

	return i.Usage.appendProtobuf(b, i.Further)
}

// sizeProtobuf returns the size of the message of an Item.
func (i *Item) sizeProtobuf(w *writer) int {
	end, window := i.Usage.period()
	return fieldSize(w.metaSize(i)) +
		fieldSize(timeSize(end.Time())) +
		fieldSize(1+varintSize(uint64(window))) +
		i.Usage.sizeProtobuf(i.Further)
}

// appendMetaProtobuf appends the metadata of an Item.
func (w *writer) appendMetaProtobuf(b []byte, i *Item) []byte {
	o := i.Object
	b = appendStringField(b, lengthTag(1), o.Name)
	b = append(b, lengthTag(2), 0) // generateName
	b = appendStringField(b, lengthTag(3), o.Namespace)
	b = append(b, lengthTag(4), 0, lengthTag(5), 0, lengthTag(6), 0) // selfLink, uid, resourceVersion
	b = append(b, varintTag(7), 0)                                   // generation
	b = appendTimeField(b, lengthTag(8), w.now.Time())
	return append(b, w.encodeLabels(o.Labels, appendLabelsProtobuf)...)
}

// appendLabelsProtobuf appends labels as entries of a map.
func appendLabelsProtobuf(b []byte, labels inventory.Labels) []byte {
	for key, value := range labels.All() {
		b = append(b, lengthTag(11), 0)
		start := len(b)
		b = appendStringField(b, lengthTag(1), key)
		b = endMessage(appendStringField(b, lengthTag(2), value), start)
	}
	return b
}

func (w *writer) metaSize(i *Item) int {
	o := i.Object
	const empty = 5 * 2 // fields, of 2 bytes each
	return empty + fieldSize(len(o.Name)) + fieldSize(len(o.Namespace)) + fieldSize(timeSize(w.now.Time())) +
		len(w.encodeLabels(o.Labels, appendLabelsProtobuf))
}

func (p *Pod) appendProtobuf(b []byte, further Further) []byte {
	for i := range p.Containers {
		b = append(b, lengthTag(4), 0)
		start := len(b)
		b = appendStringField(b, lengthTag(1), p.Containers[i].Name)
		b = endMessage(appendUsageProtobuf(b, lengthTag(2), &p.Containers[i].Amount, further.of(i)), start)
	}
	return b
}

func (p *Pod) sizeProtobuf(further Further) int {
	size := 0
	for i := range p.Containers {
		size += fieldSize(fieldSize(len(p.Containers[i].Name)) + usageSize(&p.Containers[i].Amount, further.of(i)))
	}
	return size
}

func (n *Node) appendProtobuf(b []byte, further Further) []byte {
	return appendUsageProtobuf(b, lengthTag(4), &n.Amount, further.of(0))
}

func (n *Node) sizeProtobuf(further Further) int { return usageSize(&n.Amount, further.of(0)) }

// appendUsageProtobuf appends resources as entries of a map in the field with that tag.
func appendUsageProtobuf(b []byte, tag byte, a *usage.Amount, further []usage.Resource) []byte {
	if len(further) > 0 {
		for _, r := range resources(a, further) {
			b = appendNamedResource(b, tag, r)
		}
		return b
	}
	b = appendResource(b, tag, "cpu", cpuQuantity(a.CPUNanocores))
	b = appendResource(b, tag, "memory", bytesQuantity(a.Memory))
	if a.HasSwap {
		b = appendResource(b, tag, "swap", bytesQuantity(a.Swap))
	}
	return b
}

func usageSize(a *usage.Amount, further []usage.Resource) int {
	if len(further) > 0 {
		size := 0
		for _, r := range resources(a, further) {
			size += fieldSize(fieldSize(len(r.name)) + fieldSize(r.len()+2))
		}
		return size
	}
	size := resourceSize("cpu", cpuQuantity(a.CPUNanocores)) + resourceSize("memory", bytesQuantity(a.Memory))
	if a.HasSwap {
		size += resourceSize("swap", bytesQuantity(a.Swap))
	}
	return size
}

// appendResource appends one resource. Its messages are so short that each length is one byte, which saves CPU
// (BenchmarkList).
func appendResource(b []byte, tag byte, name string, q quantity) []byte {
	size := q.len()
	b = append(b, tag, byte(len(name)+size+6), lengthTag(1), byte(len(name)))
	b = append(b, name...)
	b = append(b, lengthTag(2), byte(size+2), lengthTag(1), byte(size))
	return q.append(b)
}

func resourceSize(name string, q quantity) int { return len(name) + q.len() + 8 }

// appendNamedResource appends one resource whose name may be long.
func appendNamedResource(b []byte, tag byte, r resourceQuantity) []byte {
	b = append(b, tag, 0)
	start := len(b)
	b = appendStringField(b, lengthTag(1), r.name)
	size := r.len()
	b = append(b, lengthTag(2), byte(size+2), lengthTag(1), byte(size))
	return endMessage(r.append(b), start)
}

// appendTimeField appends a time in whole seconds. Kubernetes leaves the nanoseconds at 0.
func appendTimeField(b []byte, tag byte, t time.Time) []byte {
	b = append(b, tag, byte(timeSize(t)))
	if t.IsZero() {
		return b
	}
	b = binary.AppendUvarint(append(b, varintTag(1)), uint64(t.Unix()))
	return append(b, varintTag(2), 0)
}

func timeSize(t time.Time) int {
	if t.IsZero() {
		return 0
	}
	return 1 + varintSize(uint64(t.Unix())) + 2
}

func appendStringField(b []byte, tag byte, s string) []byte {
	b = append(b, tag)
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// endMessage sets the byte before start to the length of the message that begins there. It moves
// the message if the length needs more bytes.
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

// fieldSize returns the size of a field with a value of that size: its tag, the length, the value.
func fieldSize(size int) int { return 1 + varintSize(uint64(size)) + size }

func varintSize(n uint64) int { return (bits.Len64(n|1) + 6) / 7 }
