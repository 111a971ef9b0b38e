package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestDifferences(t *testing.T) {
	const object = `
apiVersion: v1
kind: Service
metadata:
  name: a
  namespace: ns
  labels: {app.kubernetes.io/name: a, app.kubernetes.io/managed-by: Helm, helm.sh/chart: a-1}
spec:
  ports: [{port: 1}]
  args: [one, two]
`
	tests := []struct {
		name     string
		old, new string   // the change that makes the manifests out of the chart's object
		want     []string // what each line says
	}{
		{name: "equal"},
		{
			name: "labels of helm", old: ", app.kubernetes.io/managed-by: Helm, helm.sh/chart: a-1",
		},
		{
			name: "label of ours", old: "app.kubernetes.io/name: a,", new: "",
			want: []string{`Service ns/a: metadata.labels["app.kubernetes.io/name"]: the chart has "a", the manifests have nothing`},
		},
		{
			name: "value in a list", old: "port: 1", new: "port: 2",
			want: []string{`Service ns/a: spec.ports[0].port: the chart has 1, the manifests have 2`},
		},
		{
			name: "type of a value", old: "port: 1", new: `port: "1"`,
			want: []string{`Service ns/a: spec.ports[0].port: the chart has 1, the manifests have "1"`},
		},
		{
			name: "null is not nothing", old: "  args: [one, two]", new: "  args: [one, two]\n  more: null",
			want: []string{`Service ns/a: spec.more: the chart has nothing, the manifests have null`},
		},
		{
			name: "longer list", old: "[one, two]", new: "[zero, one, two, two]",
			want: []string{
				`Service ns/a: spec.args: only the manifests have "zero"`, `Service ns/a: spec.args: only the manifests have "two"`,
			},
		},
		{
			name: "shorter list", old: "[one, two]", new: "[two]",
			want: []string{`Service ns/a: spec.args: only the chart has "one"`},
		},
		{
			name: "order", old: "[one, two]", new: "[two, one]",
			want: []string{
				`Service ns/a: spec.args[0]: the chart has "one", the manifests have "two"`,
				`Service ns/a: spec.args[1]: the chart has "two", the manifests have "one"`,
			},
		},
		{
			name: "list for a map", old: "[{port: 1}]", new: "{port: 1}",
			want: []string{`Service ns/a: spec.ports: the chart has [{"port":1}], the manifests have {"port":1}`},
		},
		{
			name: "other object", old: "namespace: ns", new: "namespace: other",
			want: []string{"Service ns/a: only in the chart", "Service other/a: only in the manifests"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := differences(mustParse(t, object), mustParse(t, strings.Replace(object, tt.old, tt.new, 1)))
			if !slices.Equal(got, tt.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	const object = "kind: Service\nmetadata: {name: a}\n"
	for name, text := range map[string]string{
		"nothing":        "# nothing\n---\n",
		"no YAML":        "kind: [",
		"one key twice":  object + "kind: Service\n",
		"the same twice": object + "---\n" + object,
	} {
		if objs, err := parse([]byte(text)); err == nil {
			t.Errorf("%s: no error, but %v", name, objs)
		}
	}
}

// TestVerify compares the tree as it is.
func TestVerify(t *testing.T) {
	if err := verify(t.Context(), lookTools(t), "../..", settings()); err != nil {
		t.Error(err)
	}
}

// TestVerifyNotices changes copies of the chart and of the manifests and expects to be told where.
func TestVerifyNotices(t *testing.T) {
	tools := lookTools(t)
	base := []setting{{}}
	certManager := []setting{{components: []string{"cert-manager"}, values: []string{"tls.type=cert-manager"}}}
	tests := []struct {
		name           string
		settings       []setting
		file, old, new string // the change
		want           string // in the error
	}{
		{
			name: "chart", settings: base, file: "charts/kube-vitals/values.yaml", old: "runAsNonRoot: true", new: "runAsNonRoot: false",
			want: "manifests/base: Deployment kube-system/kube-vitals: spec.template.spec.containers[0].securityContext.runAsNonRoot: " +
				"the chart has false, the manifests have true",
		},
		{
			name: "manifests", settings: base, file: "manifests/base/rbac.yaml", old: "resources: [nodes/stats]", new: "resources: [nodes/proxy]",
			want: `manifests/base: ClusterRole system:kube-vitals-kubelet: rules[1].resources[0]: ` +
				`the chart has "nodes/stats", the manifests have "nodes/proxy"`,
		},
		{
			name: "object left out", settings: base, file: "manifests/base/kustomization.yaml", old: "  - service.yaml\n", new: "",
			want: "manifests/base: Service kube-system/kube-vitals: only in the chart",
		},
		{
			name: "component", settings: certManager, file: "manifests/components/cert-manager/certificate.yaml", old: "rotationPolicy: Always", new: "rotationPolicy: Never",
			want: `manifests/base + cert-manager: Certificate kube-system/kube-vitals: spec.privateKey.rotationPolicy: ` +
				`the chart has "Always", the manifests have "Never"`,
		},
		{
			name: "comment of a value", settings: base, file: "charts/kube-vitals/values.yaml", old: "# -- Number of pods.", new: "# -- Pods.",
			want: "README.md is out of date",
		},
		{
			name: "description in the schema", settings: base, file: "charts/kube-vitals/values.schema.json",
			old: `"Number of pods."`, new: `"Pods."`, want: "values.schema.json is out of date",
		},
		{
			name: "comment of a section", settings: base, file: "charts/kube-vitals/values.yaml", old: "# The serving certificate.",
			new: "# The certificate.", want: "values.schema.json is out of date",
		},
		{
			name: "broken chart", settings: base, file: "charts/kube-vitals/templates/service.yaml", old: "kind: Service", new: "{{ nonsense }}",
			want: "nonsense",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := copyTree(t, "../..", "charts", "manifests")
			replaceIn(t, filepath.Join(root, tt.file), tt.old, tt.new)
			err := verify(t.Context(), tools, root, tt.settings)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v\nwant an error with %s", err, tt.want)
			}
		})
	}
}

// TestCompareFile compares the chart with manifests/base in one file, as it is and with a change.
func TestCompareFile(t *testing.T) {
	tools := lookTools(t)
	const chart = "../../charts/kube-vitals"
	text, err := output(t.Context(), tools.kustomize, "build", "../../manifests/base")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kube-vitals.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := compareFile(t.Context(), tools, chart, file); err != nil {
		t.Errorf("they differ: %v", err)
	}
	replaceIn(t, file, "runAsNonRoot: true", "runAsNonRoot: false")
	err = compareFile(t.Context(), tools, chart, file)
	if want := "runAsNonRoot: the chart has true, the manifests have false"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v\nwant an error with %s", err, want)
	}
	if err := compareFile(t.Context(), tools, chart, file+".gone"); err == nil {
		t.Error("a file that is not there is the same as the chart")
	}
}

// lookTools finds the programs by the variables HELM, KUSTOMIZE and HELM_DOCS, or else in PATH.
func lookTools(t *testing.T) tools {
	t.Helper()
	look := func(variable, name string) string {
		if given := os.Getenv(variable); given != "" {
			return given
		}
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("needs %s: set %s to the program (make verify does)", name, variable)
		}
		return path
	}
	return tools{
		helm:      look("HELM", "helm"),
		kustomize: look("KUSTOMIZE", "kustomize"),
		helmDocs:  look("HELM_DOCS", "helm-docs"),
	}
}

func mustParse(t *testing.T, text string) objects {
	t.Helper()
	objs, err := parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return objs
}

func copyTree(t *testing.T, from string, folders ...string) string {
	t.Helper()
	to := t.TempDir()
	for _, f := range folders {
		if err := os.CopyFS(filepath.Join(to, f), os.DirFS(filepath.Join(from, f))); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// replaceIn changes one place in a file, which must have it.
func replaceIn(t *testing.T, file, old, new string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), old) {
		t.Fatalf("%s has no %q to change", file, old)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), old, new, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
}
