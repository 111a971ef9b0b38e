package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const (
	chart     = "../../charts/kube-vitals"
	manifests = "../../manifests"
)

// helmTemplate are the arguments that render the chart. Without a cluster, helm assumes a Kubernetes
// that is too old for the chart.
var helmTemplate = []string{
	"template", "kube-vitals", chart, "--namespace", "kube-system", "--kube-version", "1.36.0", "--no-hooks",
	"--set", "image.tag=dev",
}

// objects are rendered objects by kind and name, such as "Deployment kube-system/kube-vitals".
type objects map[string]map[string]any

// render renders the chart with values in the format of helm --set.
func render(t *testing.T, values ...string) objects {
	t.Helper()
	return mustHelm(t, setValues(values...)...)
}

// rendered has what helm has rendered, by its arguments: many tests need the same.
var rendered = map[string][]byte{}

// mustHelm returns the objects that helm renders.
func mustHelm(t *testing.T, args ...string) objects {
	t.Helper()
	key := strings.Join(args, " ")
	if rendered[key] == nil {
		text, err := helm(t, args...)
		must(t, err)
		rendered[key] = text
	}
	return parse(t, rendered[key])
}

// withValues returns the arguments that render the chart with files of values.
func withValues(files ...string) []string {
	args := slices.Clone(helmTemplate)
	for _, file := range files {
		args = append(args, "--values", file)
	}
	return args
}

// must ends the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func setValues(values ...string) []string {
	args := slices.Clone(helmTemplate)
	for _, v := range values {
		args = append(args, "--set", v)
	}
	return args
}

func helm(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	return run(t, "helm", args...)
}

// run returns the output of a program. It skips the test if PATH does not have the program.
func run(t *testing.T, program string, args ...string) ([]byte, error) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%v: run make verify, which builds it", err)
	}
	text, err := exec.CommandContext(t.Context(), program, args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return text, err
}

// parse decodes a stream of YAML documents. Helm adds some labels that manifests do not have; parse
// drops them.
func parse(t *testing.T, text []byte) objects {
	t.Helper()
	objs := objects{}
	for document := range strings.SplitSeq("\n"+string(text), "\n---\n") {
		var obj map[string]any
		if err := yaml.UnmarshalStrict([]byte(document+"\n"), &obj); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if obj == nil { // comments only
			continue
		}
		metadata, _ := obj["metadata"].(map[string]any)
		labels, _ := metadata["labels"].(map[string]any)
		delete(labels, "helm.sh/chart")
		delete(labels, "app.kubernetes.io/managed-by")
		id := fmt.Sprint(metadata["name"])
		if namespace, ok := metadata["namespace"]; ok {
			id = fmt.Sprint(namespace, "/", id)
		}
		id = fmt.Sprint(obj["kind"], " ", id)
		if objs[id] != nil {
			t.Fatalf("two objects %s", id)
		}
		objs[id] = obj
		sortEnvironment(obj)
	}
	return objs
}

// sortEnvironment sorts the environment variables of the containers of a Deployment by name. Their order has no effect
// here, and patches append theirs.
func sortEnvironment(obj map[string]any) {
	containers, _ := objects{"": obj}.lookup("", pod+"containers").([]any)
	for i := range containers {
		env, _ := objects{"": obj}.lookup("", fmt.Sprintf("%scontainers.%d.env", pod, i)).([]any)
		slices.SortStableFunc(env, func(a, b any) int {
			return strings.Compare(fmt.Sprint(a.(map[string]any)["name"]), fmt.Sprint(b.(map[string]any)["name"]))
		})
	}
}

// value returns the value at a path of an object, or nil. Dots separate the keys of the path (a dot
// in a key is written \.), and numbers select list elements.
func (o objects) value(t *testing.T, id, path string) any {
	t.Helper()
	if _, ok := o[id]; !ok {
		t.Fatalf("no %s is rendered", id)
	}
	return o.lookup(id, path)
}

// lookup is value for an object that exists.
func (o objects) lookup(id, path string) any {
	var at any = o[id]
	for key := range strings.SplitSeq(strings.ReplaceAll(path, `\.`, "\x00"), ".") {
		switch v := at.(type) {
		case map[string]any:
			at = v[strings.ReplaceAll(key, "\x00", ".")]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(v) {
				return nil
			}
			at = v[i]
		default:
			return nil
		}
	}
	return at
}

// fields are values by their paths in an object.
type fields = map[string]any

// want fails the test if the object has other values.
func (o objects) want(t *testing.T, id string, want fields) {
	t.Helper()
	for path, value := range want {
		if diff := cmp.Diff(value, o.value(t, id, path)); diff != "" {
			t.Errorf("%s of %s (-want +got):\n%s", path, id, diff)
		}
	}
}

// args returns the flags in the Deployment, which may be in any namespace: first those that environment variables set.
func (o objects) args(t *testing.T) (args []string) {
	t.Helper()
	for id := range o {
		if !strings.HasPrefix(id, "Deployment ") {
			continue
		}
		variables, _ := o.value(t, id, container+"env").([]any)
		for _, variable := range variables {
			v := variable.(map[string]any)
			if name, ok := strings.CutPrefix(fmt.Sprint(v["name"]), "KUBE_VITALS_"); ok {
				args = append(args, fmt.Sprintf("--%s=%v", strings.ReplaceAll(strings.ToLower(name), "_", "-"), v["value"]))
			}
		}
		command, _ := o.value(t, id, container+"command").([]any)
		for _, arg := range append(command, o.value(t, id, container+"args").([]any)...) {
			args = append(args, fmt.Sprint(arg))
		}
	}
	return args
}
