package api

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/internal/fair"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// manyPods returns n pods of one container with metrics in the namespace "apps", a pod of 100 containers
// in the namespace "large", and one with that many short labels in "many": 60,000 take 0.6 MiB.
func manyPods(n, labels int) Config {
	c := &cluster{podUsage: map[string]*usage.Pod{}}
	add := func(namespace, name string, containers int) *inventory.Object {
		o := object(namespace, name)
		var amounts []usage.Container
		for i := range containers {
			container := fmt.Sprint("c", i)
			running(o, container, nodeAt.Add(-time.Hour))
			amounts = append(amounts, usage.Container{Name: container, Amount: amount(1, 4096)})
		}
		c.pods = append(c.pods, o)
		c.podUsage[namespace+"/"+name] = pod(amounts...)
		return o
	}
	for i := range n {
		add("apps", fmt.Sprintf("web-%03d", i), 1)
	}
	add("large", "large", 100)
	set := map[string]string{}
	for i := range labels {
		set[fmt.Sprintf("key-%d", i)] = "v"
	}
	add("many", "labels", 1).Labels = inventory.NewLabels(set)
	return c.config()
}

// slowResponse is a request whose response is written until the test closes written.
type slowResponse struct {
	user, namespace, name, accept string // name is "" for a list
	limit                         int64

	served  bool
	err     error
	written chan struct{}
}

type slowResponseKey struct{}

// slowResponses returns a function that starts a request for these pods in a bubble, and returns when
// the response is being written or has ended.
func slowResponses(t *testing.T, config Config, limit ResponseMemory) func(*slowResponse) {
	t.Helper()
	codecs := serializer.NewCodecFactory(NewScheme())
	c, ok := NewGroup(config, NewScheme(), codecs).VersionedResourcesStorageMap["v1"]["pods"].(*collection)
	if !ok {
		t.Fatal("the storage of pods is not a collection")
	}
	h := WithResponseMemory(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		l := r.Context().Value(slowResponseKey{}).(*slowResponse)
		ctx := request.WithNamespace(r.Context(), l.namespace)
		if l.name != "" {
			_, l.err = c.Get(ctx, l.name, nil)
		} else {
			_, l.err = c.List(ctx, &metainternalversion.ListOptions{Limit: l.limit})
		}
		if l.err == nil {
			l.served = true
			<-l.written
		}
	}), codecs, limit)
	return func(l *slowResponse) {
		l.written = make(chan struct{})
		info := &request.RequestInfo{APIGroup: metrics.GroupName, Verb: "list"}
		if l.name != "" {
			info.Verb = "get"
		}
		ctx := request.WithRequestInfo(context.WithValue(context.Background(), slowResponseKey{}, l), info)
		ctx = request.WithUser(ctx, &user.DefaultInfo{Name: l.user})
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		r.Header.Set("Accept", l.accept)
		go h.ServeHTTP(httptest.NewRecorder(), r)
		synctest.Wait()
	}
}

// TestMemoryIsShared checks which responses are served while others are being written, and that all
// memory is available once they are.
func TestMemoryIsShared(t *testing.T) {
	type step struct {
		user string
		slowResponse
		served int // of equal requests; after these, one more is rejected
	}
	list := slowResponse{namespace: "apps", accept: jsonType} // 1 MiB
	table := slowResponse{namespace: "apps", accept: tableType}
	large := slowResponse{namespace: "large", accept: protobufType} // 50 KiB
	none := slowResponse{namespace: "none", accept: jsonType}
	page := slowResponse{namespace: "apps", accept: jsonType, limit: 8} // 8 KiB
	labels := slowResponse{namespace: "many", accept: yamlType}
	get := slowResponse{namespace: "many", name: "labels", accept: yamlType}
	getJSON := slowResponse{namespace: "many", name: "labels", accept: jsonType}
	config := manyPods(1000, 60_000)
	for name, test := range map[string]struct {
		limit ResponseMemory // in MiB
		steps []step
	}{
		"small lists, then they count as large": {ResponseMemory{Large: 4, Small: 8}, []step{
			{"a", list, 4 + 2}, {"b", list, 2 + 1}, {"a", none, 128}, {"c", list, 1 + 1},
		}},
		"large lists": {ResponseMemory{Large: 18, Small: 4}, []step{
			{"a", table, 2}, {"b", table, 1}, {"a", list, 2}, {"c", list, 1 + 3},
		}},
		"a list that needs more than half": {ResponseMemory{Large: 7, Small: 1}, []step{
			{"a", table, 1}, {"b", table, 0}, {"b", list, 1 + 1},
		}},
		"a list that needs more than there is": {ResponseMemory{Large: 2, Small: 1}, []step{
			{"a", table, 1}, {"b", table, 0}, {"b", list, 1},
		}},
		"many containers": {ResponseMemory{Large: 1, Small: 1}, []step{
			{"a", large, 10 + 10}, {"b", large, 5 + 5},
		}},
		"tiny lists, then they count as small": {ResponseMemory{Large: 1, Small: 1}, []step{
			{"a", none, 3*64 + 64}, {"b", page, 64 + 32 + 32},
		}},
		"lists with many labels": {ResponseMemory{Large: 300, Small: 1}, []step{
			{"a", labels, 2}, {"b", labels, 1},
		}},
		"objects with many labels": {ResponseMemory{Large: 300, Small: 1}, []step{
			{"a", get, 2}, {"b", get, 1},
		}},
		"objects with many labels, streamed": {ResponseMemory{Large: 40, Small: 1}, []step{
			{"a", getJSON, 2}, {"b", getJSON, 1},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.limit.Large <<= 20
				test.limit.Small <<= 20
				test.limit.Max = 1 << 30
				start := slowResponses(t, config, test.limit)
				for range 2 { // the second time, everything has been released
					var responses []*slowResponse
					for i, step := range test.steps {
						for n := range step.served + 1 {
							l := step.slowResponse
							l.user = step.user
							start(&l)
							delay, ok := apierrors.SuggestsClientDelay(l.err)
							rejected := apierrors.IsTooManyRequests(l.err) && ok && delay == 1
							if l.served != (n < step.served) || l.served == rejected {
								t.Errorf("step %d, request %d of %s: got served %v, error %v", i, n, l.user, l.served, l.err)
							}
							responses = append(responses, &l)
						}
					}
					for _, l := range responses {
						close(l.written)
					}
					synctest.Wait()
				}
			})
		})
	}
}

