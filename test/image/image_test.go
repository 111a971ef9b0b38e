// Package image tests what describes the image: the Dockerfile, whose build stage it runs with another go command, and
// the lists of platforms.
package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// find returns the group of the only match.
func find(t *testing.T, text, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1)
	if len(found) != 1 {
		t.Fatalf("%d matches of %s, want 1", len(found), pattern)
	}
	return found[0][1]
}

// TestSourcesAreCopied checks that the Dockerfile copies all folders that the server is built from.
func TestSourcesAreCopied(t *testing.T) {
	command := exec.CommandContext(t.Context(), "go", "list", "-deps",
		"-f", "{{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}", "./cmd/kube-vitals")
	command.Dir = root
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	checkout, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dockerfile := read(t, "Dockerfile")
	for _, folder := range strings.Fields(string(out)) {
		folder, _ = filepath.Rel(checkout, folder)
		top, _, _ := strings.Cut(filepath.ToSlash(folder), "/")
		if !strings.Contains(dockerfile, "\nCOPY "+top+" "+top+"\n") {
			t.Errorf("the server is built from %s, which is not copied", folder)
		}
	}
}

// TestEntrypoints builds the content of the image, with a go command that writes a script as the binary. It must
// have the program under the name of metrics-server, which manifests may set as the command.
func TestEntrypoints(t *testing.T) {
	folder := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(folder, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("bin/go", `#!/bin/sh
while [ "$1" != -o ]; do shift; done
mkdir -p "${2%/*}" && printf '#!/bin/sh\necho %s' "$GOARCH/v$GOARM" >"$2" && chmod +x "$2"
`)
	write("etc/ssl/certs/ca-certificates.crt", "CA roots")
	script := find(t, read(t, "Dockerfile"), `(?s)RUN --mount=\S+ \\\n( +CGO_ENABLED=.*?[^\\])\n`)
	script = strings.ReplaceAll(strings.ReplaceAll(script, "/image", folder+"/image"), " /etc/", " "+folder+"/etc/")
	command := exec.Command("sh", "-ec", script)
	command.Env = []string{
		"PATH=" + folder + "/bin:" + os.Getenv("PATH"), "TARGETOS=linux", "TARGETARCH=arm", "TARGETVARIANT=v7",
	}
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, script, out)
	}

	entrypoint := find(t, read(t, "Dockerfile"), `(?m)^ENTRYPOINT \["(.*)"\]$`)
	program, err := os.Stat(folder + "/image" + entrypoint)
	if err != nil {
		t.Fatal(err)
	}
	// The link must not point out of the image.
	if target, err := os.Readlink(folder + "/image/metrics-server"); err != nil || filepath.IsAbs(target) {
		t.Errorf("/metrics-server leads to %q, error %v", target, err)
	}
	if linked, err := os.Stat(folder + "/image/metrics-server"); err != nil || !os.SameFile(linked, program) {
		t.Errorf("/metrics-server is not %s: %v", entrypoint, err)
	}
	if out, err := exec.Command(folder + "/image/metrics-server").Output(); string(out) != "arm/v7\n" {
		t.Errorf("/metrics-server prints %q, error %v", out, err)
	}
	// The roots that engines and OAuth2 servers are verified with.
	if roots, err := os.ReadFile(folder + "/image/etc/ssl/certs/ca-certificates.crt"); string(roots) != "CA roots" {
		t.Errorf("the CA roots are %q, error %v", roots, err)
	}
	if tmp, err := os.Stat(folder + "/image/tmp"); err != nil || tmp.Mode()&os.ModeSticky == 0 {
		t.Errorf("/tmp: %v", err)
	}
}

// TestBuildImage checks that the image to build in is pinned, and has the Go version of the module: with another one,
// the image would have a version that no test has run with.
func TestBuildImage(t *testing.T) {
	version := find(t, read(t, "go.mod"), `(?m)^go (\S+)$`)
	if got := find(t, read(t, "Dockerfile"), `(?m)^ARG BUILD_IMAGE=golang:(\S+)@sha256:[0-9a-f]{64}$`); got != version {
		t.Errorf("the Dockerfile builds with Go %s, go.mod says %s", got, version)
	}
}

// TestPlatforms checks that the image, the chart and the files of a release name the same platforms.
func TestPlatforms(t *testing.T) {
	split := func(list, separator string) []string {
		platforms := strings.Split(list, separator)
		slices.Sort(platforms)
		return platforms
	}
	image := split(find(t, read(t, ".github/image.sh"), `(?m)platforms=(linux/amd64,\S+)$`), ",")
	chart := split(find(t, read(t, "charts/kube-vitals/Chart.yaml"), `(?m)platforms: \[(.*)\]$`), ", ")
	files := find(t, read(t, ".goreleaser.yaml"), `(?m)binary: kube-vitals\n.*\n    targets: \[(.*)\]$`)
	files = strings.NewReplacer("_arm_7", "/arm/v7", "_", "/").Replace(files)
	if !slices.Equal(image, chart) || !slices.Equal(image, split(files, ", ")) {
		t.Errorf("the platforms differ: image %v, chart %v, files %v", image, chart, files)
	}
}

// TestLicenses checks that the image has the licenses, which .dockerignore would leave out.
func TestLicenses(t *testing.T) {
	copied := find(t, read(t, "Dockerfile"), `(?m)^COPY (.*) /licenses/$`)
	for _, name := range []string{"LICENSE", "THIRD_PARTY_LICENSES"} {
		read(t, name)
		if !slices.Contains(strings.Fields(copied), name) ||
			!slices.Contains(strings.Split(read(t, ".dockerignore"), "\n"), "!"+name) {
			t.Errorf("the image does not have %s", name)
		}
	}
}
