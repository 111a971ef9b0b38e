package servingcert

import (
	"crypto/x509"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// TestInstall also checks that nothing is written without a change.
func TestInstall(t *testing.T) {
	simulate(t, 0, func(t *testing.T, w *world) {
		w.addConfigMap()
		for range 3 {
			r := w.start()
			if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "Secret kube-system/serving") {
				t.Errorf("Ready() = %v, want that the Secret has not been read", err)
			}
			if err := checkDates(r.served.Load().leaf, time.Now()); err != nil {
				t.Errorf("temporary certificate: %v", err)
			}
		}
		w.waitReady()
		one := w.replicas[0].served.Load().leaf
		for _, r := range w.replicas {
			if !r.served.Load().leaf.Equal(one) {
				t.Error("got different certificates from the replicas, want the same")
			}
			if left := time.Until(r.expires()); left > lifetime || left < lifetime-10*time.Second {
				t.Errorf("got a certificate that expires in %v, want %v", left, lifetime)
			}
		}
		w.checkTrusted(1, 1)
		w.checkBundles("after the installation", string(encodePEM(w.replicas[0].served.Load().ca)))
		w.checkLabels()
		data, _ := w.api.Get(configMapPath)["data"].(map[string]any)
		if data["mine"] != "kept" || sim.Meta(w.api.Get(configMapPath))["labels"] == nil {
			t.Error("other fields of the ConfigMap were changed")
		}
		before := w.api.Written()
		w.advance(lifetime / 2)
		if n := w.api.Written() - before; n != 0 {
			t.Errorf("got %d writes without a change, want 0", n)
		}
	})
}

// TestRotation also lets half of all writes fail with a conflict, and replicas act on outdated
// objects. Clients that read the ConfigMap have each CA almost as long before its certificate is served
// as the API server.
func TestRotation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		replicas  int
		configMap bool
		conflicts bool
		latency   time.Duration
	}{
		"normal":        {3, true, false, 10 * time.Millisecond},
		"conflicts":     {3, false, true, 10 * time.Millisecond},
		"slow requests": {4, false, false, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 0, func(t *testing.T, w *world) {
				w.api.Latency = c.latency
				w.api.RefuseBy(func(verb, _ string) *sim.Refusal {
					if c.conflicts && (verb == "put" || verb == "patch") && rand.N(2) == 0 {
						return sim.Refuse(409, "Conflict", "modified by another client")
					}
					return nil
				})
				if c.configMap {
					w.addConfigMap()
					w.lags[configMapPath] = settle - 2*step
				}
				for range c.replicas {
					w.start()
				}
				if n := w.advance(3 * lifetime); n < 4 {
					t.Errorf("got %d certificates in 3 lifetimes, want 4 or 5", n)
				}
				w.checkTrusted(1, 3)
			})
		})
	}
}

// TestShortestLifetime has the shortest lifetime for its settle time, and no permission to watch: each step
// of a renewal is in time although nothing reports it.
func TestShortestLifetime(t *testing.T) {
	simulate(t, 0, func(t *testing.T, w *world) {
		w.api.Forbid("watch", "")
		w.startWith(6 * settle)
		w.startWith(6 * settle)
		w.waitReady()
		if n := w.advance(5 * 6 * settle); n < 6 {
			t.Errorf("got %d certificates in 5 lifetimes, want at least 6", n)
		}
	})
}

// TestIsolatedReplica checks that a replica that does not see a renewal, because it cannot reach
// the API server, is trusted until its certificate expires, even if the others have been restarted
// since the renewal.
func TestIsolatedReplica(t *testing.T) {
	simulate(t, 0, func(t *testing.T, w *world) {
		isolated := w.start()
		w.start()
		w.waitReady()
		w.advance(time.Minute)
		isolated.stop()
		w.replicas = append(w.replicas, isolated) // it still serves
		if n := w.advance(time.Until(isolated.expires()) - lifetime/10); n != 2 {
			t.Errorf("got %d certificates, want 2", n)
		}
		w.replicas[0].stop()
		w.start()
		w.waitReady()
		w.advance(time.Until(isolated.expires()) - time.Second)
		w.checkTrusted(2, 2)
		w.replicas = slices.DeleteFunc(w.replicas, func(r *replica) bool { return r == isolated })
		w.advance(10 * time.Second)
		w.checkTrusted(1, 1)
	})
}

