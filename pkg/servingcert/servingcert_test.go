package servingcert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

const (
	host     = "kube-vitals.kube-system.svc"
	stable   = "v1.metrics.k8s.io"
	beta     = "v1beta1.metrics.k8s.io"
	lifetime = 10 * time.Minute
	settle   = 30 * time.Second
	lag      = 2 * time.Second // until an API server has heard of a changed APIService
	step     = time.Second     // between two looks at everything
	day100   = 100 * day
)

// world is an API server, replicas, and API servers' notions of whom to trust.
type world struct {
	t        *testing.T
	api      *api
	replicas []*replica
	believed map[string][]byte            // name of an APIService → the caBundle that the API server goes by
	coming   map[string][]news            // name of an APIService → what it will go by
	verified map[string]*x509.Certificate // PEM of a certificate and of a bundle that verifies it → the certificate

	configMap string // of its replicas, "": none

	version int // of the API's last change that was looked at

	mu  sync.Mutex
	log strings.Builder
}

// news is a caBundle of which an API server hears at some time.
type news struct {
	at     time.Time
	bundle []byte
}

// replica is a running identity.
type replica struct {
	*Manager
	stop   func()
	proven bool // the API server has once verified it
}

// newWorld has what the chart makes: an empty Secret, and APIServices without a caBundle.
func newWorld(t *testing.T) *world {
	w := &world{t: t, api: newAPI(), believed: map[string][]byte{}, coming: map[string][]news{}, verified: map[string]*x509.Certificate{}}
	w.api.put(secretPath, emptySecret())
	for _, name := range []string{stable, beta} {
		w.api.put(apiServicePath+name, apiServiceTo("kube-vitals"))
	}
	t.Cleanup(func() {
		for _, r := range slices.Clone(w.replicas) {
			r.stop()
		}
		if text := w.logged(); strings.Contains(text, "PRIVATE") || strings.Contains(text, "BEGIN") {
			t.Errorf("the log has keys or certificates in it:\n%s", text)
		}
		if t.Failed() {
			t.Log(w.logged())
		}
	})
	return w
}

func emptySecret() map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
		"metadata": map[string]any{"name": "serving", "namespace": "kube-system", "labels": map[string]any{"owner": "helm"}}}
}

func apiServiceTo(service string) map[string]any {
	return map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "spec": map[string]any{
		"group": "metrics.k8s.io", "service": map[string]any{"namespace": "kube-system", "name": service, "port": 443}}}
}

// start starts a replica.
func (w *world) start() *replica {
	w.t.Helper()
	return w.startFor(lifetime)
}

// startFor starts a replica whose certificates are valid for this long.
func (w *world) startFor(lifetime time.Duration) *replica {
	w.t.Helper()
	i, err := New(Config{
		Client: w.api.config(), Secret: "serving", Names: []string{host, "kube-vitals"}, APIServices: []string{stable, beta},
		ConfigMap: w.configMap, Lifetime: lifetime, Settle: settle,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.Run(ctx)
	}()
	r := &replica{Manager: i}
	r.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		w.replicas = slices.DeleteFunc(w.replicas, func(o *replica) bool { return o == r })
	})
	w.replicas = append(w.replicas, r)
	return r
}

// Write takes a line of a replica's log.
func (w *world) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(line)
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

// run lets time pass, in which every request must succeed: at each step the API server asks each
// replica that it has once verified. It gives how many certificates were served.
func (w *world) run(d time.Duration) (certificates int) {
	w.t.Helper()
	served := map[string]bool{}
	for end := time.Now().Add(d); time.Now().Before(end); w.pass(step) {
		for n, r := range w.replicas {
			err := w.ask(r)
			switch {
			case err == nil && r.Ready() == nil:
				r.proven = true
			case r.proven:
				w.t.Fatalf("%v: the API server cannot verify replica %d: %v", time.Now().Format(time.TimeOnly), n, err)
			}
			certificate, _ := r.CurrentCertKeyContent()
			served[string(certificate)] = true
		}
	}
	return len(served)
}

