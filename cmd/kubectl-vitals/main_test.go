package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kube-vitals/kube-vitals/pkg/doctor"
	"github.com/kube-vitals/kube-vitals/pkg/doctor/preflight"
)

func TestFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" && r.URL.Path != "/api" {
			out.WriteHeader(http.StatusForbidden)
			fmt.Fprint(out, `{"kind":"Status","code":403,"reason":"Forbidden","message":"u cannot do this"}`)
			return
		}
		fmt.Fprint(out, "{}")
	}))
	t.Cleanup(api.Close)
	stranger, noContext := file+"-stranger", file+"-no-context"
	for name, content := range map[string]string{
		stranger:  strings.ReplaceAll(kubeconfig, "https://127.0.0.1:1", api.URL),
		noContext: strings.ReplaceAll(kubeconfig, "current-context: c", ""),
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KUBECONFIG", "/missing")
	tests := []struct {
		args     []string
		code     int
		out, err string // parts of the output and of the error
	}{
		{[]string{}, exitHealthy, "kubectl vitals [command]", ""}, // nil means os.Args to cobra
		{[]string{"doctor", "--help"}, exitHealthy, "kubectl vitals doctor [flags]", ""},
		{[]string{"preflight", "--help"}, exitHealthy, "kubectl vitals preflight [flags]", ""},
		{[]string{"top", "--help"}, exitHealthy,
			"kubectl vitals top [workloads|pods|namespaces|nodes] [NAME...] [flags]", ""},
		{[]string{"top", "cats", "--sort-by=age", "-o=xml", "--timeout=0s", "--containers"}, exitUnexamined, "",
			"not \"cats\"\n--timeout must be above 0, but is 0s\n--sort-by must be"},
		{[]string{"top", "--output=text", "--kubeconfig=missing"}, exitUnexamined, "",
			"is \"text\"\ncannot use the kubeconfig"},
		{[]string{"top", "--kubeconfig", file}, exitUnexamined, "", "connection refused"},
		{[]string{"top", "pods", "--kubeconfig", stranger}, exitUnexamined, "", "u cannot do this"},
		{[]string{"--version"}, exitHealthy, "version v0.0.0-dev, commit unknown", ""},
		{[]string{"doktor"}, exitUnexamined, "", `unknown command "doktor"`},
		{[]string{"doctor", "--unknown"}, exitUnexamined, "", "--help"},
		{[]string{"doctor", "cluster"}, exitUnexamined, "", `unknown command "cluster"`},
		{[]string{"doctor", "-o", "yaml"}, exitUnexamined, "", "--output must be text or json"},
		{[]string{"doctor", "--timeout=0s"}, exitUnexamined, "", "--timeout must be above 0"},
		{[]string{"doctor"}, exitUnexamined, "", "no current context with a cluster in /missing"},
		{[]string{"doctor", "--kubeconfig=missing", "-o", "yaml"}, exitUnexamined, "", "set --kubeconfig or --context"},
		{[]string{"doctor", "--kubeconfig", file, "--context=missing"}, exitUnexamined, "", `"missing"`},
		{[]string{"doctor", "--kubeconfig", file}, exitUnexamined, "✗ API server", ""},
		{[]string{"doctor", "--kubeconfig", stranger}, exitUnexamined, "1 ok, 0 failed, 0 with a warning", ""},
		{[]string{"doctor", "--kubeconfig", noContext}, exitUnexamined, "", "no current context"},
		{[]string{"preflight", "--kubeconfig", file}, exitUnexamined, "✗ API server", ""},
		{[]string{"doctor", "--kubeconfig", file, "--output=json"}, exitUnexamined, `"reason": "api-server-unreachable"`, ""},
	}
	for _, tt := range tests {
		var out, errOut bytes.Buffer
		code := run(t.Context(), tt.args, &out, &errOut)
		if code != tt.code || !strings.Contains(out.String(), tt.out) || !strings.Contains(errOut.String(), tt.err) ||
			(tt.err == "") != (errOut.Len() == 0) {
			t.Errorf("%q: got %d, %q, %q, want %d, %q, %q", tt.args, code, out.String(), errOut.String(), tt.code, tt.out,
				tt.err)
		}
	}
}

// TestTopNamespaces checks where top reads.
func TestTopNamespaces(t *testing.T) {
	paths := make(chan string, 100)
	api := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		paths <- r.URL.Path
		out.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(api.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := strings.ReplaceAll(kubeconfig, "https://127.0.0.1:1", api.URL)
	config = strings.ReplaceAll(config, "user: u}", "user: u, namespace: shop}")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"": "/api/v1/namespaces/shop/pods", "pods": "/api/v1/namespaces/shop/pods", "po -n x": "/api/v1/namespaces/x/pods",
		"workloads -A": "/api/v1/pods", "ns": "/api/v1/pods", "ns -n x": "/api/v1/namespaces/x/pods",
		"no": "/api/v1/nodes", "nodes -n x": "/api/v1/pods",
	} {
		var out, errOut bytes.Buffer
		run(t.Context(), append([]string{"top", "--kubeconfig=" + file}, strings.Fields(args)...), &out, &errOut)
		found := want == ""
		for range len(paths) {
			found = <-paths == want || found
		}
		if !found {
			t.Errorf("top %s: did not read %s: %s", args, want, &errOut)
		}
	}
}