// TestRestarts replaces all replicas, one by one or all at once, at every stage of a rotation.
func TestRestarts(t *testing.T) {
	simulate(t, 2, func(_ *testing.T, w *world) {
		for n := range 40 {
			w.advance(lifetime/30 + time.Duration(n)*7*time.Second/10)
			w.replicas[0].stop()
			if n%3 == 0 {
				w.replicas[0].stop()
				w.start()
			}
			w.start()
			w.waitReady()
		}
	})
}

// TestRecovery damages the Secret again and again. A certificate that was lost is renewed.
func TestRecovery(t *testing.T) {
	simulate(t, 3, func(t *testing.T, w *world) {
		set := func(key, value string) func() {
			return func() { w.setData(map[string][]byte{key: []byte(value)}) }
		}
		unset := func(key string) func() { return func() { w.setData(map[string][]byte{key: nil}) } }
		for _, c := range []struct {
			name   string
			damage func()
			renews bool
		}{
			{"Secret deleted", func() { w.api.Put(secretPath, nil) }, true},
			{"bundle deleted", unset(keyBundle), false},
			{"Secret emptied", func() { w.api.Put(secretPath, emptySecret()) }, true},
			{"bundle invalid", set(keyBundle, "---"), false},
			{"certificate deleted", unset(keyServing), true},
			{"next certificate invalid", set(keyNext, "---"), false},
			{"key deleted", unset(keyServingKey), true},
			{"certificate invalid", set(keyServing, "---"), true},
		} {
			before := string(w.data()[keyServing])
			c.damage()
			w.advance(time.Second)
			if got := string(w.data()[keyServing]); got != before {
				t.Errorf("%s: the current certificate was not restored", c.name)
			}
			w.advance(2 * settle)
			if got := string(w.data()[keyServing]); (got != before) != c.renews {
				t.Errorf("%s: got renewed: %t, want %t", c.name, got != before, c.renews)
			}
			if n := len(w.data()[keyBundle]); n == 0 {
				t.Errorf("%s: the bundle was not restored", c.name)
			}
			w.checkBundles(c.name, string(w.data()[keyBundle]))
			w.checkLabels()
		}
		w.advance(lifetime)
	})
}

// TestBundlesAreRestored changes the CAs in the Secret, the APIServices or the ConfigMap, and adds
// certificates that must not be trusted. A server's certificate in a bundle is trusted even without its CA.
func TestBundlesAreRestored(t *testing.T) {
	simulate(t, 0, func(t *testing.T, w *world) {
		w.addConfigMap()
		w.startWith(day100) // no renewal is due
		w.waitReady()
		want := w.caBundle(stable)
		with := func(c *x509.Certificate) []byte {
			return slices.Concat(encodePEM(c), want, []byte("# note\n"), encodePEM(c))
		}
		foreign := mustIssue(t, []string{host}, time.Now(), day100)
		for name, bundle := range map[string][]byte{
			"nothing": nil, "not PEM": {0, 0, 0}, "another CA": encodePEM(foreign.ca),
			"with a CA": with(foreign.ca), "with a server certificate": with(foreign.leaf),
			"with a CA that must not sign": with(mustIssueBy(t, time.Now(), day100, unchanged, mayNotSign).ca),
			"with an expired CA":           with(mustIssue(t, []string{host}, time.Now().Add(-day100), lifetime).ca),
			"with the served certificate":  with(w.replicas[0].served.Load().leaf),
		} {
			w.setData(map[string][]byte{keyBundle: bundle})
			w.sleep(time.Second)
			w.checkBundles(name+" in the Secret", string(want))
			w.setCABundle(beta, bundle)
			w.sleep(time.Second)
			w.checkBundles(name+" in an APIService", string(want))
			var data any // nil: none
			if bundle != nil {
				data = map[string]any{keyBundle: string(bundle)}
			}
			w.api.Patch(configMapPath, map[string]any{"data": data})
			w.sleep(resyncPeriod)
			w.checkBundles(name+" in the ConfigMap", string(want))
		}
		w.advance(settle)
	})
}

