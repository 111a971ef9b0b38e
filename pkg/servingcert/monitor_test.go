package servingcert

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// wrong are APIServices that do not lead to this server, or do not verify it.
var wrong = map[string]struct {
	object map[string]any
	state  APIServiceState
	says   []string
}{
	"leads elsewhere": {
		apiServiceTo("metrics-server"), APIServiceState{Misdirected: true},
		[]string{"leads elsewhere", "Service kube-system/metrics-server, port 443, instead of kube-system/kube-vitals, port 443", "helm upgrade"}},
	"in another namespace": {
		apiServiceWith(map[string]any{"service": map[string]any{"namespace": "other"}}), APIServiceState{Misdirected: true},
		[]string{"leads elsewhere", "Service other/kube-vitals"}},
	"leads elsewhere, unverified": {
		merge(apiServiceTo("metrics-server"), map[string]any{"spec": map[string]any{"insecureSkipTLSVerify": true}}),
		APIServiceState{Misdirected: true, InsecureSkipTLSVerify: true},
		[]string{"leads elsewhere", "Service kube-system/metrics-server"}},
	"not to be verified": {
		apiServiceWith(map[string]any{"insecureSkipTLSVerify": true}), APIServiceState{InsecureSkipTLSVerify: true},
		[]string{"skips verification", "insecureSkipTLSVerify is true", "caBundle"}},
	"the API server itself": {
		apiServiceWith(map[string]any{"service": nil}), APIServiceState{Misdirected: true},
		[]string{"leads elsewhere", "spec.service is missing"}},
}

// apiServiceWith returns an APIService that leads to this server but for what the patch changes in
// its spec.
func apiServiceWith(spec map[string]any) map[string]any {
	return merge(apiServiceTo("kube-vitals"), map[string]any{"spec": spec})
}

// monitor starts a Monitor by itself, as without --tls-secret.
func (w *world) monitor(t *testing.T, verbosity int) *Monitor {
	t.Helper()
	m, err := NewMonitor(Config{Client: w.api.config(), Service: host + ":443", APIServices: []string{stable, beta}})
	if err != nil {
		t.Fatal(err)
	}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w), textlogger.Verbosity(verbosity)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return m
}

func TestWrongAPIServices(t *testing.T) {
	t.Parallel()
	for name, c := range wrong {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				m := w.monitor(t, 0)
				w.pass(time.Minute)
				for _, name := range []string{stable, beta} {
					if got, ok := m.States()[name]; !ok || got != (APIServiceState{}) {
						t.Errorf("before, the state of %s is %+v, %t", name, got, ok)
					}
				}
				if text := w.logged(); text != "" {
					t.Errorf("the log complains of APIServices that are right:\n%s", text)
				}
				for n := 1; n <= 2; n++ {
					w.api.put(apiServicePath+beta, clone(c.object))
					w.pass(5 * time.Minute)
					if got := m.States()[beta]; got != c.state {
						t.Errorf("the state is %+v, want %+v", got, c.state)
					}
					if got := m.States()[stable]; got != (APIServiceState{}) {
						t.Errorf("the state of the other one is %+v", got)
					}
					if lines := strings.Count(w.logged(), "\nE") + strings.Count(w.logged()[:1], "E"); lines != n {
						t.Errorf("%d lines complain, want %d:\n%s", lines, n, w.logged())
					}
					w.api.put(apiServicePath+beta, apiServiceTo("kube-vitals"))
					w.pass(time.Minute)
					if got := m.States()[beta]; got != (APIServiceState{}) {
						t.Errorf("afterwards, the state is %+v", got)
					}
					if lines := strings.Count(w.logged(), "right again"); lines != n {
						t.Errorf("%d lines say that it is right again, want %d:\n%s", lines, n, w.logged())
					}
				}
				for _, want := range append(c.says, beta) {
					if !strings.Contains(w.logged(), want) {
						t.Errorf("the log does not say %q:\n%s", want, w.logged())
					}
				}
			})
		})
	}
}

