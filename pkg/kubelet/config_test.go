package kubelet

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestNewClientErrors checks that NewClient reports all mistakes at once, by the names of fields,
// and shows no content of files.
func TestNewClientErrors(t *testing.T) {
	dir := t.TempDir()
	empty, junk := writeFile(t, dir, "empty", []byte("\n")), writeFile(t, dir, "junk", []byte("secret\njunk"))
	missing := filepath.Join(dir, "missing")
	tests := []struct {
		name   string
		config Config
		want   []string // parts of the error; none if there is no error
	}{
		{"defaults", Config{}, nil},
		{"numbers", Config{Port: 70000, Timeout: -time.Second, MaxBodyBytes: -1}, []string{
			"Port: Invalid value: 70000: must be from 1 to 65535", `Timeout: Invalid value: "-1s": must be above 0`,
			"MaxBodyBytes: Invalid value: -1: must be above 0"}},
		{"certificate without key", Config{ClientCertificate: missing},
			[]string{"ClientKey: Required value: with ClientCertificate"}},
		{"key without certificate", Config{ClientKey: missing},
			[]string{"ClientCertificate: Required value: with ClientKey"}},
		{"plain HTTP with TLS", Config{PlainHTTP: true, InsecureTLS: true, BearerTokenFile: missing},
			[]string{"InsecureTLS: Forbidden: has no meaning with PlainHTTP: leave one of them out"}},
		{"plain HTTP with files", Config{
			PlainHTTP: true, CertificateAuthority: junk, ClientCertificate: junk, ClientKey: junk},
			[]string{"CertificateAuthority: Forbidden: ", "ClientCertificate: Forbidden: ", "ClientKey: Forbidden: ",
				"cannot use the CA for kubelets: ", "cannot use the client certificate for kubelets: "}},
		{"insecure with CA", Config{InsecureTLS: true, CertificateAuthority: junk},
			[]string{"CertificateAuthority: Forbidden: has no meaning with InsecureTLS", "cannot use the CA for kubelets: "}},
		{"missing files", Config{CertificateAuthority: missing, ClientCertificate: missing, ClientKey: missing},
			[]string{"cannot use the CA for kubelets: open ", "cannot use the client certificate for kubelets: open "}},
		{"missing token", Config{BearerTokenFile: missing}, []string{"cannot use the bearer token for kubelets: open "}},
		{"invalid files", Config{CertificateAuthority: junk, BearerTokenFile: junk},
			[]string{junk + ": no certificate in PEM format", junk + ": invalid characters in the token"}},
		{"empty files", Config{CertificateAuthority: empty, BearerTokenFile: empty},
			[]string{empty + ": no certificate in PEM format", empty + ": no token"}},
		{"invalid inline", Config{Inline: Inline{
			CertificateAuthority: []byte("x"), ClientCertificate: []byte("x"), BearerToken: "a secret"}},
			[]string{"the CA in the kubeconfig", "the client certificate in the kubeconfig",
				"the bearer token in the kubeconfig"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := NewClient(tt.config)
			if (err == nil) != (tt.want == nil) {
				t.Fatalf("got error %v, want %q", err, tt.want)
			}
			if err == nil {
				return
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got error %v, want %q", err, want)
				}
			}
			if mistakes := strings.Count(err.Error(), "cannot use") + len(tt.config.Validate()); mistakes != len(tt.want) {
				t.Errorf("got %d mistakes, want %d: %v", mistakes, len(tt.want), err)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("got the content of a file: %v", err)
			}
		})
	}
}
