package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
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
	missing = errors.New("secret reason")
	for _, path := range []string{"/apis", "/apis/metrics.k8s.io/v1/nodes", "/openapi/v2"} {
		w := get(h, path, "")
		if body := w.Body.String(); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" ||
			!strings.Contains(body, `"ServiceUnavailable"`) || !strings.Contains(body, `missing: nodes"`) ||
			strings.Contains(body, "secret") {
			t.Errorf("%s: got status %d, header %v: %s", path, w.Code, w.Header(), body)
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/metrics", "/version"} {
		if code := serve(h, path, ""); code != http.StatusTeapot {
			t.Errorf("%s: got status %d", path, code)
		}
	}
	missing = nil
	if code := serve(h, nodesPath, ""); code != http.StatusTeapot {
		t.Errorf("once ready: got status %d", code)
	}
}

func TestReadyWaitsForFirstMetrics(t *testing.T) {
	for name, test := range map[string]struct {
		synced, settled time.Duration // since the start
		ready           time.Duration
	}{
		"metrics arrive":         {2 * time.Second, 5 * time.Second, 5 * time.Second},
		"no nodes":               {2 * time.Second, 0, 2 * time.Second},
		"metrics do not arrive":  {2 * time.Second, time.Hour, 32 * time.Second},
		"API server unavailable": {10 * time.Minute, 10*time.Minute + 5*time.Second, 10*time.Minute + 5*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var missing error
				settled := false
				f := firstMetrics{
					toServe: readiness{{"nodes", func() error { return missing }}}, warmedUp: func() bool { return settled },
				}
				for now := time.Duration(0); now <= test.ready+time.Second; now = time.Since(start) {
					missing, settled = nil, now >= test.settled
					if now < test.synced {
						missing = errors.New("not synced")
					}
					if err := f.check(); (err == nil) != (now >= test.ready) {
						t.Fatalf("after %v: %v", now, err)
					}
					time.Sleep(time.Second)
				}
				missing, settled = errors.New("not synced"), false
				if err := f.check(); err != nil {
					t.Errorf("unready after it was ready: %v", err)
				}
			})
		})
	}
}

// stuck is a source that reads nothing.
type stuck struct{ source }

func (stuck) Alive() error   { return errors.New("stuck") }
func (stuck) WarmedUp() bool { return false }

// TestChecks checks that a source that is stuck fails /livez, and that /readyz also waits for the serving
// certificate.
func TestChecks(t *testing.T) {
	a := assembly{
		Config: Config{ServingCert: managedCert()}, client: &rest.Config{Host: "http://api"},
		instruments: newTestInstruments(), source: stuck{},
	}
	if err := a.addServingCert(); err != nil {
		t.Fatal(err)
	}
	config := genericapiserver.NewConfig(serializer.NewCodecFactory(api.NewScheme()))
	a.addChecks(config, nil)
	for name, checks := range map[string][]healthz.HealthChecker{
		"scraping": config.LivezChecks, "metrics": config.ReadyzChecks, "serving-certificate": config.ReadyzChecks,
	} {
		if !slices.ContainsFunc(checks, func(c healthz.HealthChecker) bool {
			return c.Name() == name && c.Check(httptest.NewRequest(http.MethodGet, "/", nil)) != nil
		}) {
			t.Errorf("check %s does not fail, or is missing", name)
		}
	}
}

// TestProbesDuringFailures checks that failures of kubelets, and of the API server after start-up,
// leave the server live and ready, and that probes need no credentials.
func TestProbesDuringFailures(t *testing.T) {
	certificate := kubelettest.SelfSigned([]string{"node-a"}, nil)
	for name, faults := range map[string][]kubelettest.Fault{
		"no nodes":      nil,
		"kubelets fail": {kubelettest.Hang, kubelettest.Status(http.StatusForbidden), kubelettest.EndlessBody},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t)
			for i, fault := range faults {
				fake := kubelettest.New(fmt.Sprint("node-", i), kubelettest.Config{})
				fake.SetFaults(fault)
				cluster.add(nodeAt(fake.Name(), fake.Start(t, &certificate)))
			}
			c := cluster.config(t)
			c.Kubelet.Timeout = 200 * time.Millisecond
			client := startReady(t, c)
			checkProbes(t, client)
			cluster.goDown()
			checkProbes(t, client)
		})
	}
}

func checkProbes(t *testing.T, client *client) {
	t.Helper()
	for path, checks := range map[string][]string{
		"/readyz": {"nodes", "pods", "authentication", "metrics", "shutdown"}, "/livez": {"scraping", "ping"},
	} {
		response, body := client.get(path+"?verbose", "")
		if response.StatusCode != http.StatusOK || strings.Contains(body, "node-") || strings.Contains(body, "127.0.0.1") {
			t.Errorf("%s: got status %d: %s", path, response.StatusCode, body)
		}
		for _, check := range checks {
			if !strings.Contains(body, "[+]"+check+" ok\n") {
				t.Errorf("%s: check %s is missing: %s", path, check, body)
			}
		}
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
			if w := get(h, root+path, ""); w.Code == http.StatusOK || strings.Contains(w.Body.String(), secret) {
				t.Errorf("%s: got status %d: %s", root+path, w.Code, w.Body)
			}
		}
	}
	if names, reasons := failing.missing(); len(names) != 1 || !strings.Contains(reasons[0], secret) {
		t.Errorf("got %q, %q for the log", names, reasons)
	}
}
