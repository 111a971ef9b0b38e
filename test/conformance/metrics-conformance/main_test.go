package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// apiServer serves discovery of metrics.k8s.io, and returns a kubeconfig for it.
func apiServer(t *testing.T, groups string) (kubeconfig string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/version":
			fmt.Fprint(w, `{"gitVersion":"v1.99.0"}`)
		case "/apis":
			fmt.Fprintf(w, `{"groups":[%s]}`, groups)
		case "/apis/metrics.k8s.io/v1beta1":
			fmt.Fprint(w, `{"resources":[]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: %q}}],
		contexts: [{name: c, context: {cluster: c, user: c}}], users: [{name: c, user: {}}], current-context: c}`, s.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const served = `{"name":"metrics.k8s.io","versions":[{"groupVersion":"metrics.k8s.io/v1beta1","version":"v1beta1"}]}`

func TestExitStatus(t *testing.T) {
	good, bad := apiServer(t, served), apiServer(t, "")
	for _, test := range []struct {
		args string
		code int
		want string // in the output or the error
	}{
		{"--workload none --run discovery/group --kubeconfig " + good, 0, "1 passed"},
		{"--workload none --run discovery/group --kubeconfig " + bad, 1, "expected the group metrics.k8s.io"},
		{"--workload none --run discovery/resources --kubeconfig " + good, 1, "kubernetes/design-proposals-archive"},
		{"--workload none --run nothing --kubeconfig " + good, 2, "no check has such an ID"},
		{"--kubeconfig /does/not/exist", 2, "--kubeconfig: "},
		{"--profile best --output yaml --run ( --kubeconfig " + good, 2, "--profile \"best\""},
		{"--output yaml --kubeconfig " + good, 2, "must be text, json or junit"},
		{"--run ( --kubeconfig " + good, 2, "--run: "},
		{"--disruptive --kubeconfig " + good, 2, "set all three or none"},
		{"--unknown", 2, "flag provided but not defined"},
		{"argument", 2, "unexpected argument"},
		{"--help", 0, "Exit status 0"},
		{"--list", 0, "values/window"},
	} {
		var stdout, stderr strings.Builder
		code, err := run(t.Context(), strings.Fields(test.args), &stdout, &stderr)
		got := fmt.Sprint(stdout.String(), stderr.String(), err)
		if code != test.code || !strings.Contains(got, test.want) {
			t.Errorf("%s: got status %d, want %d, and %q in\n%s", test.args, code, test.code, test.want, got)
		}
	}
}

func TestOutputFile(t *testing.T) {
	kubeconfig := apiServer(t, served)
	for output, begin := range map[string]string{"json": "{", "junit": "<?xml", "text": "passed"} {
		file := filepath.Join(t.TempDir(), "report")
		var stdout strings.Builder
		args := []string{"--kubeconfig", kubeconfig, "--workload=none", "--run=discovery/group", "--output", output, "-o",
			file}
		if code, err := run(t.Context(), args, &stdout, &stdout); code != 0 || err != nil {
			t.Fatalf("status %d, %v", code, err)
		}
		text, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(text), begin) {
			t.Errorf("%s: got %s, %v", output, text, err)
		}
		if output == "json" && !json.Valid(text) {
			t.Errorf("got %s", text)
		}
		if !strings.HasPrefix(stdout.String(), "passed ") {
			t.Errorf("got progress %q", stdout.String())
		}
	}
}

// TestShell runs the command of a user, who finds the node in the environment.
func TestShell(t *testing.T) {
	if err := shell(`test "$NODE" = node-1`)(t.Context(), "node-1"); err != nil {
		t.Error(err)
	}
	if err := shell("echo no such host >&2; exit 3")(t.Context(), "node-1"); err == nil || !strings.Contains(err.Error(),
		"no such host") {
		t.Errorf("got %v", err)
	}
}
