package servingcert

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/keyutil"
)

var (
	epoch = time.Date(2026, time.October, 1, 12, 0, 0, 0, time.UTC)
	rules = Config{Names: []string{host, "kube-vitals.kube-system"}, Lifetime: 90 * day}
)

func mustIssue(t testing.TB, names []string, at time.Time, lifetime time.Duration) *pair {
	t.Helper()
	p, err := issue(names, at, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// mustIssueBy issues a pair whose certificates are changed before they are signed.
func mustIssueBy(
	t testing.TB, at time.Time, lifetime time.Duration, changeLeaf, changeCA func(*x509.Certificate),
) *pair {
	t.Helper()
	p := mustIssue(t, rules.Names, at, lifetime)
	leaf, ca := *p.leaf, *p.ca
	leaf.PublicKey, ca.PublicKey = nil, nil // sign creates other keys
	changeLeaf(&leaf)
	changeCA(&ca)
	authority, authorityKey, err := sign(&ca, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := sign(&leaf, authority, authorityKey)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	return &pair{certificate, authority, keyPEM}
}

func unchanged(*x509.Certificate) {}

func mayNotSign(ca *x509.Certificate) { ca.KeyUsage = x509.KeyUsageDigitalSignature }

// issued returns a state with pairs issued at these days; a day below 0 issues none.
func issued(t testing.TB, previous, serving, next int) state {
	t.Helper()
	var s state
	for pair, at := range map[**pair]int{&s.previous: previous, &s.serving: serving, &s.next: next} {
		if at >= 0 {
			*pair = mustIssue(t, rules.Names, epoch.Add(time.Duration(at)*day), rules.Lifetime)
		}
	}
	return s.withBundle()
}

// withBundle returns the state with the bundle of its CAs.
func (s state) withBundle() state {
	s.bundle = encodePEM(s.cas()...)
	return s
}

func TestPlan(t *testing.T) {
	t.Parallel()
	const (
		none, same, next, remembered, created = "none", "same", "next", "remembered", "new"

		due, promoted, restored = "due for renewal", "now served", "restored"
		newPair, unusable       = "created a new one", "was not usable"
		ok                      = "" // no change
	)
	empty := state{}
	fresh, renewing, other := issued(t, -1, 0, -1), issued(t, -1, 0, 61), issued(t, -1, 0, -1)
	forCentury := state{serving: mustIssue(t, rules.Names, epoch, 365*day100)}.withBundle()
	caForCentury := state{serving: mustIssueBy(t, epoch, rules.Lifetime, unchanged,
		func(ca *x509.Certificate) { ca.NotAfter = epoch.Add(365 * day100) })}.withBundle()
	lacksName := state{serving: mustIssue(t, rules.Names[:1], epoch, rules.Lifetime)}.withBundle()
	shortLived := state{serving: mustIssue(t, rules.Names, epoch, day)}.withBundle()
	for _, c := range []struct {
		name        string
		state       state
		remembered  state
		day         float64
		nextTrusted bool

		serving string
		next    string
		trusted int
		reason  string // a part of it
	}{
		{"empty", empty, empty, 0, false, created, none, 1, newPair},
		{"fresh", fresh, empty, 30, false, same, none, 1, ok},
		{"just before the last third", fresh, empty, 59.9, false, same, none, 1, ok},
		{"in the last third", fresh, empty, 60, false, same, created, 2, due},
		{"next not trusted yet", renewing, empty, 62, false, same, same, 2, ok},
		{"next trusted", renewing, empty, 62, true, next, none, 2, promoted},
		{"next never trusted", renewing, empty, 89, false, same, same, 2, ok},
		{"next in its last third", issued(t, -1, 60, 10), empty, 125, true, same, created, 2, due},
		{"next not needed and in its last third", issued(t, -1, 60, 10), empty, 75, true, same, none, 1, unusable},
		{"expired", fresh, empty, 91, false, created, none, 1, newPair},
		{"expired while next not trusted", renewing, empty, 91, false, next, none, 1, promoted},
		{"all expired", renewing, empty, 200, false, created, none, 1, newPair},
		{"expired, and so has the remembered", fresh, fresh, 91, false, created, none, 1, newPair},
		{"not valid yet", issued(t, -1, 10, -1), empty, 1, false, created, none, 2, newPair},
		{"outlives the policy", forCentury, empty, 1, false, same, created, 2, due},
		{"outlives the policy, next trusted", state{serving: forCentury.serving, next: other.serving}.withBundle(), empty,
			1, true, next, none, 2, promoted},
		{"CA outlives the policy", caForCentury, empty, 1, false, same, created, 2, due},
		{"next outlives the policy", state{serving: other.serving, next: forCentury.serving}.withBundle(), empty,
			1, true, same, none, 1, unusable},
		{"shorter than the policy", shortLived, empty, 0.5, false, same, none, 1, ok},
		{"shorter than the policy, in its last third", shortLived, empty, 0.7, false, same, created, 2, due},
		{"a name is missing", lacksName, empty, 1, false, same, created, 2, due},
		{"issued by a clock an hour ahead", issued(t, -1, 1, -1), empty, 1 - 0.04, false, same, none, 1, ok},
		{"lost", empty, other, 10, false, remembered, created, 2, restored},
		{"lost, and the remembered expired", empty, other, 91, false, created, none, 1, newPair},
		{"lost except next", issued(t, -1, -1, 5), other, 10, false, remembered, same, 2, restored},
		{"lost except next, which is the remembered", state{next: other.serving}.withBundle(), other, 10, false,
			remembered, created, 2, restored},
		{"lost except next, after a restart", issued(t, -1, -1, 5), empty, 10, false, next, none, 1, promoted},
		{"not the remembered", issued(t, -1, 3, -1), other, 10, false, same, none, 2, "bundle"},
		{"not the remembered, which is older than previous", issued(t, 3, 4, -1), other, 10, false, same, none, 2, ok},
		{"CA not in the bundle", state{serving: other.serving}, empty, 10, false, same, none, 1, "bundle"},
		{"CA of an expired pair in the bundle", issued(t, 0, 61, -1), empty, 90.1, false, same, none, 1, "bundle"},
		{"CA of the previous pair in the bundle", issued(t, 0, 61, -1), empty, 89, false, same, none, 2, ok},
		{"CA of the pair before the previous one", issued(t, 0, 1, 2), empty, 3, true, next, none, 2, promoted},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			now := epoch.Add(time.Duration(c.day * float64(day)))
			got, reason, err := c.state.plan(now, rules, c.remembered, c.nextTrusted)
			if err != nil {
				t.Fatal(err)
			}
			if (reason == "") != (c.reason == "") || !strings.Contains(reason, c.reason) {
				t.Errorf("got reason %q, want %q", reason, c.reason)
			}
			known := map[string]*pair{remembered: c.remembered.serving, next: c.state.next, same: c.state.serving}
			if c.state.next == c.remembered.serving {
				delete(known, next)
			}
			if got := nameOf(got.serving, known); got != c.serving {
				t.Errorf("got the %s pair to serve, want %s", got, c.serving)
			}
			if got := nameOf(got.next, map[string]*pair{same: c.state.next}); got != c.next {
				t.Errorf("got the %s pair as next, want %s", got, c.next)
			}
			if n := len(readPEM(got.bundle)); n != c.trusted {
				t.Errorf("got %d trusted CAs, want %d", n, c.trusted)
			}
			checkState(t, got, now)
			if _, reason, err := got.plan(now, rules, got, false); reason != "" || err != nil {
				t.Errorf("got a second change (%s, %v), want none", reason, err)
			}
		})
	}
}

// nameOf returns the name of a pair.
func nameOf(p *pair, known map[string]*pair) string {
	if p == nil {
		return "none"
	}
	for name, other := range known {
		if other != nil && p.leaf.Equal(other.leaf) {
			return name
		}
	}
	return "new"
}

// checkState checks what must hold for every state that is written.
func checkState(t *testing.T, s state, now time.Time) {
	t.Helper()
	for _, p := range []*pair{s.serving, s.next} {
		if p == nil {
			continue
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(s.bundle)
		names := rules.Names
		if p == s.serving && s.next != nil {
			names = names[:1] // others may be missing, which is why it is being renewed
		}
		for _, name := range names {
			if _, err := p.leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now}); err != nil {
				t.Errorf("cannot verify the pair for %s: %v", name, err)
			}
		}
	}
	for _, ca := range readPEM(s.bundle) {
		if now.After(ca.NotAfter) || !ca.IsCA || ca.KeyUsage&x509.KeyUsageCertSign == 0 {
			t.Error("the bundle has a certificate that is not a valid CA")
		}
	}
}

