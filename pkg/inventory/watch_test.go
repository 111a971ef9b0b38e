package inventory

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// recorder is a Targets that records its calls.
type recorder struct {
	calls []string
	onSet func()
}

func (r *recorder) Set(node *corev1.Node) {
	r.calls = append(r.calls, "set "+node.Name+" "+node.Status.Addresses[0].Address)
	if r.onSet != nil {
		r.onSet()
	}
}

func (r *recorder) Delete(name string) { r.calls = append(r.calls, "delete "+name) }

func node(name, address string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: address}}},
	}
}

func TestNodeStore(t *testing.T) {
	var targets recorder
	s := newNodeStore(New(), nil)
	s.targets = &targets
	for _, step := range []struct {
		name  string
		do    func() error
		calls []string // of Targets
		index []string // nodes in the Index afterwards
	}{
		{"first list", func() error { return s.Replace([]any{node("a", "1"), node("b", "2")}, "1") },
			[]string{"set a 1", "set b 2"}, []string{"a", "b"}},
		{"new node", func() error { return s.Add(node("c", "3")) }, []string{"set c 3"}, []string{"a", "b", "c"}},
		{"new address", func() error { return s.Update(node("a", "4")) }, []string{"set a 4"}, []string{"a", "b", "c"}},
		{"deletion", func() error { return s.Delete(node("b", "2")) }, []string{"delete b"}, []string{"a", "c"}},
		{"missed deletion", func() error { return s.Delete(cache.DeletedFinalStateUnknown{Key: "c", Obj: node("c", "3")}) },
			[]string{"delete c"}, []string{"a"}},
		{"list after an outage", func() error { return s.Replace([]any{node("d", "5")}, "9") },
			[]string{"delete a", "set d 5"}, []string{"d"}},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if !slices.Equal(targets.calls, step.calls) {
			t.Errorf("%s: calls %q, want %q", step.name, targets.calls, step.calls)
		}
		targets.calls = nil
		for _, name := range []string{"a", "b", "c", "d"} {
			if found, want := s.Get("", name) != nil, slices.Contains(step.index, name); found != want {
				t.Errorf("%s: node %s in the Index: %v, want %v", step.name, name, found, want)
			}
		}
	}
}

// twoNodes is a client for two nodes, which never change.
type twoNodes struct{}

func (twoNodes) List(context.Context, metav1.ListOptions) (*corev1.NodeList, error) {
	return &corev1.NodeList{
		ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Node{*node("a", "1"), *node("b", "2")},
	}, nil
}

func (twoNodes) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

func (twoNodes) IsWatchListSemanticsUnSupported() bool { return true }

// TestNodesAreSyncedLast checks that the nodes count as listed only when the targets have all of them.
func TestNodesAreSyncedLast(t *testing.T) {
	var targets recorder
	s := newNodeStore(New(), nil)
	s.targets = &targets
	w := newWatcher("nodes", twoNodes{}, &corev1.Node{}, s, func(*metav1.ListOptions) {})
	targets.onSet = func() {
		if w.synced() == nil {
			t.Error("synced before the targets have all nodes")
		}
	}
	if w.synced() == nil {
		t.Error("synced before the first list")
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	running.Go(func() { w.reflector.RunWithContext(ctx) })
	eventually(t, "the nodes", func() bool { return w.synced() == nil })
	if want := []string{"set a 1", "set b 2"}; !slices.Equal(targets.calls, want) {
		t.Errorf("calls %q, want %q", targets.calls, want)
	}
}

// ordered is a Targets that checks that the Index has a node until Delete has returned.
type ordered struct {
	t     *testing.T
	index *Index
	calls []string
}

func (o *ordered) Set(node *corev1.Node) {
	o.calls = append(o.calls, "set "+string(node.UID))
	if got := o.index.Get("", node.Name); got == nil || got.UID != UIDOf(node.UID) {
		o.t.Errorf("set %s: the Index has %+v", node.UID, got)
	}
}

func (o *ordered) Delete(name string) {
	o.calls = append(o.calls, "delete")
	if got := o.index.Get("", name); got == nil || got.UID != UIDOf("old") {
		o.t.Errorf("readers see %+v before the metrics of the old node are deleted", got)
	}
}

// TestTargetsDeleteBeforeReadersSee replaces and deletes a node in all ways. No reader may see a new
// node while the metrics of another one with its name are kept.
func TestTargetsDeleteBeforeReadersSee(t *testing.T) {
	withUID := func(uid types.UID) *corev1.Node {
		n := node("n", "1")
		n.UID = uid
		return n
	}
	for name, change := range map[string]struct {
		do   func(s *nodeStore) error
		want []string
	}{
		"added":   {func(s *nodeStore) error { return s.Add(withUID("new")) }, []string{"delete", "set new"}},
		"updated": {func(s *nodeStore) error { return s.Update(withUID("new")) }, []string{"delete", "set new"}},
		"listed": {
			func(s *nodeStore) error { return s.Replace([]any{withUID("new")}, "2") }, []string{"delete", "set new"},
		},
		"deleted":  {func(s *nodeStore) error { return s.Delete(withUID("old")) }, []string{"delete"}},
		"unlisted": {func(s *nodeStore) error { return s.Replace(nil, "2") }, []string{"delete"}},
		"the same": {func(s *nodeStore) error { return s.Update(withUID("old")) }, []string{"set old"}},
		"unknown":  {func(s *nodeStore) error { return s.Delete(node("other", "1")) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			targets := &ordered{t: t, index: New()}
			s := newNodeStore(targets.index, nil)
			s.targets = targets
			must(t, s.Replace([]any{withUID("old")}, "1"))
			targets.calls = nil
			must(t, change.do(s))
			if !slices.Equal(targets.calls, change.want) {
				t.Errorf("calls %q, want %q", targets.calls, change.want)
			}
		})
	}
}

func TestSlim(t *testing.T) {
	whole := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:          "a",
			UID:           "u",
			Labels:        map[string]string{"zone": "a"},
			Annotations:   map[string]string{"path": "/path", "other": "long"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24"},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
			Images:          []corev1.ContainerImage{{Names: []string{"image"}}},
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("4"),
				corev1.ResourceMemory: resource.MustParse("16Gi"),
			},
		},
	}
	want := whole.DeepCopy()
	delete(want.Annotations, "other")
	delete(want.Status.Capacity, corev1.ResourceMemory)
	want.ManagedFields, want.Spec, want.Status.Images = nil, corev1.NodeSpec{}, nil
	before := whole.DeepCopy()
	got, err := (&nodeStore{annotations: []string{"path", "absent"}}).Transformer()(whole)
	if err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if !equality.Semantic.DeepEqual(whole, before) {
		t.Error("the original node has changed")
	}
}

