package api

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/api/openapi"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// now is the moment of all requests; figures are from 10 s before.
var (
	now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	at  = usage.At(now.Add(-10 * time.Second))
)

// existing is an Inventory, sorted by namespace and name.
type existing []*inventory.Object

func (e existing) Get(namespace, name string) *inventory.Object {
	for _, o := range e {
		if o.Namespace == namespace && o.Name == name {
			return o
		}
	}
	return nil
}

func (e existing) List(namespace string, selector labels.Selector) []*inventory.Object {
	var found []*inventory.Object
	for _, o := range e {
		if (namespace == "" || o.Namespace == namespace) && selector.Matches(labels.Set(o.Labels)) {
			found = append(found, o)
		}
	}
	return found
}

// used is a Usage, by "namespace/name" or name.
type used struct {
	pods  map[string]*usage.Pod
	nodes map[string]*usage.Node
}

func (u used) Pod(_, namespace, name string, _ usage.Time) *usage.Pod {
	return u.pods[namespace+"/"+name]
}
func (u used) Node(name string, _ usage.Time) *usage.Node { return u.nodes[name] }

func amount(nanocores, memory uint64) usage.Amount {
	return usage.Amount{CPUNanocores: nanocores, Memory: memory, At: at, Window: 15 * time.Second}
}

func withSwap(a usage.Amount, swap uint64) usage.Amount {
	a.Swap, a.HasSwap = swap, true
	return a
}

func object(namespace, name string, age time.Duration, labels ...string) *inventory.Object {
	o := &inventory.Object{Namespace: namespace, Name: name, CreatedAt: usage.At(now.Add(-age)), Labels: map[string]string{}}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		o.Labels[key] = value
	}
	if namespace != "" {
		o.Phase = inventory.PodRunning
	}
	return o
}

// running adds the state of a container that runs since a time to a pod.
func running(o *inventory.Object, container string, since usage.Time) *inventory.Object {
	o.Containers = append(o.Containers, inventory.ContainerState{Name: container, Running: true, StartedAt: since})
	return o
}

func pod(containers ...usage.Container) *usage.Pod {
	return &usage.Pod{Containers: containers, At: at, Window: 15 * time.Second, AsOf: at}
}

// world is what most tests serve: five pods that can be served, two that cannot, and three nodes,
// of which two can be.
func world() Config {
	return Config{
		Now:   func() time.Time { return now },
		Clock: usage.NewClock(now),
		Pods: existing{
			object("apps", "idle", time.Hour, "app=idle", "tier=back"),
			running(object("apps", "predecessor", time.Hour), "main", at.Add(time.Second)),
			object("apps", "silent", time.Hour),
			object("apps", "web-1", time.Hour, "app=web", "tier=front"),
			object("apps", "web-2", time.Hour, "app=web", "tier=front"),
			object("data", "db", time.Hour, "app=db"),
			object("data", "web-1", time.Hour, "app=web"),
		},
		Nodes: existing{
			object("", "node-a", time.Hour, "zone=a"),
			object("", "node-b", time.Hour, "zone=b"),
			object("", "node-silent", time.Hour, "zone=a"),
		},
		Usage: used{
			pods: map[string]*usage.Pod{
				"apps/idle":        pod(usage.Container{Name: "main", Amount: amount(0, 0)}),
				"apps/predecessor": pod(usage.Container{Name: "main", Amount: amount(1, 4096)}),
				"apps/web-1": pod(
					usage.Container{Name: "log", Amount: amount(1_000_001, 3<<20+4096)},
					usage.Container{Name: "main", Amount: amount(123_456_789, 100<<20+4096)}),
				"apps/web-2": pod(usage.Container{Name: "main", Amount: amount(250_000_000, 1<<30)}),
				"data/db":    pod(usage.Container{Name: "main", Amount: withSwap(amount(2_000_000_000, 8<<30+4096), 12<<20)}),
				"data/web-1": pod(usage.Container{Name: "main", Amount: withSwap(amount(5, 4096), 0)}),
			},
			nodes: map[string]*usage.Node{
				"node-a": {Name: "node-a", Amount: amount(1_234_567_890, 5<<30+4096), AsOf: at},
				"node-b": {Name: "node-b", Amount: amount(7, 1<<30), AsOf: at},
			},
		},
	}
}

