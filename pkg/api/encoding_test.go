package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// ownWriter is an object that writes its own bytes.
type ownWriter interface {
	runtime.Object
	runtime.CacheableObject
}

// workshop is what answers are made with, outside of a server.
type workshop struct {
	group *genericapiserver.APIGroupInfo
	pods  *collection[usage.Pod]
	nodes *collection[usage.Node]
}

func newWorkshop() workshop {
	scheme := NewScheme()
	group := NewGroup(Config{}, scheme, serializer.NewCodecFactory(scheme))
	storage := group.VersionedResourcesStorageMap["v1"]
	return workshop{group, storage["pods"].(*collection[usage.Pod]), storage["nodes"].(*collection[usage.Node])}
}

// check compares the bytes that an answer writes with those that its typed object has, in each
// encoding.
func (s workshop) check(t *testing.T, answer ownWriter) {
	t.Helper()
	for _, version := range s.group.PrioritizedVersions {
		for _, info := range s.group.NegotiatedSerializer.SupportedMediaTypes() {
			serializers := []runtime.Serializer{info.Serializer}
			if info.PrettySerializer != nil {
				serializers = append(serializers, info.PrettySerializer)
			}
			for _, serializer := range serializers {
				encoder := s.group.NegotiatedSerializer.EncoderForVersion(serializer, version)
				var got, want bytes.Buffer
				wrong, failure := encoder.Encode(answer.GetObject(), &want), encoder.Encode(answer, &got)
				if wrong != nil && failure != nil {
					continue // YAML cannot tell every control character
				}
				if failure != nil {
					t.Fatalf("%s: %v", encoder.Identifier(), failure)
				}
				if !bytes.Equal(got.Bytes(), want.Bytes()) {
					t.Fatalf("%s: got\n%q\nwant\n%q", encoder.Identifier(), got.Bytes(), want.Bytes())
				}
			}
		}
	}
}

// oddities are strings that an encoder may get wrong.
var oddities = []string{
	"", "plain", "app.kubernetes.io/name", `"quoted"`, `back\slash`, "<script>&amp;</script>", "a\u2028b\u2029c", "tab\tnewline\nreturn\r",
	"\b\f\x00\x01\x1f\x7f", "\xff\xfe", "cut \xe2\x82", "日本語", "🙂", "\ufffd", strings.Repeat("long", 40), strings.Repeat("longer<", 300),
}

// dice make up entries.
type dice struct {
	*rand.Rand
	text string // what a fuzzer would like to see in it
}

func (d dice) string() string {
	switch d.IntN(4) {
	case 0:
		return d.text
	case 1:
		return oddities[d.IntN(len(oddities))]
	case 2:
		return d.text[d.IntN(len(d.text)+1):]
	default:
		return fmt.Sprintf("name-%d", d.IntN(1000))
	}
}

func (d dice) number() uint64 {
	switch n := d.Uint64(); d.IntN(8) {
	case 0:
		return 0
	case 1:
		return n % 2048
	case 2:
		return n
	case 3:
		return n % 1000 * uint64(math.Pow10(d.IntN(16)))
	case 4:
		return n % 2048 << d.IntN(60)
	case 5:
		return math.MaxInt64 - 1 + n%3
	default:
		return n >> d.IntN(64)
	}
}

func (d dice) time() usage.Time {
	switch n := usage.Time(d.Uint64()); d.IntN(4) {
	case 0:
		return 0
	case 1:
		return n
	case 2:
		return n % usage.Time(3*time.Second)
	default:
		return at + n%usage.Time(48*time.Hour)
	}
}

func (d dice) window() time.Duration {
	switch n := time.Duration(d.Uint64()); d.IntN(4) {
	case 0:
		return n
	case 1:
		return n % (2 * time.Minute)
	case 2:
		return time.Duration(d.IntN(70)) * time.Second
	default:
		return time.Duration(d.IntN(70_000)) * time.Millisecond
	}
}

func (d dice) amount() usage.Amount {
	return usage.Amount{
		CPUNanocores: d.number(), Memory: d.number(), Swap: d.number(), HasSwap: d.IntN(3) == 0, At: d.time(), Window: d.window(),
	}
}

