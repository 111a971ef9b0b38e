package filter

import (
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// TestDrain opens a connection of HTTP/1 and one of HTTP/2, and begins the shutdown: each ends with its next response,
// and requests on others are served.
func TestDrain(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		shutdown := make(chan struct{})
		empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		server := httptest.NewUnstartedServer(WithDrain(empty, shutdown))
		server.EnableHTTP2 = protocol == "HTTP/2.0"
		server.StartTLS()
		defer server.Close()
		// send reports whether a connection was used again, and whether the response says that it ends.
		send := func() (isUsed, ends bool) {
			t.Helper()
			trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { isUsed = info.Reused }}
			r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != http.StatusOK || response.Proto != protocol {
				t.Fatalf("got %s by %s, want it by %s", response.Status, response.Proto, protocol)
			}
			return isUsed, response.Close
		}
		await := func(want bool) {
			t.Helper()
			for deadline := time.Now().Add(testenv.Patience); ; {
				if got, _ := send(); got == want {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s: no request has a connection that was used before: %v", protocol, want)
				}
			}
		}
		await(true)
		if _, ends := send(); ends {
			t.Errorf("%s: the connection ends before the shutdown", protocol)
		}
		close(shutdown)
		if _, ends := send(); ends != (protocol == "HTTP/1.1") { // HTTP/2 has a frame for that
			t.Fatalf("%s: the response says that the connection ends: %v", protocol, ends)
		}
		await(false)
	}
}
