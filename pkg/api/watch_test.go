package api

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// watched is a server whose metrics can change and be watched.
type watched struct {
	http.Handler
	server *httptest.Server

	mu     sync.Mutex
	config Config
}

func (w *watched) Get(namespace, name string) *inventory.Object {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.config.Pods.Get(namespace, name)
}

func (w *watched) List(namespace string, selector labels.Selector) []*inventory.Object {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.config.Pods.List(namespace, selector)
}

func (w *watched) Pods(found []*usage.Pod, keys []usage.PodKey, now usage.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.config.Usage.Pods(found, keys, now)
}

func (w *watched) Node(name string, now usage.Time) *usage.Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.config.Usage.Node(name, now)
}

// set replaces the usage of a pod.
func (w *watched) set(key string, p *usage.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.config.Usage.(fakeUsage).pods[key] = p
}

// serveWatched returns a server of newConfig with watches. The header Test-User names the user; the
// default is admin.
func serveWatched(t *testing.T, change ...func(*Config)) *watched {
	t.Helper()
	w := &watched{config: newConfig()}
	w.config.Authorizer = &fakeAuthorizer{}
	for _, f := range change {
		f(&w.config)
	}
	c := w.config
	c.Pods, c.Usage, c.Watch = w, w, true
	h := serve(t, c)
	w.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		u := &user.DefaultInfo{Name: cmp.Or(r.Header.Get("Test-User"), "admin")}
		h.ServeHTTP(rw, r.WithContext(request.WithUser(r.Context(), u)))
	})
	w.server = httptest.NewServer(w.Handler)
	t.Cleanup(func() {
		w.server.CloseClientConnections()
		w.server.Close()
	})
	return w
}

// open begins a watch and returns the response.
func (w *watched) open(t *testing.T, path, accept string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := w.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// events returns a function that returns the next event of a JSON watch.
func (w *watched) events(t *testing.T, path, accept string, headers ...string) func() watchedEvent {
	t.Helper()
	response := w.open(t, path, accept, headers...)
	lines := bufio.NewScanner(response.Body)
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(response.Body)
		t.Fatalf("%s: got %d: %s", path, response.StatusCode, body)
	}
	return func() watchedEvent {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("%s: the watch has ended: %v", path, lines.Err())
		}
		var e watchedEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v: %s", path, err, lines.Bytes())
		}
		return e
	}
}

type watchedEvent struct {
	Type   string
	Object struct {
		tableResponse
		Kind, APIVersion string
		Metadata         metav1.ObjectMeta
		Containers       []struct{ Usage map[string]string }
		Reason           string
	}
}

func (e watchedEvent) String() string {
	text := fmt.Sprint(e.Type, " ", e.Object.Metadata.Name)
	for _, c := range e.Object.Containers {
		text += " " + c.Usage["cpu"]
	}
	return text
}

func want(t *testing.T, next func() watchedEvent, events ...string) (last watchedEvent) {
	t.Helper()
	for _, event := range events {
		if last = next(); last.String() != event {
			t.Fatalf("got %s, want %s", last, event)
		}
	}
	return last
}

const watchedPods = "/apis/metrics.k8s.io/v1/namespaces/apps/pods"