func (d dice) object() *inventory.Object {
	o := &inventory.Object{Namespace: d.string(), Name: d.string()}
	if d.IntN(4) > 0 {
		o.Labels = map[string]string{}
		for range d.IntN(6) {
			o.Labels[d.string()] = d.string()
		}
	}
	return o
}

func (d dice) pod() *usage.Pod {
	p := &usage.Pod{At: d.time(), Window: d.window()}
	for range d.IntN(4) {
		p.Containers = append(p.Containers, usage.Container{Name: d.string(), Amount: d.amount()})
	}
	return p
}

func (d dice) now() metav1.Time {
	switch d.IntN(4) {
	case 0:
		return metav1.Time{}
	case 1:
		return metav1.NewTime(time.Unix(d.Int64N(1<<33), d.Int64N(1e9)).In(time.FixedZone("elsewhere", d.IntN(50_000))))
	default:
		return metav1.NewTime(now)
	}
}

func (d dice) listMeta() metav1.ListMeta {
	var meta metav1.ListMeta
	if d.IntN(2) == 0 {
		meta.Continue = d.string()
	}
	if d.IntN(2) == 0 {
		n := int64(d.Uint64())
		meta.RemainingItemCount = &n
	}
	if d.IntN(2) == 0 {
		meta.ResourceVersion = d.string()
	}
	return meta
}

// FuzzEncodings compares what entries and lists of them write with what the standard serializers
// write.
func FuzzEncodings(f *testing.F) {
	shop := newWorkshop()
	for seed := range uint64(100) {
		f.Add(seed, oddities[seed%uint64(len(oddities))])
	}
	f.Fuzz(func(t *testing.T, seed uint64, text string) {
		d := dice{rand.New(rand.NewPCG(seed, 0)), text}
		pods := &entryList[usage.Pod]{ListMeta: d.listMeta(), Items: []entry[usage.Pod]{}, answer: &answer[usage.Pod]{shop.pods.kind, d.now()}}
		nodes := &entryList[usage.Node]{ListMeta: d.listMeta(), Items: []entry[usage.Node]{}, answer: &answer[usage.Node]{shop.nodes.kind, d.now()}}
		for range d.IntN(5) {
			pods.Items = append(pods.Items, entry[usage.Pod]{d.object(), d.pod(), pods.answer})
			nodes.Items = append(nodes.Items, entry[usage.Node]{d.object(), &usage.Node{Amount: d.amount()}, nodes.answer})
		}
		shop.check(t, pods)
		shop.check(t, nodes)
		for i := range pods.Items {
			shop.check(t, &pods.Items[i])
			shop.check(t, &nodes.Items[i])
		}
	})
}

