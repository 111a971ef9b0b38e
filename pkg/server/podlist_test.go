package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// metadataScheme knows what an API server answers to one who asks for metadata.
var metadataScheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(s); err != nil {
		panic(err)
	}
	return s
}()

// asProtobuf encodes a list as API servers do.
func asProtobuf(t testing.TB, list runtime.Object) []byte {
	t.Helper()
	known := scheme.Scheme
	if _, ok := list.(*metav1.PartialObjectMetadataList); ok {
		known = metadataScheme
	}
	kinds, _, err := known.ObjectKinds(list)
	if err != nil {
		t.Fatal(err)
	}
	list.GetObjectKind().SetGroupVersionKind(kinds[0])
	var b bytes.Buffer
	if err := protobuf.NewSerializer(known, known).Encode(list, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// somePods gives n pods with all kinds of fields. Every third has labels of its own.
func somePods(n int) *corev1.PodList {
	random := rand.New(rand.NewPCG(1, uint64(n)))
	remaining := int64(7)
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "4711", Continue: "more", RemainingItemCount: &remaining}}
	for i := range n {
		grace := random.Int64N(60)
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace:                  fmt.Sprintf("namespace-%d", random.IntN(5)),
				Name:                       fmt.Sprintf("pod-%d", i),
				GenerateName:               "pod-",
				UID:                        "uid",
				ResourceVersion:            fmt.Sprint(i),
				Generation:                 random.Int64(),
				CreationTimestamp:          metav1.Unix(random.Int64N(2e9), 0),
				DeletionTimestamp:          &metav1.Time{Time: time.Unix(random.Int64N(2e9), 0)},
				DeletionGracePeriodSeconds: &grace,
				Labels:                     map[string]string{"app": fmt.Sprint("app-", random.IntN(3)), "empty": "", "tier": "back"},
				Annotations:                map[string]string{"annotation": strings.Repeat("a", random.IntN(300))},
				OwnerReferences:            []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "owner"}},
				Finalizers:                 []string{"finalizer"},
				ManagedFields:              []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: metav1.NewFieldsV1(`{"f:a":{}}`)}},
			},
			Spec: corev1.PodSpec{
				NodeName:                      fmt.Sprintf("node-%d", random.IntN(4)),
				TerminationGracePeriodSeconds: &grace,
				HostNetwork:                   true,
				Containers:                    []corev1.Container{{Name: "c", Image: "i"}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}
		switch i % 3 {
		case 0:
			pod.Labels["own"] = pod.Name
		case 1:
			pod.Spec.NodeName = ""
		}
		if i%7 == 6 {
			pod.Labels, pod.CreationTimestamp = nil, metav1.Time{}
		}
		list.Items = append(list.Items, pod)
	}
	return list
}

func metadataOf(pods *corev1.PodList) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{ListMeta: pods.ListMeta}
	for i := range pods.Items {
		list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: pods.Items[i].ObjectMeta})
	}
	return list
}