// TestWatch follows the pods of a namespace from a list, with and without selectors.
func TestWatch(t *testing.T) {
	w := serveWatched(t)
	for _, version := range versions {
		for _, r := range get[struct {
			Resources []struct{ Verbs []string }
		}](t, w, "/apis/metrics.k8s.io/"+version, http.StatusOK).Resources {
			if got := strings.Join(r.Verbs, " "); got != "get list watch" {
				t.Errorf("%s: got verbs %s", version, got)
			}
		}
	}
	list := get[metav1.PartialObjectMetadataList](t, w, watchedPods, http.StatusOK)
	if _, err := strconv.ParseUint(list.ResourceVersion, 10, 64); err != nil || len(list.Items) != 3 {
		t.Fatalf("got %+v, want a list with a version", list)
	}
	for _, item := range list.Items {
		one := get[metav1.PartialObjectMetadata](t, w, watchedPods+"/"+item.Name, http.StatusOK)
		if item.ResourceVersion == "" || one.ResourceVersion != item.ResourceVersion {
			t.Errorf("%s: got versions %q and %q, want the same", item.Name, one.ResourceVersion, item.ResourceVersion)
		}
	}
	w.set("apps/idle", pod(usage.Container{Name: "main", Amount: amount(7, 0)})) // before the watch begins
	from := watchedPods + "?watch=1&resourceVersion=" + list.ResourceVersion
	all := w.events(t, from, jsonType)
	want(t, all, "MODIFIED idle 7n")
	get[metav1.Status](t, w, from+"&labelSelector=app%3Dweb", http.StatusGone)
	web := w.events(t, watchedPods+"?watch=1&labelSelector=app%3Dweb&resourceVersion=0", jsonType)
	want(t, web, "ADDED web-1 1000001n 123456789n", "ADDED web-2 250m")
	one := w.events(t, watchedPods+"?watch=1&fieldSelector=metadata.name%3Dweb-2", jsonType)
	want(t, one, "ADDED web-2 250m")

	w.set("apps/web-2", pod(usage.Container{Name: "main", Amount: amount(8, 0)}))
	modified := want(t, all, "MODIFIED web-2 8n")
	want(t, web, "MODIFIED web-2 8n")
	want(t, one, "MODIFIED web-2 8n")
	w.set("apps/web-2", nil)
	w.set("apps/no-metrics", pod(usage.Container{Name: "main", Amount: amount(9, 0)}))
	want(t, all, "ADDED no-metrics 9n", "DELETED web-2 8n")
	want(t, web, "DELETED web-2 8n")
	want(t, one, "DELETED web-2 8n")

	// The client continues after an event.
	again := w.events(t, watchedPods+"?watch=1&resourceVersion="+modified.Object.Metadata.ResourceVersion, jsonType)
	want(t, again, "ADDED no-metrics 9n", "DELETED web-2 8n")
	// The list is the state, whatever version is demanded.
	for _, query := range []string{"?resourceVersion=0", "?resourceVersion=17&resourceVersionMatch=NotOlderThan"} {
		if n := len(get[metav1.PartialObjectMetadataList](t, w, watchedPods+query, http.StatusOK).Items); n != 3 {
			t.Errorf("%s: got %d pods, want 3", query, n)
		}
	}
	status := get[metav1.Status](t, w, watchedPods+"?resourceVersion=17&resourceVersionMatch=Exact", http.StatusGone)
	if status.Reason != metav1.StatusReasonExpired {
		t.Errorf("got %+v, want Expired", status)
	}
}

// TestWatchNodes watches nodes.
func TestWatchNodes(t *testing.T) {
	w := serveWatched(t)
	next := w.events(t, "/apis/metrics.k8s.io/v1beta1/nodes?watch=1&labelSelector=zone%3Da", jsonType)
	o := want(t, next, "ADDED node-a").Object
	if o.Kind != "NodeMetrics" || o.APIVersion != "metrics.k8s.io/v1beta1" {
		t.Errorf("got %+v", o)
	}
	w.mu.Lock()
	w.config.Usage.(fakeUsage).nodes["node-no-metrics"] = &usage.Node{Amount: amount(1, 1), AsOf: at}
	delete(w.config.Usage.(fakeUsage).nodes, "node-a")
	w.mu.Unlock()
	want(t, next, "DELETED node-a", "ADDED node-no-metrics")
}