// watchPods runs Watches of pods against an API server with the handler for lists until the test
// ends. The server has no nodes.
func watchPods(t *testing.T, list http.HandlerFunc) (*Watches, *Index) {
	t.Helper()
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("watch") != "":
			if r.URL.Path == "/api/v1/pods" && r.URL.Query().Get("sendInitialEvents") != "" {
				t.Error("the pods are streamed")
			}
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case r.URL.Path == "/api/v1/pods":
			list(w, r)
		default:
			http.NotFound(w, r)
		}
	}))
	api.EnableHTTP2 = true
	api.StartTLS()
	pods := New()
	w, err := NewWatches(WatchConfig{
		Client: &rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}},
		Nodes:  New(), Pods: pods,
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(t.Context(), &recorder{})
	}()
	t.Cleanup(func() {
		api.CloseClientConnections()
		api.Close()
		<-ended
	})
	return w, pods
}

// writePods writes a list of pods in JSON.
func writePods(w http.ResponseWriter, next string, pods ...corev1.Pod) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(corev1.PodList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: next},
		Items:    pods,
	})
}

func writeExpired(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusGone)
	fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,`+
		`"message":"too old"}`)
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testenv.Patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatalf("timed out waiting for %s", what)
}

func TestPodsAreListedInPages(t *testing.T) {
	all := make([]corev1.Pod, 30)
	for i := range all {
		all[i] = *running("n", fmt.Sprint("pod-", i), "app", fmt.Sprint(i%3))
		all[i].UID = types.UID(fmt.Sprint(i))
		all[i].Annotations = map[string]string{"a": "b"}
	}
	w, index := watchPods(t, func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		const fieldSelector = "status.phase!=Succeeded,status.phase!=Failed"
		if query.Get("fieldSelector") != fieldSelector || query.Get("resourceVersion") != "" ||
			query.Get("limit") != fmt.Sprint(podsPerPage) {
			t.Errorf("got the query %s", r.URL.RawQuery)
		}
		if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, runtime.ContentTypeProtobuf) ||
			strings.Contains(accept, "as=") || r.ProtoMajor != 2 || r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("got a request by %s with the header %v", r.Proto, r.Header)
		}
		if query.Get("continue") == "" {
			writePods(w, "page 2", all[:20]...)
		} else {
			writePods(w, "", all[20:]...)
		}
	})
	eventually(t, "the pods", func() bool { return w.PodsSynced() == nil })
	for i := range all {
		want, err := NewObject(&all[i])
		if err != nil {
			t.Fatal(err)
		}
		if got := index.Get(want.Namespace, want.Name); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if index.Len() != len(all) {
		t.Errorf("got %d pods, want %d", index.Len(), len(all))
	}
}

// TestPodsAreListedAfterFailures checks that PodsSynced returns the reason of a failure, and that
// the list is requested again.
func TestPodsAreListedAfterFailures(t *testing.T) {
	for name, test := range map[string]struct {
		fail http.HandlerFunc
		want string
	}{
		"forbidden": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no permission", http.StatusForbidden)
		}, "no permission"},
		"expired": {func(w http.ResponseWriter, _ *http.Request) { writeExpired(w) }, "too old"},
		"expired after a page": {func(w http.ResponseWriter, r *http.Request) {
			switch query := r.URL.Query(); {
			case query.Get("limit") == "":
				t.Error("all pods are listed in one response")
				writeExpired(w)
			case query.Get("continue") != "":
				writeExpired(w)
			default:
				writePods(w, "page 2", *running("n", "a"))
			}
		}, "expired before its last page"},
		"truncated": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			writePods(w, "", *running("n", "a"))
		}, "unexpected EOF"},
		"no object": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, "{}")
		}, "not a list of pods"},
		"other list": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"NamespaceList","apiVersion":"v1","metadata":{"resourceVersion":"9"}}`)
		}, "not a list of pods"},
		"connection closed": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "INTERNAL_ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			var healed atomic.Bool
			w, index := watchPods(t, func(w http.ResponseWriter, r *http.Request) {
				if !healed.Load() {
					test.fail(w, r)
					return
				}
				writePods(w, "", *running("n", "a"), *running("n", "b"))
			})
			eventually(t, "the failure", func() bool { return w.pods.lastError.Load() != nil })
			const list = "the API server has not returned the list of pods yet: "
			if err := w.PodsSynced(); err == nil || !strings.HasPrefix(err.Error(), list) ||
				!strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "https://") {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if index.Len() != 0 {
				t.Errorf("got %d pods of a list that failed", index.Len())
			}
			healed.Store(true)
			eventually(t, "the pods", func() bool { return w.PodsSynced() == nil && index.Len() == 2 })
		})
	}
}