// pass lets time pass, in which API servers hear of changed APIServices.
func (w *world) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(min(step, time.Until(end))) {
		now, version := time.Now(), w.api.versionNow()
		for _, name := range []string{stable, beta} {
			if version != w.version {
				w.coming[name] = append(w.coming[name], news{now.Add(lag), w.caBundle(name)})
			}
			for len(w.coming[name]) > 0 && w.coming[name][0].at.Before(now) {
				w.believed[name], w.coming[name] = w.coming[name][0].bundle, w.coming[name][1:]
			}
		}
		w.version = version
	}
}

// settled waits until the API server verifies all replicas.
func (w *world) settled() {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; w.pass(step) {
		var err error
		for _, r := range w.replicas {
			if err == nil {
				err = w.ask(r)
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

// ask verifies a replica as the API server does for each APIService that leads to it.
func (w *world) ask(r *replica) error {
	certificate, key := r.CurrentCertKeyContent()
	now := time.Now().Add(w.api.ahead)
	for _, name := range []string{stable, beta} {
		bundle := w.believed[name]
		id := string(certificate) + string(bundle)
		if w.verified[id] == nil {
			leaf, err := verify(certificate, key, bundle, now)
			if err != nil {
				return err
			}
			w.verified[id] = leaf
		}
		if err := inTime(w.verified[id], now); err != nil {
			return err
		}
	}
	return nil
}

// inTime says whether a certificate is valid at a time.
func inTime(c *x509.Certificate, now time.Time) error {
	if now.Before(c.NotBefore) || now.After(c.NotAfter) {
		return fmt.Errorf("the certificate is valid from %v to %v only", c.NotBefore, c.NotAfter)
	}
	return nil
}

// verify does what a client does that trusts the bundle.
func verify(certificate, key, bundle []byte, now time.Time) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: now})
	return pair.Leaf, err
}

// caBundle gives an APIService's.
func (w *world) caBundle(name string) []byte {
	spec, _ := w.api.get(apiServicePath + name)["spec"].(map[string]any)
	text, _ := spec["caBundle"].(string)
	bundle, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		w.t.Fatal(err)
	}
	return bundle
}

// data gives the Secret's.
func (w *world) data() map[string][]byte {
	text, err := json.Marshal(w.api.get(secretPath))
	if err != nil {
		w.t.Fatal(err)
	}
	var secret struct{ Data map[string][]byte }
	if err := json.Unmarshal(text, &secret); err != nil {
		w.t.Fatal(err)
	}
	return secret.Data
}

// setData changes keys of the Secret as somebody else would.
func (w *world) setData(values map[string][]byte) {
	w.api.change(secretPath, func(o map[string]any) {
		data, _ := o["data"].(map[string]any)
		if data == nil {
			data = map[string]any{}
		}
		for key, value := range values {
			data[key] = base64.StdEncoding.EncodeToString(value)
		}
		o["data"] = data
	})
}

func TestInstall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for range 5 {
			r := w.start()
			if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "Secret kube-system/serving") {
				t.Errorf("Ready() = %v, want that the Secret has not been read", err)
			}
			if err := inTime(readPEM(first(r.CurrentCertKeyContent()))[0], time.Now()); err != nil {
				t.Errorf("nothing to serve before the Secret is there: %v", err)
			}
			if !r.Expires().IsZero() {
				t.Errorf("Expires() = %v for a temporary certificate", r.Expires())
			}
		}
		w.settled()
		one, _ := w.replicas[0].CurrentCertKeyContent()
		for _, r := range w.replicas {
			if got, _ := r.CurrentCertKeyContent(); string(got) != string(one) {
				t.Error("replicas serve different certificates")
			}
			if left := time.Until(r.Expires()); left > lifetime || left < lifetime-10*time.Second {
				t.Errorf("the certificate expires in %v, want %v", left, lifetime)
			}
		}
		if n := len(readPEM(w.caBundle(stable))); n != 1 {
			t.Errorf("%d CAs are trusted, want 1", n)
		}
		if labels := meta(w.api.get(secretPath))["labels"]; fmt.Sprint(labels) != "map[owner:helm]" {
			t.Errorf("the Secret's labels are %v", labels)
		}
		before := w.api.written()
		w.run(lifetime / 2)
		if n := w.api.written() - before; n != 0 {
			t.Errorf("%d writes while nothing was to do", n)
		}
	})
}

