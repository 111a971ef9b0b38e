package conformance

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// serveFile responds to every request with a file.
type serveFile struct{ name, contentType string }

func (s serveFile) RoundTrip(*http.Request) (*http.Response, error) {
	body, err := os.ReadFile(s.name)
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {s.contentType}},
		Body: io.NopCloser(bytes.NewReader(body)),
	}, err
}

// TestGoldenFixtures reads the golden fixtures of k8s.io/metrics as responses: the same object in
// every format.
func TestGoldenFixtures(t *testing.T) {
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/metrics").Output()
	if err != nil {
		t.Fatal(err)
	}
	fixtures := filepath.Join(strings.TrimSpace(string(dir)), "pkg", "apis", "testdata", "HEAD")
	for _, version := range versions {
		for resource, kind := range resources {
			name := filepath.Join(fixtures, group+"."+version+"."+kind)
			read := func(suffix, contentType string) *list {
				t.Helper()
				c, err := newClient(&rest.Config{Host: "http://fixtures", Transport: serveFile{name + suffix, contentType}})
				if err != nil {
					t.Fatal(err)
				}
				l, err := c.list(t.Context(), path(version, resource, "", ""), contentType)
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			want := read(".json", typeJSON)
			if o := want.Items; len(o) != 1 || want.kind != kind || o[0].Timestamp.IsZero() ||
				o[0].Window.Duration == 0 || len(o[0].usages()) != 1 {
				t.Errorf("%s: got %+v", name, want)
			}
			for suffix, contentType := range map[string]string{".yaml": typeYAML, ".pb": typeProtobuf} {
				if err := equal(want, read(suffix, contentType)); err != nil {
					t.Errorf("%s%s: %v", name, suffix, err)
				}
			}
		}
	}
}
