package api

import (
	"bufio"
	"context"
	"fmt"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"io"
	"k8s.io/apimachinery/pkg/labels"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
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

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// manyPods returns n pods of one container with metrics in the namespace "apps", and a pod of 100
// containers in the namespace "large".
func manyPods(n int) Config {
	c := newConfig()
	u := fakeUsage{pods: map[string]*usage.Pod{}}
	var pods fakeInventory
	add := func(namespace, name string, containers int) {
		o := object(namespace, name)
		var amounts []usage.Container
		for i := range containers {
			container := fmt.Sprint("c", i)
			running(o, container, at.Add(-time.Hour))
			amounts = append(amounts, usage.Container{Name: container, Amount: amount(1, 4096)})
		}
		pods = append(pods, o)
		u.pods[namespace+"/"+name] = pod(amounts...)
	}
	for i := range n {
		add("apps", fmt.Sprintf("web-%03d", i), 1)
	}
	add("large", "large", 100)
	c.Pods, c.Usage = pods, u
	return c
}

// slowList is a LIST whose response is written until the test closes written.
type slowList struct {
	user, namespace, accept string
	limit                   int64

	begun   int // how often it has selected objects
	served  bool
	items   int
	err     error
	written chan struct{}
}

type slowListKey struct{}

// slowLists returns a function that starts lists of these pods in a bubble, and returns when they wait
// for memory, are being written, or have ended.
func slowLists(t *testing.T, config Config, limit ListMemory) func(...*slowList) {
	t.Helper()
	codecs := serializer.NewCodecFactory(NewScheme())
	c, ok := NewGroup(config, NewScheme(), codecs).VersionedResourcesStorageMap["v1"]["pods"].(*collection)
	if !ok {
		t.Fatal("the storage of pods is not a collection")
	}
	h := WithListMemory(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		l := r.Context().Value(slowListKey{}).(*slowList)
		q, err := newQuery(l.namespace, &metainternalversion.ListOptions{Limit: l.limit})
		if err != nil {
			t.Error(err)
			return
		}
		counted := *c
		counted.inventory = countedInventory{c.inventory, &l.begun}
		objects, err := counted.objects(r.Context(), q)
		if err != nil {
			l.err = err
			return
		}
		l.served, l.items = true, len(c.list(t.Context(), q, objects).Items)
		<-l.written
	}), codecs, limit)
	return func(lists ...*slowList) {
		for _, l := range lists {
			l.written = make(chan struct{})
			ctx := request.WithRequestInfo(context.WithValue(context.Background(), slowListKey{}, l),
				&request.RequestInfo{APIGroup: metrics.GroupName, Verb: "list"})
			ctx = request.WithUser(ctx, &user.DefaultInfo{Name: l.user})
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
			r.Header.Set("Accept", l.accept)
			go h.ServeHTTP(httptest.NewRecorder(), r)
			synctest.Wait()
		}
	}
}

