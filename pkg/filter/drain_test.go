package filter

import (
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// TestDrain opens a connection, and begins the shutdown: the connection ends with its next response, and requests on
// others are served.
func TestDrain(t *testing.T) {
	shutdown := make(chan struct{})
	empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	server := httptest.NewServer(
		WithRequestLimits(empty, &genericapiserver.Config{}, func() []string { return nil }, shutdown))
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
		if response.StatusCode != http.StatusOK {
			t.Fatalf("got %s", response.Status)
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
				t.Fatalf("no request has a connection that was used before: %v", want)
			}
		}
	}
	await(true)
	if _, ends := send(); ends {
		t.Error("the connection ends before the shutdown")
	}
	close(shutdown)
	if _, ends := send(); !ends {
		t.Fatal("the response does not say that the connection ends")
	}
	await(false)
}
