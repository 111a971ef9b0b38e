package servingcert

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/internal/sim"
)

// leadsTo returns a patch of the spec of an APIService.
func leadsTo(key string, value any) map[string]any {
	return map[string]any{"service": map[string]any{key: value}}
}

// wrongAPIServices do not lead to this server, or do not verify it.
var wrongAPIServices = map[string]struct {
	spec  map[string]any // as a patch
	state APIServiceState
	log   []string
}{
	"leads elsewhere": {
		leadsTo("name", "metrics-server"), APIServiceState{Misdirected: true},
		[]string{
			"leads elsewhere", "kubectl vitals doctor",
			"Service kube-system/metrics-server, port 443, instead of kube-system/kube-vitals, port 443",
		}},
	"leads to another namespace": {
		leadsTo("namespace", "other"), APIServiceState{Misdirected: true},
		[]string{"leads elsewhere", "Service other/kube-vitals"}},
	"leads elsewhere and skips verification": {
		map[string]any{"service": map[string]any{"name": "metrics-server"}, "insecureSkipTLSVerify": true},
		APIServiceState{Misdirected: true, InsecureSkipTLSVerify: true},
		[]string{"leads elsewhere", "Service kube-system/metrics-server"}},
	"skips verification": {
		map[string]any{"insecureSkipTLSVerify": true}, APIServiceState{InsecureSkipTLSVerify: true},
		[]string{"skips verification", "insecureSkipTLSVerify is true", "caBundle"}},
	"served by the API server itself": {
		map[string]any{"service": nil}, APIServiceState{Misdirected: true},
		[]string{"leads elsewhere", "spec.service is missing"}},
}

// checkStates checks the states of both APIServices.
func (w *world) checkStates(m *Monitor, ofStable, ofBeta APIServiceState) {
	w.t.Helper()
	for name, want := range map[string]APIServiceState{stable: ofStable, beta: ofBeta} {
		if got, ok := m.States()[name]; !ok || got != want {
			w.t.Errorf("got state %+v, %t of %s, want %+v", got, ok, name, want)
		}
	}
}

// TestWrongAPIServices checks that a Manager logs and reports an APIService that does not lead to its
// Service, or that is missing, and does not change it. A Manager that starts meanwhile becomes ready.
func TestWrongAPIServices(t *testing.T) {
	simulate(t, 1, func(t *testing.T, w *world) {
		m, right := w.replicas[0].monitor, APIServiceState{}
		checkUnchanged := func(name string) {
			t.Helper()
			w.sleep(3 * time.Minute)
			if got := w.caBundle(beta); len(got) != 0 || len(w.caBundle(stable)) == 0 {
				t.Errorf("%s: got caBundle %q of v1beta1 and %d bytes of v1, want it in v1 only", name, got,
					len(w.caBundle(stable)))
			}
		}
		checkBecomesReady := func(name string) {
			t.Helper()
			r := w.start()
			defer r.stop()
			w.sleep(time.Minute)
			if err := r.Ready(); err != nil {
				t.Errorf("%s: Ready() = %v of a new replica, want nil", name, err)
			}
		}
		w.checkStates(m, right, right)
		w.checkLog(0, "The APIService")
		n := 0
		for name, c := range wrongAPIServices {
			n++
			before := len(w.log.String())
			w.api.Put(apiServicePath+beta, apiServiceWith(c.spec))
			checkUnchanged(name)
			w.checkStates(m, right, c.state)
			log := w.log.String()[before:]
			if got := strings.Count("\n"+log, "\nE"); got != 1 {
				t.Errorf("%s: got %d errors in the log, want 1:\n%s", name, got, log)
			}
			for _, want := range append(c.log, beta) {
				if !strings.Contains(log, want) {
					t.Errorf("%s: got log, want %q:\n%s", name, want, log)
				}
			}
			w.api.Put(apiServicePath+beta, apiServiceWith(nil))
			w.sleep(time.Second)
			w.checkBundles("after "+name, string(w.caBundle(stable)))
			w.checkStates(m, right, right)
			w.checkLog(n, "right again")
		}
		w.api.Put(apiServicePath+beta, nil)
		checkUnchanged("missing")
		w.checkLog(1, `apiService="v1beta1.metrics.k8s.io" reason="not found"`)
		if _, ok := m.States()[beta]; ok {
			t.Error("an APIService that does not exist has a state")
		}
		checkBecomesReady("missing")
		delete(w.lags, apiServicePath+beta) // no client uses it
		if n := w.advance(lifetime); n < 2 {
			t.Errorf("missing: got %d certificates in a lifetime, want at least 2", n)
		}
		w.api.Put(apiServicePath+beta, apiServiceWith(leadsTo("name", "metrics-server")))
		checkBecomesReady("leads elsewhere")
	})
}

// TestMonitorWithoutPermission checks that a missing permission is logged once, at -v=2, that a Monitor
// without a Manager sees changes, and that the states survive an outage of the API server.
func TestMonitorWithoutPermission(t *testing.T) {
	t.Parallel()
	for verbosity, lines := range []int{0, 0, 2} { // one for each APIService
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.api.Forbid("", "")
			m, err := NewMonitor(Config{Client: w.api.Config(), Service: host, APIServices: []string{stable, beta}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.run(m, verbosity)) // without a Manager, as without --tls-secret
			w.sleep(time.Hour)
			if got := m.States(); len(got) != 0 {
				t.Errorf("got states %+v, want none", got)
			}
			w.checkLog(lines, "not allowed by RBAC")
			w.api.RefuseBy(nil)
			w.sleep(forbiddenPeriod)
			w.checkStates(m, APIServiceState{}, APIServiceState{})
			w.api.Put(apiServicePath+beta, apiServiceWith(leadsTo("name", "metrics-server")))
			w.sleep(2 * resyncPeriod)
			w.checkStates(m, APIServiceState{}, APIServiceState{Misdirected: true})
			w.checkLog(1, "leads elsewhere")
			w.api.Put(apiServicePath+beta, apiServiceWith(nil))
			w.sleep(2 * resyncPeriod)
			w.checkStates(m, APIServiceState{}, APIServiceState{})
			w.checkLog(1, "right again")
			w.api.RefuseBy(func(string, string) *sim.Refusal { return &sim.Refusal{} })
			w.sleep(2 * resyncPeriod)
			w.checkStates(m, APIServiceState{}, APIServiceState{})
			w.checkLog(lines/2, "the ServiceAccount needs permission") // not in the outage
		})
	}
}

func TestPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		specs := []map[string]any{nil, leadsTo("port", nil), leadsTo("name", "metrics-server")}
		for service, misdirected := range map[string][]bool{
			host + ":443":  {false, false, true}, // 443 is the default
			host + ":8443": {true, true, true},
			host:           {false, false, true}, // any port
		} {
			for i, spec := range specs {
				a := sim.NewAPI()
				a.Put(apiServicePath+stable, apiServiceWith(spec))
				m, err := NewMonitor(Config{Client: a.Config(), Service: service, APIServices: []string{stable}})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := m.read(klog.NewContext(t.Context(), klog.Logger{})); err != nil {
					t.Fatal(err)
				}
				if got := m.States()[stable].Misdirected; got != misdirected[i] {
					t.Errorf("%s, APIService with %v: got misdirected: %t, want %t", service, spec, got, misdirected[i])
				}
			}
		}
	})
}