func first[A, B any](a A, _ B) A { return a }

func TestRotation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for range 3 {
			w.start()
		}
		if n := w.run(3 * lifetime); n < 4 {
			t.Errorf("%d certificates were served in 3 lifetimes, want 4 or 5: each in its first two thirds", n)
		}
		if n := len(readPEM(w.caBundle(stable))); n > 3 {
			t.Errorf("%d CAs are trusted, want 3 at most", n)
		}
	})
}

// TestRotationWithConflicts lets half of all writes fail as if somebody else had been quicker.
func TestRotationWithConflicts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.api.refuseBy(func(verb, _ string) *refusal {
			if (verb == "put" || verb == "patch") && rand.N(2) == 0 {
				return &refusal{409, "Conflict", "somebody else was quicker"}
			}
			return nil
		})
		for range 3 {
			w.start()
		}
		w.run(2 * lifetime)
	})
}

// TestRotationWithSlowRequests lets replicas act on what has long changed.
func TestRotationWithSlowRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.api.slow = 3 * time.Second
		for range 5 {
			w.start()
		}
		w.run(2 * lifetime)
	})
}

// TestReplicaThatIsCutOff has a replica that does not see a renewal, as without a way to the API
// server. It is trusted until its certificate expires, also when the others have been restarted
// since the renewal.
func TestReplicaThatIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cut := w.start()
		w.start()
		w.settled()
		w.run(time.Minute)
		cut.stop()
		w.replicas = append(w.replicas, cut) // it goes on to serve
		if n := w.run(time.Until(cut.Expires()) - lifetime/10); n != 2 {
			t.Errorf("%d certificates were served, want that of the replica that is cut off and its successor", n)
		}
		w.replicas[0].stop()
		w.start()
		w.settled()
		w.run(time.Until(cut.Expires()) - time.Second)
		if n := len(readPEM(w.caBundle(stable))); n != 2 {
			t.Errorf("%d CAs are trusted, want 2", n)
		}
		w.replicas = slices.DeleteFunc(w.replicas, func(r *replica) bool { return r == cut })
		w.run(10 * time.Second)
		if n := len(readPEM(w.caBundle(stable))); n != 1 {
			t.Errorf("%d CAs are trusted after the certificate has expired, want 1", n)
		}
	})
}

// TestRestarts replaces all replicas, one after the other or all at once, at every stage of a
// rotation.
func TestRestarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.start()
		w.settled()
		for n := range 40 {
			w.run(lifetime/30 + time.Duration(n)*7*time.Second/10)
			w.replicas[0].stop()
			if n%3 == 0 {
				w.replicas[0].stop()
				w.start()
			}
			w.start()
			w.settled()
		}
	})
}