// serve gives the handler of a generic API server with nothing but the group.
func serve(t testing.TB, c Config) http.Handler {
	t.Helper()
	return serveBehind(t, c, WithTables)
}

// serveBehind lets the requests pass a filter before they reach the group.
func serveBehind(t testing.TB, c Config, filter func(http.Handler) http.Handler) http.Handler {
	t.Helper()
	scheme := NewScheme()
	codecs := serializer.NewCodecFactory(scheme)
	config := genericapiserver.NewConfig(codecs)
	config.ExternalAddress = "localhost:443"
	config.LoopbackClientConfig = &rest.Config{}
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	namer := openapinamer.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	config.BuildHandlerChainFunc = func(handler http.Handler, config *genericapiserver.Config) http.Handler {
		return genericapiserver.DefaultBuildHandlerChain(filter(handler), config)
	}
	server, err := config.Complete(nil).New("test", genericapiserver.NewEmptyDelegate())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Destroy)
	if err := server.InstallAPIGroup(NewGroup(c, scheme, codecs)); err != nil {
		t.Fatal(err)
	}
	server.PrepareRun()
	return server.Handler
}

const (
	jsonType     = "application/json"
	yamlType     = "application/yaml"
	protobufType = "application/vnd.kubernetes.protobuf"
	tableType    = "application/json;as=Table;g=meta.k8s.io;v=v1"
)

func do(h http.Handler, method, path, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// get decodes a JSON answer, after checking its status code.
func get[T any](t *testing.T, h http.Handler, path string, code int) T {
	t.Helper()
	return getAs[T](t, h, path, jsonType, code)
}

func getAs[T any](t *testing.T, h http.Handler, path, accept string, code int) T {
	t.Helper()
	w := do(h, http.MethodGet, path, accept)
	if w.Code != code {
		t.Fatalf("GET %s: %d, want %d: %s", path, w.Code, code, w.Body)
	}
	var v T
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("GET %s: %v: %s", path, err, w.Body)
	}
	return v
}

