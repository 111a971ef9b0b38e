package servingcert

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/internal/fakeapi"
)

// wrongAPIServices do not lead to this server, or do not verify it.
var wrongAPIServices = map[string]struct {
	object map[string]any
	state  APIServiceState
	log    []string
}{
	"leads elsewhere": {
		apiServiceTo("metrics-server"), APIServiceState{Misdirected: true},
		[]string{
			"leads elsewhere", "kubectl vitals doctor",
			"Service kube-system/metrics-server, port 443, instead of kube-system/kube-vitals, port 443",
		}},
	"leads to another namespace": {
		apiServiceWith(map[string]any{"service": map[string]any{"namespace": "other"}}), APIServiceState{Misdirected: true},
		[]string{"leads elsewhere", "Service other/kube-vitals"}},
	"leads elsewhere and skips verification": {
		fakeapi.Merge(apiServiceTo("metrics-server"), map[string]any{"spec": map[string]any{"insecureSkipTLSVerify": true}}),
		APIServiceState{Misdirected: true, InsecureSkipTLSVerify: true},
		[]string{"leads elsewhere", "Service kube-system/metrics-server"}},
	"skips verification": {
		apiServiceWith(map[string]any{"insecureSkipTLSVerify": true}), APIServiceState{InsecureSkipTLSVerify: true},
		[]string{"skips verification", "insecureSkipTLSVerify is true", "caBundle"}},
	"served by the API server itself": {
		apiServiceWith(map[string]any{"service": nil}), APIServiceState{Misdirected: true},
		[]string{"leads elsewhere", "spec.service is missing"}},
}

// apiServiceWith returns an APIService that leads to this server, with a patch of its spec.
func apiServiceWith(spec map[string]any) map[string]any {
	return fakeapi.Merge(apiServiceTo("kube-vitals"), map[string]any{"spec": spec})
}

