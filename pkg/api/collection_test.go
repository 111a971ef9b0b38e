package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view/viewtest"
)

func TestGet(t *testing.T) {
	h := serve(t, newConfig())
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
		got = get[any](t, h, "/apis/metrics.k8s.io/"+version+"/nodes/node-a", http.StatusOK)
		equal(t, got, `{
			"kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/`+version+`",
			"metadata": {"name": "node-a", "creationTimestamp": "2026-11-20T12:00:00Z", "labels": {"zone": "a"}},
			"timestamp": "2026-11-20T11:59:50Z", "window": "15s",
			"usage": {"cpu": "1234567890n", "memory": "5242884Ki"}}`)
	}
	for pod, want := range map[string]string{
		"apps/pods/idle":  `[{"name": "main", "usage": {"cpu": "0", "memory": "0"}}]`, // zero is a value
		"data/pods/db":    `[{"name": "main", "usage": {"cpu": "2", "memory": "8388612Ki", "swap": "12Mi"}}]`,
		"data/pods/web-1": `[{"name": "main", "usage": {"cpu": "5n", "memory": "4Ki", "swap": "0"}}]`,
	} {
		got := get[struct{ Containers any }](t, h, v1Path+"/namespaces/"+pod, http.StatusOK)
		equal(t, got.Containers, want)
	}
}

func TestOnlyGetAndListAreAllowed(t *testing.T) {
	h := serve(t, newConfig())
	for _, path := range []string{"/nodes", "/nodes/node-a", "/namespaces/apps/pods", "/namespaces/apps/pods/web-1"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			w := do(h, method, v1beta1Path+path, jsonType)
			if w.Code != http.StatusMethodNotAllowed || !strings.Contains(w.Body.String(), `"reason":"MethodNotAllowed"`) {
				t.Errorf("%s %s: got %d: %s, want %d", method, path, w.Code, w.Body, http.StatusMethodNotAllowed)
			}
		}
	}
	for _, path := range []string{"/nodes?watch=1", "/pods?watch=true"} {
		get[any](t, h, v1Path+path, http.StatusMethodNotAllowed)
	}
}

// TestContentTypes checks that all content types have the same content.
func TestContentTypes(t *testing.T) {
	decoder := serializer.NewCodecFactory(NewScheme()).UniversalDeserializer()
	h := serve(t, newConfig())
	for _, version := range versions {
		for _, path := range []string{"/nodes", "/nodes/node-a", "/pods", "/namespaces/data/pods/db"} {
			var want runtime.Object
			for _, contentType := range []string{jsonType, yamlType, protobufType} {
				name := version + path + " as " + contentType
				w := do(h, http.MethodGet, "/apis/metrics.k8s.io/"+version+path, contentType)
				if got := w.Header().Get("Content-Type"); w.Code != http.StatusOK || got != contentType {
					t.Fatalf("%s: got %d, %s", name, w.Code, got)
				}
				got, kind, err := decoder.Decode(w.Body.Bytes(), nil, nil)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if kind.Version != version {
					t.Errorf("%s: got version %s", name, kind.Version)
				}
				if want == nil {
					want = got
				}
				if got, want := mustJSON(t, got), mustJSON(t, want); got != want {
					t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
				}
			}
		}
	}
	if w := do(h, http.MethodGet, v1Path+"/nodes", "text/html"); w.Code != http.StatusNotAcceptable {
		t.Errorf("HTML: got %d, want %d", w.Code, http.StatusNotAcceptable)
	}
}

// TestPartialObjectMetadata checks the metadata of one object and of a list, and the errors for the
// wrong one of both.
func TestPartialObjectMetadata(t *testing.T) {
	h := serve(t, newConfig())
	for _, test := range []struct {
		path, kind string
		message    string // of an error
	}{
		{"/nodes/node-a", "PartialObjectMetadata", ""},
		{"/pods", "PartialObjectMetadataList", ""},
		{"/nodes/node-a", "PartialObjectMetadataList", "is not a list"},
		{"/namespaces/apps/pods/web-1", "PartialObjectMetadataList", "is not a list"},
		{"/pods", "PartialObjectMetadata", "is a list"},
	} {
		for _, version := range []string{"v1", "v1beta1"} { // of the metadata
			for _, separator := range []string{";", " ; "} { // the library allows spaces
				want, code := test.kind, http.StatusOK
				if test.message != "" {
					want, code = "Status", http.StatusNotAcceptable
				}
				accept := strings.Join([]string{jsonType, "as=" + test.kind, "g=meta.k8s.io", "v=" + version}, separator)
				got := getAs[struct{ Kind, Reason, Message string }](t, h, v1Path+test.path, accept, code)
				if got.Kind != want || !strings.Contains(got.Message, test.message) ||
					(code == http.StatusNotAcceptable) != (got.Reason == "NotAcceptable") {
					t.Errorf("%s as %s: got %+v, want a %s with message %q", test.path, accept, got, want, test.message)
				}
			}
		}
	}
	// The first media type that the server supports counts, as everywhere.
	const either = jsonType + ",application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	got := getAs[struct{ Kind string }](t, h, v1Path+"/nodes/node-a", either, http.StatusOK).Kind
	if got != "NodeMetrics" {
		t.Errorf("got kind %s, want NodeMetrics", got)
	}
}

func TestAgeIsObserved(t *testing.T) {
	db := amount(2_000_000_000, 8<<30)
	db.At = nodeAt.Add(time.Hour)
	world := newCluster()
	world.pods[5].Node = "node-c"
	world.podUsage["data/db"] = &usage.Pod{
		Containers: []usage.Container{{Name: "main", Amount: db}}, At: db.At, AsOf: at.Add(-20 * time.Second),
	}
	c := world.config()
	var got []string
	c.ObserveAnswerAge = func(resource string, age time.Duration) { got = append(got, resource+" "+age.String()) }
	h := serve(t, c)
	for _, path := range []string{"/pods", "/namespaces/apps/pods", "/nodes/node-a", "/namespaces/none/pods"} {
		get[any](t, h, v1Path+path, http.StatusOK)
	}
	if want := []string{"pods 30s", "pods 10s", "nodes 10s"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestPodsAreReadFromTheirNode checks that what other nodes report of a pod is not served.
func TestPodsAreReadFromTheirNode(t *testing.T) {
	reported := newCluster()
	for _, o := range reported.pods {
		o.Node = "node-a"
	}
	c := reported.config()
	bound := newCluster().pods
	for _, o := range bound {
		o.Node = "node-b"
		if o.Name == "web-1" {
			o.Node = "node-a"
		}
	}
	c.View.Pods = viewtest.Index(bound...)
	h := serve(t, c)
	want := []string{"apps/web-1", "data/web-1"}
	if got := get[list](t, h, v1Path+"/pods", http.StatusOK).names(); !slices.Equal(got, want) {
		t.Errorf("got list %q, want %q", got, want)
	}
	get[any](t, h, v1Path+"/namespaces/apps/pods/web-1", http.StatusOK)
	get[any](t, h, v1Path+"/namespaces/apps/pods/web-2", http.StatusNotFound)
}
