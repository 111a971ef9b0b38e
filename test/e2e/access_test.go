package e2e

import (
	"context"
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
)

func TestAnonymousAccess(t *testing.T) {
	t.Parallel()
	awaitReady(t)
	client := newClient(t, shared.server)
	for want, paths := range map[int]string{
		http.StatusOK: "/livez /readyz /healthz /livez?verbose /livez/ping /readyz?verbose",
		http.StatusUnauthorized: privatePaths +
			" / /apis /openapi/v3 /apis/metrics.k8s.io/v1/nodes /apis/metrics.k8s.io/v1beta1/pods",
	} {
		for _, path := range strings.Fields(paths) {
			client.wantStatus(t, path, want)
		}
	}
}

// privatePaths need permissions of their own.
const privatePaths = "/metrics /debug/pprof/ /debug/pprof/heap /debug/flags/v /nodez /statusz /flagz"

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
	newClient(t, shared.server).withToken("made-up").wantStatus(t, path, http.StatusUnauthorized)
	forged := newClient(t, shared.server) // without the front proxy's certificate
	forged.header = http.Header{"X-Remote-User": {"system:admin"}, "X-Remote-Group": {"system:masters"}}
	forged.wantStatus(t, path, http.StatusUnauthorized)
}

// TestUnauthorizedUser sends requests directly to the server, as a user whom it authenticates.
func TestUnauthorizedUser(t *testing.T) {
	t.Parallel()
	user := shared.as(t, shared.server, "user", "")
	for _, path := range strings.Fields(privatePaths) {
		user.wantStatus(t, path, http.StatusForbidden)
	}
	shared.asAdmin(t, shared.server).wantStatus(t, "/metrics", http.StatusOK)
}

func TestMinimumTLSVersion(t *testing.T) {
	t.Parallel()
	awaitReady(t)
	for _, version := range []uint16{tls.VersionTLS10, tls.VersionTLS11, tls.VersionTLS12, tls.VersionTLS13} {
		client := newClient(t, shared.server)
		client.transport.TLSClientConfig.MinVersion = version
		client.transport.TLSClientConfig.MaxVersion = version
		err := client.ok(t.Context(), "/livez")
		if want := version >= tls.VersionTLS12; (err == nil) != want {
			t.Errorf("%s: got error %v, want success: %t", tls.VersionName(version), err, want)
		}
	}
}
