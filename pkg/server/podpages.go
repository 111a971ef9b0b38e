package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
)

// podsPerPage is the number of pods in one response. Of a list, one page at a time is in memory.
const podsPerPage = 500

// protobufPrefix is what an API object in protobuf starts with. A runtime.Unknown follows.
const protobufPrefix = "k8s\x00"

// podPages is a client for pods whose lists contain only what the inventory keeps of a pod. A
// Reflector reads them page by page.
//
// A page is decoded only as far as it is needed, because whole pods are mostly environment
// variables, volumes and managed fields: decoding all of that costs more CPU and memory than all
// else at the start (BenchmarkPods). It is not safe for concurrent use.
type podPages struct {
	pods corev1client.PodInterface // for watches
	api  rest.Interface
	keep fieldSet
	page bytes.Buffer // reused for the pages of a list
}

func newPodPages(core corev1client.CoreV1Interface) *podPages {
	status := fieldSet{1: nil, 2: fieldSet{2: nil}, 5: nil} // name, state.running, restartCount
	return &podPages{pods: core.Pods(metav1.NamespaceAll), api: core.RESTClient(), keep: fieldSet{
		1: fieldSet{1: nil, 3: nil, 5: nil, 8: nil, 11: nil}, // metadata: name, namespace, uid, creationTimestamp, labels
		2: fieldSet{ // spec
			10: nil,                       // nodeName
			20: fieldSet{1: nil, 24: nil}, // initContainers: name, restartPolicy
		},
		3: fieldSet{1: nil, 8: status, 10: status}, // status: phase, containerStatuses, initContainerStatuses
	}}
}

// List returns a page as a *podList.
func (p *podPages) List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.ResourceVersion = "" // with any other, such as the Reflector's "0", API servers ignore the limit or refuse what is old
	body, err := p.api.Get().Resource("pods").VersionedParams(&options, scheme.ParameterCodec).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	p.page.Reset()
	if _, err := p.page.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("cannot read the list of pods: %w", err)
	}
	list, err := p.read(p.page.Bytes())
	if err != nil {
		return nil, fmt.Errorf("cannot decode the list of pods: %w", err)
	}
	if list.Continue == "" {
		p.page = bytes.Buffer{} // it is not needed before the next list, perhaps never
	}
	return list, nil
}

// Watch returns the events of whole pods.
func (p *podPages) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return p.pods.Watch(ctx, options)
}

// IsWatchListSemanticsUnSupported makes a Reflector list instead of requesting the first state as
// events of the watch, which costs more than three times the CPU. The name is the library's.
func (*podPages) IsWatchListSemanticsUnSupported() bool { return true }

// read decodes a PodList in protobuf, or in another encoding that the library knows.
func (p *podPages) read(body []byte) (*podList, error) {
	list, batch := &podList{}, inventory.NewBatch()
	add := func(pod *corev1.Pod) error {
		o, err := batch.NewObject(pod)
		list.Items = append(list.Items, o)
		return err
	}
	if !bytes.HasPrefix(body, []byte(protobufPrefix)) {
		object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return nil, errors.New("it is neither in protobuf nor an API object in JSON") // err quotes the whole body
		}
		pods, ok := object.(*corev1.PodList)
		if !ok {
			return nil, fmt.Errorf("it is a %s of %s", kind.Kind, kind.GroupVersion())
		}
		list.ListMeta = pods.ListMeta
		for i := range pods.Items {
			if err := add(&pods.Items[i]); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	var kind runtime.TypeMeta
	var raw [][]byte
	err := eachField(body[len(protobufPrefix):], func(f field) error { // of runtime.Unknown, whose Unmarshal would copy the page
		switch {
		case f.kind == protowire.BytesType && f.number == 1: // typeMeta
			return kind.Unmarshal(f.value())
		case f.kind == protowire.BytesType && f.number == 2: // raw
			raw = append(raw, f.value())
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case kind.Kind != "PodList":
		return nil, fmt.Errorf("it is a %s of %s", kind.Kind, kind.APIVersion)
	case len(raw) != 1: // an empty list would be taken for a cluster without pods
		return nil, fmt.Errorf("there are %d lists in one response", len(raw))
	}
	return list, eachField(raw[0], func(f field) error {
		switch {
		case f.kind != protowire.BytesType:
			return nil
		case f.number == 1: // metadata
			return list.ListMeta.Unmarshal(f.value())
		case f.number == 2: // items
			kept, err := p.keep.filter(f.value())
			if err != nil {
				return err
			}
			var pod corev1.Pod
			if err := pod.Unmarshal(kept); err != nil {
				return err
			}
			return add(&pod)
		}
		return nil
	})
}

// podList is a list of pods as the inventory keeps them.
type podList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []*inventory.Object // the library finds the field by its name
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

// fieldSet names fields of a message in protobuf by the numbers of the .proto files of
// k8s.io/apimachinery and k8s.io/api. A nil set stands for a whole field, any other for the fields
// of the message in it.
type fieldSet map[protowire.Number]fieldSet

// filter returns the message without the fields that are not in the set. A field of another type
// than a message is kept as it is, so that the library rejects it.
func (s fieldSet) filter(message []byte) ([]byte, error) {
	var kept []byte
	err := eachField(message, func(f field) error {
		inner, ok := s[f.number]
		switch {
		case !ok:
			return nil
		case inner == nil || f.kind != protowire.BytesType:
			kept = append(kept, f.encoded...)
			return nil
		}
		value, err := inner.filter(f.value())
		kept = protowire.AppendBytes(protowire.AppendTag(kept, f.number, f.kind), value)
		return err
	})
	return kept, err
}

// field is a field of a message in protobuf.
type field struct {
	number  protowire.Number
	kind    protowire.Type
	encoded []byte
	tag     int // number of bytes in encoded that come before the value
}

// value returns the content of a field of the type protowire.BytesType.
func (f field) value() []byte {
	value, _ := protowire.ConsumeBytes(f.encoded[f.tag:]) // eachField has checked it
	return value
}

// eachField calls do for each field of a message.
func eachField(message []byte, do func(field) error) error {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		n := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := do(field{number, kind, message[:tag+n], tag}); err != nil {
			return err
		}
		message = message[tag+n:]
	}
	return nil
}