// TestWrongAPIServicesAreLeftAlone has a server that keeps its certificate, and leaves alone the
// caBundle of what does not lead here.
func TestWrongAPIServicesAreLeftAlone(t *testing.T) {
	t.Parallel()
	type other struct {
		object map[string]any
		state  *APIServiceState
	}
	others := map[string]other{"missing": {}}
	for name, c := range wrong {
		others[name] = other{c.object, &c.state}
	}
	for name, c := range others {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.api.put(apiServicePath+beta, clone(c.object))
				r := w.start()
				w.pass(2 * lifetime)
				if err := r.Ready(); err != nil {
					t.Errorf("Ready() = %v", err)
				}
				if got := w.caBundle(beta); len(got) != 0 || len(w.caBundle(stable)) == 0 {
					t.Errorf("the caBundle of v1beta1 is %q, want none, and that of v1 is there: %t", got, len(w.caBundle(stable)) > 0)
				}
				if n := strings.Count(w.logged(), `apiService="v1beta1.metrics.k8s.io" because`); n != 1 {
					t.Errorf("%d lines say why it is left alone, want 1:\n%s", n, w.logged())
				}
				if got, ok := r.Monitor().States()[beta]; ok != (c.state != nil) || ok && got != *c.state {
					t.Errorf("the state is %+v, %t, want %+v", got, ok, c.state)
				}
				w.api.put(apiServicePath+beta, apiServiceTo("kube-vitals"))
				w.pass(time.Second)
				if string(w.caBundle(beta)) != string(w.caBundle(stable)) {
					t.Error("it leads here now, and has not got the caBundle")
				}
				if got, ok := r.Monitor().States()[beta]; !ok || got != (APIServiceState{}) {
					t.Errorf("it leads here now, and its state is %+v, %t", got, ok)
				}
			})
		})
	}
}

// TestMonitorWithoutRights says so once, at -v=2, and knows nothing. A short outage does not make
// it forget what it knows.
func TestMonitorWithoutRights(t *testing.T) {
	t.Parallel()
	for verbosity, lines := range []int{0, 0, 2} { // one for each APIService
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.api.refuseBy(func(string, string) *refusal { return &refusal{403, "Forbidden", "may not get it"} })
			m := w.monitor(t, verbosity)
			w.pass(time.Hour)
			if got := m.States(); len(got) != 0 {
				t.Errorf("the states are %+v, want none", got)
			}
			if n := strings.Count(w.logged(), "may not get it"); n != lines {
				t.Errorf("%d lines at -v=%d, want %d:\n%s", n, verbosity, lines, w.logged())
			}
			w.api.refuseBy(nil)
			w.pass(forbiddenPeriod)
			if got := m.States(); len(got) != 2 {
				t.Errorf("with the right, the states are %+v, want both", got)
			}
			w.api.refuseBy(func(string, string) *refusal { return &refusal{} })
			w.pass(2 * resyncPeriod)
			if got := m.States(); len(got) != 2 {
				t.Errorf("in an outage, the states are %+v, want both", got)
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
		"the same":                      {host + ":443", apiServiceTo("kube-vitals"), false},
		"another one":                   {host + ":8443", apiServiceTo("kube-vitals"), true},
		"none, so the default":          {host + ":443", apiServiceWith(without("port")), false},
		"none, which is not the one":    {host + ":8443", apiServiceWith(without("port")), true},
		"any will do":                   {host, apiServiceTo("kube-vitals"), false},
		"any will do, but not anywhere": {host, apiServiceTo("metrics-server"), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := newAPI()
				a.put(apiServicePath+stable, c.object)
				m, err := NewMonitor(Config{Client: a.config(), Service: c.service, APIServices: []string{stable}})
				if err != nil {
					t.Fatal(err)
				}
				if err := m.check(t.Context(), stable); err != nil {
					t.Fatal(err)
				}
				if got := m.States()[stable].Misdirected; got != c.misdirected {
					t.Errorf("misdirected: %t, want %t", got, c.misdirected)
				}
			})
		})
	}
}
