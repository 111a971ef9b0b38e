package explain

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/leaktest"
	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// newClient returns a Client of an API server that responds as the handler does.
func newClient(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
	})
	return NewClient(corev1client.NewForConfigOrDie(&rest.Config{Host: server.URL, Transport: transport, QPS: -1}),
		testenv.Patience)
}

// TestClient checks that a lookup is a LIST of one object from the watch cache.
func TestClient(t *testing.T) {
	api := sim.NewAPI()
	api.Put("/api/v1/nodes/n7", corev1.Node{})
	api.Put("/api/v1/namespaces/shop/pods/web", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}})
	var last string
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		last = r.Method + " " + r.URL.RequestURI()
		api.ServeHTTP(w, r)
	})
	expect := func(request string) {
		t.Helper()
		if request += "&limit=1&resourceVersion=0"; last != request {
			t.Errorf("got request %s, want %s", last, request)
		}
	}
	pod, err := c.Pod(t.Context(), "shop", "web")
	if err != nil || pod == nil || pod.Status.Phase != corev1.PodFailed {
		t.Errorf("got %v, %v, want the pod", pod, err)
	}
	expect("GET /api/v1/namespaces/shop/pods?fieldSelector=metadata.name%3Dweb")
	if pod, err := c.Pod(t.Context(), "shop", "none"); pod != nil || err != nil {
		t.Errorf("got %v, %v, want no pod", pod, err)
	}
	if pod, err := c.Pod(t.Context(), "other", "web"); pod != nil || err != nil {
		t.Errorf("got %v, %v, want no pod of another namespace", pod, err)
	}
	for name, want := range map[string]bool{"n7": true, "n8": false} {
		if got, err := c.NodeExists(t.Context(), name); got != want || err != nil {
			t.Errorf("node %s: got %t, %v, want %t", name, got, err, want)
		}
		expect("GET /api/v1/nodes?fieldSelector=metadata.name%3D" + name)
	}
}

func TestClientErrors(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"forbidden": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"not a list": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusSuccess})
		},
		"garbage": func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>")) },
	} {
		c := newClient(t, handler)
		if pod, err := c.Pod(t.Context(), "shop", "web"); err == nil {
			t.Errorf("%s: got pod %v without an error", name, pod)
		}
		if exists, err := c.NodeExists(t.Context(), "n7"); err == nil {
			t.Errorf("%s: got node %t without an error", name, exists)
		}
	}
}

// TestSlowLookup checks that a lookup ends after its timeout, and at once with its request.
func TestSlowLookup(t *testing.T) {
	c := newClient(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	c.timeout = 50 * time.Millisecond
	if _, err := c.Pod(t.Context(), "shop", "web"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want the timeout", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.NodeExists(ctx, "n7"); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want canceled", err)
	}
}

// TestLookupsAreLimited checks that at most the burst, and the few that the time of the test
// allows, reach the API server.
func TestLookupsAreLimited(t *testing.T) {
	api := sim.NewAPI()
	c := newClient(t, api.ServeHTTP)
	const tries = 100
	throttled := 0
	start := time.Now()
	for i := range tries {
		var err error
		if i%2 == 0 {
			_, err = c.Pod(t.Context(), "shop", "web")
		} else {
			_, err = c.NodeExists(t.Context(), "n7")
		}
		if errors.Is(err, errThrottled) {
			throttled++
		}
	}
	most := int64(lookupBurst + 5*time.Since(start).Seconds() + 1) // 5 per second, as docs/security.md says
	n := int64(api.Requested("/api/v1/nodes", "/api/v1/namespaces/shop/pods"))
	if n < lookupBurst || n > most || int(n)+throttled != tries {
		t.Errorf("got %d requests and %d throttled lookups of %d, want %d to %d requests",
			n, throttled, tries, lookupBurst, most)
	}
}