// TestWatchList checks the events of a watch with initial events, for each format.
func TestWatchList(t *testing.T) {
	w := serveWatched(t)
	codecs := serializer.NewCodecFactory(NewScheme())
	const path = "/apis/metrics.k8s.io/v1/namespaces/data/pods?watch=1&sendInitialEvents=true&" +
		"resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=5"
	reference := map[string]string{}
	for _, contentType := range []string{jsonType, protobufType, "application/cbor"} {
		response := w.open(t, path, contentType)
		if response.StatusCode == http.StatusNotAcceptable && contentType == "application/cbor" {
			continue // the feature gate is off
		}
		info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), contentType)
		if !ok || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: got %d", contentType, response.StatusCode)
		}
		frames := info.StreamSerializer.NewFrameReader(response.Body)
		decoder := streaming.NewDecoder(frames, info.StreamSerializer.Serializer)
		for i, want := range []string{"ADDED db", "ADDED web-1", "BOOKMARK "} {
			var event metav1.WatchEvent
			if _, _, err := decoder.Decode(nil, &event); err != nil {
				t.Fatalf("%s: %v", contentType, err)
			}
			object, kind, err := codecs.UniversalDeserializer().Decode(event.Object.Raw, nil, nil)
			if err != nil {
				t.Fatalf("%s: %v", contentType, err)
			}
			var meta struct{ Metadata metav1.ObjectMeta }
			text := mustJSON(t, object)
			if err := json.Unmarshal([]byte(text), &meta); err != nil {
				t.Fatal(err)
			}
			if got := event.Type + " " + meta.Metadata.Name; got != want || kind.Kind != "PodMetrics" {
				t.Errorf("%s: got %s %s, want %s", contentType, kind.Kind, got, want)
			}
			if _, err := strconv.ParseUint(meta.Metadata.ResourceVersion, 10, 64); err != nil {
				t.Errorf("%s: %s has version %q", contentType, want, meta.Metadata.ResourceVersion)
			}
			if end := meta.Metadata.Annotations[metav1.InitialEventsAnnotationKey] == "true"; end != (i == 2) {
				t.Errorf("%s: %s ends the initial events: %t", contentType, want, end)
			}
			if i == 2 {
				continue
			}
			if reference[want] == "" {
				reference[want] = text
			}
			if text != reference[want] {
				t.Errorf("%s: got %s, want %s", contentType, text, reference[want])
			}
		}
	}
}

// TestWatchAsTable checks that all tables of a watch have the columns of the LIST, and that the
// column with the nodes does not get to users who may not see it through events that are shared.
func TestWatchAsTable(t *testing.T) {
	bind := func(c *Config) {
		for _, o := range c.Pods.(fakeInventory) {
			o.Node = "secret-node"
		}
	}
	w := serveWatched(t, bind)
	const path = "/apis/metrics.k8s.io/v1/pods"
	list := getAs[tableResponse](t, w, path, tableType, http.StatusOK)
	header, _, _ := strings.Cut(list.text(), "\n")
	if header != "Name CPU(cores) Memory(bytes) Window Swap(bytes) Age(metrics) Node" {
		t.Errorf("got columns %s", header)
	}
	next := w.events(t, path+"?watch=1", tableType)
	tenant := w.events(t, path+"?watch=1", tableType, "Test-User", "tenant")
	for range list.Rows {
		if got := tenant().Object.text(); strings.Contains(got, "secret") {
			t.Errorf("the tenant got %s", got)
		}
	}
	for i, row := range list.Rows {
		e := next()
		want := strings.Join(row.Cells, " ")
		if i == 0 {
			want = header + "\n" + want
		} else {
			want = "\n" + want
		}
		kind := e.Object.Rows[0].Object.Kind
		if got := e.Object.text(); e.Type != "ADDED" || got != want || kind != "PartialObjectMetadata" {
			t.Errorf("got %s\n%s\nwant\n%s", e.Type, got, want)
		}
	}
	w.set("data/db", pod(usage.Container{Name: "main", Amount: amount(1_000_000, 1<<20)})) // without swap
	for who, next := range map[string]func() watchedEvent{" secret-node": next, "": tenant} {
		if got := next().Object.text(); got != "\ndb 1m 1Mi 15s <none> 10s"+who {
			t.Errorf("got %s", got)
		}
	}
	bookmark := w.events(t, path+"?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&"+
		"allowWatchBookmarks=true&labelSelector=none", tableType)
	e := bookmark()
	if o := e.Object; e.Type != "BOOKMARK" || len(o.Rows) != 1 || len(o.Rows[0].Cells) != len(o.ColumnDefinitions) {
		t.Errorf("got %+v, want a bookmark", e)
	}
}

