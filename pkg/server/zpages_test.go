package server

import (
	"net/http"
	"strings"
	"testing"
)

// TestZPages checks that the library's z-pages name this program, and that flags which are marked
// as secret stay so.
func TestZPages(t *testing.T) {
	c := newCluster(t).config(t)
	flags := c.Flags.FlagSet("test")
	flags.String("resolution", "15s", "")
	flags.String("secret", "hidden", "")
	if err := flags.SetAnnotation("secret", "classified", []string{"true"}); err != nil {
		t.Fatal(err)
	}
	h := startReady(t, c).handler
	for path, want := range map[string][]string{
		"/statusz": {"kube-vitals statusz", "/nodez", "/metrics"},
		"/flagz":   {"kube-vitals flagz", "resolution"},
	} {
		w := get(h, path, "alice")
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
