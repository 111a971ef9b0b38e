package encode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

var (
	now      = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	versions = []schema.GroupVersion{metricsv1.SchemeGroupVersion, metricsv1beta1.SchemeGroupVersion}
	codecs   = newCodecs()
	encoder  = NewEncoder(codecs, versions)
)

func newCodecs() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(scheme)
}

// encoders returns the library's encoders of the versions.
func encoders(versions ...schema.GroupVersion) []runtime.Encoder {
	var all []runtime.Encoder
	for _, version := range versions {
		for _, info := range codecs.SupportedMediaTypes() {
			all = append(all, codecs.EncoderForVersion(info.Serializer, version))
			if info.PrettySerializer != nil {
				all = append(all, codecs.EncoderForVersion(info.PrettySerializer, version))
			}
		}
	}
	return all
}

// cacheable is an Item or List.
type cacheable interface {
	runtime.Object
	runtime.CacheableObject
}

// check compares the output of an Item or List with that of its typed object, in the formats that
// it encodes itself; TestFormats checks that the library encodes the typed object in the others.
func check(t *testing.T, object cacheable) {
	t.Helper()
	for _, library := range encoders(versions...) {
		id := library.Identifier()
		if _, ok := encoder.formats[id]; !ok {
			continue
		}
		var got, want bytes.Buffer
		if err := errors.Join(library.Encode(object.GetObject(), &want), library.Encode(object, &got)); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Fatalf("%s: got\n%q\nwant\n%q", id, got.Bytes(), want.Bytes())
		}
	}
	if list, ok := object.(*List); ok {
		checkMetadata(t, list)
	}
}

// checkMetadata compares the metadata of Items with what the library makes of them for a table.
func checkMetadata(t *testing.T, list *List) {
	t.Helper()
	for i, got := range list.MetadataJSON("meta.k8s.io/v1") {
		object := meta.AsPartialObjectMetadata(list.Items[i].GetObjectMeta())
		object.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
		want, err := json.Marshal(object)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("got metadata\n%q\nwant\n%q, error: %v", got, want, err)
		}
	}
}

// hardStrings are difficult to encode.
var hardStrings = []string{
	"", "plain", "app.kubernetes.io/name", `"quoted"`, `back\slash`, "<script>&amp;</script>",
	"a\u2028b\u2029c", "tab\tnewline\nreturn\r", "\b\f\x00\x01\x1f\x7f", "\xff\xfe", "cut \xe2\x82", "日本語", "🙂",
	"\ufffd", strings.Repeat("long", 40), strings.Repeat("longer<", 300),
}

// generator creates random Items.
type generator struct {
	*rand.Rand
	text string // from the fuzzer
}

func pick[T any](g generator, values ...T) T { return values[g.IntN(len(values))] }

func (g generator) string() string {
	return pick(g, g.text, pick(g, hardStrings...), g.text[g.IntN(len(g.text)+1):], fmt.Sprintf("name-%d", g.IntN(1000)))
}

func (g generator) number() uint64 {
	n := g.Uint64()
	return pick(g, 0, n, n%2048, n%1000*uint64(math.Pow10(g.IntN(16))), n%2048<<g.IntN(60), math.MaxInt64-1+n%3,
		n>>g.IntN(64), n>>g.IntN(64))
}

func (g generator) time() usage.NodeTime {
	n := usage.NodeTime(g.Uint64())
	return pick(g, 0, n, n%usage.NodeTime(3*time.Second), usage.NodeAt(now)+n%usage.NodeTime(48*time.Hour))
}

func (g generator) window() time.Duration {
	n := time.Duration(g.Uint64())
	return pick(g, n, n%(2*time.Minute), time.Duration(g.IntN(70))*time.Second,
		time.Duration(g.IntN(70_000))*time.Millisecond)
}