// TestWatchOfMetadata watches metadata only.
func TestWatchOfMetadata(t *testing.T) {
	w := serveWatched(t)
	next := w.events(t, watchedPods+"?watch=1&labelSelector=app%3Didle",
		"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	o := want(t, next, "ADDED idle").Object
	if o.Kind != "PartialObjectMetadata" || o.Metadata.ResourceVersion == "" || o.Metadata.Labels["tier"] != "back" {
		t.Errorf("got %+v", o)
	}
}

// TestWatchOfPages checks that a watch can begin at a list of several pages, whose version is the
// same.
func TestWatchOfPages(t *testing.T) {
	w := serveWatched(t)
	const path = "/apis/metrics.k8s.io/v1/pods"
	var version string
	for query := "?limit=2"; query != ""; {
		page := get[metav1.PartialObjectMetadataList](t, w, path+query, http.StatusOK)
		if version == "" {
			version = page.ResourceVersion
		}
		if page.ResourceVersion != version {
			t.Errorf("got version %s of page %s, want %s", page.ResourceVersion, query, version)
		}
		if query = ""; page.Continue != "" {
			query = "?limit=2&continue=" + page.Continue
		}
	}
	w.set("data/db", nil)
	want(t, w.events(t, path+"?watch=1&resourceVersion="+version, jsonType), "DELETED db 2")
}

// TestWatchErrors checks the errors of watches.
func TestWatchErrors(t *testing.T) {
	w := serveWatched(t)
	large := "app+in+("
	for i := range maxSelectorSize {
		large += fmt.Sprint("v", i, ",")
	}
	large += "last)"
	for query, code := range map[string]int{
		"resourceVersion=12345":    http.StatusGone,
		"resourceVersion=x":        http.StatusBadRequest,
		"labelSelector=a%3Db%3Dc":  http.StatusBadRequest,
		"fieldSelector=spec.x%3Dy": http.StatusBadRequest,
		"labelSelector=" + large:   http.StatusBadRequest,
	} {
		if response := w.open(t, watchedPods+"?watch=1&"+query, jsonType); response.StatusCode != code {
			t.Errorf("%.60s: got %d, want %d", query, response.StatusCode, code)
		}
	}
}

// TestWatchRequestsAreBounded checks that no large request is kept for the life of a watch.
func TestWatchRequestsAreBounded(t *testing.T) {
	w := serveWatched(t)
	long := strings.Repeat("x", maxWatchBytes)
	selector := "&labelSelector=a+notin+(" + strings.Repeat("v%2C", maxWatchBytes/20) + "v)"
	for name, test := range map[string]struct {
		query, header string
		body          io.Reader
		code          int
	}{
		"usual":                    {"watch=1", strings.Repeat("x", maxWatchBytes/2), nil, http.StatusOK},
		"selector":                 {"watch=1" + selector, "", nil, http.StatusOK},
		"unknown parameter":        {"watch=1&unknown=" + long, "", nil, http.StatusBadRequest},
		"header":                   {"watch=1", long, nil, http.StatusBadRequest},
		"body":                     {"watch=1", "", strings.NewReader(long), http.StatusBadRequest},
		"body of unknown length":   {"watch=1", "", io.MultiReader(strings.NewReader("x")), http.StatusBadRequest},
		"list with long parameter": {"unknown=" + long, "", nil, http.StatusOK},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.server.URL+watchedPods+"?"+test.query, test.body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Unknown", test.header)
		response, err := w.server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != test.code {
			t.Errorf("%s: got %d, want %d", name, response.StatusCode, test.code)
		}
		cancel()
		response.Body.Close()
	}
}

// TestWatchIsOff checks that nothing has a version unless watches are enabled.
func TestWatchIsOff(t *testing.T) {
	h := serve(t, newConfig())
	for _, path := range []string{watchedPods, watchedPods + "/web-1", watchedPods + "?limit=1&resourceVersion=0"} {
		for _, accept := range []string{jsonType, yamlType, tableType} {
			if w := do(h, http.MethodGet, path, accept); bytes.Contains(w.Body.Bytes(), []byte("resourceVersion")) {
				t.Errorf("%s as %s: got a version: %s", path, accept, w.Body)
			}
		}
	}
	token := get[metav1.PartialObjectMetadataList](t, h, watchedPods+"?limit=1", http.StatusOK).Continue
	if want := (position{"apps", "idle", 0}).token(); token != want {
		t.Errorf("got token %q, want %q", token, want)
	}
}

// TestWatchEndsWithItsTimeout checks that a watch ends, and that the server then has no watchers.
func TestWatchEndsWithItsTimeout(t *testing.T) {
	w := serveWatched(t)
	response := w.open(t, watchedPods+"?watch=1&timeoutSeconds=1", jsonType)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	context.AfterFunc(ctx, func() { response.Body.Close() })
	body, err := io.ReadAll(response.Body)
	if err != nil || bytes.Count(body, []byte("\n")) != 3 {
		t.Errorf("got %v, %s, want three events", err, body)
	}
}