// TestForeignPreviousPair makes a foreign pair the previous one. The next renewal removes its CA.
func TestForeignPreviousPair(t *testing.T) {
	simulate(t, 2, func(t *testing.T, w *world) {
		foreign := mustIssue(t, []string{host}, time.Now(), day100)
		bundle := append(encodePEM(foreign.ca), w.data()["ca.crt"]...)
		w.setData(map[string][]byte{"previous.crt": foreign.chain(), "ca.crt": bundle})
		if n := w.advance(lifetime); n != 2 {
			t.Errorf("got %d certificates, want 2", n)
		}
		w.checkNotTrusted(foreign.ca)
		w.checkTrusted(1, 2)
	})
}

// TestPairOutlivesPolicy has a pair in the Secret that is valid for 100 years.
func TestPairOutlivesPolicy(t *testing.T) {
	simulate(t, 0, func(t *testing.T, w *world) {
		foreign := mustIssue(t, []string{host, "kube-vitals"}, time.Now(), 365*day100)
		w.setPair(foreign)
		w.start()
		w.start()
		w.waitReady()
		w.advance(settle + 10*time.Second)
		w.checkExpiry()
		w.advance(lifetime) // through another renewal
		w.checkNotTrusted(foreign.ca)

		// The Secret that has it cannot be written.
		last := w.replicas[0].served.Load()
		w.api.Forbid("put", secretPath)
		w.setData(map[string][]byte{"previous.crt": last.chain()})
		w.setPair(foreign)
		w.sleep(resyncPeriod)
		w.checkNotTrusted(foreign.ca)
	})
}

// TestLowerLifetime restarts the replicas one by one with a shorter lifetime. While they differ,
// they agree on the shorter one.
func TestLowerLifetime(t *testing.T) {
	simulate(t, 0, func(t *testing.T, w *world) {
		w.startWith(day100)
		w.startWith(day100)
		w.waitReady()
		w.advance(time.Minute)
		old := readPEM(w.caBundle(stable))[0]

		before := w.api.Written()
		w.startWith(lifetime)
		w.replicas[0].stop()
		w.advance(settle + 10*time.Second)
		w.checkExpiry()
		w.advance(lifetime)
		if n := w.api.Written() - before; n > 20 {
			t.Errorf("got %d writes in two renewals, want at most 20: replicas undo each other's writes", n)
		}
		w.checkLog(0, "keeps being changed")

		w.replicas[0].stop()
		w.startWith(lifetime)
		w.advance(lifetime)
		w.checkNotTrusted(old)
	})
}

