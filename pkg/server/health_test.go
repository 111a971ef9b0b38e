package server

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/api"
)

func TestRejectUntilReady(t *testing.T) {
	var missing error
	ready := readiness{
		{"nodes", func() error { return missing }},
		{"pods", func() error { return nil }},
	}
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	h := rejectUntilServing(served, ready, serializer.NewCodecFactory(api.NewScheme()))
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w
	}

	missing = errors.New("secret reason")
	for _, path := range []string{"/apis", "/apis/metrics.k8s.io/v1/nodes", "/openapi/v2"} {
		w := get(path)
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: got status %d, Retry-After %q", path, w.Code, w.Header().Get("Retry-After"))
		}
		body := w.Body.String()
		if !strings.Contains(body, `"reason":"ServiceUnavailable"`) || !strings.Contains(body, `missing: nodes"`) {
			t.Errorf("%s: got %s", path, body)
		}
		if strings.Contains(body, "secret") {
			t.Errorf("%s: the response has the reason: %s", path, body)
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/metrics", "/version"} {
		if w := get(path); w.Code != http.StatusTeapot {
			t.Errorf("%s: got status %d", path, w.Code)
		}
	}
	missing = nil
	if w := get("/apis/metrics.k8s.io/v1/nodes"); w.Code != http.StatusTeapot {
		t.Errorf("once ready: got status %d", w.Code)
	}
}

func TestReadyWaitsForFirstMetrics(t *testing.T) {
	for name, test := range map[string]struct {
		synced, settled time.Duration // since the start
		ready           time.Duration
	}{
		"metrics arrive":         {2 * time.Second, 5 * time.Second, 5 * time.Second},
		"no nodes":               {2 * time.Second, 0, 2 * time.Second},
		"metrics do not arrive":  {2 * time.Second, time.Hour, 2*time.Second + firstMetricsTimeout},
		"API server unavailable": {10 * time.Minute, 10*time.Minute + 5*time.Second, 10*time.Minute + 5*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var missing error
				settled := false
				f := firstMetrics{
					required: readiness{{"nodes", func() error { return missing }}}, warmedUp: func() bool { return settled },
				}
				for now := time.Duration(0); now <= test.ready+time.Second; now = time.Since(start) {
					missing, settled = nil, now >= test.settled
					if now < test.synced {
						missing = errors.New("not synced")
					}
					if err := f.check(); (err == nil) != (now >= test.ready) {
						t.Fatalf("after %v: %v", now, err)
					}
					time.Sleep(100 * time.Millisecond)
				}
				missing, settled = errors.New("not synced"), false
				if err := f.check(); err != nil {
					t.Errorf("unready after it was ready: %v", err)
				}
			})
		})
	}
}

// TestProbesDuringFailures checks that failures of kubelets, and of the API server after start-up,
// leave the server live and ready, and that probes need no credentials.
func TestProbesDuringFailures(t *testing.T) {
	certificate := kubelettest.SelfSigned([]string{"node-a"}, nil)
	for name, test := range map[string]struct {
		nodes  int
		faults []kubelettest.Fault
		after  func(*cluster)
	}{
		"no nodes":                    {},
		"kubelet hangs":               {nodes: 1, faults: []kubelettest.Fault{kubelettest.Hang}},
		"kubelet denies access":       {nodes: 1, faults: []kubelettest.Fault{kubelettest.Status(http.StatusForbidden)}},
		"kubelet's body never ends":   {nodes: 1, faults: []kubelettest.Fault{kubelettest.EndlessBody}},
		"API server goes unavailable": {nodes: 1, after: (*cluster).goDown},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t)
			if test.nodes > 0 {
				fake := kubelettest.New("node-a", kubelettest.Config{})
				cluster.nodes = []corev1.Node{nodeAt("node-a", fake.Start(t, &certificate))}
				fake.SetFaults(test.faults...)
			}
			c, url := cluster.config(t)
			c.Kubelet.Timeout = 200 * time.Millisecond
			start(t, c)
			client := newClient(t, url)
			client.await(http.StatusOK, "/readyz", "")
			if test.after != nil {
				test.after(cluster)
			}
			for path, checks := range map[string][]string{
				"/readyz": {"nodes", "pods", "authentication", "metrics", "shutdown"}, "/livez": {"scraping", "ping"},
			} {
				response, body := client.get(path+"?verbose", "")
				if response.StatusCode != http.StatusOK {
					t.Errorf("%s: got status %d: %s", path, response.StatusCode, body)
				}
				for _, check := range checks {
					if !strings.Contains(body, "[+]"+check+" ok\n") {
						t.Errorf("%s: check %s is missing: %s", path, check, body)
					}
				}
				if strings.Contains(body, "node-a") || strings.Contains(body, "127.0.0.1") {
					t.Errorf("%s: the response has a node or an address: %s", path, body)
				}
			}
		})
	}
}

// TestHealthTellsNoReasons checks that the reason why a check fails, which may have internal
// addresses, is in no response of a probe.
func TestHealthTellsNoReasons(t *testing.T) {
	const secret = "10.1.2.3"
	h := mux.NewPathRecorderMux("test")
	failing := readiness{{"nodes", func() error { return errors.New("cannot reach " + secret) }}}
	healthz.InstallHandler(h, failing[0].probe())
	healthz.InstallLivezHandler(h, failing[0].probe())
	healthz.InstallReadyzHandler(h, failing[0].probe())
	for _, root := range []string{"/healthz", "/livez", "/readyz"} {
		for _, path := range []string{"", "?verbose", "?exclude=other", "/nodes", "/nodes?verbose", "/nodes/"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, root+path, nil))
			if w.Code == http.StatusOK || strings.Contains(w.Body.String(), secret) {
				t.Errorf("%s: got status %d: %s", root+path, w.Code, w.Body)
			}
		}
	}
	if names, reasons := failing.missing(); len(names) != 1 || !strings.Contains(reasons[0], secret) {
		t.Errorf("got %q, %q for the log", names, reasons)
	}
}