// Answers write themselves as JSON and protobuf of either version, and as nothing else.
func TestKnownEncodings(t *testing.T) {
	shop := newWorkshop()
	answer := &entryList[usage.Node]{answer: &answer[usage.Node]{shop.nodes.kind, metav1.NewTime(now)}}
	own := map[runtime.Identifier]bool{}
	for _, info := range shop.group.NegotiatedSerializer.SupportedMediaTypes() {
		for _, serializer := range []runtime.Serializer{info.Serializer, info.PrettySerializer} {
			if serializer == nil {
				continue
			}
			for _, version := range append(shop.group.PrioritizedVersions, schema.GroupVersion{Group: "other", Version: "v1"}) {
				id := shop.group.NegotiatedSerializer.EncoderForVersion(serializer, version).Identifier()
				own[id] = true
				standard := func(o runtime.Object, _ io.Writer) error {
					if _, ok := o.(*metrics.NodeMetricsList); !ok {
						t.Errorf("%s is given a %T", id, o)
					}
					own[id] = false
					return nil
				}
				if err := answer.CacheEncode(id, standard, io.Discard); err != nil {
					t.Errorf("%s: %v", id, err)
				}
			}
		}
	}
	var got []string
	for id, own := range own {
		if own {
			got = append(got, string(id))
		}
	}
	slices.Sort(got)
	const json = `{\"name\":\"json\",\"pretty\":\"false\",\"strict\":\"false\",\"yaml\":\"false\"}`
	want := []string{
		`{"encodeGV":"metrics.k8s.io/v1","encoder":"protobuf","name":"versioning"}`,
		`{"encodeGV":"metrics.k8s.io/v1","encoder":"` + json + `","name":"versioning"}`,
		`{"encodeGV":"metrics.k8s.io/v1beta1","encoder":"protobuf","name":"versioning"}`,
		`{"encodeGV":"metrics.k8s.io/v1beta1","encoder":"` + json + `","name":"versioning"}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// pieces are what is written to them, call by call.
type pieces [][]byte

func (p *pieces) Write(b []byte) (int, error) {
	*p = append(*p, bytes.Clone(b))
	return len(b), nil
}

// The library compresses what begins with a piece of more than 128 KiB: that must be so for exactly
// the answers that are larger than that. And a long one must not be held as a whole.
func TestPieces(t *testing.T) {
	const threshold = 128 << 10
	shop := newWorkshop()
	list := &entryList[usage.Node]{Items: []entry[usage.Node]{}, answer: &answer[usage.Node]{shop.nodes.kind, metav1.NewTime(now)}}
	add := func(size int) {
		o := &inventory.Object{Name: strings.Repeat("x", size)}
		list.Items = append(list.Items, entry[usage.Node]{o, &usage.Node{Amount: amount(1, 1)}, list.answer})
	}
	for id := range shop.nodes.kind.encodings.known {
		encode := func() pieces {
			var p pieces
			if err := list.CacheEncode(id, nil, &p); err != nil {
				t.Fatal(err)
			}
			return p
		}
		list.Items = nil
		add(threshold / 2)
		add(threshold / 2)
		over := len(bytes.Join(encode(), nil)) - threshold
		for size := threshold/2 - over - 3; size <= threshold/2-over+3; size++ {
			list.Items = list.Items[:1]
			add(size)
			p := encode()
			if whole := len(bytes.Join(p, nil)); (len(p[0]) > threshold) != (whole > threshold) {
				t.Errorf("%s: %d bytes begin with a piece of %d", id, whole, len(p[0]))
			}
		}
		for range 400 {
			add(1000)
		}
		for i, piece := range encode() {
			if len(piece) > 2*threshold {
				t.Errorf("%s: piece %d has %d bytes", id, i, len(piece))
			}
		}
	}
	shop.check(t, list)
}

// failing cannot be written to.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestFailureToWriteIsTold(t *testing.T) {
	shop := newWorkshop()
	list := &entryList[usage.Node]{answer: &answer[usage.Node]{shop.nodes.kind, metav1.NewTime(now)}}
	for range 3000 {
		list.Items = append(list.Items, entry[usage.Node]{&inventory.Object{Name: "node"}, &usage.Node{Amount: amount(1, 1)}, list.answer})
	}
	for id := range shop.nodes.kind.encodings.known {
		for _, answer := range []ownWriter{list, &list.Items[0]} {
			if err := answer.CacheEncode(id, nil, failing{}); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("%s: %v", id, err)
			}
		}
	}
}

// What is printed is what a resource.Quantity prints.
func TestQuantities(t *testing.T) {
	numbers := []uint64{0, 1, 999, 1000, 1001, 1023, 1024, 1025, 1_500_000_000, 1_000_000_000, 10_000_000_000_000, math.MaxInt64 - 1, math.MaxInt64, math.MaxUint64}
	for bit := range 64 {
		numbers = append(numbers, 1<<bit-1, 1<<bit, 3<<bit, 1000<<bit)
	}
	for power, n := 0, uint64(1); power < 19; power++ {
		n *= 10
		numbers = append(numbers, n-1, n, n+1, 7*n)
	}
	for _, n := range numbers {
		a := &usage.Amount{CPUNanocores: n, Memory: n}
		list := resourceList(a)
		for want, got := range map[string]quantity{list.Cpu().String(): cpuQuantity(n), list.Memory().String(): bytesQuantity(n)} {
			if text := string(got.append(nil)); text != want || got.len() != len(want) {
				t.Errorf("%d: %q of %d bytes, want %q", n, text, got.len(), want)
			}
		}
	}
}
