package servingcert

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	epoch = time.Date(2026, time.October, 1, 12, 0, 0, 0, time.UTC)
	rules = policy{names: []string{"kube-vitals.kube-system.svc", "kube-vitals.kube-system"}, lifetime: 90 * day}
)

const day = 24 * time.Hour

func mustIssue(t testing.TB, names []string, at time.Time, lifetime time.Duration) *pair {
	t.Helper()
	p, err := issue(names, at, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// mustIssueBy issues a pair whose certificates are changed before they are signed; nil changes
// nothing.
func mustIssueBy(t testing.TB, at time.Time, lifetime time.Duration, leaf, ca func(*x509.Certificate)) *pair {
	t.Helper()
	p := mustIssue(t, rules.names, at, lifetime)
	resign := func(template *x509.Certificate, change func(*x509.Certificate), parent *x509.Certificate, parentKey crypto.Signer) (*x509.Certificate, crypto.Signer) {
		copied := *template
		copied.PublicKey = nil // sign makes another key
		if change != nil {
			change(&copied)
		}
		certificate, key, err := sign(&copied, parent, parentKey)
		if err != nil {
			t.Fatal(err)
		}
		return certificate, key
	}
	authority, authorityKey := resign(p.ca, ca, nil, nil)
	certificate, key := resign(p.leaf, leaf, authority, authorityKey)
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &pair{leaf: certificate, ca: authority, certificate: encodePEM(certificate), chain: encodePEM(certificate, authority),
		key: pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: text})}
}

// made returns a state whose pairs were made at the given days, as it is in the Secret; a day below
// 0 makes none.
func made(t testing.TB, serving, next int) state {
	t.Helper()
	return madeAfter(t, -1, serving, next)
}

// madeAfter does what made does, with a previous pair.
func madeAfter(t testing.TB, previous, serving, next int) state {
	t.Helper()
	var s state
	for pair, made := range map[**pair]int{&s.previous: previous, &s.serving: serving, &s.next: next} {
		if made >= 0 {
			*pair = mustIssue(t, rules.names, epoch.Add(time.Duration(made)*day), rules.lifetime)
		}
	}
	if s.previous != nil {
		s.previous = s.previous.withoutKey()
	}
	return s.stored()
}

// stored returns the state with the bundle that belongs to it.
func (s state) stored() state {
	s.bundle = encodePEM(s.cas()...)
	return s
}