// equal compares a decoded answer with JSON text, as a client would see the two.
func equal(t *testing.T, got any, want string) {
	t.Helper()
	var w any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if g, w := mustJSON(t, got), mustJSON(t, w); g != w {
		t.Errorf("got  %s\nwant %s", g, w)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var versions = []string{"v1", "v1beta1"}

func TestGetPod(t *testing.T) {
	h := serve(t, world())
	for _, version := range versions {
		got := get[any](t, h, "/apis/metrics.k8s.io/"+version+"/namespaces/apps/pods/web-1", http.StatusOK)
		equal(t, got, `{
			"kind": "PodMetrics", "apiVersion": "metrics.k8s.io/`+version+`",
			"metadata": {"name": "web-1", "namespace": "apps", "creationTimestamp": "2026-11-20T12:00:00Z",
				"labels": {"app": "web", "tier": "front"}},
			"timestamp": "2026-11-20T11:59:50Z", "window": "15s",
			"containers": [
				{"name": "log", "usage": {"cpu": "1000001n", "memory": "3076Ki"}},
				{"name": "main", "usage": {"cpu": "123456789n", "memory": "102404Ki"}}]}`)
	}
}

func TestZeroIsServed(t *testing.T) {
	got := get[struct{ Containers any }](t, serve(t, world()), "/apis/metrics.k8s.io/v1/namespaces/apps/pods/idle", http.StatusOK)
	equal(t, got.Containers, `[{"name": "main", "usage": {"cpu": "0", "memory": "0"}}]`)
}

func TestSwapIsServedWhereThereIsAny(t *testing.T) {
	h := serve(t, world())
	got := get[struct{ Containers any }](t, h, "/apis/metrics.k8s.io/v1/namespaces/data/pods/db", http.StatusOK)
	equal(t, got.Containers, `[{"name": "main", "usage": {"cpu": "2", "memory": "8388612Ki", "swap": "12Mi"}}]`)
	got = get[struct{ Containers any }](t, h, "/apis/metrics.k8s.io/v1/namespaces/data/pods/web-1", http.StatusOK)
	equal(t, got.Containers, `[{"name": "main", "usage": {"cpu": "5n", "memory": "4Ki", "swap": "0"}}]`)
}

func TestGetNode(t *testing.T) {
	h := serve(t, world())
	for _, version := range versions {
		got := get[any](t, h, "/apis/metrics.k8s.io/"+version+"/nodes/node-a", http.StatusOK)
		equal(t, got, `{
			"kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/`+version+`",
			"metadata": {"name": "node-a", "creationTimestamp": "2026-11-20T12:00:00Z", "labels": {"zone": "a"}},
			"timestamp": "2026-11-20T11:59:50Z", "window": "15s",
			"usage": {"cpu": "1234567890n", "memory": "5242884Ki"}}`)
	}
}

func TestAbsurdAmountsAreClamped(t *testing.T) {
	l := resourceList(&usage.Amount{CPUNanocores: 1 << 63, Memory: 1 << 63})
	if l.Cpu().Sign() < 0 || l.Memory().Sign() < 0 {
		t.Errorf("negative usage: %v", l)
	}
}

func TestNotFound(t *testing.T) {
	h := serve(t, world())
	for path, want := range map[string]string{
		"namespaces/apps/pods/none":        `podmetrics.metrics.k8s.io "none" not found: no pod "none" is running in the namespace "apps"`,
		"namespaces/none/pods/web-1":       `podmetrics.metrics.k8s.io "web-1" not found: no pod "web-1" is running in the namespace "none"`,
		"namespaces/apps/pods/silent":      `podmetrics.metrics.k8s.io "silent" not found: the pod "silent" runs`,
		"namespaces/apps/pods/predecessor": `podmetrics.metrics.k8s.io "predecessor" not found: the pod "predecessor" runs`,
		"nodes/none":                       `nodemetrics.metrics.k8s.io "none" not found: there is no node "none"`,
		"nodes/node-silent":                `nodemetrics.metrics.k8s.io "node-silent" not found: there are no current figures`,
	} {
		for _, version := range versions {
			got := get[struct{ Kind, Status, Reason, Message string }](t, h, "/apis/metrics.k8s.io/"+version+"/"+path, http.StatusNotFound)
			if got.Kind != "Status" || got.Status != "Failure" || got.Reason != "NotFound" || !strings.HasPrefix(got.Message, want) {
				t.Errorf("%s: %+v, want %s", path, got, want)
			}
		}
	}
}

func TestOnlyReading(t *testing.T) {
	h := serve(t, world())
	for _, path := range []string{"/nodes", "/nodes/node-a", "/namespaces/apps/pods", "/namespaces/apps/pods/web-1", "/pods"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			w := do(h, method, "/apis/metrics.k8s.io/v1beta1"+path, jsonType)
			if w.Code != http.StatusMethodNotAllowed || !strings.Contains(w.Body.String(), `"reason":"MethodNotAllowed"`) {
				t.Errorf("%s %s: %d: %s", method, path, w.Code, w.Body)
			}
		}
	}
	for _, path := range []string{"/nodes?watch=1", "/pods?watch=true"} {
		get[any](t, h, "/apis/metrics.k8s.io/v1"+path, http.StatusMethodNotAllowed)
	}
}

// list is what tests read of an answer to a LIST.
type list struct {
	Kind     string
	Metadata struct {
		Continue           string
		RemainingItemCount *int64
		ResourceVersion    string
	}
	Items []struct {
		Metadata struct{ Namespace, Name string }
	}
}

func (l list) names() []string {
	names := []string{}
	for _, item := range l.Items {
		names = append(names, strings.TrimPrefix(item.Metadata.Namespace+"/"+item.Metadata.Name, "/"))
	}
	return names
}

func TestList(t *testing.T) {
	h := serve(t, world())
	for _, test := range []struct {
		path string
		want []string
	}{
		{"/pods", []string{"apps/idle", "apps/web-1", "apps/web-2", "data/db", "data/web-1"}},
		{"/namespaces/apps/pods", []string{"apps/idle", "apps/web-1", "apps/web-2"}},
		{"/namespaces/none/pods", nil},
		{"/pods?labelSelector=app%3Dweb", []string{"apps/web-1", "apps/web-2", "data/web-1"}},
		{"/namespaces/apps/pods?labelSelector=app+in+(web,db),tier", []string{"apps/web-1", "apps/web-2"}},
		{"/pods?labelSelector=app!%3Dweb", []string{"apps/idle", "data/db"}},
		{"/pods?fieldSelector=metadata.name%3Dweb-1", []string{"apps/web-1", "data/web-1"}},
		{"/pods?fieldSelector=metadata.name!%3Dweb-1", []string{"apps/idle", "apps/web-2", "data/db"}},
		{"/pods?fieldSelector=metadata.namespace%3Ddata", []string{"data/db", "data/web-1"}},
		{"/pods?fieldSelector=metadata.namespace%3Ddata,metadata.name%3Dweb-1", []string{"data/web-1"}},
		{"/pods?fieldSelector=metadata.namespace%3Ddata,metadata.name%3Dweb-1,metadata.name!%3Dweb-1", nil},
		{"/namespaces/apps/pods?fieldSelector=metadata.namespace%3Ddata", nil},
		{"/namespaces/apps/pods?fieldSelector=metadata.name%3Dweb-1,metadata.namespace%3Ddata", nil},
		{"/namespaces/apps/pods?fieldSelector=metadata.name%3Dweb-1", []string{"apps/web-1"}},
		{"/namespaces/apps/pods?fieldSelector=metadata.name%3Dsilent", nil},
		{"/namespaces/apps/pods?fieldSelector=metadata.name%3Dweb-1&labelSelector=app%3Dother", nil},
		{"/nodes", []string{"node-a", "node-b"}},
		{"/nodes?labelSelector=zone%3Db", []string{"node-b"}},
		{"/nodes?fieldSelector=metadata.name%3Dnode-a", []string{"node-a"}},
	} {
		for _, version := range versions {
			got := get[list](t, h, "/apis/metrics.k8s.io/"+version+test.path, http.StatusOK)
			if !slices.Equal(got.names(), test.want) {
				t.Errorf("%s %s: %q, want %q", version, test.path, got.names(), test.want)
			}
			if got.Metadata.Continue != "" || got.Metadata.RemainingItemCount != nil {
				t.Errorf("%s: a whole list has a continuation: %+v", test.path, got.Metadata)
			}
		}
	}
}

func TestEmptyListHasItems(t *testing.T) {
	w := do(serve(t, world()), http.MethodGet, "/apis/metrics.k8s.io/v1/namespaces/none/pods", jsonType)
	if !strings.Contains(w.Body.String(), `"items":[]`) {
		t.Errorf("clients fail on null: %s", w.Body)
	}
}

func TestUnknownFieldSelector(t *testing.T) {
	got := get[struct{ Reason, Message string }](t, serve(t, world()),
		"/apis/metrics.k8s.io/v1/pods?fieldSelector=spec.nodeName%3Dnode-a", http.StatusBadRequest)
	if got.Reason != "BadRequest" || !strings.Contains(got.Message, "metadata.name") || !strings.Contains(got.Message, "metadata.namespace") {
		t.Errorf("%+v does not name the supported fields", got)
	}
}

func TestPages(t *testing.T) {
	h := serve(t, world())
	for _, test := range []struct {
		path  string
		pages [][]string
		count bool // whether the remaining items are counted
	}{
		{"/pods?limit=2", [][]string{{"apps/idle", "apps/web-1"}, {"apps/web-2", "data/db"}, {"data/web-1"}}, true},
		{"/pods?limit=5", [][]string{{"apps/idle", "apps/web-1", "apps/web-2", "data/db", "data/web-1"}}, true},
		{"/namespaces/apps/pods?limit=2", [][]string{{"apps/idle", "apps/web-1"}, {"apps/web-2"}}, true},
		{"/pods?limit=2&labelSelector=app%3Dweb", [][]string{{"apps/web-1", "apps/web-2"}, {"data/web-1"}}, false},
		{"/nodes?limit=1", [][]string{{"node-a"}, {"node-b"}}, true},
	} {
		token := ""
		for i, want := range test.pages {
			got := get[list](t, h, "/apis/metrics.k8s.io/v1"+test.path+"&continue="+token, http.StatusOK)
			if !slices.Equal(got.names(), want) {
				t.Errorf("%s, page %d: %q, want %q", test.path, i, got.names(), want)
			}
			token = got.Metadata.Continue
			last := i == len(test.pages)-1
			if (token == "") != last {
				t.Errorf("%s, page %d of %d: continue %q", test.path, i, len(test.pages), token)
			}
			if counted := got.Metadata.RemainingItemCount != nil; counted != (test.count && !last) {
				t.Errorf("%s, page %d: remainingItemCount is there: %v", test.path, i, counted)
			}
		}
	}
}

// A page begins behind the last object of the previous one, even when that is gone.
func TestPageAfterAnObjectThatIsGone(t *testing.T) {
	token := position{"apps", "web-11"}.token()
	got := get[list](t, serve(t, world()), "/apis/metrics.k8s.io/v1/pods?continue="+token, http.StatusOK)
	if want := []string{"apps/web-2", "data/db", "data/web-1"}; !slices.Equal(got.names(), want) {
		t.Errorf("%q, want %q", got.names(), want)
	}
}

func TestBadContinue(t *testing.T) {
	h := serve(t, world())
	for _, path := range []string{
		"/pods?continue=%21",
		"/pods?continue=YWJj", // "abc"
		"/pods?continue=YS8",  // "a/"
		"/namespaces/apps/pods?continue=" + position{"data", "db"}.token(),
	} {
		got := get[struct{ Reason string }](t, h, "/apis/metrics.k8s.io/v1"+path, http.StatusBadRequest)
		if got.Reason != "BadRequest" {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

// Every content type says the same.
func TestContentTypes(t *testing.T) {
	scheme := NewScheme()
	decoder := serializer.NewCodecFactory(scheme).UniversalDeserializer()
	h := serve(t, world())
	for _, version := range versions {
		for _, path := range []string{"/nodes", "/nodes/node-a", "/pods", "/namespaces/data/pods/db"} {
			var first runtime.Object
			for _, contentType := range []string{jsonType, yamlType, protobufType} {
				w := do(h, http.MethodGet, "/apis/metrics.k8s.io/"+version+path, contentType)
				if got := w.Header().Get("Content-Type"); w.Code != http.StatusOK || got != contentType {
					t.Fatalf("%s as %s: %d, %s", path, contentType, w.Code, got)
				}
				object, kind, err := decoder.Decode(w.Body.Bytes(), nil, nil)
				if err != nil {
					t.Fatalf("%s as %s: %v", path, contentType, err)
				}
				if kind.Version != version {
					t.Errorf("%s as %s is of version %s", path, contentType, kind.Version)
				}
				if first == nil {
					first = object
				}
				if a, b := mustJSON(t, first), mustJSON(t, object); a != b {
					t.Errorf("%s as %s differs from JSON:\n%s\n%s", path, contentType, b, a)
				}
			}
		}
	}
	if w := do(h, http.MethodGet, "/apis/metrics.k8s.io/v1/nodes", "text/html"); w.Code != http.StatusNotAcceptable {
		t.Errorf("HTML: %d", w.Code)
	}
}

// tableAnswer is what tests read of a table.
type tableAnswer struct {
	Kind              string
	Metadata          struct{ Continue string }
	ColumnDefinitions []struct {
		Name     string
		Priority int
	}
	Rows []struct {
		Cells  []string
		Object struct {
			Kind     string
			Metadata struct{ Name string }
		}
	}
}

func (a tableAnswer) text() string {
	var lines []string
	var columns []string
	for _, c := range a.ColumnDefinitions {
		columns = append(columns, c.Name)
	}
	lines = append(lines, strings.Join(columns, " "))
	for _, r := range a.Rows {
		lines = append(lines, strings.Join(r.Cells, " "))
	}
	return strings.Join(lines, "\n")
}

func TestTables(t *testing.T) {
	h := serve(t, world())
	for _, test := range []struct{ path, want string }{
		{"/namespaces/apps/pods", `Name CPU(cores) Memory(bytes) Window
idle 0m 0Mi 15s
web-1 125m 103Mi 15s
web-2 250m 1024Mi 15s`},
		{"/namespaces/apps/pods/web-1", `Name CPU(cores) Memory(bytes) Window
web-1 125m 103Mi 15s`},
		{"/pods?labelSelector=app+in+(idle,db)", `Name CPU(cores) Memory(bytes) Window Swap(bytes)
idle 0m 0Mi 15s <none>
db 2000m 8192Mi 15s 12Mi`},
		{"/nodes", `Name CPU(cores) Memory(bytes) Window
node-a 1235m 5120Mi 15s
node-b 1m 1024Mi 15s`},
		{"/nodes/node-b", `Name CPU(cores) Memory(bytes) Window
node-b 1m 1024Mi 15s`},
		{"/namespaces/none/pods", `Name CPU(cores) Memory(bytes) Window`},
	} {
		for _, version := range versions {
			got := getAs[tableAnswer](t, h, "/apis/metrics.k8s.io/"+version+test.path, tableType, http.StatusOK)
			if got.Kind != "Table" || got.text() != test.want {
				t.Errorf("%s:\n%s\nwant\n%s", test.path, got.text(), test.want)
			}
			for _, c := range got.ColumnDefinitions {
				if (c.Name == "Swap(bytes)") != (c.Priority == 1) {
					t.Errorf("%s: the column %s has the priority %d", test.path, c.Name, c.Priority)
				}
			}
			for _, r := range got.Rows {
				if r.Object.Kind != "PartialObjectMetadata" || r.Object.Metadata.Name != r.Cells[0] {
					t.Errorf("%s: the row %q holds %+v", test.path, r.Cells, r.Object)
				}
			}
		}
	}
	page := getAs[tableAnswer](t, h, "/apis/metrics.k8s.io/v1/pods?limit=1", tableType, http.StatusOK)
	if len(page.Rows) != 1 || page.Metadata.Continue == "" {
		t.Errorf("a page as a table: %+v", page)
	}
	whole := getAs[tableAnswer](t, h, "/apis/metrics.k8s.io/v1beta1/nodes?includeObject=Object", tableType, http.StatusOK)
	if len(whole.Rows) != 2 || whole.Rows[0].Object.Kind != "NodeMetrics" {
		t.Errorf("a table with objects: %+v", whole)
	}
}

func compact(t *testing.T, text *bytes.Buffer) {
	t.Helper()
	indented := bytes.Clone(text.Bytes())
	text.Reset()
	if err := json.Compact(text, bytes.TrimSpace(indented)); err != nil {
		t.Fatalf("%v: %s", err, indented)
	}
}

// Tables that write their own bytes are those that the library makes, and so is everything else
// about their answers.
func TestWithTables(t *testing.T) {
	const kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
	world := world()
	world.Pods = append(existing{object("apps", "<odd>", time.Hour, `"odd"=<&>`)}, world.Pods.(existing)...)
	world.Usage.(used).pods["apps/<odd>"] = pod(
		usage.Container{Name: "a", Amount: withSwap(amount(math.MaxUint64, math.MaxUint64), 1<<63)},
		usage.Container{Name: "b", Amount: withSwap(amount(math.MaxUint64, 0), 1)})
	fast := serve(t, world)
	standard := serveBehind(t, world, func(next http.Handler) http.Handler { return next })
	for _, path := range []string{
		"/pods", "/namespaces/apps/pods", "/namespaces/none/pods", "/namespaces/apps/pods/web-1", "/namespaces/data/pods/db",
		"/namespaces/apps/pods/none", "/nodes", "/nodes/node-b", "/nodes/none", "",
	} {
		for _, query := range []string{
			"", "limit=1", "includeObject=None", "includeObject=Metadata", "includeObject=Object", "includeObject=Wrong",
			"labelSelector=app%3Dweb", "pretty=1", "watch=1",
		} {
			for _, accept := range []string{
				kubectl, "application/json;as=Table;v=v1beta1;g=meta.k8s.io,*/*", "application/json;as=Table;v=v2;g=meta.k8s.io,application/json",
				"application/json, " + kubectl, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io," + kubectl,
				"application/yaml;as=Table;v=v1;g=meta.k8s.io," + jsonType, protobufType + ";as=Table;v=v1;g=meta.k8s.io," + kubectl,
				kubectl + ";pretty=1", "application/json;as=Table;v=v1;g=meta.k8s.io;pretty=1,application/json",
			} {
				for _, version := range versions {
					url := "/apis/metrics.k8s.io/" + version + path + "?" + query
					got, want := do(fast, http.MethodGet, url, accept), do(standard, http.MethodGet, url, accept)
					if want.Code >= http.StatusBadRequest {
						compact(t, got.Body) // the white space of errors may differ
						compact(t, want.Body)
					}
					if got.Code != want.Code || got.Body.String() != want.Body.String() {
						t.Errorf("%s as %s: %d\n%s\nwant %d\n%s", url, accept, got.Code, got.Body, want.Code, want.Body)
					}
					if got, want := got.Header().Get("Content-Type"), want.Header().Get("Content-Type"); got != want {
						t.Errorf("%s as %s is %s, want %s", url, accept, got, want)
					}
				}
			}
		}
	}
}

func TestAnswersAreObserved(t *testing.T) {
	c := world()
	var seen []string
	c.Answered = func(resource string, oldest time.Duration) { seen = append(seen, resource+" "+oldest.String()) }
	u := c.Usage.(used)
	u.pods["data/db"].At = at.Add(time.Hour) // by its node's clock
	u.pods["data/db"].AsOf = at.Add(-20 * time.Second)
	h := serve(t, c)
	for _, path := range []string{"/pods", "/namespaces/apps/pods", "/nodes/node-a", "/namespaces/none/pods"} {
		get[any](t, h, "/apis/metrics.k8s.io/v1"+path, http.StatusOK)
	}
	if want := []string{"pods 30s", "pods 10s", "nodes 10s"}; !slices.Equal(seen, want) {
		t.Errorf("%q, want %q", seen, want)
	}
}

func TestLabelsAreNotTouched(t *testing.T) {
	c := world()
	h := serve(t, c)
	before := mustJSON(t, c.Pods)
	for _, accept := range []string{jsonType, yamlType, protobufType, tableType} {
		do(h, http.MethodGet, "/apis/metrics.k8s.io/v1/pods", accept)
	}
	if after := mustJSON(t, c.Pods); after != before {
		t.Errorf("the shared labels were changed:\n%s\n%s", before, after)
	}
}

func TestDiscovery(t *testing.T) {
	h := serve(t, world())
	group := get[struct {
		PreferredVersion struct{ Version string }
		Versions         []struct{ Version string }
	}](t, h, "/apis/metrics.k8s.io", http.StatusOK)
	if group.PreferredVersion.Version != "v1" || len(group.Versions) != 2 {
		t.Errorf("group: %+v", group)
	}
	for _, version := range versions {
		got := get[struct{ Resources any }](t, h, "/apis/metrics.k8s.io/"+version, http.StatusOK)
		equal(t, got.Resources, `[
			{"name": "nodes", "singularName": "nodemetrics", "namespaced": false, "kind": "NodeMetrics", "verbs": ["get", "list"]},
			{"name": "pods", "singularName": "podmetrics", "namespaced": true, "kind": "PodMetrics", "verbs": ["get", "list"]}]`)
	}
	aggregated := getAs[struct {
		Items []struct{ Versions []struct{ Resources []any } }
	}](t, h, "/apis",
		"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", http.StatusOK)
	if len(aggregated.Items) != 1 || len(aggregated.Items[0].Versions) != 2 || len(aggregated.Items[0].Versions[1].Resources) != 2 {
		t.Errorf("aggregated discovery: %+v", aggregated)
	}
}

func TestOpenAPI(t *testing.T) {
	h := serve(t, world())
	type schema struct {
		Description string
		Properties  map[string]struct{ Description string }
	}
	v2 := get[struct{ Definitions map[string]schema }](t, h, "/openapi/v2", http.StatusOK).Definitions
	for _, version := range versions {
		v3 := get[struct {
			Components struct{ Schemas map[string]schema }
		}](t, h,
			"/openapi/v3/apis/metrics.k8s.io/"+version, http.StatusOK).Components.Schemas
		for _, schemas := range []map[string]schema{v2, v3} {
			for _, kind := range []string{"NodeMetrics", "PodMetrics", "PodMetricsList", "ContainerMetrics"} {
				s, ok := schemas["io.k8s.metrics.pkg.apis.metrics."+version+"."+kind]
				if !ok || s.Description == "" {
					t.Errorf("%s %s has no description: %+v", version, kind, s)
				}
			}
			timestamp := schemas["io.k8s.metrics.pkg.apis.metrics."+version+".PodMetrics"].Properties["timestamp"]
			if !strings.Contains(timestamp.Description, "time interval") {
				t.Errorf("%s: the timestamp is described as %q", version, timestamp.Description)
			}
		}
	}
}