func (g generator) amount() usage.Amount {
	return usage.Amount{
		CPUNanocores: g.number(), Memory: g.number(), Swap: g.number(), HasSwap: g.IntN(3) == 0,
		At: g.time(), Window: g.window(),
	}
}

// further returns the further resources of n containers, or of a node.
func (g generator) further(n int) Further {
	var further Further
	for range g.IntN(n + 1) {
		var list []usage.Resource
		for range g.IntN(3) {
			name := g.string()
			if !slices.ContainsFunc(list, func(r usage.Resource) bool { return r.Name == name }) {
				list = append(list, usage.Resource{Name: name, Value: g.number(), Unit: usage.Unit(g.IntN(2))})
			}
		}
		further = append(further, list)
	}
	return further
}

func (g generator) object() *inventory.Object {
	o := &inventory.Object{Namespace: g.string(), Name: g.string()}
	if g.IntN(4) > 0 {
		labels := map[string]string{}
		for range g.IntN(6) {
			labels[g.string()] = g.string()
		}
		o.Labels = inventory.NewLabels(labels)
	}
	return o
}

func (g generator) pod() *Pod {
	p := &Pod{At: g.time(), Window: g.window()}
	for range g.IntN(4) {
		p.Containers = append(p.Containers, usage.Container{Name: g.string(), Amount: g.amount()})
	}
	return p
}

func (g generator) now() time.Time {
	elsewhere := time.FixedZone("elsewhere", g.IntN(50_000))
	return pick(g, now, now, time.Time{}, time.Unix(g.Int64N(1<<33), g.Int64N(1e9)).In(elsewhere))
}

func (g generator) listMeta() metav1.ListMeta {
	n := int64(g.Uint64())
	return metav1.ListMeta{
		Continue: pick(g, "", g.string()), ResourceVersion: pick(g, "", g.string()), RemainingItemCount: pick(g, nil, &n),
	}
}

// FuzzEncode compares the output of Items and Lists with that of the library's encoders.
func FuzzEncode(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed, hardStrings[seed%uint64(len(hardStrings))])
	}
	f.Fuzz(func(t *testing.T, seed uint64, text string) {
		g := generator{rand.New(rand.NewPCG(seed, 0)), text}
		pods, nodes := encoder.NewList(PodMetrics, g.now(), 0), encoder.NewList(NodeMetrics, g.now(), 0)
		pods.ListMeta, nodes.ListMeta = g.listMeta(), g.listMeta()
		size := g.IntN(5)
		if g.IntN(20) == 0 {
			size += 2 * usage.ReadAhead
		}
		for range size {
			pod := g.pod()
			pods.Add(&Item{Object: g.object(), Usage: pod, Further: g.further(len(pod.Containers))})
			nodes.Add(&Item{Object: g.object(), Usage: &Node{Amount: g.amount()}, Further: g.further(1)})
		}
		for _, list := range []*List{pods, nodes} {
			check(t, list)
			for i := range list.Items {
				check(t, &list.Items[i])
			}
		}
	})
}

