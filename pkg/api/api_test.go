package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/api/openapi"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
	"github.com/kube-vitals/kube-vitals/pkg/view/viewtest"
)

// now is the time of all requests; samples are 10 s older.
var (
	now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	at  = usage.At(now.Add(-10 * time.Second))
	// nodeAt is at by the clock of a node that agrees with ours.
	nodeAt = usage.NodeTime(at)
)

// cluster is what a test serves.
type cluster struct {
	pods, nodes []*inventory.Object
	podUsage    map[string]*usage.Pod // by "namespace/name", as the node reports it that the pod is bound to
	nodeUsage   map[string]*usage.Node
}

// config returns a Config that serves the cluster.
func (c *cluster) config() Config {
	s, reported := viewtest.NewStore(100_000), map[string][]*usage.Pod{}
	for _, o := range c.pods {
		if p := c.podUsage[o.Namespace+"/"+o.Name]; p != nil {
			named := *p
			named.Namespace, named.Name = o.Namespace, o.Name
			reported[o.Node] = append(reported[o.Node], &named)
		}
	}
	for name, node := range c.nodeUsage {
		viewtest.Put(s, name, node, reported[name]...)
		delete(reported, name)
	}
	for name, pods := range reported {
		viewtest.Put(s, name, nil, pods...)
	}
	return configOf(c.pods, c.nodes, s)
}

// configOf returns a Config that serves these objects with the usage in a store.
func configOf(pods, nodes []*inventory.Object, s *store.Store) Config {
	v := &view.View{Pods: viewtest.Index(pods...), Nodes: viewtest.Index(nodes...), Store: s}
	return Config{
		View: v, ExplainPods: &fakeExplainer{}, ExplainNodes: &fakeExplainer{}, Authorizer: &fakeAuthorizer{},
		Now: func() time.Time { return now }, Clock: usage.NewClock(now),
		ObserveAnswerAge: func(string, time.Duration) {},
	}
}

func amount(nanocores, memory uint64) usage.Amount {
	return usage.Amount{CPUNanocores: nanocores, Memory: memory, At: nodeAt, Window: 15 * time.Second}
}

func withSwap(a usage.Amount, swap uint64) usage.Amount {
	a.Swap, a.HasSwap = swap, true
	return a
}

func object(namespace, name string, labels ...string) *inventory.Object {
	o, set := &inventory.Object{Namespace: namespace, Name: name}, map[string]string{}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		set[key] = value
	}
	o.Labels = inventory.NewLabels(set)
	if namespace != "" {
		o.Phase = inventory.PodRunning
	}
	return o
}

// running adds a container that is running since a time to a pod.
func running(o *inventory.Object, container string, since usage.NodeTime) *inventory.Object {
	o.Containers = append(o.Containers, inventory.ContainerState{Name: container, Running: true, StartedAt: since})
	return o
}

func pod(containers ...usage.Container) *usage.Pod {
	return &usage.Pod{Containers: containers, At: nodeAt, Window: 15 * time.Second, AsOf: at}
}

// newCluster returns what most tests serve: five pods with metrics and two without, two nodes with
// metrics and one without.
func newCluster() *cluster {
	return &cluster{
		pods: []*inventory.Object{
			object("apps", "idle", "app=idle", "tier=back"),
			running(object("apps", "predecessor"), "main", nodeAt.Add(time.Second)),
			object("apps", "no-metrics"),
			object("apps", "web-1", "app=web", "tier=front"),
			object("apps", "web-2", "app=web", "tier=front"),
			object("data", "db", "app=db"),
			object("data", "web-1", "app=web"),
		},
		nodes: []*inventory.Object{
			object("", "node-a", "zone=a"),
			object("", "node-b", "zone=b"),
			object("", "node-no-metrics", "zone=a"),
		},
		podUsage: map[string]*usage.Pod{
			"apps/idle":        pod(usage.Container{Name: "main", Amount: amount(0, 0)}),
			"apps/predecessor": pod(usage.Container{Name: "main", Amount: amount(1, 4096)}),
			"apps/web-1": pod(
				usage.Container{Name: "log", Amount: amount(1_000_001, 3<<20+4096)},
				usage.Container{Name: "main", Amount: amount(123_456_789, 100<<20+4096)}),
			"apps/web-2": pod(usage.Container{Name: "main", Amount: amount(250_000_000, 1<<30)}),
			"data/db":    pod(usage.Container{Name: "main", Amount: withSwap(amount(2_000_000_000, 8<<30+4096), 12<<20)}),
			"data/web-1": pod(usage.Container{Name: "main", Amount: withSwap(amount(5, 4096), 0)}),
		},
		nodeUsage: map[string]*usage.Node{
			"node-a": {Name: "node-a", Amount: amount(1_234_567_890, 5<<30+4096), AsOf: at},
			"node-b": {Name: "node-b", Amount: amount(7, 1<<30), AsOf: at},
		},
	}
}