func TestPlan(t *testing.T) {
	t.Parallel()
	renewed := made(t, 0, 61)
	other := made(t, 0, -1)
	longLived := state{serving: mustIssue(t, rules.names, epoch, 100*365*day)}.stored()
	longCA := state{serving: mustIssueBy(t, epoch, rules.lifetime, nil, func(ca *x509.Certificate) { ca.NotAfter = epoch.Add(100 * 365 * day) })}.stored()
	shortLived := state{serving: mustIssue(t, rules.names, epoch, day)}.stored()
	for name, c := range map[string]struct {
		state       state
		kept        state
		day         float64
		nextTrusted bool

		serving string // "same", "next", "kept" or "new"
		next    string // "none", "same" or "new"
		trusted int
		why     string // a part of it
	}{
		"nothing":                             {state: state{}, serving: "new", next: "none", trusted: 1, why: "a new one was made"},
		"fresh":                               {state: made(t, 0, -1), day: 30, serving: "same", next: "none", trusted: 1},
		"just before its last third":          {state: made(t, 0, -1), day: 59.9, serving: "same", next: "none", trusted: 1},
		"in its last third":                   {state: made(t, 0, -1), day: 60, serving: "same", next: "new", trusted: 2, why: "due for renewal"},
		"next is not trusted yet":             {state: renewed, day: 62, serving: "same", next: "same", trusted: 2},
		"next is trusted":                     {state: renewed, day: 62, nextTrusted: true, serving: "next", next: "none", trusted: 2, why: "is served now"},
		"next was never trusted":              {state: renewed, day: 89, serving: "same", next: "same", trusted: 2},
		"next has aged, too":                  {state: made(t, 60, 10), day: 125, nextTrusted: true, serving: "same", next: "new", trusted: 2, why: "due for renewal"},
		"next is not needed and has aged":     {state: made(t, 60, 10), day: 75, nextTrusted: true, serving: "same", next: "none", trusted: 1, why: "could not be used"},
		"expired":                             {state: made(t, 0, -1), day: 91, serving: "new", next: "none", trusted: 1, why: "a new one was made"},
		"expired while next was not trusted":  {state: renewed, day: 91, serving: "next", next: "none", trusted: 1, why: "is served now"},
		"everything expired":                  {state: renewed, day: 200, serving: "new", next: "none", trusted: 1, why: "a new one was made"},
		"expired, and this is all there was":  {state: made(t, 0, -1), kept: made(t, 0, -1), day: 91, serving: "new", next: "none", trusted: 1, why: "a new one was made"},
		"not valid yet":                       {state: made(t, 10, -1), day: 1, serving: "new", next: "none", trusted: 2, why: "a new one was made"},
		"outlives the policy":                 {state: longLived, day: 1, serving: "same", next: "new", trusted: 2, why: "due for renewal"},
		"outlives it, and next is trusted":    {state: state{serving: longLived.serving, next: other.serving}.stored(), day: 1, nextTrusted: true, serving: "next", next: "none", trusted: 2, why: "is served now"},
		"its CA outlives the policy":          {state: longCA, day: 1, serving: "same", next: "new", trusted: 2, why: "due for renewal"},
		"next outlives the policy":            {state: state{serving: other.serving, next: longLived.serving}.stored(), day: 1, nextTrusted: true, serving: "same", next: "none", trusted: 1, why: "could not be used"},
		"lives shorter than the policy":       {state: shortLived, day: 0.5, serving: "same", next: "none", trusted: 1},
		"shorter, in its own last third":      {state: shortLived, day: 0.7, serving: "same", next: "new", trusted: 2, why: "due for renewal"},
		"made by a clock some minutes ahead":  {state: made(t, 1, -1), day: 1 - 0.04, serving: "same", next: "none", trusted: 1},
		"lost":                                {state: state{}, kept: other, day: 10, serving: "kept", next: "new", trusted: 2, why: "put back"},
		"lost, and what was kept has expired": {state: state{}, kept: other, day: 91, serving: "new", next: "none", trusted: 1, why: "a new one was made"},
		"lost but for the next one":           {state: made(t, -1, 5), kept: other, day: 10, serving: "kept", next: "same", trusted: 2, why: "put back"},
		"lost but for the next one, restart":  {state: made(t, -1, 5), day: 10, serving: "next", next: "none", trusted: 1, why: "is served now"},
		"another one than was kept":           {state: made(t, 3, -1), kept: other, day: 10, serving: "same", next: "none", trusted: 2, why: "bundle"},
		"another one than was kept, which is older than the previous one": {
			state: madeAfter(t, 3, 4, -1), kept: other, day: 10, serving: "same", next: "none", trusted: 2},
		"its CA is not in the bundle": {
			state: state{serving: other.serving}, day: 10, serving: "same", next: "none", trusted: 1, why: "bundle"},
		"the CA of an expired pair is in the bundle": {
			state: madeAfter(t, 0, 61, -1), day: 90.1, serving: "same", next: "none", trusted: 1, why: "expired"},
		"the CA of a pair that may still be served is in the bundle": {
			state: madeAfter(t, 0, 61, -1), day: 89, serving: "same", next: "none", trusted: 2},
		"the CA of the pair before the previous one goes with it": {
			state: madeAfter(t, 0, 1, 2), day: 3, nextTrusted: true, serving: "next", next: "none", trusted: 2, why: "is served now"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := epoch.Add(time.Duration(c.day * float64(day)))
			got, why, err := c.state.plan(now, rules, c.kept, c.nextTrusted)
			if err != nil {
				t.Fatal(err)
			}
			if (why == "") != (c.why == "") || !strings.Contains(why, c.why) {
				t.Errorf("why = %q, want %q in it", why, c.why)
			}
			if got := relation(got.serving, map[string]*pair{"kept": c.kept.serving, "next": c.state.next, "same": c.state.serving}); got != c.serving {
				t.Errorf("serves the %s pair, want the %s one", got, c.serving)
			}
			if got := relation(got.next, map[string]*pair{"same": c.state.next}); got != c.next {
				t.Errorf("the next pair is %s, want %s", got, c.next)
			}
			if n := len(readPEM(got.bundle)); n != c.trusted {
				t.Errorf("%d CAs are trusted, want %d", n, c.trusted)
			}
			checkSound(t, got, now)

			// Then there is nothing left to do.
			if _, why, err := got.plan(now, rules, got, false); why != "" || err != nil {
				t.Errorf("then there is still something to do: %s, %v", why, err)
			}
		})
	}
}

