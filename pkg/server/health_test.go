package server

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/kube-vitals/kube-vitals/pkg/api"
)

func TestUntilReady(t *testing.T) {
	var missing error
	ready := readiness{
		{"nodes", func() error { return missing }},
		{"pods", func() error { return nil }},
	}
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	h := untilReady(served, ready, serializer.NewCodecFactory(api.NewScheme()))
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w
	}

	missing = errors.New("secret inside")
	for _, path := range []string{"/apis", "/apis/metrics.k8s.io/v1/nodes", "/openapi/v2"} {
		w := get(path)
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: %d, Retry-After %q", path, w.Code, w.Header().Get("Retry-After"))
		}
		if body := w.Body.String(); !strings.Contains(body, `"reason":"ServiceUnavailable"`) || !strings.Contains(body, "tell: nodes\"") {
			t.Errorf("%s: %s", path, body)
		} else if strings.Contains(body, "secret") {
			t.Errorf("%s tells anybody of the inside: %s", path, body)
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/metrics", "/version"} {
		if w := get(path); w.Code != http.StatusTeapot {
			t.Errorf("%s is held up: %d", path, w.Code)
		}
	}
	missing = nil
	if w := get("/apis/metrics.k8s.io/v1/nodes"); w.Code != http.StatusTeapot {
		t.Errorf("when all is there: %d", w.Code)
	}
}
