package servingcert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/kube-vitals/kube-vitals/internal/leaktest"
	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	secretPath     = "/api/v1/namespaces/kube-system/secrets/serving"
	configMapPath  = "/api/v1/namespaces/kube-system/configmaps/ca"
	apiServicePath = "/apis/apiregistration.k8s.io/v1/apiservices/"

	host     = "kube-vitals.kube-system.svc"
	stable   = "v1.metrics.k8s.io"
	beta     = "v1beta1.metrics.k8s.io"
	lifetime = 10 * time.Minute
	settle   = time.Minute
	lag      = 2 * time.Second // until an API server sees a changed APIService
	step     = time.Second     // between two checks of everything
	day      = 24 * time.Hour
	day100   = 100 * day
)

// world is an API server with replicas. It knows the CAs that clients trust.
type world struct {
	t        *testing.T
	api      *sim.API
	replicas []*replica

	lags     map[string]time.Duration   // by path of a bundle that clients use: until they see a change
	trusted  map[string][]byte          // by path: the bundle that they use
	pending  map[string][]pendingBundle // by path: the bundles that they will use
	verified map[string]bool            // by a certificate and a bundle that verifies it

	configMap string        // Config.ConfigMap of the replicas
	settle    time.Duration // Config.Settle of the replicas
	version   int           // of the last change that was seen

	log testenv.Log
}

// pendingBundle is a bundle that clients will see.
type pendingBundle struct {
	at     time.Time
	bundle []byte
}

// replica is a running Manager. It counts how often its certificate changes.
type replica struct {
	*Manager
	stop    func()
	ready   bool // clients have verified it once
	changes atomic.Int32
}

func (r *replica) Enqueue() { r.changes.Add(1) }

// expires returns when the served certificate expires.
func (r *replica) expires() time.Time { return r.served.Load().leaf.NotAfter }

// simulate calls f in a synctest bubble, with a world of so many replicas that are ready.
func simulate(t *testing.T, replicas int, f func(*testing.T, *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for range replicas {
			w.start()
		}
		w.waitReady()
		f(t, w)
	})
}

// newWorld returns a world as after an installation of the chart: with an empty Secret, and
// APIServices without a caBundle.
func newWorld(t *testing.T) *world {
	w := &world{
		t: t, api: sim.NewAPI(), lags: map[string]time.Duration{}, trusted: map[string][]byte{},
		pending: map[string][]pendingBundle{}, verified: map[string]bool{}, settle: settle,
	}
	w.api.Put(secretPath, emptySecret())
	for _, name := range []string{stable, beta} {
		w.api.Put(apiServicePath+name, apiServiceWith(nil))
		w.lags[apiServicePath+name] = lag
	}
	t.Cleanup(func() {
		for _, r := range slices.Clone(w.replicas) {
			r.stop()
		}
		if text := w.log.String(); strings.Contains(text, "PRIVATE") || strings.Contains(text, "BEGIN") {
			t.Errorf("the log contains keys or certificates:\n%s", text)
		}
		if t.Failed() {
			t.Log(w.log.String())
		}
	})
	return w
}

func emptySecret() map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
		"metadata": map[string]any{
			"name": "serving", "namespace": "kube-system", "labels": map[string]any{"owner": "helm"},
		},
	}
}

// apiServiceWith returns an APIService that leads to this server, with a patch of its spec.
func apiServiceWith(spec map[string]any) map[string]any {
	return map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"spec": sim.Merge(map[string]any{"group": "metrics.k8s.io", "service": map[string]any{
			"namespace": "kube-system", "name": "kube-vitals", "port": int64(443)}}, spec),
	}
}

// addConfigMap adds a ConfigMap, where replicas that start later publish their CAs.
func (w *world) addConfigMap() {
	w.configMap = "ca"
	w.api.Put(configMapPath, map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"mine": "kept"},
		"metadata": map[string]any{"name": "ca", "namespace": "kube-system", "labels": map[string]any{"owner": "helm"}},
	})
}