func relation(p *pair, known map[string]*pair) string {
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

// checkSound checks what must hold for every state that is written.
func checkSound(t *testing.T, s state, now time.Time) {
	t.Helper()
	for _, p := range []*pair{s.serving, s.next} {
		if p == nil {
			continue
		}
		if !p.validAt(now) {
			t.Errorf("a pair is valid from %v to %v, so not at %v", p.leaf.NotBefore, p.leaf.NotAfter, now)
		}
		if !slices.ContainsFunc(readPEM(s.bundle), p.ca.Equal) {
			t.Error("a pair's CA is not in the bundle")
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(s.bundle)
		for _, name := range rules.names {
			if _, err := p.leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now}); err != nil {
				t.Errorf("not verified for %s: %v", name, err)
			}
		}
	}
	for _, ca := range readPEM(s.bundle) {
		if now.After(ca.NotAfter) {
			t.Error("an expired CA is in the bundle")
		}
		if !ca.IsCA || ca.KeyUsage&x509.KeyUsageCertSign == 0 {
			t.Error("a certificate in the bundle is not a CA")
		}
	}
	if wait := s.wait(now, rules); wait < 0 || wait > rules.lifetime && !rules.outlives(s.serving, now) {
		t.Errorf("waits for %v", wait)
	}
}

func TestPlanForOtherNames(t *testing.T) {
	t.Parallel()
	s := state{serving: mustIssue(t, rules.names[:1], epoch, rules.lifetime)}
	got, why, err := s.plan(epoch.Add(day), rules, state{}, false)
	if err != nil || got.next == nil || got.serving != s.serving || why == "" {
		t.Errorf("a certificate that lacks a name is not to be renewed: %v, %q, %v", got.next, why, err)
	}
}

// TestBundleHoldsOnlyCAsInUse puts into the bundle what does not belong there.
func TestBundleHoldsOnlyCAsInUse(t *testing.T) {
	t.Parallel()
	s := madeAfter(t, 0, 1, 2)
	expired := mustIssue(t, rules.names, epoch.Add(-100*day), rules.lifetime)
	foreign := mustIssue(t, rules.names, epoch, rules.lifetime)
	for name, certificate := range map[string]*x509.Certificate{
		"a CA that signed nothing in use": foreign.ca, "a server's certificate": foreign.leaf,
		"a server's certificate that is served": s.serving.leaf, "an expired CA": expired.ca,
	} {
		data := map[string][]byte{}
		s.write(data)
		data[keyBundle] = slices.Concat(encodePEM(certificate), data[keyBundle], []byte("# note\n"), encodePEM(certificate))
		read, err := readState(data, rules)
		if err != nil {
			t.Fatal(err)
		}
		got, why, err := read.plan(epoch.Add(3*day), rules, state{}, false)
		if err != nil || !strings.Contains(why, "bundle") {
			t.Errorf("%s: why = %q, %v; want that the bundle is wrong", name, why, err)
		}
		if !bytes.Equal(got.bundle, s.bundle) {
			t.Errorf("%s stays in the bundle", name)
		}
		checkSound(t, got, epoch.Add(3*day))
	}
}

