package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	tests := []struct {
		version   string
		platforms []string
		want      []string // what each mistake says
	}{
		{version: "v1.2.3", platforms: []string{"linux/amd64", "linux/ppc64le"}},
		{version: "v0.0.0-195088b-dirty", platforms: []string{"linux/s390x"}},
		{version: "v0.1.0-3-g195088b", platforms: []string{"linux/arm64"}},
		{version: "1.2.3", platforms: []string{"linux/amd64"}, want: []string{`"1.2.3" is not a semantic version`}},
		{version: "v1.2.3-0123", platforms: []string{"linux/amd64"}, want: []string{`"v1.2.3-0123" is not`}},
		{
			version: "", platforms: []string{"", "windows/amd64", "linux/amd64"},
			want: []string{`"" is not a semantic version`, `"" is not a platform`, `"windows/amd64" is not a platform`},
		},
	}
	for _, test := range tests {
		t.Run(test.version, func(t *testing.T) {
			said := ""
			if err := (release{version: test.version, platforms: test.platforms}).validate(); err != nil {
				said = err.Error()
			}
			if got := strings.Count(said, " is not a"); got != len(test.want) {
				t.Errorf("%d mistakes, want %d:\n%s", got, len(test.want), said)
			}
			for _, want := range test.want {
				if !strings.Contains(said, want) {
					t.Errorf("does not say %q:\n%s", want, said)
				}
			}
		})
	}
}

func TestSettle(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	one := archive(t, time.Now(), map[string]string{"kube-vitals/Chart.yaml": "name: kube-vitals\n"})
	other := archive(t, time.Now().Add(-time.Hour), map[string]string{"kube-vitals/Chart.yaml": "name: kube-vitals\n"})
	if bytes.Equal(one, other) {
		t.Fatal("the archives differ in nothing")
	}
	settled, err := settle(one, at)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := settle(other, at); err != nil || !bytes.Equal(settled, again) {
		t.Errorf("the same files give other bytes (%v)", err)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(settled))
	if err != nil {
		t.Fatal(err)
	}
	header, err := tar.NewReader(unzipped).Next()
	if err != nil || header.Name != "kube-vitals/Chart.yaml" || !header.ModTime.Equal(at) || header.Size != 18 {
		t.Errorf("the file is %+v, %v", header, err)
	}
	if _, err := settle([]byte("no archive"), at); err == nil {
		t.Error("what is no archive is taken for one")
	}
}

// archive is a .tgz whose files are all of that time.
func archive(t *testing.T, at time.Time, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	to := tar.NewWriter(zipped)
	for name, content := range files {
		if err := to.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644, ModTime: at}); err != nil {
			t.Fatal(err)
		}
		if _, err := to.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestBill(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.0",
		Main:      debug.Module{Path: "example.org/Program"},
		Deps: []*debug.Module{
			{Path: "example.org/b", Version: "v1.0.0+incompatible", Sum: "h1:b"},
			{Path: "example.org/a", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/fork", Version: "v2.0.0", Sum: "h1:f"}},
		},
		Settings: []debug.BuildSetting{{Key: "CGO_ENABLED", Value: "0"}},
	}
	m := bill(info, "program", "v3.0.0", "abc")
	if got := m.Metadata.Component; got.PackageURL != "pkg:golang/example.org/program@v3.0.0" || got.Hashes[0].Content != "abc" ||
		!slices.Equal(got.Properties, []property{{"go:build:CGO_ENABLED", "0"}}) {
		t.Errorf("the program is %+v", got)
	}
	var got []string
	for _, c := range m.Components {
		got = append(got, c.PackageURL)
	}
	want := []string{
		"pkg:golang/example.org/b@v1.0.0%2Bincompatible", "pkg:golang/example.org/fork@v2.0.0", "pkg:golang/std@1.26.0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("components %q, want %q", got, want)
	}
}

func TestMaterialsOfARealBinary(t *testing.T) {
	program, err := os.Executable() // this test
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "program")
	if err := os.Symlink(program, binary); err != nil {
		t.Fatal(err)
	}
	if err := writeMaterials(binary, "v1.2.3"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(binary + ".cdx.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"bomFormat": "CycloneDX"`, `"alg": "SHA-256"`, `"name": "std"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the bill lacks %s:\n%s", want, text)
		}
	}
	if err := writeMaterials(binary+".cdx.json", "v1.2.3"); err == nil {
		t.Error("what is no binary has a bill")
	}
}

// TestPin sets the digest in the chart's values as they are, and expects an error where there is no
// place for it.
func TestPin(t *testing.T) {
	values, err := os.ReadFile("../../charts/kube-vitals/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func() string {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	digest := "sha256:" + strings.Repeat("0", 64)
	write(string(values))
	if err := pin(file, ""); err != nil || read() != string(values) {
		t.Errorf("without a digest the values change (%v)", err)
	}
	if err := pin(file, digest); err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(string(values), "\n  digest: \"\"\n", "\n  digest: "+digest+"\n", 1)
	if got := read(); got != want || got == string(values) {
		t.Errorf("the values become\n%s", got)
	}
	write("\nimage:\n  tag: a\n\nother:\n  digest: \"\"\n")
	if err := pin(file, digest); err == nil {
		t.Error("the digest of another section is set")
	}
}

// TestChecksums asks sha256sum, which is who will read them.
func TestChecksums(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeChecksums(folder); err != nil {
		t.Fatal(err)
	}
	check := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
		cmd.Dir = folder
		said, err := cmd.CombinedOutput()
		return string(said), err
	}
	if said, err := check(); err != nil || strings.Count(said, "OK") != 2 {
		t.Errorf("%v:\n%s", err, said)
	}
	if err := os.WriteFile(filepath.Join(folder, "a"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := check(); err == nil {
		t.Errorf("another file passes:\n%s", said)
	}
}
