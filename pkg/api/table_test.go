package api

import (
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// tableResponse is the part of a table that tests read.
type tableResponse struct {
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

func (r tableResponse) text() string {
	var names []string
	for _, c := range r.ColumnDefinitions {
		names = append(names, c.Name)
	}
	lines := []string{strings.Join(names, " ")}
	for _, row := range r.Rows {
		lines = append(lines, strings.Join(row.Cells, " "))
	}
	return strings.Join(lines, "\n")
}

func TestTables(t *testing.T) {
	h := serve(t, newConfig())
	for _, test := range []struct{ path, want string }{
		{"/namespaces/apps/pods", `Name CPU(cores) Memory(bytes) Window Swap(bytes) Age(metrics)
idle 0m 0Mi 15s <none> 10s
web-1 125m 103Mi 15s <none> 10s
web-2 250m 1024Mi 15s <none> 10s`},
		{"/namespaces/apps/pods/web-1", `Name CPU(cores) Memory(bytes) Window Swap(bytes) Age(metrics)
web-1 125m 103Mi 15s <none> 10s`},
		{"/pods?labelSelector=app+in+(idle,db)", `Name CPU(cores) Memory(bytes) Window Swap(bytes) Age(metrics)
idle 0m 0Mi 15s <none> 10s
db 2000m 8192Mi 15s 12Mi 10s`},
		{"/nodes", `Name CPU(cores) Memory(bytes) Window Swap(bytes) Age(metrics)
node-a 1235m 5120Mi 15s <none> 10s
node-b 1m 1024Mi 15s <none> 10s`},
		{"/nodes/node-b", `Name CPU(cores) Memory(bytes) Window Swap(bytes) Age(metrics)
node-b 1m 1024Mi 15s <none> 10s`},
		{"/namespaces/none/pods", `Name CPU(cores) Memory(bytes) Window Swap(bytes) Age(metrics)`},
	} {
		for _, version := range versions {
			got := getAs[tableResponse](t, h, "/apis/metrics.k8s.io/"+version+test.path, tableType, http.StatusOK)
			if got.Kind != "Table" || got.text() != test.want {
				t.Errorf("%s: got\n%s\nwant\n%s", test.path, got.text(), test.want)
			}
			for i, c := range got.ColumnDefinitions {
				if narrow := i < 4; narrow != (c.Priority == 0) {
					t.Errorf("%s: got column %s with priority %d", test.path, c.Name, c.Priority)
				}
			}
			for _, r := range got.Rows {
				if r.Object.Kind != "PartialObjectMetadata" || r.Object.Metadata.Name != r.Cells[0] {
					t.Errorf("%s: got object %+v in row %q", test.path, r.Object, r.Cells)
				}
			}
		}
	}
	const nodes, pods = v1beta1Path + "/nodes", v1Path + "/pods"
	page := getAs[tableResponse](t, h, pods+"?limit=1", tableType, http.StatusOK)
	if len(page.Rows) != 1 || page.Metadata.Continue == "" {
		t.Errorf("got page %+v, want one row and a continue token", page)
	}
	for include, want := range map[string]string{
		"Object": "NodeMetrics", "Metadata": "PartialObjectMetadata", "None": "",
	} {
		got := getAs[tableResponse](t, h, nodes+"?includeObject="+include, tableType, http.StatusOK)
		if len(got.Rows) != 2 || got.Rows[0].Object.Kind != want {
			t.Errorf("includeObject=%s: got %+v, want objects of kind %q", include, got, want)
		}
	}
	getAs[any](t, h, nodes+"?includeObject=Wrong", tableType, http.StatusBadRequest)
	if got := getAs[struct{ Kind string }](t, h, nodes+"/none", tableType, http.StatusNotFound); got.Kind != "Status" {
		t.Errorf("got an error of kind %s, want Status", got.Kind)
	}
	const kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io," +
		"application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
	for accept, want := range map[string]string{
		kubectl: "meta.k8s.io/v1",
		"application/json;as=Table;v=v1beta1;g=meta.k8s.io,*/*":            "meta.k8s.io/v1beta1",
		"application/json;as=Table;v=v2;g=meta.k8s.io,application/json":    "metrics.k8s.io/v1beta1",
		"application/json, " + kubectl:                                     "metrics.k8s.io/v1beta1",
		protobufType + ";as=Table;v=v1;g=meta.k8s.io," + jsonType:          "metrics.k8s.io/v1beta1",
		"application/json;as=Table;v=v1;g=meta.k8s.io;pretty=1," + kubectl: "meta.k8s.io/v1",
	} {
		got := getAs[struct {
			APIVersion string
			Rows       []struct{ Object metav1.TypeMeta }
		}](t, h, nodes, accept, http.StatusOK)
		if got.APIVersion != want || len(got.Rows) > 0 && got.Rows[0].Object.APIVersion != want {
			t.Errorf("%s: got %+v, want %s", accept, got, want)
		}
	}
}

// TestTableOfFurtherResources checks that a table has a column for each resource that one of its
// rows has, sorted by name, with the sum over the containers, and that responses without such resources
// are the same to the byte as if there were none elsewhere.
func TestTableOfFurtherResources(t *testing.T) {
	c := newConfig()
	gpu := func(milli uint64) usage.Resource {
		return usage.Resource{Name: "nvidia.com/gpu", Value: milli, Unit: usage.Milli}
	}
	disk := func(bytes uint64) usage.Resource {
		return usage.Resource{Name: "ephemeral-storage", Value: bytes, Unit: usage.Bytes}
	}
	c.View.Store.Resources = store.NewResources()
	report := func(node string, resources []usage.Resource, containers ...usage.ContainerResource) {
		c.View.Store.Resources.Put(node, "test", usage.ResourceReport{
			At: at, MaxAge: time.Minute, Node: resources, Containers: containers,
		})
	}
	of := func(namespace, pod, container string, r usage.Resource) usage.ContainerResource {
		return usage.ContainerResource{Namespace: namespace, Pod: pod, Container: container, Resource: r}
	}
	report("node-a", []usage.Resource{disk(5 << 30)})
	report("", nil,
		of("apps", "web-1", "log", disk(1<<20)), of("apps", "web-1", "log", gpu(250)),
		of("apps", "web-1", "main", disk(3<<19)), of("apps", "web-1", "main", gpu(1250)),
		of("apps", "web-2", "main", gpu(0)),
		of("data", "db", "main", disk(math.MaxInt64)), of("data", "db", "main", disk(math.MaxInt64)))
	h := serve(t, c)
	const further = "ephemeral-storage(bytes) nvidia.com/gpu"
	for path, want := range map[string]string{
		"/namespaces/apps/pods": `Name CPU(cores) Memory(bytes) Window Swap(bytes) Age(metrics) ` + further + `
idle 0m 0Mi 15s <none> 10s <none> <none>
web-1 125m 103Mi 15s <none> 10s 2Mi 1500m
web-2 250m 1024Mi 15s <none> 10s <none> 0`,
		"/namespaces/data/pods/db": `Name CPU(cores) Memory(bytes) Window Swap(bytes) Age(metrics) ` + further + `
db 2000m 8192Mi 15s 12Mi 10s 8796093022207Mi <none>`,
		"/nodes": `Name CPU(cores) Memory(bytes) Window Swap(bytes) Age(metrics) ephemeral-storage(bytes)
node-a 1235m 5120Mi 15s <none> 10s 5120Mi
node-b 1m 1024Mi 15s <none> 10s <none>`,
	} {
		got := getAs[tableResponse](t, h, v1Path+path, tableType, http.StatusOK)
		if got.text() != want {
			t.Errorf("%s: got\n%s\nwant\n%s", path, got.text(), want)
		}
	}
	without := serve(t, newConfig())
	for _, path := range []string{"/namespaces/apps/pods/idle", "/pods?labelSelector=app%3Didle", "/nodes/node-b"} {
		for _, accept := range []string{jsonType, yamlType, protobufType} {
			got, want := do(h, http.MethodGet, v1Path+path, accept), do(without, http.MethodGet, v1Path+path, accept)
			if want.Code != http.StatusOK || got.Code != want.Code || got.Body.String() != want.Body.String() {
				t.Errorf("%s as %s: got %d\n%s\nwant %d\n%s", path, accept, got.Code, got.Body, want.Code, want.Body)
			}
		}
	}
}

// TestNodeColumn checks that only users who may get the pods learn their nodes from a table.
func TestNodeColumn(t *testing.T) {
	const pods, nodes = v1Path + "/namespaces/data/pods", v1Path + "/nodes"
	for user, want := range map[string]string{
		"admin": "Name CPU(cores) Memory(bytes) Window Swap(bytes) Age(metrics) Node\n" +
			"db 2000m 8192Mi 15s 12Mi 10s node-db\nweb-1 1m 0Mi 15s 0Mi 10s node-web-1",
		"tenant": "Name CPU(cores) Memory(bytes) Window Swap(bytes) Age(metrics)\n" +
			"db 2000m 8192Mi 15s 12Mi 10s\nweb-1 1m 0Mi 15s 0Mi 10s",
	} {
		e := serveExplained(t, user, bound)
		if got := getAs[tableResponse](t, e, pods, tableType, http.StatusOK); got.text() != want {
			t.Errorf("%s: got\n%s\nwant\n%s", user, got.text(), want)
		}
		if access := []string{user + ` get /v1/pods in "data"`}; !slices.Equal(e.authorizer.requests, access) {
			t.Errorf("%s: got access requests %q, want %q", user, e.authorizer.requests, access)
		}
		e.authorizer.requests = nil
		if got := getAs[tableResponse](t, e, nodes, tableType, http.StatusOK); strings.Contains(got.text(), "Node") {
			t.Errorf("%s: got a column with the nodes of nodes:\n%s", user, got.text())
		}
		if w := do(e, http.MethodGet, pods, jsonType); strings.Contains(w.Body.String(), "node-db") {
			t.Errorf("%s: got objects with nodes: %s", user, w.Body)
		}
		if e.authorizer.requests != nil {
			t.Errorf("%s: got access requests %q without a table of pods", user, e.authorizer.requests)
		}
	}
}