// kubeconfig is of a port where nothing listens.
const kubeconfig = `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
current-context: c
`

// build is a build of goreleaser.
type build struct {
	ID, Binary string
	Targets    []string
}

// TestKrewManifest checks what goreleaser makes the manifest of the plugin from.
func TestKrewManifest(t *testing.T) {
	text, err := os.ReadFile("../../.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Builds []build
		Krews  []struct {
			Name, Homepage, Description string
			ShortDescription            string `json:"short_description"`
			SkipUpload                  string `json:"skip_upload"`
			IDs                         []string
		}
		Release struct {
			ExtraFiles []struct{ Glob string } `json:"extra_files"`
		}
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	if len(config.Krews) != 1 {
		t.Fatalf("got %+v", config)
	}
	k := config.Krews[0]
	if k.Homepage == "" || k.Description == "" || k.SkipUpload != "true" ||
		k.ShortDescription == "" || len(k.ShortDescription) > 50 || !slices.Equal(k.IDs, []string{"plugin"}) {
		t.Errorf("got %+v", k)
	}
	i := slices.IndexFunc(config.Builds, func(b build) bool { return b.ID == "plugin" && b.Binary == "kubectl-"+k.Name })
	if i < 0 {
		t.Fatalf("there is no build of the plugin: %+v", config.Builds)
	}
	for _, target := range []string{"linux_amd64", "darwin_arm64", "windows_amd64"} {
		if !slices.Contains(config.Builds[i].Targets, target) {
			t.Errorf("the plugin is not built for %s", target)
		}
	}
	published := false
	for _, file := range config.Release.ExtraFiles {
		published = published || file.Glob == "dist/krew/"+k.Name+".yaml"
	}
	if !published {
		t.Errorf("a release does not publish the manifest: %+v", config.Release.ExtraFiles)
	}
}

// TestCommandsNameTheCluster checks that commands of a report are for the cluster that was examined.
func TestCommandsNameTheCluster(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" && r.URL.Path != "/api" {
			out.WriteHeader(http.StatusNotFound)
			fmt.Fprint(out, `{"kind": "Status", "apiVersion": "v1", "code": 404, "reason": "NotFound"}`)
			return
		}
		fmt.Fprint(out, "{}")
	}))
	t.Cleanup(api.Close)
	file := filepath.Join(t.TempDir(), "it's")
	content := strings.ReplaceAll(kubeconfig, "https://127.0.0.1:1", api.URL)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	quoted := "'" + strings.ReplaceAll(file, "'", `'\''`) + "'"
	for _, tt := range []struct{ command, want string }{
		{"doctor", "kubectl vitals preflight --context=c --kubeconfig=" + quoted + "\n"},
		{"preflight", ",image.tag=TAG --create-namespace --kube-context=c --kubeconfig=" + quoted + "\n"},
	} {
		var out, errOut bytes.Buffer
		run(t.Context(), []string{tt.command, "--kubeconfig=" + file, "--context=c"}, &out, &errOut)
		if !strings.Contains(out.String(), tt.want) {
			t.Errorf("%s: %q is missing in\n%s%s", tt.command, tt.want, out.String(), errOut.String())
		}
	}
}

// TestExitCode checks that a cluster is not healthy if only its API server could be examined.
func TestExitCode(t *testing.T) {
	reached := doctor.Check{ID: "api-server", Status: doctor.OK}
	for name, tt := range map[string]struct {
		check doctor.Check
		want  int
	}{
		"ok":      {doctor.Check{Status: doctor.OK}, exitHealthy},
		"warning": {doctor.Check{Status: doctor.Warning, Reason: "requests-pending"}, exitHealthy},
		"failed":  {doctor.Check{Status: doctor.Failed}, exitBroken},
		"headers": {doctor.Check{Status: doctor.OK, ID: "aggregation"}, exitUnexamined},
		"skipped": {doctor.Check{Status: doctor.Skipped}, exitUnexamined},
		"install": {doctor.Check{Status: doctor.Warning, ID: preflight.InstallStep, Reason: "incomplete"}, exitUnexamined},
		"timeout": {doctor.Check{Status: doctor.Warning, Reason: doctor.RequestFailed}, exitUnexamined},
	} {
		r := &doctor.Report{Checks: []doctor.Check{reached, tt.check}, Summary: map[doctor.Status]int{tt.check.Status: 1}}
		if got := exitCode(r); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
}