// newConfig returns a Config that serves newCluster.
func newConfig() Config { return newCluster().config() }

// serve returns the handler of a generic API server with only this group.
func serve(t testing.TB, c Config) http.Handler {
	t.Helper()
	return serveWithin(t, c, ResponseMemory{Large: 128 << 20, Small: 64 << 20, Max: 1 << 30})
}

// serveWithin is serve with a limit for the memory of lists.
func serveWithin(t testing.TB, c Config, memory ResponseMemory) http.Handler {
	t.Helper()
	scheme := NewScheme()
	codecs := serializer.NewCodecFactory(scheme)
	config := genericapiserver.NewConfig(codecs)
	config.ExternalAddress, config.RequestTimeout = "localhost:443", testenv.Patience
	config.LoopbackClientConfig = &rest.Config{}
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	namer := openapinamer.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	config.BuildHandlerChainFunc = func(handler http.Handler, config *genericapiserver.Config) http.Handler {
		return genericapiserver.DefaultBuildHandlerChain(WithResponseMemory(handler, codecs, memory), config)
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
	v1Path      = "/apis/metrics.k8s.io/v1"
	v1beta1Path = "/apis/metrics.k8s.io/v1beta1"

	jsonType     = "application/json"
	yamlType     = "application/yaml"
	protobufType = "application/vnd.kubernetes.protobuf"
	tableType    = "application/json;as=Table;g=meta.k8s.io;v=v1"
	metadataType = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

func do(h http.Handler, method, path, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// get checks the status code and decodes a JSON response.
func get[T any](t *testing.T, h http.Handler, path string, code int) T {
	t.Helper()
	return getAs[T](t, h, path, jsonType, code)
}

func getAs[T any](t *testing.T, h http.Handler, path, accept string, code int) T {
	t.Helper()
	w := do(h, http.MethodGet, path, accept)
	if w.Code != code {
		t.Fatalf("GET %s: got %d, want %d: %s", path, w.Code, code, w.Body)
	}
	var v T
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("GET %s: %v: %s", path, err, w.Body)
	}
	return v
}

// equal compares a decoded response with JSON text, ignoring order and white space.
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

func TestDiscovery(t *testing.T) {
	h := serve(t, newConfig())
	group := get[struct {
		PreferredVersion struct{ Version string }
		Versions         []struct{ Version string }
	}](t, h, "/apis/metrics.k8s.io", http.StatusOK)
	if group.PreferredVersion.Version != "v1" || len(group.Versions) != 2 {
		t.Errorf("got group %+v, want two versions, v1 preferred", group)
	}
	for _, version := range versions {
		got := get[struct{ Resources any }](t, h, "/apis/metrics.k8s.io/"+version, http.StatusOK)
		equal(t, got.Resources, `[
			{"name": "nodes", "singularName": "nodemetrics", "namespaced": false, "kind": "NodeMetrics",
				"verbs": ["get", "list"]},
			{"name": "pods", "singularName": "podmetrics", "namespaced": true, "kind": "PodMetrics",
				"verbs": ["get", "list"]}]`)
	}
	aggregated := getAs[struct {
		Items []struct{ Versions []struct{ Resources []any } }
	}](t, h, "/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", http.StatusOK).Items
	if len(aggregated) != 1 || len(aggregated[0].Versions) != 2 || len(aggregated[0].Versions[1].Resources) != 2 {
		t.Errorf("got aggregated discovery %+v, want one group with two versions of two resources", aggregated)
	}
}

func TestOpenAPI(t *testing.T) {
	h := serve(t, newConfig())
	type schema struct {
		Description string
		Properties  map[string]struct{ Description string }
	}
	v2 := get[struct{ Definitions map[string]schema }](t, h, "/openapi/v2", http.StatusOK).Definitions
	for _, version := range versions {
		v3 := get[struct {
			Components struct{ Schemas map[string]schema }
		}](t, h, "/openapi/v3/apis/metrics.k8s.io/"+version, http.StatusOK).Components.Schemas
		for _, schemas := range []map[string]schema{v2, v3} {
			for _, kind := range []string{"NodeMetrics", "PodMetrics", "PodMetricsList", "ContainerMetrics"} {
				s, ok := schemas["io.k8s.metrics.pkg.apis.metrics."+version+"."+kind]
				if !ok || s.Description == "" {
					t.Errorf("%s %s has no description: %+v", version, kind, s)
				}
			}
			timestamp := schemas["io.k8s.metrics.pkg.apis.metrics."+version+".PodMetrics"].Properties["timestamp"]
			if !strings.Contains(timestamp.Description, "time interval") {
				t.Errorf("%s: got description %q of timestamp", version, timestamp.Description)
			}
		}
	}
}