// TestPairReplacedByOthers has another client write another pair into the Secret, while a replica starts. The
// API server does not trust that pair, so the served one is restored, and renewed as if it had been lost.
func TestPairReplacedByOthers(t *testing.T) {
	for name, replace := range map[string]func(w *world, backup map[string][]byte){
		"an expired backup": func(w *world, backup map[string][]byte) {
			w.advance(lifetime)
			w.setData(backup)
		},
		"an expired backup with a next pair": func(w *world, backup map[string][]byte) {
			w.advance(lifetime)
			next := mustIssue(w.t, []string{host, "kube-vitals"}, time.Now(), lifetime)
			backup[keyNext], backup[keyNextKey] = next.chain(), next.key
			w.setData(backup)
		},
		"a valid pair": func(w *world, _ map[string][]byte) {
			w.setPair(mustIssue(w.t, []string{host, "kube-vitals"}, time.Now().Add(time.Second), lifetime))
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, w *world) {
				backup := w.data()
				backup[keyNext], backup[keyNextKey], backup[keyPrevious] = nil, nil, nil
				replace(w, backup)
				served, trusted := w.replicas[0].served.Load(), w.caBundle(stable)
				stored := readPEM(w.data()[keyServing])
				w.start()
				w.advance(step)
				if got := w.data()[keyServing]; string(got) != string(served.chain()) {
					t.Error("the served pair was not restored")
				}
				w.advance(settle / 2)
				if got := w.caBundle(stable); !strings.Contains(string(got), string(encodePEM(served.ca))) {
					t.Errorf("the CA of the served pair is not trusted any more:\n%s, before:\n%s", got, trusted)
				}
				w.checkNotTrusted(stored[1])
				w.advance(2 * settle)
				if w.replicas[0].served.Load().leaf.Equal(served.leaf) {
					t.Error("the served pair was not renewed")
				}
				w.advance(lifetime)
				w.checkNotTrusted(served.ca)
				w.checkLog(0, "keeps being changed")
			})
		})
	}
}

// TestBackupOfSecretAndAPIServices restores a pair that is still valid together with its bundles, as backups of
// all objects do. The API server trusts it, so it is served.
func TestBackupOfSecretAndAPIServices(t *testing.T) {
	simulate(t, 2, func(t *testing.T, w *world) {
		other := mustIssue(t, []string{host, "kube-vitals"}, time.Now(), lifetime)
		w.setCABundle(stable, encodePEM(other.ca))
		w.setCABundle(beta, encodePEM(other.ca))
		w.setPair(other)
		w.sleep(2 * lag)
		if got := w.data()[keyServing]; string(got) != string(other.chain()) {
			t.Error("the pair that the API server trusts was replaced")
		}
		w.advance(lifetime)
	})
}

// TestInvalidSecretAtStart has a Secret that no replica can restore.
func TestInvalidSecretAtStart(t *testing.T) {
	simulate(t, 0, func(t *testing.T, w *world) {
		w.setData(map[string][]byte{
			keyServing: {0}, keyServingKey: {0}, keyBundle: {0}, keyNext: {0}, "mine": []byte("kept"),
		})
		w.start()
		w.waitReady()
		if got := string(w.data()["mine"]); got != "kept" {
			t.Errorf("got %q under another key of the Secret, want it unchanged", got)
		}
		w.checkLog(1, "tls.crt and tls.key are not usable")
	})
}

// TestSecretCannotBeCreated deletes the Secret, and forbids the replicas to create it.
func TestSecretCannotBeCreated(t *testing.T) {
	simulate(t, 2, func(t *testing.T, w *world) {
		w.api.Forbid("patch", secretPath)
		w.api.Put(secretPath, nil)
		w.advance(lifetime / 4) // the replicas serve what they remember
		newcomer := w.start()
		w.advance(step)
		const cure = "kubectl create secret generic serving --namespace kube-system"
		if why := reason.WithCure(newcomer.Ready()); why.Command != cure {
			t.Errorf("Ready() = %v, want the command %q", why, cure)
		}
		w.checkLog(3, "cannot be created") // one of each replica
		w.api.Put(secretPath, emptySecret())
		w.advance(2 * time.Minute)
		w.waitReady()
		w.checkLog(3, "succeeds again")
	})
}

