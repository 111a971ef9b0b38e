package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestNewClientReportsAllMistakes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	empty, junk := write("empty", "\n"), write("junk", "secret\njunk")
	missing := filepath.Join(dir, "missing")
	tests := []struct {
		name   string
		config Config
		want   []string // one for each line of the error
	}{
		{"nothing", Config{}, nil},
		{"numbers", Config{Port: 70000, Timeout: -time.Second, MaxBodyBytes: -1},
			[]string{"--kubelet-port is 70000", "--kubelet-request-timeout is -1s", "bound on a kubelet's answer is -1"}},
		{"half a pair", Config{ClientCertificate: missing}, []string{"needed together"}},
		{"plain HTTP", Config{PlainHTTP: true, InsecureTLS: true, BearerTokenFile: missing},
			[]string{"--kubelet-insecure-tls has no meaning with --deprecated-kubelet-completely-insecure"}},
		{"plain HTTP with files", Config{PlainHTTP: true, CertificateAuthority: junk, ClientKey: junk},
			[]string{"--kubelet-certificate-authority has no meaning", "--kubelet-client-key has no meaning", "needed together",
				"cannot use --kubelet-certificate-authority"}},
		{"insecure with an authority", Config{InsecureTLS: true, CertificateAuthority: junk},
			[]string{"--kubelet-insecure-tls verifies nothing", "cannot use --kubelet-certificate-authority"}},
		{"files that are missing", Config{CertificateAuthority: missing, ClientCertificate: missing, ClientKey: missing,
			BearerTokenFile: missing}, []string{"cannot use --kubelet-certificate-authority: open ",
			"cannot use --kubelet-client-certificate and --kubelet-client-key: open ", "cannot use the bearer token for kubelets: open "}},
		{"files of another kind", Config{CertificateAuthority: junk, ClientCertificate: junk, ClientKey: junk,
			BearerTokenFile: junk}, []string{"no PEM certificate", "--kubelet-client-certificate", "characters that no token has"}},
		{"empty files", Config{CertificateAuthority: empty, BearerTokenFile: empty},
			[]string{"no PEM certificate", "no token in it"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := NewClient(tt.config)
			if err == nil {
				if len(tt.want) > 0 {
					t.Fatal("no error")
				}
				return
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(tt.want) {
				t.Errorf("%d mistakes, want %d:\n%v", len(lines), len(tt.want), err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("nothing says %q:\n%v", want, err)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows the content of a file: %v", err)
			}
		})
	}
}
