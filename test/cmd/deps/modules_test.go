package main

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/flaky"
)

// TestBadNetwork downloads modules through a proxy whose responses break or hang in turn, with several
// seeds: all arrive, and afterwards nothing needs the network.
func TestBadNetwork(t *testing.T) {
	const modules = 6
	server := newModuleProxy(t)
	for seed := range uint64(2) {
		target, err := url.Parse(server.URL)
		must(t, err)
		bad := flaky.New(target)
		bad.Seed, bad.BreakOne, bad.HangOne = seed, 4, 7
		proxy := httptest.NewServer(bad)
		t.Cleanup(proxy.Close)
		var out strings.Builder
		m := newTestModule(t, proxy.URL, modules, &out)
		if err := m.download(t.Context()); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, out.String())
		}
		if bad.Broken.Load() == 0 || bad.Hung.Load() == 0 {
			t.Errorf("seed %d: %d responses broke and %d hung", seed, bad.Broken.Load(), bad.Hung.Load())
		}
		requests := bad.Requests.Load()
		must(t, m.download(t.Context()))
		if n := bad.Requests.Load() - requests; n != 0 {
			t.Errorf("seed %d: got %d requests for what is there", seed, n)
		}
	}
}

// TestNoNetwork expects an end after some attempts, with the name of what failed and what to do.
func TestNoNetwork(t *testing.T) {
	const attempts = 3
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	var out strings.Builder
	m := newTestModule(t, server.URL, 1, &out)
	m.retry.attempts, m.retry.stall = attempts, time.Hour // nothing hangs
	err := m.download(t.Context())
	if err == nil {
		t.Fatal("got no error")
	}
	for _, part := range []string{"download modules of " + m.folder, "example.org/m0@v1.0.0", "set GOPROXY"} {
		if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got error %q, want one line with %q", err, part)
		}
	}
	if n := strings.Count(out.String(), "next attempt"); n != m.retry.attempts-1 {
		t.Errorf("got %d further attempts, want %d", n, m.retry.attempts-1)
	}
}

// newTestModule returns a module that imports n modules, with an empty module cache.
func newTestModule(t *testing.T, proxy string, n int, out io.Writer) *module {
	t.Helper()
	folder := t.TempDir()
	for name, value := range map[string]string{
		"GOPROXY": proxy, "GOSUMDB": "off", "GONOSUMDB": "", "GOPRIVATE": "", "GOFLAGS": "-modcacherw -mod=mod",
		"GOMODCACHE": filepath.Join(folder, "cache"), "GOTOOLCHAIN": "local",
	} {
		t.Setenv(name, value)
	}
	mod, source := "module example.org/main\n\ngo 1.26\n\n", "package main\n\n"
	for i := range n {
		mod += fmt.Sprintf("require example.org/m%d v1.0.0\n", i)
		source += fmt.Sprintf("import _ \"example.org/m%d\"\n", i)
	}
	must(t, os.WriteFile(filepath.Join(folder, "go.mod"), []byte(mod), 0o600))
	must(t, os.WriteFile(filepath.Join(folder, "main.go"), []byte(source+"\nfunc main() {}\n"), 0o600))
	r := retry{attempts: 100, pause: time.Millisecond, stall: 500 * time.Millisecond}
	m, err := newModule(t.Context(), folder, r, out)
	must(t, err)
	return m
}

// newModuleProxy serves version v1.0.0 of any module: one package.
func newModuleProxy(t *testing.T) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		module, file, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/@v/")
		switch file {
		case "v1.0.0.info":
			fmt.Fprint(w, `{"Version": "v1.0.0"}`)
		case "v1.0.0.mod":
			fmt.Fprintf(w, "module %s\n\ngo 1.26\n", module)
		case "v1.0.0.zip":
			var text bytes.Buffer
			archive := zip.NewWriter(&text)
			for name, content := range map[string]string{"go.mod": "module " + module + "\n\ngo 1.26\n", "m.go": "package m\n"} {
				f, err := archive.Create(module + "@v1.0.0/" + name)
				if err == nil {
					_, err = io.WriteString(f, content)
				}
				if err != nil {
					t.Error(err)
				}
			}
			if err := archive.Close(); err != nil {
				t.Error(err)
			}
			_, _ = w.Write(text.Bytes())
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