// TestSecretCannotBeWritten forbids to write the Secret when a renewal is due. Replicas that start then serve the
// certificate in it, and caBundles are restored.
func TestSecretCannotBeWritten(t *testing.T) {
	simulate(t, 1, func(t *testing.T, w *world) {
		w.advance(lifetime / 2)
		want := w.caBundle(stable)
		w.api.Forbid("put", secretPath)
		w.advance(lifetime / 4)
		w.start()
		w.waitReady()
		w.setCABundle(beta, nil)
		w.sleep(resyncPeriod)
		w.checkBundles("while the Secret cannot be written", string(want))
		if n := w.advance(step); n != 1 {
			t.Errorf("got %d certificates, want the one in the Secret", n)
		}
		if text := w.log.String(); !strings.Contains(text, "permission to update it") {
			t.Errorf("the log has no error:\n%s", text)
		}
		w.api.RefuseBy(nil)
		if n := w.advance(lifetime); n < 2 {
			t.Errorf("got %d certificates, want renewals", n)
		}
	})
}

// TestNewReplicaWaitsForPeers has an empty Secret, APIServices with a caBundle, and no replica that
// remembers the certificate.
func TestNewReplicaWaitsForPeers(t *testing.T) {
	simulate(t, 1, func(t *testing.T, w *world) {
		w.replicas[0].stop()
		w.api.Put(secretPath, emptySecret())
		r := w.start()
		w.sleep(peerGrace / 2)
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "to restore it") {
			t.Errorf("Ready() = %v, want that it waits for other replicas", err)
		}
		w.sleep(peerGrace)
		w.waitReady()
	})
}

// TestUnreadableAPIService checks that no certificate is promoted while it is not known whether
// every APIService has its CA.
func TestUnreadableAPIService(t *testing.T) {
	simulate(t, 1, func(t *testing.T, w *world) {
		w.api.RefuseBy(func(verb, path string) *sim.Refusal {
			if verb == "get" && path == apiServicePath+beta {
				return sim.Refuse(500, "InternalError", "a timeout")
			}
			return nil
		})
		// The next retry may take a minute, and must succeed before the certificate expires.
		if n := w.advance(lifetime * 8 / 10); n != 1 {
			t.Errorf("got %d certificates, want 1", n)
		}
		w.api.RefuseBy(nil)
		if n := w.advance(lifetime * 7 / 20); n != 2 {
			t.Errorf("got %d certificates, want 2", n)
		}
	})
}

// TestMissingPermissions checks that errors name the missing permission and contain the API server's
// message, and that renewals go on unless the permission is required.
func TestMissingPermissions(t *testing.T) {
	t.Parallel()
	const (
		reconciling = "Reconciling the serving certificate"
		watching    = "Watching an object of the serving certificate"
		publishing  = "Publishing the CAs of the serving certificate"
	)
	for name, c := range map[string]struct {
		verb, path string
		fails      string   // what is logged when it fails, and when it succeeds again
		want       []string // in the log
	}{
		"get the Secret": {"get", secretPath, reconciling,
			[]string{"cannot read Secret kube-system/serving", "permission to get, watch and update"}},
		"update the Secret": {"put", secretPath, reconciling,
			[]string{"cannot write Secret kube-system/serving", "permission to update"}},
		"get an APIService": {"get", apiServicePath + beta, reconciling,
			[]string{"cannot read an APIService: ", "permission to get, watch and patch it: APIService " + beta}},
		"patch an APIService": {"patch", apiServicePath + stable, reconciling,
			[]string{"cannot write the caBundle of APIService " + stable, "permission to patch"}},
		"watch the Secret":      {"watch", secretPath, watching, nil},
		"watch the APIServices": {"watch", apiServicePath + stable, watching, nil},
		"read the ConfigMap": {"get", configMapPath, publishing,
			[]string{"cannot read ConfigMap kube-system/ca", "permission to get and update it"}},
		"write the ConfigMap": {"put", configMapPath, publishing,
			[]string{"cannot write ConfigMap kube-system/ca", "permission to get and update it"}},
		"anything": {"", "", reconciling, nil},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 0, func(t *testing.T, w *world) {
				w.addConfigMap()
				w.api.Forbid(c.verb, c.path)
				r := w.start()
				if c.fails == reconciling {
					w.sleep(3 * time.Minute)
					if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "not allowed by RBAC") {
						t.Errorf("Ready() = %v, want the message of the API server", err)
					}
				} else if n := w.advance(lifetime); n < 2 {
					t.Errorf("got %d certificates in a lifetime, want 2 and the temporary one", n)
				}
				for _, want := range append(c.want, "not allowed by RBAC") {
					if n := strings.Count(w.log.String(), want); n < 1 || c.verb != "" && n > 2 {
						t.Errorf("got %q %d times in the log, want once or twice:\n%s", want, n, w.log.String())
					}
				}
				w.api.RefuseBy(nil)
				w.sleep(2 * time.Minute)
				w.waitReady()
				w.checkBundles("with all permissions", string(w.caBundle(stable)))
				if text := w.log.String(); !strings.Contains(text, c.fails) {
					t.Errorf("the log has no %q, which succeeds again:\n%s", c.fails, text)
				}
			})
		})
	}
}

