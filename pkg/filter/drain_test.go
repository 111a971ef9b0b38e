package filter

import (
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
)

// TestDrain opens connections of HTTP/1 and HTTP/2, and begins the shutdown: each has one response more, and ends.
func TestDrain(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		shutdown := make(chan struct{})
		empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		server := httptest.NewUnstartedServer(WithDrain(empty, shutdown))
		server.EnableHTTP2 = protocol == "HTTP/2.0"
		server.StartTLS()
		defer server.Close()
		for request, want := range []bool{false, true, true, false, false} { // whether the connection was used before
			if request == 2 {
				close(shutdown)
			}
			reused := false
			trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
			r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := server.Client().Do(r)
			if err != nil {
				t.Fatalf("%s, request %d: %v", protocol, request, err)
			}
			response.Body.Close()
			if response.StatusCode != http.StatusOK || response.Proto != protocol || reused != want {
				t.Errorf("%s, request %d: got status %d by %s on a used connection: %v, want %v",
					protocol, request, response.StatusCode, response.Proto, reused, want)
			}
		}
	}
}
