package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// versions are those of metrics.k8s.io.
var versions = []string{"v1", "v1beta1"}

// getAs requests a path of the API server in a content type.
func getAs(t *testing.T, path, accept string) []byte {
	t.Helper()
	var contentType string
	body, err := shared.Client.Discovery().RESTClient().Get().RequestURI(path).SetHeader("Accept", accept).
		Do(t.Context()).ContentType(&contentType).Raw()
	if err != nil {
		t.Fatalf("%s as %s: %v: %s", path, accept, err, body)
	}
	if want, _, _ := strings.Cut(accept, ";"); !strings.HasPrefix(contentType, want) {
		t.Errorf("%s as %s: got content type %s", path, accept, contentType)
	}
	return body
}

// podList is a PodMetricsList of either version.
type podList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   metav1.ListMeta
	Items      []struct {
		Metadata   metav1.ObjectMeta `json:"metadata"`
		Window     string            `json:"window"`
		Containers []struct {
			Name  string              `json:"name"`
			Usage corev1.ResourceList `json:"usage"`
		} `json:"containers"`
	} `json:"items"`
}

func TestContentTypes(t *testing.T) {
	const namespace = "content"
	shared.createNamespaces(t, namespace)
	shared.createPods(t, namespace, "node-01", "a", "b")
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			path := "/apis/metrics.k8s.io/" + version + "/namespaces/" + namespace + "/pods"
			var list podList
			if err := json.Unmarshal(getAs(t, path, "application/json"), &list); err != nil {
				t.Fatal(err)
			}
			if list.Kind != "PodMetricsList" || list.APIVersion != "metrics.k8s.io/"+version || len(list.Items) != 2 {
				t.Fatalf("got %+v", list)
			}
			for i, pod := range list.Items {
				want, m := []string{"a", "b"}[i], pod.Metadata
				if m.Name != want || m.Labels["app"] != want || m.Namespace != namespace {
					t.Errorf("pod %d: got %+v", i, m)
				}
				if len(pod.Containers) != 2 || pod.Containers[0].Name != "main" || pod.Containers[1].Name != "side" {
					t.Fatalf("containers of %s: %+v", pod.Metadata.Name, pod.Containers)
				}
				main, side := pod.Containers[0].Usage, pod.Containers[1].Usage
				cpu := main.Cpu().AsApproximateFloat64()
				if main.Memory().Value() != 100<<20 || cpu < 0.2475 || cpu > 0.2525 ||
					side.Memory().Value() != 8<<20 || !side.Cpu().IsZero() {
					t.Errorf("pod %s: main uses %v, side uses %v", pod.Metadata.Name, main, side)
				}
			}

			var fromYAML podList
			err := yaml.Unmarshal(getAs(t, path, "application/yaml"), &fromYAML)
			if err != nil || fromYAML.Kind != list.Kind || len(fromYAML.Items) != 2 {
				t.Errorf("YAML: %v, %+v", err, fromYAML)
			}

			protobuf := getAs(t, path, "application/vnd.kubernetes.protobuf")
			if !bytes.HasPrefix(protobuf, []byte("k8s\x00")) || !bytes.Contains(protobuf, []byte("PodMetricsList")) ||
				!bytes.Contains(protobuf, []byte(namespace)) {
				t.Errorf("protobuf: %q", protobuf)
			}

			var table metav1.Table
			if err := json.Unmarshal(getAs(t, path, "application/json;as=Table;v=v1;g=meta.k8s.io"), &table); err != nil {
				t.Fatal(err)
			}
			if len(table.Rows) != 2 || table.ColumnDefinitions[0].Name != "Name" || fmt.Sprint(table.Rows[0].Cells[0]) != "a" {
				t.Errorf("table: got %+v", table)
			}

			var one struct{ Kind string }
			if err := json.Unmarshal(getAs(t, path+"/a", "application/json"), &one); err != nil || one.Kind != "PodMetrics" {
				t.Errorf("GET of one pod: %v, %+v", err, one)
			}
		})
	}
}

func TestSelectorsAndPaging(t *testing.T) {
	const namespace = "pages"
	names := []string{"a", "b", "c", "d", "e"}
	shared.createNamespaces(t, namespace)
	shared.createPods(t, namespace, "node-02", names...)
	list := func(args ...string) string {
		get := []string{"get", "podmetrics", "--namespace", namespace, "-o", "jsonpath={.items[*].metadata.name}"}
		return strings.Join(strings.Fields(shared.kubectl(t, append(get, args...)...)), " ")
	}
	for _, test := range []struct {
		want string
		args []string
	}{
		{"a b c d e", nil},
		{"b", []string{"-l", "app=b"}},
		{"a c", []string{"-l", "app in (a,c)"}},
		{"a b d e", []string{"-l", "app!=c,tier"}},
		{"d", []string{"--field-selector", "metadata.name=d"}},
		{"a b c d e", []string{"--field-selector", "metadata.namespace=" + namespace}},
		{"a b c d e", []string{"--chunk-size=2"}},
	} {
		if got := list(test.args...); got != test.want {
			t.Errorf("%v: got %q, want %q", test.args, got, test.want)
		}
	}
	var page podList
	path := "/apis/metrics.k8s.io/v1/namespaces/" + namespace + "/pods?limit=2"
	if err := json.Unmarshal(getAs(t, path, "application/json"), &page); err != nil {
		t.Fatal(err)
	}
	left := page.Metadata.RemainingItemCount
	if len(page.Items) != 2 || page.Metadata.Continue == "" || left == nil || *left != 3 {
		t.Errorf("the first page: got %+v", page.Metadata)
	}
}