// reduced gives what is to be read of a list, from the standard library's decoding.
func reduced(t testing.TB, list runtime.Object) *podList {
	t.Helper()
	var want podList
	switch list := list.(type) {
	case *corev1.PodList:
		want.TypeMeta, want.ListMeta = list.TypeMeta, list.ListMeta
	case *metav1.PartialObjectMetadataList:
		want.TypeMeta, want.ListMeta = list.TypeMeta, list.ListMeta
	}
	err := meta.EachListItem(list, func(item runtime.Object) error {
		m, err := meta.Accessor(item)
		if err != nil {
			return err
		}
		o := &inventory.Object{
			Namespace: m.GetNamespace(), Name: m.GetName(), Labels: m.GetLabels(), CreatedAt: usage.At(m.GetCreationTimestamp().Time),
		}
		if pod, ok := item.(*corev1.Pod); ok {
			o.Node = pod.Spec.NodeName
		}
		want.Items = append(want.Items, o)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return &want
}

func TestReadPods(t *testing.T) {
	for _, n := range []int{0, 1, 2, 200} {
		pods := somePods(n)
		for _, test := range []struct {
			list  runtime.Object
			whole bool
		}{{pods, true}, {metadataOf(pods), false}} {
			t.Run(fmt.Sprintf("%d pods, whole: %v", n, test.whole), func(t *testing.T) {
				got, err := readPods(bytes.NewReader(asProtobuf(t, test.list)), test.whole)
				if err != nil {
					t.Fatal(err)
				}
				if want := reduced(t, test.list); !equality.Semantic.DeepEqual(got, want) {
					t.Errorf("got %+v\nwant %+v", got, want)
				}
			})
		}
	}
}

// An API server that knows no lists of metadata sends whole pods.
func TestReadPodsOfAnOldServer(t *testing.T) {
	pods := somePods(10)
	got, err := readPods(bytes.NewReader(asProtobuf(t, pods)), false)
	if err != nil {
		t.Fatal(err)
	}
	want := reduced(t, metadataOf(pods))
	want.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// A list that breaks off must not be taken for one of fewer pods.
func TestReadPodsBrokenOff(t *testing.T) {
	lost := errors.New("the connection is lost")
	for _, n := range []int{0, 3} {
		body := asProtobuf(t, somePods(n))
		// Behind the list only two empty fields follow, of two bytes each.
		complete := len(body) - 4
		for i := range complete {
			if list, err := readPods(bytes.NewReader(body[:i]), true); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%d of %d bytes of %d pods: %v, %v", i, len(body), n, list, err)
			}
			if list, err := readPods(io.MultiReader(bytes.NewReader(body[:i]), failing{lost}), true); !errors.Is(err, lost) {
				t.Errorf("%d of %d bytes of %d pods, then an error: %v, %v", i, len(body), n, list, err)
			}
		}
		for i := complete; i <= len(body); i++ {
			if list, err := readPods(bytes.NewReader(body[:i]), true); err == nil && len(list.Items) != n {
				t.Errorf("%d of %d bytes: %d pods of %d", i, len(body), len(list.Items), n)
			}
		}
	}
}

// failing is a reader that only fails.
type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

// wrapped puts what is to be a list into an envelope.
func wrapped(kind string, list []byte) []byte {
	var typeMeta []byte
	typeMeta = field(typeMeta, 1, []byte("v1"))
	typeMeta = field(typeMeta, 2, []byte(kind))
	return field(field([]byte(envelope), 1, typeMeta), 2, list)
}

// field appends a field to a message.
func field(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// unknown appends fields of each type that no version knows.
func unknown(b []byte) []byte {
	b = protowire.AppendVarint(protowire.AppendTag(b, 1001, protowire.VarintType), 1<<60)
	b = protowire.AppendFixed32(protowire.AppendTag(b, 1002, protowire.Fixed32Type), 1)
	b = protowire.AppendFixed64(protowire.AppendTag(b, 1003, protowire.Fixed64Type), 1)
	return field(b, 1004, []byte("unknown"))
}

func TestReadPodsSkipsUnknownFields(t *testing.T) {
	label := unknown(field(unknown(field(nil, 1, []byte("app"))), 2, []byte("web")))
	metadata := unknown(field(unknown(field(unknown(nil), 1, []byte("name"))), 11, label))
	spec := unknown(field(unknown(nil), 10, []byte("node")))
	pod := unknown(field(unknown(field(unknown(nil), 1, metadata)), 2, spec))
	list := unknown(field(unknown(field(unknown(nil), 1, unknown(field(nil, 2, []byte("5"))))), 2, pod))
	got, err := readPods(bytes.NewReader(unknown(wrapped("PodList", list))), true)
	if err != nil {
		t.Fatal(err)
	}
	want := &podList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "5"},
		Items:    []*inventory.Object{{Name: "name", Labels: map[string]string{"app": "web"}, Node: "node"}},
	}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestReadPodsRefuses(t *testing.T) {
	huge := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.BytesType), 1<<40)
	for name, test := range map[string]struct {
		body []byte
		want string
	}{
		"JSON":                 {[]byte(`{"kind":"PodList"}`), errNotProtobuf.Error()},
		"another kind":         {wrapped("Status", nil), "it is a Status of v1"},
		"metadata for pods":    {wrapped("PartialObjectMetadataList", nil), "it is a PartialObjectMetadataList"},
		"no list":              {field([]byte(envelope), 1, nil), "0 lists"},
		"two lists":            {field(wrapped("PodList", nil), 2, nil), "2 lists"},
		"a pod beyond bounds":  {wrapped("PodList", huge), "the next has 1099511627776 bytes"},
		"a list beyond bounds": {protowire.AppendVarint(append([]byte(envelope), 2<<3|2), 1<<63), "claims to have 9223372036854775808 bytes"},
		"a field beyond":       {wrapped("PodList", protowire.AppendVarint([]byte{3<<3 | 2}, 1<<63)), "claims to have 9223372036854775808 bytes"},
		"a group":              {wrapped("PodList", []byte{3<<3 | 3}), "unknown type 3"},
		"a long number":        {append([]byte(envelope), bytes.Repeat([]byte{0xff}, 11)...), "overflows"},
		"a pod that overruns":  {wrapped("PodList", field(nil, 2, []byte{1<<3 | 2, 9, 0})), "unexpected EOF"},
		"a spec that overruns": {wrapped("PodList", field(nil, 2, field(nil, 2, []byte{10<<3 | 2, 9, 0}))), "unexpected EOF"},
		"a bad label":          {wrapped("PodList", field(nil, 2, field(nil, 1, field(nil, 11, []byte{0xff})))), "unexpected EOF"},
		"a bad time":           {wrapped("PodList", field(nil, 2, field(nil, 1, field(nil, 8, []byte{0xff})))), "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			if list, err := readPods(bytes.NewReader(test.body), true); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, %v does not say %q", list, err, test.want)
			}
		})
	}
}

