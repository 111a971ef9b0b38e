package server

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	// envelope is what an API object in protobuf starts with. A runtime.Unknown follows.
	envelope = "k8s\x00"
	// maxPod is the most bytes of one pod that are read. An API server does not take in half as much.
	maxPod = 8 << 20

	acceptPods     = "application/vnd.kubernetes.protobuf,application/json"
	acceptMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," +
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
)

// errNotProtobuf says that the API server answered in another encoding.
var errNotProtobuf = errors.New("the list of pods is not in protobuf")

// podLister is a client for pods that reduces a list to what the inventory keeps while it comes in, so that neither the
// list's bytes nor whole pods are ever all in memory. One such list is much faster than the same pods as events of a watch.
type podLister[L runtime.Object] struct {
	lister[L] // for watches, and for lists that are not in protobuf
	api       rest.Interface
	whole     bool // whether to ask for whole pods, not for metadata only
}

// List gives a *podList, or an L if the API server does not speak protobuf.
func (p *podLister[L]) List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := p.stream(ctx, options)
	if errors.Is(err, errNotProtobuf) {
		return p.lister.List(ctx, options)
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}

// IsWatchListSemanticsUnSupported makes a Reflector list. The name is the library's.
func (p *podLister[L]) IsWatchListSemanticsUnSupported() bool { return true }

func (p *podLister[L]) stream(ctx context.Context, options metav1.ListOptions) (*podList, error) {
	accept := acceptMetadata
	if p.whole {
		accept = acceptPods
	}
	body, err := p.api.Get().Resource("pods").VersionedParams(&options, scheme.ParameterCodec).SetHeader("Accept", accept).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return readPods(body, p.whole)
}

// podList is a list of pods as far as the inventory keeps them.
type podList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []*inventory.Object // the field that the library looks for
}

var _ runtime.Object = (*podList)(nil)

// DeepCopyObject implements runtime.Object.
func (l *podList) DeepCopyObject() runtime.Object {
	clone := &podList{TypeMeta: l.TypeMeta, Items: slices.Clone(l.Items)}
	l.DeepCopyInto(&clone.ListMeta)
	for i, o := range clone.Items {
		clone.Items[i] = o.DeepCopy()
	}
	return clone
}

// readPods reads a PodList or a PartialObjectMetadataList in protobuf. A list that breaks off is an error. Only of whole
// pods the nodes are read.
func readPods(from io.Reader, whole bool) (*podList, error) {
	r := bufio.NewReader(from)
	start, err := r.Peek(len(envelope))
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read the list of pods: %w", within(err))
	case string(start) != envelope:
		return nil, errNotProtobuf
	}
	d := podListDecoder{
		whole:   whole,
		strings: map[string]string{},
		labels:  map[string]map[string]string{},
	}
	if err := d.readEnvelope(r); err != nil {
		return nil, fmt.Errorf("cannot read the list of pods after %d of them: %w", len(d.list.Items), err)
	}
	return &d.list, nil
}

// podListDecoder decodes one list. The numbers of the fields are those of the .proto files of k8s.io/apimachinery and
// k8s.io/api; fields that it does not know are skipped.
type podListDecoder struct {
	whole   bool
	list    podList
	strings map[string]string            // namespaces, nodes and keys of labels, each to be held once
	labels  map[string]map[string]string // by their encoding: most pods share theirs with others
	buffer  []byte                       // of the message being decoded
	encoded []byte                       // the labels of the pod being decoded, each behind its length
}

// readEnvelope reads to the end of the stream.
func (d *podListDecoder) readEnvelope(r *bufio.Reader) error {
	if _, err := r.Discard(len(envelope)); err != nil {
		return within(err)
	}
	var kind runtime.TypeMeta
	lists := 0
	err := eachField(r, func(number, length uint64) error {
		switch number {
		case 1: // typeMeta
			b, err := d.take(r, length)
			if err != nil {
				return err
			}
			return kind.Unmarshal(b)
		case 2: // raw
			lists++
			return d.readList(r, length)
		}
		return skip(r, length)
	})
	switch {
	case err != nil:
		return err
	case lists != 1:
		return fmt.Errorf("it came with %d lists in it: %w", lists, io.ErrUnexpectedEOF)
	case kind.Kind == "PodList", kind.Kind == "PartialObjectMetadataList" && !d.whole:
		d.list.TypeMeta = metav1.TypeMeta{APIVersion: kind.APIVersion, Kind: kind.Kind}
		return nil
	}
	return fmt.Errorf("it is a %s of %s", kind.Kind, kind.APIVersion)
}