func TestRecovery(t *testing.T) {
	t.Parallel()
	set := func(key, value string) func(*world) {
		return func(w *world) {
			w.api.change(secretPath, func(o map[string]any) {
				if value == "" {
					delete(o["data"].(map[string]any), key)
				} else {
					o["data"].(map[string]any)[key] = value
				}
			})
		}
	}
	for name, c := range map[string]struct {
		damage func(*world)
		renews bool
	}{
		"the Secret is deleted":     {func(w *world) { w.api.put(secretPath, nil) }, true},
		"the Secret is emptied":     {func(w *world) { w.api.put(secretPath, emptySecret()) }, true},
		"the certificate is gone":   {set(keyServing, ""), true},
		"the key is gone":           {set(keyServingKey, ""), true},
		"the certificate is broken": {set(keyServing, "AAAA"), true},
		"the bundle is gone":        {set(keyBundle, ""), false},
		"the bundle is broken":      {set(keyBundle, "AAAA"), false},
		"the next is broken":        {set(keyNext, "AAAA"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				for range 3 {
					w.start()
				}
				w.settled()
				before := string(w.data()[keyServing])
				c.damage(w)
				w.run(time.Second)
				if got := string(w.data()[keyServing]); got != before {
					t.Error("what was served was not put back")
				}
				w.run(2 * settle)
				if got := string(w.data()[keyServing]); (got != before) != c.renews {
					t.Errorf("renewed: %t, want %t", got != before, c.renews)
				}
				if got := string(w.data()[keyBundle]); got != string(w.caBundle(stable)) || got != string(w.caBundle(beta)) || got == "" {
					t.Error("the Secret and the APIServices have different bundles")
				}
				if labels := meta(w.api.get(secretPath))["labels"]; fmt.Sprint(labels) != "map[owner:helm]" {
					t.Errorf("the Secret's labels are %v", labels)
				}
				w.run(lifetime)
			})
		})
	}
}

// TestForeignCertificatesInTheBundle has somebody put into the bundle what the API server must not
// trust. A certificate that is trusted itself, and not for its CA, needs no CA.
func TestForeignCertificatesInTheBundle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.start()
		w.settled()
		want := string(w.data()["ca.crt"])
		foreign := mustIssue(t, []string{host}, time.Now(), day100)
		noSigner := mustIssueBy(t, time.Now(), day100, nil, func(ca *x509.Certificate) { ca.KeyUsage = x509.KeyUsageDigitalSignature })
		for name, certificate := range map[string]*x509.Certificate{
			"a CA": foreign.ca, "a server's certificate": foreign.leaf, "a CA that may not sign": noSigner.ca,
			"an expired CA": mustIssue(t, []string{host}, time.Now().Add(-day100), lifetime).ca,
		} {
			w.setData(map[string][]byte{"ca.crt": append(encodePEM(certificate), want...)})
			w.run(2 * time.Second)
			for place, got := range map[string][]byte{"Secret": w.data()["ca.crt"], "v1": w.caBundle(stable), "v1beta1": w.caBundle(beta)} {
				if string(got) != want {
					t.Errorf("2 seconds after %s was put into the Secret's ca.crt, there are %d certificates in the %s's, want one",
						name, len(readPEM(got)), place)
				}
			}
		}
		w.run(lifetime)
	})
}

// TestForeignCAGoesWithARenewal has somebody make a foreign pair the previous one.
func TestForeignCAGoesWithARenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.start()
		w.settled()
		foreign := mustIssue(t, []string{host}, time.Now(), day100)
		w.setData(map[string][]byte{"previous.crt": foreign.chain, "ca.crt": append(encodePEM(foreign.ca), w.data()["ca.crt"]...)})
		if n := w.run(lifetime); n != 2 {
			t.Errorf("%d certificates were served in a lifetime, want 2", n)
		}
		if strings.Contains(string(w.caBundle(stable)), string(encodePEM(foreign.ca))) {
			t.Error("the foreign CA is still trusted after a renewal")
		}
		if n := len(readPEM(w.caBundle(stable))); n > 2 {
			t.Errorf("%d CAs are trusted, want 2 at most", n)
		}
	})
}

// TestPairThatOutlivesThePolicy begins with a pair in the Secret that is valid for 100 years.
func TestPairThatOutlivesThePolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		foreign := mustIssue(t, []string{host, "kube-vitals"}, time.Now(), 365*day100)
		w.setData(map[string][]byte{"tls.crt": foreign.chain, "tls.key": foreign.key, "ca.crt": encodePEM(foreign.ca)})
		w.start()
		w.start()
		w.settled()
		w.run(settle + 10*time.Second)
		for _, r := range w.replicas {
			if left := time.Until(r.Expires()); left > lifetime {
				t.Errorf("a certificate is served that is valid for %v, want %v at most", left, lifetime)
			}
		}
		w.run(lifetime) // through another renewal
		if strings.Contains(string(w.caBundle(stable)), string(encodePEM(foreign.ca))) {
			t.Error("the CA of 100 years is still trusted, two renewals later")
		}
	})
}