// monitor starts a Monitor without a Manager, as without --tls-secret.
func (w *world) monitor(t *testing.T, verbosity int) *Monitor {
	t.Helper()
	m, err := NewMonitor(Config{Client: w.api.Config(), Service: host + ":443", APIServices: []string{stable, beta}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.run(m, verbosity))
	return m
}

func TestWrongAPIServices(t *testing.T) {
	t.Parallel()
	for name, c := range wrongAPIServices {
		t.Run(name, func(t *testing.T) {
			simulate(t, 0, func(t *testing.T, w *world) {
				m := w.monitor(t, 0)
				w.sleep(time.Minute)
				for _, name := range []string{stable, beta} {
					if got, ok := m.States()[name]; !ok || got != (APIServiceState{}) {
						t.Errorf("got state %+v, %t of %s at first, want zero", got, ok, name)
					}
				}
				if text := w.logged(); text != "" {
					t.Errorf("got a log although the APIServices are right:\n%s", text)
				}
				for n := 1; n <= 2; n++ {
					w.api.Put(apiServicePath+beta, fakeapi.Clone(c.object))
					w.sleep(5 * time.Minute)
					if got := m.States()[beta]; got != c.state {
						t.Errorf("got state %+v, want %+v", got, c.state)
					}
					if got := m.States()[stable]; got != (APIServiceState{}) {
						t.Errorf("got state %+v of the other, want zero", got)
					}
					if got := strings.Count("\n"+w.logged(), "\nE"); got != n {
						t.Errorf("got %d errors in the log, want %d:\n%s", got, n, w.logged())
					}
					w.api.Put(apiServicePath+beta, apiServiceTo("kube-vitals"))
					w.sleep(time.Minute)
					if got := m.States()[beta]; got != (APIServiceState{}) {
						t.Errorf("got state %+v at last, want zero", got)
					}
					w.checkLog(n, "right again")
				}
				for _, want := range append(c.log, beta) {
					if !strings.Contains(w.logged(), want) {
						t.Errorf("got log, want %q:\n%s", want, w.logged())
					}
				}
			})
		})
	}
}

// TestWrongAPIServicesAreNotChanged checks that a Manager does not change an APIService that does
// not lead to its Service.
func TestWrongAPIServicesAreNotChanged(t *testing.T) {
	t.Parallel()
	type other struct {
		object map[string]any
		state  *APIServiceState
	}
	others := map[string]other{"missing": {}}
	for name, c := range wrongAPIServices {
		others[name] = other{c.object, &c.state}
	}
	for name, c := range others {
		t.Run(name, func(t *testing.T) {
			simulate(t, 0, func(t *testing.T, w *world) {
				w.api.Put(apiServicePath+beta, fakeapi.Clone(c.object))
				r := w.start()
				w.sleep(2 * lifetime)
				if err := r.Ready(); err != nil {
					t.Errorf("Ready() = %v", err)
				}
				if got := w.caBundle(beta); len(got) != 0 || len(w.caBundle(stable)) == 0 {
					t.Errorf("got caBundle %q of v1beta1 and %d bytes of v1, want it in v1 only", got, len(w.caBundle(stable)))
				}
				w.checkLog(1, `apiService="v1beta1.metrics.k8s.io" reason`)
				if got, ok := r.monitor.States()[beta]; ok != (c.state != nil) || ok && got != *c.state {
					t.Errorf("got state %+v, %t, want %+v", got, ok, c.state)
				}
				w.api.Put(apiServicePath+beta, apiServiceTo("kube-vitals"))
				w.sleep(time.Second)
				if string(w.caBundle(beta)) != string(w.caBundle(stable)) {
					t.Error("the caBundle was not written after the APIService was corrected")
				}
				if got, ok := r.monitor.States()[beta]; !ok || got != (APIServiceState{}) {
					t.Errorf("got state %+v, %t after the APIService was corrected, want zero", got, ok)
				}
			})
		})
	}
}

// TestMonitorWithoutPermission checks that a missing permission is logged once, at -v=2, and that
// the states survive an outage of the API server.
func TestMonitorWithoutPermission(t *testing.T) {
	t.Parallel()
	for verbosity, lines := range []int{0, 0, 2} { // one for each APIService
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.api.RefuseBy(func(string, string) *fakeapi.Refusal {
				return fakeapi.Refuse(403, "Forbidden", "not allowed by RBAC")
			})
			m := w.monitor(t, verbosity)
			w.sleep(time.Hour)
			if got := m.States(); len(got) != 0 {
				t.Errorf("got states %+v, want none", got)
			}
			w.checkLog(lines, "not allowed by RBAC")
			w.api.RefuseBy(nil)
			w.sleep(forbiddenPeriod)
			if got := m.States(); len(got) != 2 {
				t.Errorf("got states %+v with permission, want both", got)
			}
			w.api.RefuseBy(func(string, string) *fakeapi.Refusal { return &fakeapi.Refusal{} })
			w.sleep(2 * resyncPeriod)
			if got := m.States(); len(got) != 2 {
				t.Errorf("got states %+v in an outage, want both", got)
			}
		})
	}
}

func TestPorts(t *testing.T) {
	t.Parallel()
	without := func(key string) map[string]any { return map[string]any{"service": map[string]any{key: nil}} }
	for name, c := range map[string]struct {
		service     string
		object      map[string]any
		misdirected bool
	}{
		"the same":               {host + ":443", apiServiceTo("kube-vitals"), false},
		"another":                {host + ":8443", apiServiceTo("kube-vitals"), true},
		"default":                {host + ":443", apiServiceWith(without("port")), false},
		"default, want another":  {host + ":8443", apiServiceWith(without("port")), true},
		"any":                    {host, apiServiceTo("kube-vitals"), false},
		"any of another Service": {host, apiServiceTo("metrics-server"), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := fakeapi.New()
				a.Put(apiServicePath+stable, c.object)
				m, err := NewMonitor(Config{Client: a.Config(), Service: c.service, APIServices: []string{stable}})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := m.read(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := m.States()[stable].Misdirected; got != c.misdirected {
					t.Errorf("got misdirected: %t, want %t", got, c.misdirected)
				}
			})
		})
	}
}