// readList reads a list that is length bytes long.
func (d *podListDecoder) readList(from io.Reader, length uint64) error {
	if length > math.MaxInt64 {
		return fmt.Errorf("it claims to have %d bytes", length)
	}
	limited := &io.LimitedReader{R: from, N: int64(length)}
	r := bufio.NewReaderSize(limited, 64<<10)
	err := eachField(r, func(number, length uint64) error {
		if number != 1 && number != 2 {
			return skip(r, length)
		}
		b, err := d.take(r, length)
		if err != nil {
			return err
		}
		if number == 1 { // metadata
			return d.list.ListMeta.Unmarshal(b)
		}
		pod, err := d.pod(b) // items
		if err != nil {
			return err
		}
		d.list.Items = append(d.list.Items, pod)
		return nil
	})
	if err == nil && limited.N > 0 {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// take reads length bytes into the buffer; they are good until the next call.
func (d *podListDecoder) take(r *bufio.Reader, length uint64) ([]byte, error) {
	if length > maxPod {
		return nil, fmt.Errorf("the next has %d bytes, and no more than %d are read of one", length, maxPod)
	}
	d.buffer = slices.Grow(d.buffer[:0], int(length))[:length]
	_, err := io.ReadFull(r, d.buffer)
	return d.buffer, within(err)
}

// pod decodes a Pod or a PartialObjectMetadata.
func (d *podListDecoder) pod(b []byte) (*inventory.Object, error) {
	o := &inventory.Object{}
	d.encoded = d.encoded[:0]
	err := eachFieldOf(b, func(number protowire.Number, value []byte) error {
		switch {
		case number == 1: // metadata
			return d.metadata(o, value)
		case number == 2 && d.whole: // spec
			return d.spec(o, value)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	o.Labels, err = d.sharedLabels()
	return o, err
}

func (d *podListDecoder) metadata(o *inventory.Object, b []byte) error {
	return eachFieldOf(b, func(number protowire.Number, value []byte) error {
		switch number {
		case 1: // name
			o.Name = string(value)
		case 3: // namespace
			o.Namespace = d.shared(value)
		case 8: // creationTimestamp
			var t metav1.Time
			if err := t.Unmarshal(value); err != nil {
				return err
			}
			o.CreatedAt = usage.At(t.Time)
		case 11: // labels
			d.encoded = protowire.AppendBytes(d.encoded, value)
		}
		return nil
	})
}

func (d *podListDecoder) spec(o *inventory.Object, b []byte) error {
	return eachFieldOf(b, func(number protowire.Number, value []byte) error {
		if number == 10 { // nodeName
			o.Node = d.shared(value)
		}
		return nil
	})
}

// sharedLabels decodes d.encoded, or gives what it has decoded of the same bytes before.
func (d *podListDecoder) sharedLabels() (map[string]string, error) {
	if len(d.encoded) == 0 {
		return nil, nil
	}
	if labels, known := d.labels[string(d.encoded)]; known {
		return labels, nil
	}
	labels := map[string]string{}
	for b := d.encoded; len(b) > 0; {
		entry, n := protowire.ConsumeBytes(b)
		b = b[n:] // AppendBytes wrote them well
		var key, value string
		err := eachFieldOf(entry, func(number protowire.Number, content []byte) error {
			switch number {
			case 1:
				key = d.shared(content)
			case 2:
				value = string(content)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		labels[key] = value
	}
	d.labels[string(d.encoded)] = labels
	return labels, nil
}

// shared gives b as a string, the same memory for the same text.
func (d *podListDecoder) shared(b []byte) string {
	s, known := d.strings[string(b)]
	if !known {
		s = string(b)
		d.strings[s] = s
	}
	return s
}

// eachField calls take for each length-delimited field of the message that ends where r does. It must read the length
// bytes. Fields of other types are skipped.
func eachField(r *bufio.Reader, take func(number, length uint64) error) error {
	for {
		tag, err := binary.ReadUvarint(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch kind := protowire.Type(tag & 7); kind {
		case protowire.VarintType:
			_, err = binary.ReadUvarint(r)
		case protowire.Fixed32Type:
			err = skip(r, 4)
		case protowire.Fixed64Type:
			err = skip(r, 8)
		case protowire.BytesType:
			var length uint64
			if length, err = binary.ReadUvarint(r); err == nil {
				err = take(tag>>3, length)
			}
		default:
			err = fmt.Errorf("it has a field of the unknown type %d", kind)
		}
		if err != nil {
			return within(err)
		}
	}
}

// eachFieldOf is eachField for a message that is in memory.
func eachFieldOf(b []byte, take func(number protowire.Number, value []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return protowire.ParseError(n)
		}
		field := b[:n]
		b = b[n:]
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(field)
			if err := take(number, value); err != nil {
				return err
			}
		}
	}
	return nil
}

func skip(r *bufio.Reader, length uint64) error {
	if length > math.MaxInt {
		return fmt.Errorf("it has a field that claims to have %d bytes", length)
	}
	_, err := r.Discard(int(length))
	return within(err)
}

// within gives the error of a read within a message: it must not end there.
func within(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