// TestLowerLifetime updates replicas one by one to a shorter lifetime. While both kinds run, they
// agree on the shorter one.
func TestLowerLifetime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startFor(day100)
		w.startFor(day100)
		w.settled()
		w.run(time.Minute)
		old := readPEM(w.caBundle(stable))[0]

		before := w.api.written()
		w.startFor(lifetime)
		w.replicas[0].stop()
		w.run(settle + 10*time.Second)
		for _, r := range w.replicas {
			if left := time.Until(r.Expires()); left > lifetime {
				t.Errorf("after the lifetime was lowered, a certificate is served that is valid for %v", left)
			}
		}
		w.run(lifetime)
		if n := w.api.written() - before; n > 20 {
			t.Errorf("%d writes in two renewals: replicas undo each other's work", n)
		}
		if strings.Contains(w.logged(), "keeps being changed") {
			t.Error("replicas take each other for somebody else who writes")
		}

		w.replicas[0].stop()
		w.startFor(lifetime)
		w.run(lifetime)
		if strings.Contains(string(w.caBundle(stable)), string(encodePEM(old))) {
			t.Error("the CA of the longer lifetime is still trusted")
		}
	})
}

// TestPairReplacedBySomebody has somebody put another pair into the Secret and the caBundle. The
// replaced pair's CA stays trusted, for replicas that still serve it, until the next renewal.
func TestPairReplacedBySomebody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.start()
		w.settled()
		old := encodePEM(readPEM(w.caBundle(stable))...)
		other := mustIssue(t, []string{host, "kube-vitals"}, time.Now().Add(time.Second), lifetime)
		w.setData(map[string][]byte{"tls.crt": other.chain, "tls.key": other.key, "ca.crt": encodePEM(other.ca)})
		w.pass(2 * lag) // in which the API server does not trust the other pair yet
		if got := string(w.caBundle(stable)); got != string(old)+string(encodePEM(other.ca)) {
			t.Errorf("%d CAs are trusted, want that of the replaced pair and the other one", len(readPEM([]byte(got))))
		}
		w.run(lifetime)
		if strings.Contains(string(w.caBundle(stable)), string(old)) {
			t.Error("the CA of the replaced pair is still trusted after a renewal")
		}
	})
}

// TestCorruptSecretAtStart has nobody who remembers what was there.
func TestCorruptSecretAtStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.api.change(secretPath, func(o map[string]any) {
			o["data"] = map[string]any{keyServing: "AAAA", keyServingKey: "AAAA", keyBundle: "AAAA", keyNext: "AAAA", "mine": "AAAA"}
		})
		w.start()
		w.settled()
		if string(w.data()["mine"]) != "\x00\x00\x00" {
			t.Error("a key that is not ours was changed")
		}
		if text := w.logged(); !strings.Contains(text, "tls.crt and tls.key cannot be used") {
			t.Errorf("the log does not say what was wrong:\n%s", text)
		}
	})
}