func TestTables(t *testing.T) {
	useFixture(t)
	header, _, _ := strings.Cut(shared.kubectl(t, "get", "podmetrics", "-n", fixture), "\n")
	if got := strings.Join(strings.Fields(header), " "); !strings.EqualFold(got, "NAME CPU(cores) MEMORY(bytes) WINDOW") {
		t.Errorf("got columns %s", got)
	}
	age := regexp.MustCompile(`\b[0-9]+s  *node`)
	for args, want := range map[string]string{
		"-o wide":                          "alpha beta gamma",
		"-o wide --sort-by=.metadata.name": "alpha beta gamma",
		"-o wide --sort-by=.containers[0].usage.memory": "alpha beta gamma",
	} {
		wide := shared.kubectl(t, append([]string{"get", "podmetrics", "-n", fixture}, strings.Fields(args)...)...)
		lines := strings.Split(strings.TrimSpace(wide), "\n")
		const columns = "NAME CPU(CORES) MEMORY(BYTES) WINDOW SWAP(BYTES) AGE(METRICS) NODE"
		if got := strings.Join(strings.Fields(lines[0]), " "); got != columns {
			t.Errorf("%s: got columns %s, want %s", args, got, columns)
		}
		var names []string
		for _, line := range lines[1:] {
			name, _, _ := strings.Cut(line, " ")
			names = append(names, name)
			if !age.MatchString(line) {
				t.Errorf("%s: got row %q, want the age of the metrics and a node", args, line)
			}
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: got pods %s, want %s", args, got, want)
		}
	}
	header, _, _ = strings.Cut(shared.kubectl(t, "get", "nodemetrics", "-l", fixtureLabel, "-o", "wide"), "\n")
	const columns = "NAME CPU(CORES) MEMORY(BYTES) WINDOW SWAP(BYTES) AGE(METRICS)"
	if got := strings.Join(strings.Fields(header), " "); got != columns {
		t.Errorf("got columns %s", got)
	}
	if nodes := shared.kubectl(t, "get", "nodemetrics", "--no-headers"); strings.Count(nodes, "\n") < sharedNodes {
		t.Errorf("got these nodes, want at least %d:\n%s", sharedNodes, nodes)
	}
}

func TestRejectedRequests(t *testing.T) {
	for args, want := range map[string]string{
		"get podmetrics nope -n default":                     `podmetrics.metrics.k8s.io "nope" not found`,
		"get nodemetrics nope":                               `nodemetrics.metrics.k8s.io "nope" not found`,
		"delete nodemetrics node-01":                         "(MethodNotAllowed)",
		"label nodemetrics node-01 a=b":                      "(MethodNotAllowed)",
		"get --raw /apis/metrics.k8s.io/v2":                  "could not find the requested resource",
		"get podmetrics --watch -n default":                  "(MethodNotAllowed)",
		"top pod nope -n default":                            "not found",
		"get podmetrics -A -l app=a=b=c":                     "selector",
		"get podmetrics -A --field-selector spec.nodeName=x": "metadata.name",

		"get --raw /apis/metrics.k8s.io/v1/namespaces/default/pods?continue=rubbish": "continue",
	} {
		out, err := shared.Kubectl(t.Context(), strings.Fields(args)...)
		if err == nil {
			t.Errorf("kubectl %s: got %s, want an error", args, out)
			continue
		}
		_, message, _ := strings.Cut(err.Error(), ": exit status 1: ") // without the command
		if !strings.Contains(message, want) {
			t.Errorf("kubectl %s: got %s, want %s", args, message, want)
		}
	}
	if list := shared.kubectl(t, "get", "podmetrics", "-n", "no-such-namespace"); strings.TrimSpace(list) != "" {
		t.Errorf("pods of a missing namespace: %s", list)
	}
}

func TestDiscovery(t *testing.T) {
	for _, version := range versions {
		var classic metav1.APIResourceList
		if err := json.Unmarshal(getAs(t, "/apis/metrics.k8s.io/"+version, "application/json"), &classic); err != nil {
			t.Fatal(err)
		}
		for _, r := range classic.APIResources {
			if !slices.Equal(r.Verbs, []string{"get", "list"}) {
				t.Errorf("%s %s: got verbs %v, want get and list", version, r.Name, r.Verbs)
			}
		}
		if len(classic.APIResources) != 2 {
			t.Errorf("%s: got %d resources, want 2", version, len(classic.APIResources))
		}
	}
	eventually(t, "the group in aggregated discovery", func(context.Context) error {
		aggregated := getAs(t, "/apis", "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList")
		for _, want := range []string{`"metrics.k8s.io"`, `"podmetrics"`, `"NodeMetrics"`} {
			if !bytes.Contains(aggregated, []byte(want)) {
				return fmt.Errorf("%s is missing", want)
			}
		}
		return nil
	})
}

func TestExplain(t *testing.T) {
	eventually(t, "the descriptions", func(ctx context.Context) error {
		for _, args := range [][]string{
			{"explain", "podmetrics.containers.usage"},
			{"explain", "nodemetrics.timestamp", "--api-version=metrics.k8s.io/v1beta1"},
		} {
			out, err := shared.Kubectl(ctx, args...)
			if err != nil {
				return err
			}
			if !strings.Contains(out, "DESCRIPTION") || strings.Contains(out, "<empty>") {
				return fmt.Errorf("kubectl %v: %s", args, out)
			}
		}
		return nil
	})
}