func newManager(t *testing.T, c Config) *Manager {
	t.Helper()
	monitor, err := NewMonitor(c)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(c, monitor)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// start starts a replica.
func (w *world) start() *replica {
	w.t.Helper()
	return w.startWith(lifetime)
}

// startWith starts a replica with another Lifetime.
func (w *world) startWith(lifetime time.Duration) *replica {
	w.t.Helper()
	m := newManager(w.t, Config{
		Client: w.api.Config(), Secret: "serving", ConfigMap: w.configMap,
		Names: []string{host, "kube-vitals"}, Service: host + ":443", APIServices: []string{stable, beta},
		Lifetime: lifetime, Settle: w.settle,
	})
	r := &replica{Manager: m}
	r.AddListener(r)
	stop := w.run(m, 0)
	r.stop = sync.OnceFunc(func() {
		stop()
		w.replicas = slices.DeleteFunc(w.replicas, func(o *replica) bool { return o == r })
	})
	w.replicas = append(w.replicas, r)
	return r
}

// run runs a Manager or Monitor, which logs to the world, and returns a function that stops it.
func (w *world) run(runner interface{ Run(context.Context) }, verbosity int) (stop func()) {
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&w.log), textlogger.Verbosity(verbosity)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	done := make(chan struct{})
	go func() {
		defer close(done)
		runner.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// checkLog checks how often the log contains a text.
func (w *world) checkLog(want int, text string) {
	w.t.Helper()
	if got := strings.Count(w.log.String(), text); got != want {
		w.t.Errorf("got %q %d times in the log, want %d:\n%s", text, got, want, w.log.String())
	}
}

// advance lets time pass while every request must succeed: in each step the clients connect to
// each replica that was ready once. It returns the number of certificates that were served.
func (w *world) advance(d time.Duration) (certificates int) {
	w.t.Helper()
	served := map[string]bool{}
	for end := time.Now().Add(d); time.Now().Before(end); w.sleep(step) {
		for n, r := range w.replicas {
			err := w.connect(r)
			switch {
			case err == nil && r.Ready() == nil:
				r.ready = true
			case r.ready:
				w.t.Fatalf("%v: replica %d cannot be verified: %v", time.Now().Format(time.TimeOnly), n, err)
			}
			served[string(r.served.Load().leaf.Raw)] = true
		}
	}
	return len(served)
}

// sleep lets time pass while clients see changed bundles.
func (w *world) sleep(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(min(step, time.Until(end))) {
		now, version := time.Now(), w.api.Version()
		for path, lag := range w.lags {
			if version != w.version {
				w.pending[path] = append(w.pending[path], pendingBundle{now.Add(lag), w.bundle(path)})
			}
			for len(w.pending[path]) > 0 && w.pending[path][0].at.Before(now) {
				w.trusted[path], w.pending[path] = w.pending[path][0].bundle, w.pending[path][1:]
			}
		}
		w.version = version
	}
}

// waitReady waits until all replicas are ready and the clients verify them.
func (w *world) waitReady() {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; w.sleep(step) {
		var err error
		for _, r := range w.replicas {
			if err == nil {
				err = w.connect(r)
			}
			if err == nil {
				err = r.Ready()
			}
		}
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatal(err)
		}
	}
}

// connect verifies a replica as the clients do.
func (w *world) connect(r *replica) error {
	leaf := r.served.Load().leaf
	now := time.Now().Add(w.api.ClockOffset)
	for path := range w.lags {
		id := string(leaf.Raw) + string(w.trusted[path])
		if !w.verified[id] {
			certificate, key := r.CurrentCertKeyContent()
			if err := verify(certificate, key, w.trusted[path], now); err != nil {
				return fmt.Errorf("by %s: %w", path, err)
			}
			w.verified[id] = true
		}
	}
	return checkDates(leaf, now)
}

func checkDates(c *x509.Certificate, now time.Time) error {
	if now.Before(c.NotBefore) || now.After(c.NotAfter) {
		return fmt.Errorf("the certificate is valid from %v to %v only", c.NotBefore, c.NotAfter)
	}
	return nil
}

// verify verifies a certificate as a client that trusts the bundle does.
func verify(certificate, key, bundle []byte, now time.Time) error {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: now})
	return err
}