// TestSecretGoneForGood has replicas that may not make the Secret anew.
func TestSecretGoneForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.start()
		w.settled()
		w.api.refuseBy(func(verb, path string) *refusal {
			if verb == "patch" && path == secretPath {
				return &refusal{403, "Forbidden", "may not create secrets"}
			}
			return nil
		})
		w.api.put(secretPath, nil)
		w.run(lifetime / 4) // all goes on, with what is known
		newcomer := w.start()
		w.run(step)
		if err := newcomer.Ready(); err == nil || !strings.Contains(err.Error(), "kubectl create secret generic serving --namespace kube-system") {
			t.Errorf("Ready() = %v, want what to do", err)
		}
		if n := strings.Count(w.logged(), "may not create secrets"); n != 3 {
			t.Errorf("%d lines in the log of 3 replicas, want one of each:\n%s", n, w.logged())
		}
		w.api.put(secretPath, emptySecret())
		w.run(2 * time.Minute)
		w.settled()
		if n := strings.Count(w.logged(), "looked after again"); n != 3 {
			t.Errorf("%d lines say that it is over, want one of each replica", n)
		}
	})
}

// TestNobodyRemembers has an empty Secret, an API server that trusts somebody, and nobody who could
// say whom.
func TestNobodyRemembers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.settled()
		w.replicas[0].stop()
		w.api.put(secretPath, emptySecret())
		r := w.start()
		w.pass(peerGrace / 2)
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "time to put it back") {
			t.Errorf("Ready() = %v, want that it waits for others", err)
		}
		w.pass(peerGrace)
		w.settled()
	})
}

func TestCABundleIsPutBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.start()
		w.settled()
		for _, value := range []any{nil, "AAAA", base64.StdEncoding.EncodeToString(made(t, 0, -1).bundle)} {
			want := w.caBundle(beta)
			w.api.change(apiServicePath+beta, func(o map[string]any) { o["spec"].(map[string]any)["caBundle"] = value })
			w.pass(time.Second)
			if string(w.caBundle(beta)) != string(want) {
				t.Errorf("after %v was written over it, the caBundle is not what it was", value)
			}
			w.pass(2 * lag)
			w.run(settle)
		}
	})
}

// TestUnreadAPIService does not rely on a CA as long as it is not known who trusts it.
func TestUnreadAPIService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.settled()
		w.api.refuseBy(func(verb, path string) *refusal {
			if verb == "get" && path == apiServicePath+beta {
				return &refusal{500, "InternalError", "a timeout"}
			}
			return nil
		})
		if n := w.run(lifetime * 9 / 10); n != 1 {
			t.Errorf("%d certificates were served, want 1", n)
		}
		w.api.refuseBy(nil)
		if n := w.run(lifetime / 4); n != 2 {
			t.Errorf("%d certificates were served, want the next one after the first", n)
		}
	})
}

// TestRights says which right is missing, in words that the API server's answer completes.
func TestRights(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verb, path string
		want       []string
	}{
		"get the Secret":          {"get", secretPath, []string{"cannot read Secret kube-system/serving", "get, watch and update"}},
		"update the Secret":       {"put", secretPath, []string{"cannot write Secret kube-system/serving", "right to update"}},
		"get an APIService":       {"get", apiServicePath + beta, []string{"cannot read APIService " + beta, "get, watch and patch"}},
		"patch an APIService":     {"patch", apiServicePath + stable, []string{"cannot write the caBundle of APIService " + stable, "right to patch"}},
		"watch the Secret":        {"watch", secretPath, nil},
		"watch the APIServices":   {"watch", apiServicePath + stable, nil},
		"anything: it is too hot": {"", "", []string{"too hot"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.api.refuseBy(func(verb, path string) *refusal {
					if c.verb == "" || verb == c.verb && path == c.path {
						return &refusal{403, "Forbidden", "it is too hot"}
					}
					return nil
				})
				r := w.start()
				w.pass(10 * time.Minute)
				if c.want == nil { // it does without
					w.run(2 * lifetime)
				} else if err := r.Ready(); err == nil {
					t.Error("Ready() = nil")
				} else {
					for _, want := range append(c.want, "it is too hot") {
						if !strings.Contains(err.Error(), want) {
							t.Errorf("Ready() = %v, want %q in it", err, want)
						}
					}
				}
				if n := strings.Count(w.logged(), "it is too hot"); n < 1 || c.verb != "" && n > 2 {
					t.Errorf("%d lines of it in the log:\n%s", n, w.logged())
				}
				w.api.refuseBy(nil)
				w.pass(2 * time.Minute)
				w.settled()
			})
		})
	}
}