// TestPreviousPairIsChecked puts into the Secret what nobody can have served before.
func TestPreviousPairIsChecked(t *testing.T) {
	t.Parallel()
	good, other := madeAfter(t, 0, 1, -1), made(t, 2, -1).serving
	mayNotSign := func(ca *x509.Certificate) { ca.KeyUsage = x509.KeyUsageDigitalSignature }
	for name, chain := range map[string][]byte{
		"not PEM":                      []byte("----"),
		"a CA alone":                   encodePEM(other.ca),
		"a CA for both":                encodePEM(other.ca, other.ca),
		"another's CA":                 encodePEM(good.previous.leaf, other.ca),
		"a CA that may not sign":       mustIssueBy(t, epoch, rules.lifetime, nil, mayNotSign).chain,
		"another Service":              mustIssue(t, []string{"other.kube-system.svc"}, epoch, rules.lifetime).chain,
		"a client's":                   mustIssueBy(t, epoch, rules.lifetime, func(leaf *x509.Certificate) { leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, nil).chain,
		"one that expired":             mustIssue(t, rules.names, epoch.Add(-100*day), rules.lifetime).chain,
		"three certificates, two good": encodePEM(good.previous.leaf, good.previous.ca, other.ca),
	} {
		data := map[string][]byte{}
		good.write(data)
		data[keyPrevious] = chain
		read, err := readState(data, rules)
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := read.plan(epoch.Add(2*day), rules, state{}, false)
		if err != nil || got.previous != nil || len(readPEM(got.bundle)) != 1 {
			t.Errorf("%s is kept, and %d CAs are trusted: %v", name, len(readPEM(got.bundle)), err)
		}
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	data := map[string][]byte{"note": []byte("somebody's own")}
	for name, s := range map[string]state{"both": made(t, 0, 1), "one": made(t, 0, -1), "all three": madeAfter(t, 0, 1, 2)} {
		if !s.write(data) {
			t.Errorf("%s: the first time, nothing changed", name)
		}
		if s.write(data) {
			t.Errorf("%s: the second time, something changed", name)
		}
		got, err := readState(data, rules)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !got.serving.leaf.Equal(s.serving.leaf) || (got.next == nil) != (s.next == nil) ||
			(got.previous == nil) != (s.previous == nil) || !bytes.Equal(got.bundle, s.bundle) || !bytes.Equal(got.stored().bundle, s.bundle) {
			t.Errorf("%s: what was read differs from what was written", name)
		}
		if string(data["note"]) != "somebody's own" {
			t.Errorf("%s: a key that is not ours was changed", name)
		}
	}
}

func TestCorruptContent(t *testing.T) {
	t.Parallel()
	good, foreign := made(t, 0, 1), made(t, 0, 1)
	whole := map[string][]byte{}
	good.write(whole)
	for name, c := range map[string]struct {
		key     string
		value   []byte
		serving bool // whether it still can be used
		next    bool
		says    string
	}{
		"no certificate":            {keyServing, nil, false, true, keyServing},
		"no key":                    {keyServingKey, nil, false, true, keyServingKey},
		"half a certificate":        {keyServing, whole[keyServing][:200], false, true, keyServing},
		"no CA":                     {keyServing, encodePEM(good.serving.leaf), false, true, "two certificates"},
		"a leaf for a CA":           {keyServing, encodePEM(good.serving.leaf, good.serving.leaf), false, true, "not a CA"},
		"another's CA":              {keyServing, encodePEM(good.serving.leaf, foreign.serving.ca), false, true, "unknown authority"},
		"another's key":             {keyServingKey, foreign.serving.key, false, true, "private key"},
		"not PEM":                   {keyServing, []byte("\x00\xff"), false, true, keyServing},
		"another's next key":        {keyNextKey, foreign.next.key, true, false, ""},
		"no next key":               {keyNextKey, nil, true, false, ""},
		"no bundle":                 {keyBundle, nil, true, true, ""},
		"a bundle that is not PEM":  {keyBundle, []byte("----"), true, true, ""},
		"a bundle with other words": {keyBundle, append([]byte("# CAs\n"), whole[keyBundle]...), true, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := maps.Clone(whole)
			data[c.key] = c.value
			got, err := readState(data, rules)
			if (got.serving != nil) != c.serving || (got.next != nil) != c.next {
				t.Errorf("serving, next can be used: %t, %t; want %t, %t", got.serving != nil, got.next != nil, c.serving, c.next)
			}
			if (err == nil) != c.serving || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %q in it", err, c.says)
			}
			if err != nil && strings.Contains(err.Error(), "-----BEGIN") {
				t.Errorf("the error has content in it: %v", err)
			}
			// Whatever it was, what follows is sound, with and without what a server keeps.
			for _, kept := range []state{{}, good} {
				following, _, err := got.plan(epoch.Add(day), rules, kept, false)
				if err != nil {
					t.Fatal(err)
				}
				checkSound(t, following, epoch.Add(day))
			}
		})
	}
}

func TestAnotherServicesCertificateIsNotServed(t *testing.T) {
	t.Parallel()
	p := mustIssue(t, []string{"other.kube-system.svc"}, epoch, rules.lifetime)
	data := map[string][]byte{keyServing: p.chain, keyServingKey: p.key}
	if s, err := readState(data, rules); s.serving != nil || err == nil || !strings.Contains(err.Error(), "other.kube-system.svc") {
		t.Errorf("got %v, %v; want an error that names it", s.serving, err)
	}
}

func TestTheCAsKeyIsNowhere(t *testing.T) {
	t.Parallel()
	s, data := made(t, 0, 1), map[string][]byte{}
	s.write(data)
	for key, text := range data {
		if n := bytes.Count(text, []byte("PRIVATE KEY-----")); n > 0 && !strings.HasSuffix(key, ".key") {
			t.Errorf("%s has a key in it", key)
		}
	}
	for _, ca := range s.cas() {
		for _, key := range []string{keyServingKey, keyNextKey} {
			if _, err := readPair(encodePEM(ca, ca), data[key], rules.names[0]); err == nil || !strings.Contains(err.Error(), "private key") {
				t.Errorf("%s may be a CA's: %v", key, err)
			}
		}
	}
}