func TestReadWrite(t *testing.T) {
	t.Parallel()
	data := map[string][]byte{"note": []byte("kept")}
	for name, s := range map[string]state{
		"with next": issued(t, -1, 0, 1), "serving only": issued(t, -1, 0, -1), "all": issued(t, 0, 1, 2),
	} {
		s.write(data)
		got, err := readState(data, host)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !got.serving.leaf.Equal(s.serving.leaf) || (got.next == nil) != (s.next == nil) ||
			(got.previous == nil) != (s.previous == nil) || !bytes.Equal(got.bundle, s.bundle) ||
			!bytes.Equal(got.withBundle().bundle, s.bundle) {
			t.Errorf("%s: got %+v, want %+v", name, got, s)
		}
		if string(data["note"]) != "kept" {
			t.Errorf("%s: another key of the Secret was changed", name)
		}
	}
}

// withHeader encodes a certificate with a PEM header. Some parsers skip such certificates.
func withHeader(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"a": "b"}, Bytes: c.Raw})
}

// TestInvalidSecret has each of the pairs in the Secret replaced by one that no replica can have written, or
// damaged. The other pairs stay usable.
func TestInvalidSecret(t *testing.T) {
	t.Parallel()
	good, foreign := issued(t, 0, 1, 2), issued(t, -1, 1, -1).serving
	whole := map[string][]byte{}
	good.write(whole)
	leaf, ca := good.serving.leaf, good.serving.ca
	forClients := func(leaf *x509.Certificate) { leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
	type replacement struct {
		name, key string
		value     []byte
		err       string // of the pair to serve
	}
	all := []replacement{
		{"no certificate", keyServing, nil, keyServing},
		{"another after one with a PEM header", keyServing, slices.Concat(withHeader(leaf), foreign.chain()), "private key"},
		{"no key", keyServingKey, nil, keyServingKey},
		{"another key", keyServingKey, foreign.key, "private key"},
		{"no key", keyNextKey, nil, ""},
		{"another key", keyNextKey, foreign.key, ""},
		{"nothing", keyBundle, nil, ""},
		{"not PEM", keyBundle, []byte("----"), ""},
		{"a comment", keyBundle, append([]byte("# CAs\n"), whole[keyBundle]...), ""},
	}
	for _, key := range []string{keyServing, keyNext, keyPrevious} {
		all = append(all,
			replacement{"not PEM", key, []byte("\x00\xff"), keyServing},
			replacement{"truncated", key, whole[keyServing][:200], keyServing},
			replacement{"no CA", key, encodePEM(leaf), "two certificates"},
			replacement{"three certificates", key, encodePEM(leaf, ca, foreign.ca), "two certificates"},
			replacement{"leaf instead of the CA", key, encodePEM(leaf, leaf), "not a CA"},
			replacement{"CA twice", key, encodePEM(foreign.ca, foreign.ca), "not valid for any names"},
			replacement{"another CA", key, encodePEM(leaf, foreign.ca), "unknown authority"},
			replacement{"CA that must not sign", key,
				mustIssueBy(t, epoch, rules.Lifetime, unchanged, mayNotSign).chain(), "not a CA"},
			replacement{"another Service", key,
				mustIssue(t, []string{"other.kube-system.svc"}, epoch, rules.Lifetime).chain(), "other.kube-system.svc"},
			replacement{"client certificate", key,
				mustIssueBy(t, epoch, rules.Lifetime, forClients, unchanged).chain(), "incompatible key usage"},
		)
	}
	for _, c := range all {
		t.Run(c.key+": "+c.name, func(t *testing.T) {
			t.Parallel()
			data := maps.Clone(whole)
			data[c.key] = c.value
			got, err := readState(data, host)
			for name, p := range map[string]*pair{"tls": got.serving, "next": got.next, "previous": got.previous} {
				if isUsable := p != nil; isUsable == strings.HasPrefix(c.key, name+".") {
					t.Errorf("the pair %s is usable: %t", name, isUsable)
				}
			}
			if isServing := strings.HasPrefix(c.key, "tls."); (err != nil) != isServing ||
				isServing && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got error %v, want %q", err, c.err)
			}
			if strings.Contains(fmt.Sprint(err), "-----BEGIN") {
				t.Errorf("the error contains a certificate or key: %v", err)
			}
			now := epoch.Add(3 * day)
			for _, remembered := range []state{{}, good} {
				following, _, err := got.plan(now, rules, remembered, false)
				if err != nil {
					t.Fatal(err)
				}
				checkState(t, following, now)
			}
		})
	}
}

func TestCAKeyIsNotStored(t *testing.T) {
	t.Parallel()
	s, data := issued(t, -1, 0, 1), map[string][]byte{}
	s.write(data)
	for key, text := range data {
		if n := bytes.Count(text, []byte("PRIVATE KEY-----")); n > 0 && !strings.HasSuffix(key, ".key") {
			t.Errorf("%s contains a private key", key)
		}
	}
	for _, ca := range s.cas() {
		for _, key := range []string{keyServingKey, keyNextKey} {
			_, err := tls.X509KeyPair(encodePEM(ca), data[key])
			if err == nil || !strings.Contains(err.Error(), "private key") {
				t.Errorf("%s may be the key of a CA: got error %v", key, err)
			}
		}
	}
}