// TestFormats checks that Items encode themselves as unindented JSON and protobuf of the group's
// versions only.
func TestFormats(t *testing.T) {
	list := encoder.NewList(NodeMetrics, now, 0)
	var got []string
	for _, encoder := range encoders(append(versions, schema.GroupVersion{Group: "other", Version: "v1"})...) {
		id, typed := encoder.Identifier(), false
		fallback := func(o runtime.Object, _ io.Writer) error {
			_, typed = o.(*metrics.NodeMetricsList)
			if !typed {
				t.Errorf("%s: fallback got a %T, want the typed list", id, o)
			}
			return nil
		}
		if err := list.CacheEncode(id, fallback, io.Discard); err != nil {
			t.Errorf("%s: %v", id, err)
		}
		if !typed {
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

// chunks records the calls of Write.
type chunks [][]byte

func (c *chunks) Write(b []byte) (int, error) {
	*c = append(*c, bytes.Clone(b))
	return len(b), nil
}

// TestChunks checks that the first chunk of a response of more than 128 KiB is also larger than
// that, since the library then compresses the response, and that no chunk is much larger.
func TestChunks(t *testing.T) {
	const threshold = 128 << 10
	list := encoder.NewList(NodeMetrics, now, 0)
	add := func(size int) {
		list.Add(&Item{Object: &inventory.Object{Name: strings.Repeat("x", size)}, Usage: &Node{}})
	}
	for id := range encoder.formats {
		encode := func() chunks {
			var c chunks
			if err := list.CacheEncode(id, nil, &c); err != nil {
				t.Fatal(err)
			}
			return c
		}
		list.Items = nil
		add(threshold / 2)
		add(threshold / 2)
		excess := len(bytes.Join(encode(), nil)) - threshold
		for size := threshold/2 - excess - 3; size <= threshold/2-excess+3; size++ {
			list.Items = list.Items[:1]
			add(size)
			c := encode()
			if total := len(bytes.Join(c, nil)); (len(c[0]) > threshold) != (total > threshold) {
				t.Errorf("%s: the first of %d bytes are a chunk of %d", id, total, len(c[0]))
			}
		}
		for range 400 {
			add(1000)
		}
		for i, chunk := range encode() {
			if len(chunk) > 2*threshold {
				t.Errorf("%s: chunk %d has %d bytes, want at most %d", id, i, len(chunk), 2*threshold)
			}
		}
	}
	check(t, list)
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWriteErrorIsReturned(t *testing.T) {
	list := encoder.NewList(NodeMetrics, now, 0)
	for range 3000 {
		list.Add(&Item{Object: &inventory.Object{Name: "node"}, Usage: &Node{}})
	}
	for id := range encoder.formats {
		for _, object := range []cacheable{list, &list.Items[0]} {
			if err := object.CacheEncode(id, nil, failingWriter{}); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("%s: got error %v, want %v", id, err, io.ErrClosedPipe)
			}
		}
	}
}

// TestQuantities compares quantities with resource.Quantity. Numbers above its range are clamped.
func TestQuantities(t *testing.T) {
	numbers := []uint64{
		0, 1, 999, 1000, 1001, 1023, 1024, 1025, 1e9, 15e8, 1e13, math.MaxInt64 - 1, math.MaxInt64, math.MaxUint64,
	}
	for bit := range 64 {
		numbers = append(numbers, 1<<bit-1, 1<<bit, 3<<bit, 1000<<bit)
	}
	for power, n := 0, uint64(1); power < 19; power++ {
		n *= 10
		numbers = append(numbers, n-1, n, n+1, 7*n)
	}
	for _, n := range numbers {
		list := resourceList(&usage.Amount{CPUNanocores: n, Memory: n}, nil)
		if list.Cpu().Sign() < 0 || list.Memory().Sign() < 0 {
			t.Errorf("%d: got negative usage %v", n, list)
		}
		for want, got := range map[string]quantity{
			list.Cpu().String(): cpuQuantity(n), list.Memory().String(): bytesQuantity(n),
		} {
			if text := string(got.append(nil)); text != want || got.len() != len(want) {
				t.Errorf("%d: got %q of %d bytes, want %q", n, text, got.len(), want)
			}
		}
	}
}

func TestTotalIsClamped(t *testing.T) {
	amount := usage.Amount{CPUNanocores: math.MaxUint64, Memory: 1 << 63, Swap: 1, HasSwap: true}
	p := &Pod{Containers: []usage.Container{{Amount: amount}, {Amount: amount}, {}}}
	for _, u := range []Usage{p, &Node{Amount: amount}} {
		if got := u.Total(); got.CPUNanocores != math.MaxInt64 || got.Memory != math.MaxInt64 || !got.HasSwap {
			t.Errorf("got %+v, want CPU and memory %d", got, uint64(math.MaxInt64))
		}
	}
}
