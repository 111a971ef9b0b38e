package servingcert

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const configMapPath = "/api/v1/namespaces/kube-system/configmaps/ca"

// newPublishingWorld returns a world whose replicas publish the CAs, in a ConfigMap that has
// something of somebody else's.
func newPublishingWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.configMap = "ca"
	w.api.put(configMapPath, emptyConfigMap())
	return w
}

func emptyConfigMap() map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"mine": "kept"},
		"metadata": map[string]any{"name": "ca", "namespace": "kube-system", "labels": map[string]any{"owner": "helm"}}}
}

// published returns what the ConfigMap has under a key.
func (w *world) published(key string) string {
	data, _ := w.api.get(configMapPath)["data"].(map[string]any)
	text, _ := data[key].(string)
	return text
}

func TestPublishedAtStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newPublishingWorld(t)
		for range 3 {
			w.start()
		}
		w.settled()
		w.pass(step)
		if got := w.published("ca.crt"); got == "" || got != string(w.caBundle(stable)) {
			t.Errorf("%d CAs are in the ConfigMap, want those of the caBundle", len(readPEM([]byte(got))))
		}
		if w.published("mine") != "kept" || meta(w.api.get(configMapPath))["labels"] == nil {
			t.Error("what is not the server's has not stayed as it was")
		}
		before := w.api.written()
		w.run(lifetime / 2)
		if n := w.api.written() - before; n != 0 {
			t.Errorf("%d writes while nothing was to do", n)
		}
	})
}

// TestPublishedBeforeItIsServed expects that clients that read the ConfigMap have had the CA of
// each renewed certificate for as long as the API server before the certificate is served.
func TestPublishedBeforeItIsServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newPublishingWorld(t)
		for range 3 {
			w.start()
		}
		w.settled()
		w.pass(step)
		since := map[string]time.Time{} // PEM of a CA → since when it is published
		seen := map[string]bool{}       // certificates
		for end := time.Now().Add(3 * lifetime); time.Now().Before(end); w.run(step) {
			bundle := []byte(w.published("ca.crt"))
			for _, ca := range readPEM(bundle) {
				if text := string(encodePEM(ca)); since[text].IsZero() {
					since[text] = time.Now()
				}
			}
			for _, r := range w.replicas {
				certificate, key := r.CurrentCertKeyContent()
				leaf, err := verify(certificate, key, bundle, time.Now())
				if err != nil {
					t.Fatalf("a client that reads the ConfigMap cannot verify what is served: %v", err)
				}
				if renewed := len(seen) > 0 && !seen[string(certificate)]; renewed {
					for _, ca := range readPEM(bundle) {
						if known := time.Since(since[string(encodePEM(ca))]); leaf.CheckSignatureFrom(ca) == nil && known < settle-step {
							t.Errorf("a certificate is served whose CA has been published for %v only, want %v", known, settle)
						}
					}
				}
				seen[string(certificate)] = true
			}
		}
		if len(seen) < 4 {
			t.Errorf("%d certificates were served in 3 lifetimes, want 4 or 5", len(seen))
		}
		if got := w.published("ca.crt"); got != string(w.caBundle(stable)) {
			t.Error("the ConfigMap and the caBundle differ")
		}
	})
}

func TestPublishedIsPutBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newPublishingWorld(t)
		w.start()
		w.start()
		w.settled()
		w.pass(step)
		want := w.published("ca.crt")
		foreign := string(encodePEM(mustIssue(t, []string{host}, time.Now(), day100).ca))
		for name, data := range map[string]any{
			"nothing": nil, "an empty text": map[string]any{"ca.crt": ""}, "a foreign CA": map[string]any{"ca.crt": want + foreign},
		} {
			w.api.change(configMapPath, func(o map[string]any) { o["data"] = data })
			w.run(resyncPeriod + step)
			if got := w.published("ca.crt"); got != want {
				t.Errorf("a minute after %s was written into the ConfigMap, it has %d CAs, want 1", name, len(readPEM([]byte(got))))
			}
		}
	})
}

// TestNotPublished has a ConfigMap that is missing, or that the server may not read or write.
// Everything else goes on, with one line in the log that has the cure.
func TestNotPublished(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		missing bool
		verb    string // that is refused
		cure    string
	}{
		"missing":             {missing: true, cure: "kubectl create configmap ca --namespace kube-system"},
		"must not be read":    {verb: "get", cure: "cannot read ConfigMap kube-system/ca"},
		"must not be written": {verb: "put", cure: "cannot write ConfigMap kube-system/ca"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newPublishingWorld(t)
				if c.missing {
					w.api.put(configMapPath, nil)
				}
				w.api.refuseBy(func(verb, path string) *refusal {
					if path == configMapPath && verb == c.verb {
						return &refusal{403, "Forbidden", "may not"}
					}
					return nil
				})
				w.start()
				w.start()
				w.settled()
				if n := w.run(2 * lifetime); n < 3 {
					t.Errorf("%d certificates were served in 2 lifetimes, want 3 or 4", n)
				}
				if n := strings.Count(w.logged(), c.cure); n != len(w.replicas) {
					t.Errorf("%d lines say %q, want one of each replica:\n%s", n, c.cure, w.logged())
				}
				if c.verb != "" && !strings.Contains(w.logged(), "right to get and update it") {
					t.Errorf("the log does not name the right:\n%s", w.logged())
				}
				if strings.Contains(w.logged(), "Cannot look after") {
					t.Errorf("the log complains of more than that:\n%s", w.logged())
				}
				w.api.refuseBy(nil)
				if c.missing {
					w.api.put(configMapPath, emptyConfigMap())
				}
				w.run(resyncPeriod + 2*step)
				if got := w.published("ca.crt"); got == "" || got != string(w.caBundle(stable)) {
					t.Errorf("%d CAs are published afterwards, want those of the caBundle", len(readPEM([]byte(got))))
				}
				if n := strings.Count(w.logged(), "published again"); n != len(w.replicas) {
					t.Errorf("%d lines say that it is over, want one of each replica", n)
				}
			})
		})
	}
}
