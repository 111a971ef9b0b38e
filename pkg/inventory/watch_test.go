package inventory

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// recorder is a Targets that records its calls. Each of them calls onCall.
type recorder struct {
	calls  []string
	onCall func(name string, uid types.UID) // the UID of a deleted node is "old"
}

func (r *recorder) Set(node *corev1.Node) {
	r.calls = append(r.calls, "set "+node.Name+" "+string(node.UID))
	r.onCall(node.Name, node.UID)
}

func (r *recorder) Delete(name string) {
	r.calls = append(r.calls, "delete "+name)
	r.onCall(name, "old")
}

func node(name string, uid types.UID) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid}}
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
	s := newNodeStore(New(), &targets, nil)
	w := newWatcher("nodes", twoNodes{}, &corev1.Node{}, s, func(*metav1.ListOptions) {})
	targets.onCall = func(string, types.UID) {
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
	testenv.Eventually(t, "the nodes", func() bool { return w.synced() == nil })
	if want := []string{"set a 1", "set b 2"}; !slices.Equal(targets.calls, want) {
		t.Errorf("calls %q, want %q", targets.calls, want)
	}
}

// TestTargetsDeleteBeforeReadersSee replaces and deletes a node in all ways. No reader may see a new
// node while the metrics of another one with its name are kept.
func TestTargetsDeleteBeforeReadersSee(t *testing.T) {
	for name, change := range map[string]struct {
		do   func(s *nodeStore) error
		want string
	}{
		"added":    {func(s *nodeStore) error { return s.Add(node("n", "new")) }, "delete n, set n new"},
		"updated":  {func(s *nodeStore) error { return s.Update(node("n", "new")) }, "delete n, set n new"},
		"listed":   {func(s *nodeStore) error { return s.Replace([]any{node("n", "new")}, "2") }, "delete n, set n new"},
		"deleted":  {func(s *nodeStore) error { return s.Delete(node("n", "old")) }, "delete n"},
		"unlisted": {func(s *nodeStore) error { return s.Replace(nil, "2") }, "delete n"},
		"the same": {func(s *nodeStore) error { return s.Update(node("n", "old")) }, "set n old"},
		"another":  {func(s *nodeStore) error { return s.Add(node("other", "1")) }, "set other 1"},
		"unknown":  {func(s *nodeStore) error { return s.Delete(node("other", "1")) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			targets := &recorder{}
			s := newNodeStore(New(), targets, nil)
			targets.onCall = func(name string, uid types.UID) {
				if got := s.Get("", name); got == nil || got.UID != UIDOf(uid) {
					t.Errorf("readers see %+v when the targets have the metrics of the node %s", got, uid)
				}
			}
			must(t, s.Replace([]any{node("n", "old")}, "1"))
			targets.calls = nil
			must(t, change.do(s))
			if got := strings.Join(targets.calls, ", "); got != change.want {
				t.Errorf("got calls %q, want %q", got, change.want)
			}
		})
	}
}

func TestSlim(t *testing.T) {
	whole := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "a", UID: "u", Labels: map[string]string{"zone": "a"},
			Annotations:   map[string]string{"path": "/path", "other": "long"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24"},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
			Images:          []corev1.ContainerImage{{Names: []string{"image"}}},
			Capacity:        corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("16Gi")},
		},
	}
	want := whole.DeepCopy()
	delete(want.Annotations, "other")
	delete(want.Status.Capacity, corev1.ResourceMemory)
	want.ManagedFields, want.Spec, want.Status.Images = nil, corev1.NodeSpec{}, nil
	before := whole.DeepCopy()
	got, err := (&nodeStore{annotations: []string{"path", "absent"}}).Transformer()(whole)
	must(t, err)
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if !equality.Semantic.DeepEqual(whole, before) {
		t.Error("the original node has changed")
	}
}

