package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"testing"
)

func TestAnonymousAccess(t *testing.T) {
	t.Parallel()
	awaitReady(t)
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
		"/nodez":                            http.StatusUnauthorized,
		"/statusz":                          http.StatusUnauthorized,
		"/flagz":                            http.StatusUnauthorized,
		"/apis/metrics.k8s.io/v1/nodes":     http.StatusUnauthorized,
		"/apis/metrics.k8s.io/v1beta1/pods": http.StatusUnauthorized,
	} {
		newClient(t, shared.server).wantStatus(t, path, want)
	}
}

// awaitReady waits until the shared server is ready, which needs the first metrics. Its APIServices
// are available before.
func awaitReady(t *testing.T) {
	t.Helper()
	eventually(t, "kube-vitals to be ready", func(ctx context.Context) error {
		return newClient(t, shared.server).ok(ctx, "/readyz")
	})
}

func TestInvalidCredentials(t *testing.T) {
	t.Parallel()
	const path = "/apis/metrics.k8s.io/v1/nodes"
	t.Run("token", func(t *testing.T) {
		newClient(t, shared.server).withToken("made-up").wantStatus(t, path, http.StatusUnauthorized)
	})
	t.Run("request headers without the front proxy's certificate", func(t *testing.T) {
		forged := newClient(t, shared.server)
		forged.header = http.Header{"X-Remote-User": {"system:admin"}, "X-Remote-Group": {"system:masters"}}
		forged.wantStatus(t, path, http.StatusUnauthorized)
	})
}

// TestUnauthorizedUser sends requests directly to the server, as a user whom it authenticates.
func TestUnauthorizedUser(t *testing.T) {
	t.Parallel()
	user, admin := shared.as(t, shared.server, "user", ""), shared.asAdmin(t, shared.server)
	for _, path := range []string{
		"/metrics", "/debug/pprof/", "/debug/pprof/heap", "/debug/flags/v", "/configz", "/nodez", "/statusz", "/flagz",
	} {
		user.wantStatus(t, path, http.StatusForbidden)
	}
	admin.wantStatus(t, "/metrics", http.StatusOK)
}

func TestMinimumTLSVersion(t *testing.T) {
	t.Parallel()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(shared.server.CA)
	for version, want := range map[uint16]bool{
		tls.VersionTLS10: false,
		tls.VersionTLS11: false,
		tls.VersionTLS12: true,
		tls.VersionTLS13: true,
	} {
		config := &tls.Config{RootCAs: roots, ServerName: shared.server.Host, MinVersion: version, MaxVersion: version}
		conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", shared.server.Address)
		if err == nil {
			err = conn.Close()
		}
		if got := err == nil; got != want {
			t.Errorf("%s: got error %v, want success: %t", tls.VersionName(version), err, want)
		}
	}
}
