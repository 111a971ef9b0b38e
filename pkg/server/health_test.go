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

	"github.com/kube-vitals/kube-vitals/pkg/api"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
)

func TestUntilReady(t *testing.T) {
	var missing error
	ready := readiness{
		{"nodes", func() error { return missing }},
		{"pods", func() error { return nil }},
	}
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	h := untilReady(served, ready, serializer.NewCodecFactory(api.NewScheme()))
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w
	}

	missing = errors.New("secret inside")
	for _, path := range []string{"/apis", "/apis/metrics.k8s.io/v1/nodes", "/openapi/v2"} {
		w := get(path)
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: %d, Retry-After %q", path, w.Code, w.Header().Get("Retry-After"))
		}
		if body := w.Body.String(); !strings.Contains(body, `"reason":"ServiceUnavailable"`) || !strings.Contains(body, "tell: nodes\"") {
			t.Errorf("%s: %s", path, body)
		} else if strings.Contains(body, "secret") {
			t.Errorf("%s tells anybody of the inside: %s", path, body)
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/metrics", "/version"} {
		if w := get(path); w.Code != http.StatusTeapot {
			t.Errorf("%s is held up: %d", path, w.Code)
		}
	}
	missing = nil
	if w := get("/apis/metrics.k8s.io/v1/nodes"); w.Code != http.StatusTeapot {
		t.Errorf("when all is there: %d", w.Code)
	}
}

// settled is a scraper that has its first figures, or has not.
type settled bool

func (s *settled) WarmedUp() bool { return bool(*s) }

func TestReadyWaitsForFirstFigures(t *testing.T) {
	for name, test := range map[string]struct {
		synced, settled time.Duration // when, after the start
		ready           time.Duration // from when on
	}{
		"figures come soon":      {2 * time.Second, 5 * time.Second, 5 * time.Second},
		"there are none to come": {2 * time.Second, 0, 2 * time.Second},
		"figures do not come":    {2 * time.Second, time.Hour, 2*time.Second + settleTimeout},
		"the cluster is away":    {10 * time.Minute, 10*time.Minute + 5*time.Second, 10*time.Minute + 5*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var missing error
				var figures settled
				s := firstFigures(readiness{{"nodes", func() error { return missing }}}, &figures)
				for now := time.Duration(0); now <= test.ready+time.Second; now = time.Since(start) {
					missing, figures = nil, settled(now >= test.settled)
					if now < test.synced {
						missing = errors.New("not yet")
					}
					if err := s.check(); (err == nil) != (now >= test.ready) {
						t.Fatalf("after %v: %v", now, err)
					}
					time.Sleep(100 * time.Millisecond)
				}
				missing, figures = errors.New("again"), false
				if err := s.check(); err != nil {
					t.Errorf("ready once, but not for ever: %v", err)
				}
			})
		})
	}
}

// Whatever is wrong outside, the server is alive, and ready once it knows what exists; and probes
// need no rights.
func TestProbesOfAServerInTrouble(t *testing.T) {
	certificate := kubelettest.SelfSigned([]string{"node-a"}, nil)
	for name, test := range map[string]struct {
		nodes  int
		faults []kubelettest.Fault
		after  func(*cluster)
	}{
		"no nodes":              {},
		"a kubelet that hangs":  {nodes: 1, faults: []kubelettest.Fault{kubelettest.Hang}},
		"one that refuses":      {nodes: 1, faults: []kubelettest.Fault{kubelettest.Status(http.StatusForbidden)}},
		"one that never ends":   {nodes: 1, faults: []kubelettest.Fault{kubelettest.EndlessBody}},
		"the API server leaves": {nodes: 1, after: func(c *cluster) { c.away.Store(true); c.CloseClientConnections() }},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t)
			if test.nodes > 0 {
				fake := kubelettest.New("node-a", kubelettest.Config{})
				cluster.nodes = []corev1.Node{nodeAt("node-a", fake.Start(t, &certificate))}
				fake.SetFaults(test.faults...)
			}
			c, url := config(t, cluster)
			c.Kubelet.Timeout = 200 * time.Millisecond
			defer start(t, c)()
			client := newClient(t, url)
			client.until(http.StatusOK, "/readyz", "")
			if test.after != nil {
				test.after(cluster)
			}
			for path, checks := range map[string][]string{
				"/readyz": {"nodes", "pods", "authentication", "figures", "shutdown"}, "/livez": {"scraping", "ping"},
			} {
				response, body := client.get(path+"?verbose", "")
				if response.StatusCode != http.StatusOK {
					t.Errorf("%s: %d: %s", path, response.StatusCode, body)
				}
				for _, check := range checks {
					if !strings.Contains(body, "[+]"+check+" ok\n") {
						t.Errorf("%s does not name %s: %s", path, check, body)
					}
				}
				if strings.Contains(body, "node-a") || strings.Contains(body, "127.0.0.1") {
					t.Errorf("%s tells anybody of the inside: %s", path, body)
				}
			}
		})
	}
}