// watchPods runs Watches against an API server until the test ends. The handler for lists of pods reports whether it
// has responded itself.
func watchPods(t *testing.T, objects *sim.API, list func(http.ResponseWriter, *http.Request) bool) (*Watches, *Index) {
	t.Helper()
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if r.URL.Path == "/api/v1/pods" && query.Get("sendInitialEvents") != "" {
			t.Error("the pods are streamed")
		}
		if r.URL.Path != "/api/v1/pods" || query.Has("watch") || !list(w, r) {
			objects.ServeHTTP(w, r)
		}
	}))
	api.EnableHTTP2 = true
	api.StartTLS()
	pods := New()
	w, err := NewWatches(WatchConfig{
		Client: &rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
			ContentConfig: rest.ContentConfig{AcceptContentTypes: runtime.ContentTypeProtobuf}},
		Nodes: New(), Pods: pods, Targets: keepingTargets{},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(t.Context())
	}()
	t.Cleanup(func() {
		api.CloseClientConnections()
		api.Close()
		<-ended
	})
	return w, pods
}

const podPath = "/api/v1/namespaces/n/pods/"

func writeExpired(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusGone)
	fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,`+
		`"message":"too old"}`)
}

func TestPodsAreListedInPages(t *testing.T) {
	api, all, pages := sim.NewAPI(), make([]corev1.Pod, podsPerPage+20), 0
	api.Latency = 0
	for i := range all {
		all[i] = *running("n", fmt.Sprint("pod-", i), "app", fmt.Sprint(i%3))
		all[i].UID = types.UID(fmt.Sprint(i))
		all[i].Annotations = map[string]string{"a": "b"}
		api.Put(podPath+all[i].Name, all[i])
	}
	w, index := watchPods(t, api, func(_ http.ResponseWriter, r *http.Request) bool {
		query := r.URL.Query()
		const fieldSelector = "status.phase!=Succeeded,status.phase!=Failed"
		if query.Get("fieldSelector") != fieldSelector || query.Get("resourceVersion") != "" ||
			query.Get("limit") != fmt.Sprint(podsPerPage) || query.Has("continue") != (pages > 0) {
			t.Errorf("got the query %s", r.URL.RawQuery)
		}
		if r.ProtoMajor != 2 || strings.Contains(r.Header.Get("Accept"), "as=") || r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("got a request by %s with the header %v", r.Proto, r.Header)
		}
		pages++
		return false
	})
	testenv.Eventually(t, "the pods", func() bool { return w.PodsSynced() == nil })
	for i := range all {
		want, err := NewObject(&all[i])
		must(t, err)
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
	api := sim.NewAPI()
	api.Latency = 0
	for _, name := range []string{"a", "b"} {
		api.Put(podPath+name, running("n", name))
	}
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
				query.Set("limit", "1")
				r.URL.RawQuery = query.Encode()
				api.ServeHTTP(w, r)
			}
		}, "expired before its last page"},
		"truncated": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100000")
			api.ServeHTTP(w, r)
		}, "unexpected EOF"},
		"no object": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, "{}")
		}, "not a list of pods: it has no resource version"},
		"connection closed": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "INTERNAL_ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			var healed atomic.Bool
			w, index := watchPods(t, api, func(w http.ResponseWriter, r *http.Request) bool {
				if healed.Load() {
					return false
				}
				test.fail(w, r)
				return true
			})
			testenv.Eventually(t, "the failure", func() bool { return w.pods.lastError.Load() != nil })
			const list = "the API server has not returned the list of pods yet: "
			if err := w.PodsSynced(); err == nil || !strings.HasPrefix(err.Error(), list) ||
				!strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "https://") {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if index.Len() != 0 {
				t.Errorf("got %d pods of a list that failed", index.Len())
			}
			healed.Store(true)
			testenv.Eventually(t, "the pods", func() bool { return w.PodsSynced() == nil && index.Len() == 2 })
		})
	}
}