// TestLongWithoutPermission takes a permission away for an hour, with a long settle time. Requests that fail
// do not count as writes, so the log has the cause once, and all is repaired as soon as writes are allowed.
func TestLongWithoutPermission(t *testing.T) {
	simulate(t, 0, func(_ *testing.T, w *world) {
		w.settle = day
		w.startWith(day100)
		w.waitReady()
		bundle := string(w.caBundle(stable))

		w.api.Forbid("patch", "")
		w.setCABundle(stable, nil)
		w.setCABundle(beta, nil)
		w.sleep(time.Hour)
		w.checkLog(1, "Cannot reconcile")
		w.api.RefuseBy(nil)
		w.sleep(resyncPeriod + step)
		w.checkBundles("with the permission to patch APIServices", bundle)

		w.api.Forbid("patch", secretPath)
		w.api.Put(secretPath, nil)
		w.sleep(time.Hour)
		w.checkLog(2, "Cannot reconcile")
		w.api.RefuseBy(nil)
		w.api.Put(secretPath, emptySecret())
		w.sleep(step)
		bundle = string(w.data()[keyBundle]) // a renewal has started
		w.setCABundle(beta, nil)
		w.sleep(step)
		w.checkBundles("with a new Secret", bundle)
		w.checkLog(0, "keeps being changed")
	})
}

// TestAPIServerUnavailable checks that replicas serve the current certificate in an outage of the
// API server.
func TestAPIServerUnavailable(t *testing.T) {
	simulate(t, 0, func(t *testing.T, w *world) {
		refuse := func(string, string) *sim.Refusal { return &sim.Refusal{} }
		w.api.RefuseBy(refuse)
		early := w.start()
		w.sleep(time.Minute)
		if err := early.Ready(); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("Ready() = %v, want connection refused", err)
		}
		w.api.RefuseBy(nil)
		w.sleep(time.Minute)
		w.waitReady()
		w.start()
		w.waitReady()
		w.advance(lifetime / 2)
		w.api.RefuseBy(refuse)
		w.advance(lifetime / 4) // into the last third
		w.api.RefuseBy(nil)
		w.advance(lifetime)
		if n := strings.Count(w.log.String(), "connection refused"); n > 20 {
			t.Errorf("got %d lines in the log, want at most 20:\n%s", n, w.log.String())
		}
		w.checkLog(0, "permission") // is not what is missing
	})
}

// TestAPIServerClock checks that certificates are valid by the API server's clock, whatever the
// replica's clock shows.
func TestAPIServerClock(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-day100, time.Minute, day100} {
		t.Run(ahead.String(), func(t *testing.T) {
			simulate(t, 0, func(t *testing.T, w *world) {
				w.api.ClockOffset = ahead
				w.start()
				w.waitReady()
				if n := w.advance(lifetime); n != 2 {
					t.Errorf("got %d certificates, want 2", n)
				}
			})
		})
	}
}

