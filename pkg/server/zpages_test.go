package server

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestZPages checks that the library's z-pages name this program, and that flags which are marked
// as secret stay so.
func TestZPages(t *testing.T) {
	c, _ := newCluster(t).config(t)
	flags := c.Flags.FlagSet("test")
	flags.String("resolution", "15s", "")
	flags.String("secret", "hidden", "")
	if err := flags.SetAnnotation("secret", "classified", []string{"true"}); err != nil {
		t.Fatal(err)
	}
	h := startHandler(t, c)
	for path, want := range map[string][]string{
		"/statusz": {"kube-vitals statusz", "/nodez", "/metrics"},
		"/flagz":   {"kube-vitals flagz", "resolution"},
	} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer alice")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK || strings.Contains(w.Body.String(), "hidden") {
			t.Errorf("%s: got status %d: %s", path, w.Code, w.Body)
		}
		for _, part := range want {
			if !strings.Contains(w.Body.String(), part) {
				t.Errorf("%s does not have %q: %s", path, part, w.Body)
			}
		}
	}
}
