package kubelet

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestNewClientErrors checks that NewClient reports the mistakes of all files at once, and shows no
// content of them.
func TestNewClientErrors(t *testing.T) {
	dir := t.TempDir()
	empty, junk := writeFile(t, dir, "empty", []byte("\n")), writeFile(t, dir, "junk", []byte("secret\njunk"))
	missing := filepath.Join(dir, "missing")
	tests := []struct {
		name   string
		config Config
		want   []string // parts of the error; none if there is no error
	}{
		{"nothing", Config{}, nil},
		{"plain HTTP with files", Config{
			PlainHTTP: true, TLS: rest.TLSClientConfig{CAFile: junk, CertFile: junk, KeyFile: junk}},
			[]string{"cannot use the CA for kubelets: ", "cannot use the client certificate for kubelets: "}},
		{"missing files", Config{TLS: rest.TLSClientConfig{CAFile: missing, CertFile: missing, KeyFile: missing}},
			[]string{"cannot use the CA for kubelets: open ", "cannot use the client certificate for kubelets: open "}},
		{"missing token", Config{BearerTokenFile: missing}, []string{"cannot use the bearer token for kubelets: open "}},
		{"invalid files", Config{TLS: rest.TLSClientConfig{CAFile: junk}, BearerTokenFile: junk},
			[]string{junk + ": no certificate in PEM format", junk + ": invalid characters in the token"}},
		{"empty files", Config{TLS: rest.TLSClientConfig{CAFile: empty}, BearerTokenFile: empty},
			[]string{empty + ": no certificate in PEM format", empty + ": no token"}},
		{"invalid inline", Config{
			TLS: rest.TLSClientConfig{CAData: []byte("x"), CertData: []byte("x")}, BearerToken: "a secret"},
			[]string{"the CA in the kubeconfig", "the client certificate in the kubeconfig",
				"the bearer token in the kubeconfig"}},
	}
	for _, tt := range tests {
		text := ""
		if _, err := NewClient(tt.config); err != nil {
			text = err.Error()
		}
		isMissing := func(want string) bool { return !strings.Contains(text, want) }
		if slices.ContainsFunc(tt.want, isMissing) || strings.Count(text, "cannot use") != len(tt.want) ||
			(text == "") != (tt.want == nil) || strings.Contains(text, "secret") {
			t.Errorf("%s: got error %q, want %q", tt.name, text, tt.want)
		}
	}
}
