package server

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
)

// asProtobuf encodes a list as API servers do.
func asProtobuf(t testing.TB, list runtime.Object) []byte {
	t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(list)
	if err != nil {
		t.Fatal(err)
	}
	list.GetObjectKind().SetGroupVersionKind(kinds[0])
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// somePods returns n pods with all kinds of fields. Every third has labels of its own.
func somePods(n int) *corev1.PodList {
	random := rand.New(rand.NewPCG(1, uint64(n)))
	remaining, always := int64(7), corev1.ContainerRestartPolicyAlways
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "4711", Continue: "more", RemainingItemCount: &remaining}}
	for i := range n {
		grace := random.Int64N(60)
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace:                  fmt.Sprintf("namespace-%d", random.IntN(5)),
				Name:                       fmt.Sprintf("pod-%d", i),
				GenerateName:               "pod-",
				UID:                        types.UID(fmt.Sprint("uid-", i)),
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
				Containers:                    []corev1.Container{{Name: "c", Image: "i"}, {Name: "d", Env: []corev1.EnvVar{{Name: "e"}}}},
				InitContainers:                []corev1.Container{{Name: "setup"}, {Name: "sidecar", RestartPolicy: &always, Image: "i"}},
			},
			Status: corev1.PodStatus{
				Phase:      []corev1.PodPhase{corev1.PodPending, corev1.PodRunning}[random.IntN(2)],
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
				PodIP:      "10.0.0.1",
			},
		}
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			status := corev1.ContainerStatus{Name: c.Name, Image: c.Image, RestartCount: random.Int32N(2), ContainerID: "id"}
			switch random.IntN(3) {
			case 0:
				status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.Unix(random.Int64N(2e9), 0)}
			case 1:
				status.State.Terminated = &corev1.ContainerStateTerminated{StartedAt: metav1.Unix(random.Int64N(2e9), 0)}
			}
			if c.Name == "setup" || c.Name == "sidecar" {
				pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, status)
			} else {
				pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
			}
		}
		switch i % 3 {
		case 0:
			pod.Labels["own"] = pod.Name
		case 1:
			pod.Spec.NodeName = ""
		}
		if i%7 == 6 {
			pod.Labels, pod.CreationTimestamp, pod.Status = nil, metav1.Time{}, corev1.PodStatus{}
		}
		list.Items = append(list.Items, pod)
	}
	return list
}

// reduced returns what is to be read of a list, from the standard decoding.
func reduced(t testing.TB, list *corev1.PodList) *podList {
	t.Helper()
	want := &podList{ListMeta: list.ListMeta}
	for i := range list.Items {
		o, err := inventory.NewObject(&list.Items[i])
		if err != nil {
			t.Fatal(err)
		}
		want.Items = append(want.Items, o)
	}
	return want
}

func reader() *podPages { return newPodPages(&corev1client.CoreV1Client{}) }

func TestReadPods(t *testing.T) {
	for _, n := range []int{0, 1, 2, 200} {
		pods := somePods(n)
		inJSON, err := runtime.Encode(scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion), pods)
		if err != nil {
			t.Fatal(err)
		}
		for name, body := range map[string][]byte{"protobuf": asProtobuf(t, pods), "JSON": inJSON} {
			t.Run(fmt.Sprintf("%d pods in %s", n, name), func(t *testing.T) {
				got, err := reader().read(body)
				if err != nil {
					t.Fatal(err)
				}
				if want := reduced(t, pods); !equality.Semantic.DeepEqual(got, want) {
					t.Errorf("got %+v\nwant %+v", got, want)
				}
			})
		}
	}
}

// A list that breaks off must not be taken for one of fewer pods.
func TestReadPodsBrokenOff(t *testing.T) {
	for _, n := range []int{0, 3} {
		body := asProtobuf(t, somePods(n))
		// Only two empty fields of two bytes each follow the list.
		complete := len(body) - 4
		for i := range body {
			if list, err := reader().read(body[:i]); err == nil && (i < complete || len(list.Items) != n) {
				t.Errorf("%d of %d bytes of %d pods: %d pods", i, len(body), n, len(list.Items))
			}
		}
	}
}

// unknown appends fields of each type that no version knows.
func unknown(b []byte) []byte {
	b = protowire.AppendVarint(protowire.AppendTag(b, 1001, protowire.VarintType), 1<<60)
	b = protowire.AppendFixed32(protowire.AppendTag(b, 1002, protowire.Fixed32Type), 1)
	b = protowire.AppendFixed64(protowire.AppendTag(b, 1003, protowire.Fixed64Type), 1)
	return appendField(b, 1004, []byte("unknown"))
}

