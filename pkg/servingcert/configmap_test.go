package servingcert

import (
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/internal/fakeapi"
)

const configMapPath = "/api/v1/namespaces/kube-system/configmaps/ca"

// publish adds a ConfigMap for the CAs and starts so many replicas.
func (w *world) publish(replicas int) {
	w.t.Helper()
	w.configMap = "ca"
	w.api.Put(configMapPath, newConfigMap())
	for range replicas {
		w.start()
	}
	w.waitReady()
	w.sleep(step)
}

// newConfigMap returns a ConfigMap without CAs.
func newConfigMap() map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"mine": "kept"},
		"metadata": map[string]any{"name": "ca", "namespace": "kube-system", "labels": map[string]any{"owner": "helm"}}}
}

// published returns a value of the ConfigMap.
func (w *world) published(key string) string {
	data, _ := w.api.Get(configMapPath)["data"].(map[string]any)
	text, _ := data[key].(string)
	return text
}

// checkPublished checks that the ConfigMap has the CAs of the caBundle.
func (w *world) checkPublished() {
	w.t.Helper()
	if got, want := w.published("ca.crt"), string(w.caBundle(stable)); got == "" || got != want {
		w.t.Errorf("got %d CAs in the ConfigMap, want the %d of the caBundle",
			len(readPEM([]byte(got))), len(readPEM([]byte(want))))
	}
}

func TestPublish(t *testing.T) {
	simulate(t, 0, func(t *testing.T, w *world) {
		w.publish(3)
		w.checkPublished()
		if w.published("mine") != "kept" || fakeapi.Meta(w.api.Get(configMapPath))["labels"] == nil {
			t.Error("other fields of the ConfigMap were changed")
		}
		before := w.api.Written()
		w.advance(lifetime / 2)
		if n := w.api.Written() - before; n != 0 {
			t.Errorf("got %d writes without a change, want 0", n)
		}
	})
}

// TestPublishedBeforeServed checks that clients that read the ConfigMap have the CA of a renewed
// certificate as long before it is served as the API server.
func TestPublishedBeforeServed(t *testing.T) {
	simulate(t, 0, func(t *testing.T, w *world) {
		w.publish(3)
		since := map[string]time.Time{} // by PEM of a CA: since when it is published
		seen := map[string]bool{}       // certificates
		for end := time.Now().Add(3 * lifetime); time.Now().Before(end); w.advance(step) {
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
					t.Fatalf("a client that reads the ConfigMap cannot verify the certificate: %v", err)
				}
				if renewed := len(seen) > 0 && !seen[string(certificate)]; renewed {
					for _, ca := range readPEM(bundle) {
						published := time.Since(since[string(encodePEM(ca))])
						if leaf.CheckSignatureFrom(ca) == nil && published < settle-step {
							t.Errorf("got a certificate served %v after its CA was published, want %v", published, settle)
						}
					}
				}
				seen[string(certificate)] = true
			}
		}
		if len(seen) < 4 {
			t.Errorf("got %d certificates in 3 lifetimes, want 4 or 5", len(seen))
		}
		w.checkPublished()
	})
}

func TestConfigMapIsRestored(t *testing.T) {
	simulate(t, 0, func(t *testing.T, w *world) {
		w.publish(2)
		want := w.published("ca.crt")
		foreign := string(encodePEM(mustIssue(t, []string{host}, time.Now(), day100).ca))
		for name, data := range map[string]any{
			"no data": nil, "empty": map[string]any{"ca.crt": ""}, "foreign CA": map[string]any{"ca.crt": want + foreign},
		} {
			w.api.Change(configMapPath, func(o map[string]any) { o["data"] = data })
			w.advance(resyncPeriod + step)
			if got := w.published("ca.crt"); got != want {
				t.Errorf("%s: got %d CAs in the ConfigMap after a minute, want 1", name, len(readPEM([]byte(got))))
			}
		}
	})
}

// TestCannotPublish has a ConfigMap that is missing, or that the replicas must not read or write.
// Renewals go on, and the log has the cure once.
func TestCannotPublish(t *testing.T) {
	t.Parallel()
	const permission = "permission to get and update it"
	for name, c := range map[string]struct {
		missing bool
		verb    string // that is forbidden
		cures   []string
	}{
		"missing":         {true, "", []string{"kubectl create configmap ca --namespace kube-system"}},
		"read forbidden":  {false, "get", []string{"cannot read ConfigMap kube-system/ca", permission}},
		"write forbidden": {false, "put", []string{"cannot write ConfigMap kube-system/ca", permission}},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 0, func(t *testing.T, w *world) {
				w.api.RefuseBy(func(verb, path string) *fakeapi.Refusal {
					if path == configMapPath && verb == c.verb {
						return fakeapi.Refuse(403, "Forbidden", "not allowed by RBAC")
					}
					return nil
				})
				if w.publish(0); c.missing {
					w.api.Put(configMapPath, nil)
				}
				w.start()
				w.start()
				w.waitReady()
				if n := w.advance(2 * lifetime); n < 3 {
					t.Errorf("got %d certificates in 2 lifetimes, want 3 or 4", n)
				}
				for _, cure := range c.cures {
					w.checkLog(len(w.replicas), cure)
				}
				w.checkLog(0, "Cannot reconcile")
				w.api.RefuseBy(nil)
				if c.missing {
					w.api.Put(configMapPath, newConfigMap())
				}
				w.advance(resyncPeriod + 2*step)
				w.checkPublished()
				w.checkLog(len(w.replicas), "Publishing the CAs of the serving certificate succeeds again")
			})
		})
	}
}