func TestReadPodsHoldsEqualLabelsOnce(t *testing.T) {
	pods := &corev1.PodList{}
	for i := range 10 {
		pods.Items = append(pods.Items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint(i), Labels: map[string]string{"app": "web", "hash": fmt.Sprint(i % 2)},
		}})
	}
	d := podListDecoder{strings: map[string]string{}, labels: map[string]map[string]string{}}
	for i := range pods.Items {
		b, err := pods.Items[i].Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.pod(b); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.labels) != 2 {
		t.Errorf("%d sets of labels are held, want 2", len(d.labels))
	}
}

func TestPodListIsARuntimeObject(t *testing.T) {
	list := reduced(t, somePods(3))
	clone := list.DeepCopyObject().(*podList)
	if !equality.Semantic.DeepEqual(clone, list) {
		t.Errorf("the copy is %+v, want %+v", clone, list)
	}
	clone.Items[0].Labels["app"] = "other"
	*clone.RemainingItemCount = 0
	if list.Items[0].Labels["app"] == "other" || *list.RemainingItemCount == 0 {
		t.Error("the copy shares memory with the list")
	}
}

// FuzzReadPods compares with the standard decoder: a list must be read as it reads it, or not at all, and not at all
// only what no API server sends.
func FuzzReadPods(f *testing.F) {
	for _, n := range []int{0, 1, 7} {
		f.Add(asProtobuf(f, somePods(n)))
		f.Add(asProtobuf(f, metadataOf(somePods(n))))
	}
	standard := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := readPods(bytes.NewReader(body), true)
		var pods corev1.PodList
		object, _, failure := standard.Decode(body, nil, nil)
		if list, ok := object.(*corev1.PodList); ok && failure == nil {
			pods = *list
		} else {
			return
		}
		if err == nil {
			if want := reduced(t, &pods); !sameList(got, want) {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
		}
		got, err = readPods(bytes.NewReader(asProtobuf(t, &pods)), true)
		if err != nil {
			t.Fatalf("what the standard encoder wrote cannot be read: %v", err)
		}
		if want := reduced(t, &pods); !sameList(got, want) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
	})
}

// sameList compares all but the type, which the standard decoder fills in itself.
func sameList(a, b *podList) bool {
	return equality.Semantic.DeepEqual(a.ListMeta, b.ListMeta) && equality.Semantic.DeepEqual(a.Items, b.Items)
}

// follow runs the feed of the pods against an API server that answers requests for lists with the function, until the
// test ends.
func follow(t *testing.T, whole bool, list http.HandlerFunc) (*watches, *inventory.Index) {
	t.Helper()
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/api/v1/pods":
			http.NotFound(w, r)
		case r.URL.Query().Get("sendInitialEvents") != "":
			t.Error("the pods are asked for as events of a watch")
		case r.URL.Query().Get("watch") != "":
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			if r.ProtoMajor != 2 || r.Header.Get("Accept-Encoding") != "" {
				t.Errorf("the list is asked for by %s in the encoding %q", r.Proto, r.Header.Get("Accept-Encoding"))
			}
			list(w, r)
		}
	}))
	api.EnableHTTP2 = true
	api.StartTLS()
	t.Cleanup(func() {
		api.CloseClientConnections()
		api.Close()
	})
	pods := inventory.New()
	config := &rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	w, err := newWatches(config, nil, whole, &nodeStore{Index: inventory.New()}, pods)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.pods.reflector.RunWithContext(t.Context())
	}()
	t.Cleanup(func() { <-ended })
	return w, pods
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