// TestWritesAreLimited has another client that overwrites the caBundle again and again.
func TestWritesAreLimited(t *testing.T) {
	simulate(t, 1, func(t *testing.T, w *world) {
		before := w.api.Written()
		const duration = 2 * time.Minute
		for end := time.Now().Add(duration); time.Now().Before(end); w.sleep(step) {
			w.setCABundle(beta, []byte{0, 0, 0})
		}
		if n, limit := w.api.Written()-before, writeBurst+writeBurst*int(duration/settle)+10; n > limit {
			t.Errorf("got %d writes, want at most %d", n, limit)
		}
		if text := w.log.String(); !strings.Contains(text, "keeps being changed by something else") {
			t.Errorf("the log does not mention another writer:\n%.2000s", text)
		}
		w.sleep(2 * time.Minute)
		w.waitReady()
	})
}

// TestWriteAfterTooMany has a long settle time. After too many writes, the next one is soon allowed.
func TestWriteAfterTooMany(t *testing.T) {
	simulate(t, 0, func(_ *testing.T, w *world) {
		w.settle = day
		w.startWith(day100)
		w.waitReady()
		for range writeBurst {
			w.setCABundle(beta, nil)
			w.sleep(step)
		}
		w.checkLog(1, "keeps being changed by something else (find out what with kubectl get --show-managed-fields -o yaml")
		w.sleep(2 * resyncPeriod)
		w.checkBundles("after too many writes", string(w.data()[keyBundle]))
	})
}

func TestListenersAreNotified(t *testing.T) {
	simulate(t, 1, func(t *testing.T, w *world) {
		certificates := w.advance(2 * lifetime)
		if n := int(w.replicas[0].changes.Load()); n != certificates || n < 3 {
			t.Errorf("got %d notifications for %d certificates", n, certificates)
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	valid := Config{
		Client: sim.NewAPI().Config(), Secret: "serving", Names: []string{host},
		Lifetime: DefaultLifetime, Settle: DefaultSettle,
	}
	invalid := Config{
		Secret: "serving", Names: []string{"kube-vitals", "::1", ""}, Lifetime: time.Minute, Settle: time.Minute,
	}
	err := invalid.Validate()
	for _, want := range []string{
		`NAME.NAMESPACE.svc:PORT, but it is "kube-vitals"`, "at least 6 times", `but one is "::1"`, `but one is ""`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for service, want := range map[string]string{
		"other.kube-system.svc": `the first name of the serving certificate is "` + host, host + ":443": "", host: "",
		host + ":0": "NAME.NAMESPACE.svc:PORT", host + ":65536": "NAME.NAMESPACE.svc:PORT",
		host + ":": "NAME.NAMESPACE.svc:PORT", "kube-vitals": "NAME.NAMESPACE.svc:PORT",
	} {
		c := valid
		c.Service = service
		err := c.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("Service %q: got %v, want %q", service, err, want)
		}
	}
	if name := newManager(t, valid).Name(); name != "serving-cert::kube-system/serving" {
		t.Errorf("got name %q", name)
	}
}

// TestMissingConfigMap checks that renewals go on, and that the log has the cure once.
func TestMissingConfigMap(t *testing.T) {
	simulate(t, 0, func(t *testing.T, w *world) {
		w.addConfigMap()
		w.api.Put(configMapPath, nil)
		w.start()
		w.waitReady()
		if n := w.advance(lifetime); n != 2 {
			t.Errorf("got %d certificates in a lifetime, want 2", n)
		}
		w.checkLog(1, "kubectl create configmap ca --namespace kube-system")
		w.checkLog(0, "Cannot reconcile")
		w.addConfigMap()
		w.advance(resyncPeriod + 2*step)
		w.checkBundles("after it was created", string(w.caBundle(stable)))
		w.checkLog(1, "Publishing the CAs of the serving certificate succeeds again")
	})
}