func TestReadPodsSkipsUnknownFields(t *testing.T) {
	label := unknown(appendField(unknown(appendField(nil, 1, []byte("app"))), 2, []byte("web")))
	metadata := unknown(appendField(unknown(appendField(unknown(nil), 1, []byte("name"))), 11, label))
	spec := unknown(appendField(unknown(nil), 10, []byte("node")))
	pod := unknown(appendField(unknown(appendField(unknown(nil), 1, metadata)), 2, spec))
	list := unknown(appendField(unknown(appendField(unknown(nil), 1, unknown(appendField(nil, 2, []byte("5"))))), 2, pod))
	got, err := reader().read(unknown(inEnvelope("PodList", list)))
	if err != nil {
		t.Fatal(err)
	}
	want := &podList{
		ListMeta: metav1.ListMeta{ResourceVersion: "5"},
		Items:    []*inventory.Object{{Name: "name", UID: inventory.UIDOf(""), Labels: map[string]string{"app": "web"}, Node: "node"}},
	}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestReadPodsRefuses(t *testing.T) {
	inPod := func(pod []byte) []byte { return inEnvelope("PodList", appendField(nil, 2, pod)) }
	for name, test := range map[string]struct {
		body []byte
		want string
	}{
		"nothing":              {nil, "neither in protobuf"},
		"no JSON":              {[]byte("not found"), "neither in protobuf"},
		"another kind":         {inEnvelope("Status", nil), "it is a Status of v1"},
		"another kind in JSON": {[]byte(`{"kind":"Status","apiVersion":"v1"}`), "it is a Status of v1"},
		"no list":              {appendField([]byte(protobufPrefix), 1, appendField(nil, 2, []byte("PodList"))), "0 lists"},
		"two lists":            {appendField(inEnvelope("PodList", nil), 2, nil), "2 lists"},
		"a group":              {inEnvelope("PodList", []byte{3<<3 | 3}), "unexpected EOF"},
		"a long number":        {append([]byte(protobufPrefix), bytes.Repeat([]byte{0xff}, 11)...), "variable length integer overflow"},
		"a pod that overruns":  {inPod([]byte{1<<3 | 2, 9, 0}), "unexpected EOF"},
		"a spec that overruns": {inPod(appendField(nil, 2, []byte{10<<3 | 2, 9, 0})), "unexpected EOF"},
		"a spec of a number":   {inPod([]byte{2 << 3, 1}), "wrong wireType = 0 for field Spec"},
		"a bad label":          {inPod(appendField(nil, 1, appendField(nil, 11, []byte{0xff}))), "unexpected EOF"},
		"a bad time":           {inPod(appendField(nil, 1, appendField(nil, 8, []byte{0xff}))), "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			if list, err := reader().read(test.body); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, %v does not say %q", list, err, test.want)
			}
		})
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

// FuzzReadPods compares with the standard decoder: a list that it accepts must be read as it reads
// it.
func FuzzReadPods(f *testing.F) {
	for _, n := range []int{0, 1, 7} {
		f.Add(asProtobuf(f, somePods(n)))
	}
	standard := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := reader().read(body)
		object, _, failure := standard.Decode(body, nil, nil)
		pods, ok := object.(*corev1.PodList)
		if failure != nil || !ok {
			return
		}
		if want := reduced(t, pods); err == nil && !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
		got, err = reader().read(asProtobuf(t, pods))
		if err != nil {
			t.Fatalf("what the standard encoder wrote cannot be read: %v", err)
		}
		if want := reduced(t, pods); !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
	})
}

// follow runs the feed of the pods against an API server that answers requests for lists with the
// function, until the test ends.
func follow(t *testing.T, list http.HandlerFunc) (*watches, *inventory.Index) {
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
	w, err := newWatches(config, nil, &nodeStore{Index: inventory.New()}, pods)
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
	pods.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}
	pods.Continue, pods.RemainingItemCount = "", nil
	for name, write := range map[string]func(http.ResponseWriter){
		"protobuf": func(w http.ResponseWriter) { w.Write(asProtobuf(t, pods)) },
		"JSON":     func(w http.ResponseWriter) { answer(w, pods) },
	} {
		t.Run(name, func(t *testing.T) {
			_, index := follow(t, func(w http.ResponseWriter, r *http.Request) {
				query := r.URL.Query()
				if query.Get("fieldSelector") != notEnded || query.Get("resourceVersion") != "" || query.Get("limit") != fmt.Sprint(podsPerPage) {
					t.Errorf("requested with %s", r.URL.RawQuery)
				}
				if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, runtime.ContentTypeProtobuf) || strings.Contains(accept, "as=") {
					t.Errorf("requested as %q", accept)
				}
				write(w)
			})
			eventually(t, "the pods", index.HasSynced)
			want := reduced(t, pods)
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

func TestPodsAreListedInPages(t *testing.T) {
	all := somePods(30)
	_, index := follow(t, func(w http.ResponseWriter, r *http.Request) {
		page := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: all.Items[20:]}
		if r.URL.Query().Get("continue") == "" {
			page.Continue, page.Items = "page 2", all.Items[:20]
		}
		w.Write(asProtobuf(t, page))
	})
	eventually(t, "the pods", index.HasSynced)
	for i := range all.Items {
		want, err := inventory.NewObject(&all.Items[i])
		if err != nil {
			t.Fatal(err)
		}
		if got := index.Get(want.Namespace, want.Name); !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if index.Len() != 30 {
		t.Errorf("there are %d pods, want 30", index.Len())
	}
}

// What keeps a list from coming is told, and the next try may succeed.
func TestPodsAreListedAfterFailures(t *testing.T) {
	pods := somePods(3)
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
		"broken off": {func(w http.ResponseWriter, _ *http.Request) { w.Write(body[:len(body)-40]) }, "unexpected EOF"},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.Write(body[:len(body)/2])
		}, "unexpected EOF"},
		"empty": {func(http.ResponseWriter, *http.Request) {}, "neither in protobuf"},
	} {
		t.Run(name, func(t *testing.T) {
			var healed atomic.Bool
			w, index := follow(t, func(w http.ResponseWriter, r *http.Request) {
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