func TestPodsAreListed(t *testing.T) {
	pods := somePods(50)
	pods.Continue, pods.RemainingItemCount = "", nil
	for name, test := range map[string]struct {
		whole    bool
		list     runtime.Object
		protobuf bool
	}{
		"metadata":         {false, metadataOf(pods), true},
		"metadata in JSON": {false, metadataOf(pods), false},
		"pods":             {true, pods, true},
		"pods in JSON":     {true, pods, false},
	} {
		t.Run(name, func(t *testing.T) {
			body := asProtobuf(t, test.list)
			_, index := follow(t, test.whole, func(w http.ResponseWriter, r *http.Request) {
				if accept := r.Header.Get("Accept"); strings.Contains(accept, "PartialObjectMetadataList") == test.whole {
					t.Errorf("asked for %q", accept)
				}
				if query := r.URL.Query(); query.Get("fieldSelector") != "status.phase=Running" || query.Get("resourceVersion") != "0" {
					t.Errorf("asked with %s", r.URL.RawQuery)
				}
				if !test.protobuf {
					answer(w, test.list)
					return
				}
				w.Header().Set("Content-Type", r.Header.Get("Accept")[:strings.IndexByte(r.Header.Get("Accept"), ',')])
				w.Write(body)
			})
			eventually(t, "the pods", index.HasSynced)
			want := reduced(t, test.list)
			if index.Len() != len(want.Items) {
				t.Errorf("there are %d pods, want %d", index.Len(), len(want.Items))
			}
			for _, o := range want.Items {
				if got := index.Get(o.Namespace, o.Name); !equality.Semantic.DeepEqual(got, o) {
					t.Errorf("got %+v, want %+v", got, o)
				}
			}
			if got := index.List("", labels.SelectorFromSet(labels.Set{"own": "pod-3"})); len(got) != 1 {
				t.Errorf("%d pods have the label of one", len(got))
			}
		})
	}
}

// Pages come where an API server has no cache of its own.
func TestPodsAreListedInPages(t *testing.T) {
	all := metadataOf(somePods(30))
	all.Continue = ""
	_, index := follow(t, false, func(w http.ResponseWriter, r *http.Request) {
		page := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: all.Items[20:]}
		if r.URL.Query().Get("continue") == "" {
			page.Continue, page.Items = "page 2", all.Items[:20]
		}
		w.Write(asProtobuf(t, page))
	})
	eventually(t, "the pods", index.HasSynced)
	if index.Len() != 30 {
		t.Errorf("there are %d pods, want 30", index.Len())
	}
}

// What keeps a list from coming is told, and the next try may succeed.
func TestPodsAreListedAfterFailures(t *testing.T) {
	pods := metadataOf(somePods(3))
	pods.Continue = ""
	body := asProtobuf(t, pods)
	gone := apierrors.NewResourceExpired("too old").Status()
	for name, test := range map[string]struct {
		fail http.HandlerFunc
		want string
	}{
		"forbidden": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not for you", http.StatusForbidden) }, "not for you"},
		"expired": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusGone)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":%q,"reason":%q,"code":410}`, gone.Message, gone.Reason)
		}, "too old"},
		"broken off": {func(w http.ResponseWriter, _ *http.Request) { w.Write(body[:len(body)-40]) }, "after 2 of them"},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.Write(body[:len(body)/2])
		}, "unexpected EOF"},
		"empty": {func(http.ResponseWriter, *http.Request) {}, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			var healed atomic.Bool
			w, index := follow(t, false, func(w http.ResponseWriter, r *http.Request) {
				if healed.Load() {
					w.Write(body)
					return
				}
				test.fail(w, r)
			})
			eventually(t, "the failure", func() bool { return w.pods.failure.Load() != nil })
			if err := w.pods.synced(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v does not say %q", err, test.want)
			}
			if index.Len() != 0 {
				t.Errorf("there are %d pods of a list that failed", index.Len())
			}
			healed.Store(true)
			eventually(t, "the pods", func() bool { return index.HasSynced() && index.Len() == 3 })
		})
	}
}

func BenchmarkReadPods(b *testing.B) {
	pods := &metav1.PartialObjectMetadataList{}
	for i := range 30_000 {
		pods.Items = append(pods.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace:         fmt.Sprintf("namespace-%d", i%50),
			Name:              fmt.Sprintf("deployment-%d-6d4cf56db6-%05d", i/10, i),
			UID:               "0b1a4c1e-9d0e-4a6c-8d0b-6f1f3f0c2d11",
			CreationTimestamp: metav1.Unix(1_700_000_000+int64(i), 0),
			Labels:            map[string]string{"app": fmt.Sprint("deployment-", i/10), "pod-template-hash": "6d4cf56db6"},
			Annotations:       map[string]string{"checksum/config": strings.Repeat("0", 64)},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(strings.Repeat("f", 1<<10)),
			}},
		}})
	}
	body := asProtobuf(b, pods)
	b.Run("streaming", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := readPods(bytes.NewReader(body), false); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("standard", func(b *testing.B) {
		standard := protobuf.NewSerializer(metadataScheme, metadataScheme)
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			whole, err := io.ReadAll(bytes.NewReader(body)) // as the client does
			if err != nil {
				b.Fatal(err)
			}
			if _, _, err := standard.Decode(whole, nil, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}