// TestListsWaitForMemory checks which lists wait while others are being written.
func TestListsWaitForMemory(t *testing.T) {
	const pods = 2000 // they need 2 MiB in JSON, and 8 MiB in tables
	synctest.Test(t, func(t *testing.T) {
		start := slowLists(t, manyPods(pods), ListMemory{Large: 4 << 20, Small: 2 << 20, Max: 1 << 30})
		apps := func(user string) *slowList { return &slowList{user: user, namespace: "apps", accept: jsonType} }
		first, second, third, fourth := apps("a"), apps("b"), apps("c"), apps("d")
		start(first, second, third, fourth)
		if first.items != pods || second.items != pods || third.items != 0 || third.err != nil {
			t.Fatalf("got lists of %d, %d and %d pods and error %v, want two lists, and one that waits",
				first.items, second.items, third.items, third.err)
		}
		// Small lists do not wait for large ones, but for each other.
		page := func(user string) *slowList {
			return &slowList{user: user, namespace: "apps", accept: jsonType, limit: 1000}
		}
		page1, page2, page3 := page("a"), page("b"), page("c")
		start(page1, page2, page3)
		if page1.items != 1000 || page2.items != 1000 || page3.items != 0 {
			t.Errorf("got pages of %d, %d and %d pods, want two pages, and one that waits",
				page1.items, page2.items, page3.items)
		}
		close(page1.written)
		synctest.Wait()
		if page3.items != 1000 {
			t.Errorf("after a page was written: got one of %d pods, want 1000", page3.items)
		}
		close(page2.written)
		close(page3.written)
		time.Sleep(maxListWait - time.Millisecond)
		close(first.written)
		synctest.Wait()
		if third.items != pods || third.begun != 2 {
			t.Errorf("after a list was written: got %d pods, selected %d times; want %d, selected again",
				third.items, third.begun, pods)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		delay, ok := apierrors.SuggestsClientDelay(fourth.err)
		if !apierrors.IsTooManyRequests(fourth.err) || !ok || delay != 1 || fourth.begun != 1 {
			t.Errorf("got error %v, and to try again after %d s; want status 429 and 1 s", fourth.err, delay)
		}
		close(second.written)
		close(third.written)
		synctest.Wait()
		// A list that needs more than there is runs alone.
		table, last := &slowList{user: "a", namespace: "apps", accept: tableType}, apps("b")
		start(table, last)
		if table.items != pods || last.items != 0 {
			t.Errorf("got a table of %d pods and a list of %d, want %d and 0", table.items, last.items, pods)
		}
		close(table.written)
		synctest.Wait()
		if last.items != pods {
			t.Errorf("after the table: got a list of %d pods, want %d", last.items, pods)
		}
		close(last.written)
	})
}

// TestListsOfOneUser checks that the lists of one user, which may read slowly, leave memory for those
// of others.
func TestListsOfOneUser(t *testing.T) {
	for _, test := range []struct {
		name   string
		limit  ListMemory
		accept string
		slow   []bool // which lists of a slow reader are served while the others are being written
		others []bool // which lists of another reader are served in that time
	}{
		{"small", ListMemory{Large: 2 << 20, Small: 4 << 20}, jsonType, // 1 MiB each
			[]bool{true, true, true, false, false}, []bool{true, true, true, false}}, // the third ones count as large
		{"large", ListMemory{Large: 16 << 20, Small: 1 << 20}, tableType, // 4 MiB each
			[]bool{true, true, false, false}, []bool{true, true, false}},
		{"more than half", ListMemory{Large: 7 << 20, Small: 1 << 20}, tableType, []bool{true, false, false}, []bool{false}},
		{"more than there is", ListMemory{Large: 2 << 20, Small: 1 << 20}, tableType, []bool{true, false}, []bool{false}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.limit.Max = 1 << 30
				start := slowLists(t, manyPods(1000), test.limit)
				var lists []*slowList
				list := func(user string, served []bool) {
					t.Helper()
					for i, want := range served {
						l := &slowList{user: user, namespace: "apps", accept: test.accept}
						start(l)
						if l.served != want || want != (l.items == 1000) {
							t.Errorf("list %d of %s: got %d pods", i, user, l.items)
						}
						lists = append(lists, l)
					}
				}
				list("slow", test.slow)
				list("other", test.others)
				time.Sleep(maxListWait)
				synctest.Wait()
				for i, l := range lists {
					if !l.served != apierrors.IsTooManyRequests(l.err) {
						t.Errorf("list %d: got error %v", i, l.err)
					}
					close(l.written)
				}
				synctest.Wait()
				lists = nil
				list("slow", test.slow) // nothing is left of the shares
				for _, l := range lists {
					close(l.written)
				}
			})
		})
	}
}

// TestTinyLists checks that empty and tiny lists do not wait for others, up to a number.
func TestTinyLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := slowLists(t, manyPods(1000), ListMemory{Large: 1 << 20, Small: 1 << 20, Max: 1 << 30})
		var lists []*slowList
		list := func(l *slowList, want bool) {
			t.Helper()
			start(l)
			if l.served != want {
				t.Fatalf("list %d, of %s in %s: got served %v", len(lists), l.user, l.namespace, l.served)
			}
			lists = append(lists, l)
		}
		page := func(user string, limit int64) *slowList {
			return &slowList{user: user, namespace: "apps", accept: jsonType, limit: limit}
		}
		none := func(user string) *slowList { return &slowList{user: user, namespace: "none", accept: jsonType} }
		for _, user := range []string{"a", "b", "c"} {
			list(page(user, 1000), user == "a")
		}
		list(page("d", 9), false)
		for _, user := range []string{"a", "b"} {
			list(page(user, 8), true)
			for range maxTiny/2 - 1 {
				list(none(user), true)
			}
			list(none(user), false) // the user's others
		}
		list(none("c"), false) // all others
		close(lists[4].written)
		synctest.Wait()
		list(none("d"), true)
		for i, l := range lists {
			if i != 4 {
				close(l.written)
			}
		}
	})
}

// TestStalledLists checks that clients that keep their connections, but do not read, do not hold the
// memory of lists for ever.
func TestStalledLists(t *testing.T) {
	config := manyPods(1000)
	codecs := serializer.NewCodecFactory(NewScheme())
	c, ok := NewGroup(config, NewScheme(), codecs).VersionedResourcesStorageMap["v1"]["pods"].(*collection)
	if !ok {
		t.Fatal("the storage of pods is not a collection")
	}
	synctest.Test(t, func(t *testing.T) {
		write := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q, err := newQuery("apps", nil)
			if err != nil {
				t.Error(err)
			}
			if _, err := c.objects(r.Context(), q); err != nil {
				http.Error(w, err.Error(), http.StatusTooManyRequests)
				return
			}
			fmt.Fprint(w, strings.Repeat("x", 1<<20))
		})
		h := WithListMemory(write, codecs, ListMemory{Large: 1 << 20, Small: 1 << 20, Max: 1 << 30})
		listener := make(testenv.Listener)
		server := &http.Server{
			Handler: h,
			ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
				return request.WithRequestInfo(ctx, &request.RequestInfo{APIGroup: metrics.GroupName, Verb: "list"})
			},
		}
		go server.Serve(listener)
		defer server.Close()
		list := func() net.Conn {
			client := listener.Dial()
			fmt.Fprint(client, "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n")
			return client
		}
		defer list().Close() // one counts as small
		defer list().Close()
		time.Sleep(maxListWrite - maxListWait/2)
		client := list()
		defer client.Close()
		response, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK || len(body) != 1<<20 {
			t.Errorf("got status %d, %d bytes and error %v, want 1 MiB", response.StatusCode, len(body), err)
		}
	})
}

