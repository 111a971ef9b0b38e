package api

import (
	"net/http"
	"strings"
	"testing"
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
			got := getAs[tableResponse](t, h, "/apis/metrics.k8s.io/"+version+test.path, tableType, http.StatusOK)
			if got.Kind != "Table" || got.text() != test.want {
				t.Errorf("%s: got\n%s\nwant\n%s", test.path, got.text(), test.want)
			}
			for _, c := range got.ColumnDefinitions {
				if (c.Name == "Swap(bytes)") != (c.Priority == 1) {
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
	const nodes, pods = "/apis/metrics.k8s.io/v1beta1/nodes", "/apis/metrics.k8s.io/v1/pods"
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
		if got := getAs[struct{ APIVersion string }](t, h, nodes, accept, http.StatusOK); got.APIVersion != want {
			t.Errorf("%s: got a %s, want %s", accept, got.APIVersion, want)
		}
	}
}
