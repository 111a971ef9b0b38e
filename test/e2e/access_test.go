package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// direct sends a request straight to the port of kube-vitals, around the API server.
func direct(t *testing.T, path string, header http.Header) (status int, body string) {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(shared.Server.CA) {
		t.Fatal("the chart's Secret has no CA certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: shared.Server.Host}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+shared.Server.Address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestAnonymousMayAskForHealthOnly(t *testing.T) {
	for path, want := range map[string]int{
		"/livez":                            http.StatusOK,
		"/readyz":                           http.StatusOK,
		"/healthz":                          http.StatusOK,
		"/livez?verbose":                    http.StatusOK,
		"/livez/ping":                       http.StatusOK,
		"/readyz?verbose":                   http.StatusOK,
		"/metrics":                          http.StatusUnauthorized,
		"/":                                 http.StatusUnauthorized,
		"/apis":                             http.StatusUnauthorized,
		"/openapi/v3":                       http.StatusUnauthorized,
		"/debug/pprof/":                     http.StatusUnauthorized,
		"/debug/pprof/heap":                 http.StatusUnauthorized,
		"/debug/flags/v":                    http.StatusUnauthorized,
		"/configz":                          http.StatusUnauthorized,
		"/statusz":                          http.StatusUnauthorized,
		"/flagz":                            http.StatusUnauthorized,
		"/apis/metrics.k8s.io/v1/nodes":     http.StatusUnauthorized,
		"/apis/metrics.k8s.io/v1beta1/pods": http.StatusUnauthorized,
	} {
		if status, body := direct(t, path, nil); status != want {
			t.Errorf("%s: status %d, want %d:\n%s", path, status, want, body)
		}
	}
}

func TestProbesNameTheirChecks(t *testing.T) {
	_, ready := direct(t, "/readyz?verbose", nil)
	for _, check := range []string{"[+]nodes ok", "[+]pods ok", "[+]authentication ok"} {
		if !strings.Contains(ready, check) {
			t.Errorf("/readyz?verbose lacks %q:\n%s", check, ready)
		}
	}
	if _, live := direct(t, "/livez?verbose", nil); !strings.Contains(live, "[+]scraping ok") {
		t.Errorf("/livez?verbose does not name the scrape loop:\n%s", live)
	}
}

// TestNobodyLooksInsideWithoutRights asks the server itself, as a user whom it knows.
func TestNobodyLooksInsideWithoutRights(t *testing.T) {
	d := &disturbed{shared}
	nobody, administrator := newReader(t, shared.Server).with(d.user("nobody", "nothing")), d.administrator(t, shared.Server)
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/heap", "/debug/flags/v", "/configz", "/statusz", "/flagz"} {
		if status, body, err := nobody.get(t.Context(), path); err != nil || status != http.StatusForbidden {
			t.Errorf("%s: status %d, %v, want 403:\n%s", path, status, err, body)
		}
	}
	if err := administrator.ok(t.Context(), "/metrics"); err != nil {
		t.Errorf("who has the rights is refused as well: %v", err)
	}
}

// TestOldTLSIsRefused: nothing below 1.2, and both that there are above.
func TestOldTLSIsRefused(t *testing.T) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(shared.Server.CA)
	for version, want := range map[uint16]bool{
		tls.VersionTLS10: false,
		tls.VersionTLS11: false,
		tls.VersionTLS12: true,
		tls.VersionTLS13: true,
	} {
		config := &tls.Config{RootCAs: roots, ServerName: shared.Server.Host, MinVersion: version, MaxVersion: version}
		conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", shared.Server.Address)
		if err == nil {
			err = conn.Close()
		}
		if got := err == nil; got != want {
			t.Errorf("%s: %v, want a connection: %t", tls.VersionName(version), err, want)
		}
	}
}

// TestForgedRequestHeaders: only the API server's front proxy, which shows a certificate, may say
// who somebody is.
func TestForgedRequestHeaders(t *testing.T) {
	forged := http.Header{"X-Remote-User": {"system:admin"}, "X-Remote-Group": {"system:masters"}}
	status, body := direct(t, "/apis/metrics.k8s.io/v1/nodes", forged)
	if status != http.StatusUnauthorized {
		t.Errorf("status %d, want 401:\n%s", status, body)
	}
}

func TestAWrongTokenIsRefused(t *testing.T) {
	status, body := direct(t, "/apis/metrics.k8s.io/v1/nodes", http.Header{"Authorization": {"Bearer made-up"}})
	if status != http.StatusUnauthorized {
		t.Errorf("status %d, want 401:\n%s", status, body)
	}
}

func TestAUserNeedsRights(t *testing.T) {
	kubeconfig := shared.File("nobody.kubeconfig")
	if err := shared.WriteUserKubeconfig(kubeconfig, "nobody", "nothing"); err != nil {
		t.Fatal(err)
	}
	as := func(args ...string) (string, error) {
		return shared.Kubectl(t.Context(), append(args, "--kubeconfig", kubeconfig)...)
	}
	eventually(t, "the refusal of a user without rights", func(context.Context) error {
		out, err := as("top", "nodes")
		if err != nil && strings.Contains(err.Error(), "orbidden") {
			return nil
		}
		return fmt.Errorf("kubectl top nodes: %s, %w", out, err)
	})
	// The chart lets those who may view a namespace see what it uses.
	const namespace = "access"
	runPods(t, namespace, "node-01", "pod")
	kubectl(t, "create", "rolebinding", "nobody", "--clusterrole=view", "--user=nobody", "--namespace", namespace)
	eventually(t, "the role to take effect", func(context.Context) error {
		_, err := as("top", "pods", "--namespace", namespace)
		return err
	})
	if out, err := as("top", "pods", "--all-namespaces"); err == nil {
		t.Errorf("a user with rights in one namespace sees all:\n%s", out)
	}
	if out, err := as("get", "--raw", "/metrics"); err == nil {
		t.Errorf("a user without rights reads /metrics:\n%s", out)
	}
}