// readPEM returns the certificates in a text.
func readPEM(text []byte) []*x509.Certificate {
	certificates, _ := cert.ParseCertsPEM(text)
	return certificates
}

// caBundle returns the caBundle of an APIService.
func (w *world) caBundle(name string) []byte { return w.bundle(apiServicePath + name) }

// bundle returns the caBundle of an APIService, or the CAs in the Secret or the ConfigMap.
func (w *world) bundle(path string) []byte {
	w.t.Helper()
	object := w.api.Get(path)
	if data, _ := object["data"].(map[string]any); path == configMapPath {
		text, _ := data[keyBundle].(string)
		return []byte(text)
	}
	if path == secretPath {
		return w.data()[keyBundle]
	}
	spec, _ := object["spec"].(map[string]any)
	text, _ := spec["caBundle"].(string)
	bundle, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		w.t.Fatal(err)
	}
	return bundle
}

// checkBundles checks that the Secret, the APIServices and the ConfigMap, if there is one, have the same
// CAs.
func (w *world) checkBundles(what, want string) {
	w.t.Helper()
	paths := []string{secretPath, apiServicePath + stable, apiServicePath + beta}
	if w.configMap != "" {
		paths = append(paths, configMapPath)
	}
	for _, path := range paths {
		if got := w.bundle(path); string(got) != want {
			w.t.Errorf("%s: got %d CAs in %s, want %d", what, len(readPEM(got)), path, len(readPEM([]byte(want))))
		}
	}
}

// checkTrusted checks the number of CAs in the caBundle.
func (w *world) checkTrusted(minimum, maximum int) {
	w.t.Helper()
	if n := len(readPEM(w.caBundle(stable))); n < minimum || n > maximum {
		w.t.Errorf("got %d trusted CAs, want %d to %d", n, minimum, maximum)
	}
}

// checkNotTrusted checks that the caBundle does not have the CA.
func (w *world) checkNotTrusted(ca *x509.Certificate) {
	w.t.Helper()
	if strings.Contains(string(w.caBundle(stable)), string(encodePEM(ca))) {
		w.t.Error("a CA is trusted although it was replaced and a renewal has followed")
	}
}

// checkExpiry checks that no replica serves a certificate that is valid for longer than the lifetime.
func (w *world) checkExpiry() {
	w.t.Helper()
	for _, r := range w.replicas {
		if left := time.Until(r.expires()); left > lifetime {
			w.t.Errorf("got a certificate valid for %v, want at most %v", left, lifetime)
		}
	}
}

// data returns the Secret's data.
func (w *world) data() map[string][]byte {
	stored, _ := w.api.Get(secretPath)["data"].(map[string]any)
	data := map[string][]byte{}
	for key, value := range stored {
		text, err := base64.StdEncoding.DecodeString(value.(string))
		if err != nil {
			w.t.Fatal(err)
		}
		data[key] = text
	}
	return data
}

// setData changes keys of the Secret as another client would. It deletes those with a nil value.
func (w *world) setData(values map[string][]byte) {
	data := map[string]any{}
	for key, value := range values {
		if data[key] = nil; value != nil {
			data[key] = base64.StdEncoding.EncodeToString(value)
		}
	}
	w.api.Patch(secretPath, map[string]any{"data": data})
}

// setPair makes a pair the one to serve as another client would.
func (w *world) setPair(p *pair) {
	w.setData(map[string][]byte{keyServing: p.chain(), keyServingKey: p.key, keyBundle: encodePEM(p.ca)})
}

// setCABundle sets the caBundle of an APIService as another client would.
func (w *world) setCABundle(name string, bundle []byte) {
	w.api.Patch(apiServicePath+name, map[string]any{"spec": map[string]any{
		"caBundle": base64.StdEncoding.EncodeToString(bundle)}})
}

// checkLabels checks that the Secret has the labels that it had at first.
func (w *world) checkLabels() {
	w.t.Helper()
	if labels := sim.Meta(w.api.Get(secretPath))["labels"]; fmt.Sprint(labels) != "map[owner:helm]" {
		w.t.Errorf("got labels %v of the Secret, want owner=helm", labels)
	}
}