// TestAPIServerAway goes on with what there is.
func TestAPIServerAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		away := func(string, string) *refusal { return &refusal{} }
		w.api.refuseBy(away)
		early := w.start()
		w.pass(time.Minute)
		if err := early.Ready(); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("Ready() = %v", err)
		}
		w.api.refuseBy(nil)
		w.pass(time.Minute)
		w.settled()
		w.start()
		w.settled()
		w.run(lifetime / 2)
		w.api.refuseBy(away)
		w.run(lifetime / 3) // into the last third
		w.api.refuseBy(nil)
		w.run(2 * lifetime)
		if n := strings.Count(w.logged(), "connection refused"); n > 20 {
			t.Errorf("%d lines in the log:\n%s", n, w.logged())
		}
	})
}

// TestClockOfTheAPIServer makes certificates that are valid by its clock, whatever this server's
// says.
func TestClockOfTheAPIServer(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-day100, time.Minute, day100} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.api.ahead = ahead
				w.start()
				w.start()
				w.settled()
				if n := w.run(lifetime); n != 2 {
					t.Errorf("%d certificates in a lifetime, want 2", n)
				}
			})
		})
	}
}

// TestFight has somebody who writes another caBundle each time.
func TestFight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.settled()
		before := w.api.written()
		const fight = 2 * time.Minute
		for end := time.Now().Add(fight); time.Now().Before(end); w.pass(step) {
			w.api.change(apiServicePath+beta, func(o map[string]any) { o["spec"].(map[string]any)["caBundle"] = "AAAA" })
		}
		if n := w.api.written() - before; n > burst+burst*int(fight/settle)+10 {
			t.Errorf("%d writes", n)
		}
		if text := w.logged(); !strings.Contains(text, "keeps being changed by somebody else") {
			t.Errorf("the log does not say that somebody writes, too:\n%.2000s", text)
		}
		w.pass(2 * time.Minute)
		w.settled()
	})
}

func TestListenersHearOfEachCertificate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start()
		heard := &listener{identity: r.Manager, seen: map[string]bool{}}
		r.AddListener(heard)
		served := w.run(2 * lifetime)
		heard.mu.Lock()
		defer heard.mu.Unlock()
		if heard.calls != len(heard.seen) || len(heard.seen) < served-1 {
			t.Errorf("%d calls told of %d certificates, while %d were served, one of them temporary", heard.calls, len(heard.seen), served)
		}
	})
}

type listener struct {
	identity *Manager
	mu       sync.Mutex
	calls    int
	seen     map[string]bool
}

func (l *listener) Enqueue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.seen[string(first(l.identity.CurrentCertKeyContent()))] = true
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Names: []string{"kube-vitals"}, Lifetime: time.Minute, Settle: time.Minute})
	for _, want := range []string{"name of the Secret", `["kube-vitals"]`, "at least 6 times"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want %q in it", err, want)
		}
	}
	for service, want := range map[string]string{
		"other.kube-system.svc": `the first name of the serving certificate is "` + host, host + ":443": "", host: "",
		host + ":0": "NAME.NAMESPACE.svc:PORT", host + ":65536": "NAME.NAMESPACE.svc:PORT", host + ":": "NAME.NAMESPACE.svc:PORT",
		"kube-vitals": "NAME.NAMESPACE.svc:PORT",
	} {
		err := Config{Secret: "serving", Names: []string{host}, Service: service}.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("Service %q: %v, want %q in it", service, err, want)
		}
	}
	i, err := New(Config{Client: newAPI().config(), Secret: "serving", Names: []string{host}})
	if err != nil || i.Name() != "identity::kube-system/serving" || i.policy.lifetime != DefaultLifetime || i.policy.settle != DefaultSettle {
		t.Errorf("New() = %+v, %v", i, err)
	}
}