// TestListMemoryIsReleased checks that complete and interrupted responses leave nothing reserved.
func TestListMemoryIsReleased(t *testing.T) {
	h := serveWithin(t, manyPods(1, 0), ResponseMemory{Large: 1, Small: 1, Max: 1 << 30})
	for range 3 { // each needs all of one of them
		for _, accept := range []string{jsonType, protobufType, tableType, yamlType} {
			w := do(h, http.MethodGet, v1Path+"/pods", accept)
			for w.Code == http.StatusTooManyRequests { // the handler of an interrupted request may not have ended
				w = do(h, http.MethodGet, v1Path+"/pods", accept)
			}
			if w.Code != http.StatusOK {
				t.Fatalf("%s: got status %d: %s", accept, w.Code, w.Body)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, v1Path+"/pods", nil)
		func() {
			defer func() { // the library ends the response by a panic
				if p := recover(); p != nil && p != any(http.ErrAbortHandler) {
					panic(p)
				}
			}()
			h.ServeHTTP(failingWriter{httptest.NewRecorder(), cancel}, r)
		}()
	}
}

// failingWriter is a client that goes away when the body begins.
type failingWriter struct {
	*httptest.ResponseRecorder
	cancel func()
}

func (w failingWriter) Write([]byte) (int, error) {
	w.cancel()
	return 0, http.ErrHandlerTimeout
}

// TestListTooLarge checks that a list is rejected if it needs too much memory in a format.
func TestListTooLarge(t *testing.T) {
	h := serveWithin(t, manyPods(1100, 0), ResponseMemory{Large: 1 << 20, Small: 512 << 10, Max: 3 << 20})
	for _, test := range []struct {
		path, accept string
		code         int
	}{
		{"/pods", jsonType, http.StatusOK}, // it needs more than Large, so it is written alone
		{"/pods", protobufType, http.StatusOK},
		{"/pods", tableType, http.StatusNotAcceptable},
		{"/pods", metadataType, http.StatusNotAcceptable},
		{"/pods?pretty=true", jsonType, http.StatusNotAcceptable},
		{"/pods", yamlType, http.StatusNotAcceptable},
		{"/pods", yamlType + ";sv=v1", http.StatusNotAcceptable},
		{"/pods", tableType + ";sv=v1", http.StatusNotAcceptable},
		{"/pods?limit=500", tableType, http.StatusOK},
		{"/pods?limit=50", yamlType, http.StatusOK},
		{"/pods?limit=500", yamlType, http.StatusNotAcceptable},
		{"/namespaces/large/pods", yamlType, http.StatusOK},
	} {
		w := do(h, http.MethodGet, v1Path+test.path, test.accept)
		if w.Code != test.code {
			t.Errorf("%s as %s: got status %d, want %d: %s", test.path, test.accept, w.Code, test.code, w.Body)
		}
	}
	status := getAs[metav1.Status](t, h, v1Path+"/pods?pretty=true", jsonType, http.StatusNotAcceptable)
	want := "a response with 1102 objects in this format needs about 4 MiB of memory, more than the maximum of 3 MiB: " +
		"request JSON without indentation or protobuf, or pages with limit=500"
	if status.Message != want || status.Reason != metav1.StatusReasonNotAcceptable {
		t.Errorf("got  %s: %s\nwant %s", status.Reason, status.Message, want)
	}
}

// TestHostilePodTooLarge checks that what counts is what is served: not a pod without metrics before one with
// many labels, and not the few containers that the API server shows of a pod whose node reports many.
func TestHostilePodTooLarge(t *testing.T) {
	labels := map[string]string{}
	var reported []usage.Container
	for i := range 20_000 {
		name := fmt.Sprintf("%05d", i)
		labels[name] = "v"
		reported = append(reported, usage.Container{Name: name, Amount: amount(1, 4096)})
	}
	many := object("labels", "b")
	many.Labels = inventory.NewLabels(labels)
	c := &cluster{
		pods: []*inventory.Object{
			running(object("containers", "a"), "00000", nodeAt.Add(-time.Hour)), object("labels", "a"), many,
		},
		podUsage: map[string]*usage.Pod{
			"containers/a": pod(reported...), "labels/b": pod(usage.Container{Name: "main", Amount: amount(1, 4096)}),
		},
	}
	h := serveWithin(t, c.config(), ResponseMemory{Large: 1 << 20, Small: 512 << 10, Max: 3 << 20})
	for _, path := range []string{"/labels/pods/b", "/labels/pods?limit=1", "/containers/pods/a", "/containers/pods"} {
		for accept, code := range map[string]int{jsonType: http.StatusOK, yamlType: http.StatusNotAcceptable} {
			if w := do(h, http.MethodGet, v1Path+"/namespaces"+path, accept); w.Code != code {
				t.Errorf("%s as %s: got status %d, want %d", path, accept, w.Code, code)
			}
		}
	}
}

// TestRefusedGrowth checks that memory returns to its pool once if a response turns out to need more, and there is
// not enough.
func TestRefusedGrowth(t *testing.T) {
	tiny, full := fair.NewPool(2*tinyBytes), fair.NewPool(1)
	m := &negotiated{pools: []memoryPool{{tiny, tinyBytes}, {full, math.MaxInt64}}, cost: cost{container: 512}}
	m.release = func() {}
	ctx, d := context.WithValue(t.Context(), negotiatedKey{}, m), &demand{cost: m.cost}
	d.add(object("n", "p"), 1)
	if err := reserve(ctx, d); err != nil {
		t.Fatal(err)
	}
	d.add(object("n", "many"), 1000)
	full.Take("another", 1)
	if err := reserve(ctx, d); !apierrors.IsTooManyRequests(err) {
		t.Errorf("got error %v", err)
	}
	m.release() // at the end of the request
	if !tiny.Take("a", tinyBytes) || !tiny.Take("b", tinyBytes) || tiny.Take("c", 1) {
		t.Error("the pool does not have its size")
	}
}

// BenchmarkListMemory measures the memory of a list in each format: what it holds when its response
// begins, and the highest heap until then. One list has 60,000 containers, the other an object with
// 60,000 labels of 10 bytes.
func BenchmarkListMemory(b *testing.B) {
	b.Run("containers", func(b *testing.B) { benchmarkListMemory(b, largeCluster(b)) })
	b.Run("labels", func(b *testing.B) { benchmarkListMemory(b, manyPods(0, 60_000)) })
}

func benchmarkListMemory(b *testing.B, c Config) {
	const units = 60_000
	h := serve(b, c)
	for _, format := range []struct{ name, accept, query string }{
		{"json", jsonType, ""},
		{"protobuf", protobufType, ""},
		{"table", tableType, ""},
		{"table/objects", tableType, "?includeObject=Object"},
		{"metadata", metadataType, ""},
		{"json/indented", jsonType, "?pretty=true"},
		{"yaml", yamlType, ""},
	} {
		b.Run(format.name, func(b *testing.B) {
			defer debug.SetGCPercent(debug.SetGCPercent(10)) // little garbage
			heap := func() int64 {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return int64(m.HeapAlloc)
			}
			var held, peak int64
			for b.Loop() {
				runtime.GC()
				before := heap()
				stop := make(chan struct{})
				done := make(chan struct{})
				go func() {
					defer close(done)
					tick := time.NewTicker(time.Millisecond)
					defer tick.Stop()
					for {
						select {
						case <-tick.C:
							peak = max(peak, heap()-before)
						case <-stop:
							return
						}
					}
				}()
				r := httptest.NewRequestWithContext(b.Context(), http.MethodGet,
					v1beta1Path+"/pods"+format.query, nil)
				r.Header.Set("Accept", format.accept)
				w := &discardWriter{header: http.Header{}, code: http.StatusOK}
				h.ServeHTTP(beginWriter{w, func() {
					runtime.GC()
					held = max(held, heap()-before)
				}}, r)
				close(stop)
				<-done
				if w.code != http.StatusOK {
					b.Fatalf("got status %d", w.code)
				}
			}
			b.ReportMetric(float64(held)/units, "held-B/unit")
			b.ReportMetric(float64(peak)/units, "peak-B/unit")
		})
	}
}

// beginWriter calls begin before the first byte of the body.
type beginWriter struct {
	*discardWriter
	begin func()
}

func (w beginWriter) Write(p []byte) (int, error) {
	if w.bytes == 0 {
		w.begin()
	}
	return w.discardWriter.Write(p)
}