// TestListMemoryCountsContainers checks that a pod of many containers counts as many pods.
func TestListMemoryCountsContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := slowLists(t, manyPods(1), ListMemory{Large: 60 << 10, Small: 60 << 10, Max: 1 << 30})
		large := func() *slowList { return &slowList{namespace: "large", accept: protobufType} } // 50 KiB
		small, first, second := large(), large(), large()
		start(small, first, second)
		if small.items != 1 || first.items != 1 || second.items != 0 {
			t.Errorf("got lists of %d, %d and %d pods, want 1, 1, and 0 since it waits", small.items, first.items, second.items)
		}
		close(small.written)
		close(first.written)
		synctest.Wait()
		if second.items != 1 {
			t.Errorf("after the first: got a list of %d pods, want 1", second.items)
		}
		close(second.written)
	})
}

// TestListMemoryIsReleased checks that complete and interrupted responses leave nothing reserved.
func TestListMemoryIsReleased(t *testing.T) {
	h := serveWithin(t, manyPods(1100), ListMemory{Large: 1 << 20, Small: 1 << 20, Max: 1 << 30})
	for range 10 { // each needs all of it
		for _, accept := range []string{jsonType, protobufType, tableType, yamlType} {
			if w := do(h, http.MethodGet, "/apis/metrics.k8s.io/v1/pods", accept); w.Code != http.StatusOK {
				t.Fatalf("%s: got status %d: %s", accept, w.Code, w.Body)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/apis/metrics.k8s.io/v1/pods", nil)
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
	h := serveWithin(t, manyPods(1100), ListMemory{Large: 1 << 20, Small: 512 << 10, Max: 3 << 20})
	for _, test := range []struct {
		path, accept string
		code         int
	}{
		{"/pods", jsonType, http.StatusOK}, // it needs more than Large, so it is written alone
		{"/pods", protobufType, http.StatusOK},
		{"/pods", tableType, http.StatusNotAcceptable},
		{"/pods", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", http.StatusNotAcceptable},
		{"/pods?pretty=true", jsonType, http.StatusNotAcceptable},
		{"/pods", yamlType, http.StatusNotAcceptable},
		{"/pods?limit=500", tableType, http.StatusOK},
		{"/pods?limit=50", yamlType, http.StatusOK},
		{"/pods?limit=500", yamlType, http.StatusNotAcceptable},
		{"/namespaces/large/pods", yamlType, http.StatusOK},
	} {
		w := do(h, http.MethodGet, "/apis/metrics.k8s.io/v1"+test.path, test.accept)
		if w.Code != test.code {
			t.Errorf("%s as %s: got status %d, want %d: %s", test.path, test.accept, w.Code, test.code, w.Body)
		}
	}
	status := getAs[metav1.Status](t, h, "/apis/metrics.k8s.io/v1/pods?pretty=true", jsonType, http.StatusNotAcceptable)
	want := "a list of 1101 objects in this format needs about 4 MiB of memory, more than the maximum of 3 MiB: " +
		"request JSON without indentation or protobuf, or pages with limit=500"
	if status.Message != want || status.Reason != metav1.StatusReasonNotAcceptable {
		t.Errorf("got  %s: %s\nwant %s", status.Reason, status.Message, want)
	}
}

// BenchmarkListMemory measures the memory of a list of 60,000 containers in each format: what it holds
// when its response begins, and the highest heap until then.
func BenchmarkListMemory(b *testing.B) {
	const containers = 60_000
	h := serve(b, largeCluster(b))
	for _, format := range []struct{ name, accept, query string }{
		{"json", jsonType, ""},
		{"protobuf", protobufType, ""},
		{"table", tableType, ""},
		{"table/objects", tableType, "?includeObject=Object"},
		{"metadata", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", ""},
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
					"/apis/metrics.k8s.io/v1beta1/pods"+format.query, nil)
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
			b.ReportMetric(float64(held)/containers, "held-B/container")
			b.ReportMetric(float64(peak)/containers, "peak-B/container")
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

// countedInventory counts the calls of List.
type countedInventory struct {
	Inventory
	lists *int
}

func (i countedInventory) List(namespace string, selector labels.Selector) []*inventory.Object {
	*i.lists++
	return i.Inventory.List(namespace, selector)
}
