package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

func TestDoctorArguments(t *testing.T) {
	tests := []struct {
		command []string
		want    []string
		ok      bool
	}{
		{[]string{"/kube-vitals", "--version"}, nil, false},
		{[]string{"/kube-vitals"}, nil, false},
		{[]string{"/kube-vitals", "doctor", "-o", "json"}, []string{"-o", "json"}, true},
		{[]string{"/usr/bin/kubectl-vitals"}, []string{}, true},
		{[]string{"kubectl-vitals.exe", "--all"}, []string{"--all"}, true},
		{[]string{"kubectl-vitals", "doctor", "--all"}, []string{"--all"}, true},
	}
	for _, tt := range tests {
		got, ok := doctorArguments(tt.command)
		if ok != tt.ok || ok && !slices.Equal(got, tt.want) {
			t.Errorf("%q: got %q, %v, want %q, %v", tt.command, got, ok, tt.want, tt.ok)
		}
	}
}

func TestDoctorFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil { // of a port on which nothing listens
		t.Fatal(err)
	}
	tests := []struct {
		args     []string
		code     int
		out, err string // parts of the output and of the error
	}{
		{[]string{"--help"}, exitHealthy, "kubectl vitals [flags]", ""},
		{[]string{"--version"}, exitHealthy, "kube-vitals v0.0.0-dev", ""},
		{[]string{"--unknown"}, exitUnexamined, "", "--help"},
		{[]string{"cluster"}, exitUnexamined, "", `unexpected argument "cluster"`},
		{[]string{"-o", "yaml"}, exitUnexamined, "", "--output must be text or json"},
		{[]string{"--timeout=0s"}, exitUnexamined, "", "--timeout must be above 0"},
		{[]string{"--kubeconfig=missing"}, exitUnexamined, "", "set --kubeconfig or --context"},
		{[]string{"--kubeconfig", file, "--context=missing"}, exitUnexamined, "", `"missing"`},
		{[]string{"--kubeconfig", file}, exitUnexamined, "✗ API server", ""},
		{[]string{"--kubeconfig", file, "--preflight"}, exitUnexamined, "✗ API server", ""},
		{[]string{"--preflight=x"}, exitUnexamined, "", "--preflight"},
		{[]string{"--kubeconfig", file, "--output=json"}, exitUnexamined, `"reason": "api-server-unreachable"`, ""},
	}
	for _, tt := range tests {
		var out, errOut bytes.Buffer
		code := runDoctor(t.Context(), tt.args, &out, &errOut)
		if code != tt.code || !strings.Contains(out.String(), tt.out) || !strings.Contains(errOut.String(), tt.err) ||
			(tt.err == "") != (errOut.Len() == 0) {
			t.Errorf("%q: got %d, %q, %q, want %d, %q, %q", tt.args, code, out.String(), errOut.String(), tt.code, tt.out,
				tt.err)
		}
	}
}

// TestKrewManifest checks what goreleaser makes the manifest of the plugin from.
func TestKrewManifest(t *testing.T) {
	text, err := os.ReadFile("../../.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Builds []struct{ Targets []string }
		Krews  []struct {
			Name, Homepage, Description string
			ShortDescription            string `json:"short_description"`
			SkipUpload                  string `json:"skip_upload"`
		}
		Release struct {
			ExtraFiles []struct{ Glob string } `json:"extra_files"`
		}
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	if len(config.Krews) != 1 || len(config.Builds) != 1 { // one binary in each archive
		t.Fatalf("got %+v", config)
	}
	k := config.Krews[0]
	if "kubectl-"+k.Name != pluginName || k.Homepage == "" || k.Description == "" || k.SkipUpload != "true" ||
		k.ShortDescription == "" || len(k.ShortDescription) > 50 {
		t.Errorf("got %+v", k)
	}
	for _, target := range []string{"linux_amd64", "darwin_arm64", "windows_amd64"} {
		if !slices.Contains(config.Builds[0].Targets, target) {
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
