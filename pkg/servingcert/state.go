package servingcert

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"fmt"
	"slices"
	"time"
)

// The keys of the Secret. Other keys are not changed.
const (
	keyServing    = "tls.crt" // the current certificate and its CA
	keyServingKey = "tls.key"
	keyNext       = "next.crt" // the certificate that is served once its CA is trusted, and that CA
	keyNextKey    = "next.key"
	keyPrevious   = "previous.crt" // the certificate that was served before, and its CA
	keyBundle     = "ca.crt"       // the CAs of these three, as in every caBundle
)

// clockTolerance is how much a certificate may outlive Lifetime before it counts as stale. It
// allows for differences between the clocks of API servers.
const clockTolerance = backdate

// state is the contents of the Secret. It is immutable, and so is what it points to.
//
// The bundle is derived from the pairs, never the reverse. So a CA is trusted only while some
// replica may serve its certificate: the current one, the next one, or the previous one, which a
// replica that has not seen a renewal still serves.
type state struct {
	serving  *pair  // nil: there is no usable one
	next     *pair  // nil: no renewal is in progress
	previous *pair  // its key is not stored; nil: there is none, or it has expired
	bundle   []byte // PEM; after readState, whatever the Secret has
}

// lastThird returns the last third of a certificate's life: its own, or Lifetime if that is
// shorter. So replicas with different Lifetimes agree instead of replacing each other's
// certificates.
func (c Config) lastThird(leaf *x509.Certificate) time.Duration {
	life := leaf.NotAfter.Sub(leaf.NotBefore) - backdate
	return max(min(life, c.Lifetime), 0) / 3
}

// outlives reports whether the pair is valid for longer than a pair created now. The CA is valid at
// least as long as the certificate.
func (c Config) outlives(pair *pair, now time.Time) bool {
	return pair.ca.NotAfter.Sub(now) > c.Lifetime+clockTolerance
}

// stale reports whether a valid pair that is served must be renewed, which takes up to 1.5 times Settle: see
// Run.
func (c Config) stale(pair *pair, now time.Time) bool {
	isMissing := func(name string) bool { return pair.leaf.VerifyHostname(name) != nil }
	return pair.leaf.NotAfter.Sub(now) <= max(c.lastThird(pair.leaf), 2*c.Settle) || c.outlives(pair, now) ||
		slices.ContainsFunc(c.Names, isMissing)
}

// fresh reports whether the pair can be served next. It does not compare the names: replicas with
// different names, as during an update, would replace each other's next pair forever.
func (c Config) fresh(pair *pair, now time.Time) bool {
	return pair != nil && pair.validAt(now) && !c.outlives(pair, now) &&
		pair.leaf.NotAfter.Sub(now) > c.lastThird(pair.leaf)
}

// readState returns the usable contents of a Secret, whose certificates must cover the name. The error
// is the reason why the pair to serve is not usable.
func readState(data map[string][]byte, name string) (state, error) {
	s := state{bundle: data[keyBundle]}
	var err error
	if len(data[keyServing])+len(data[keyServingKey]) > 0 {
		if s.serving, err = readPair(data[keyServing], data[keyServingKey], name); err != nil {
			s.serving, err = nil, fmt.Errorf("%s and %s are not usable: %w", keyServing, keyServingKey, err)
		}
	}
	if len(data[keyNext])+len(data[keyNextKey]) > 0 {
		s.next, _ = readPair(data[keyNext], data[keyNextKey], name) // nil if unusable: another one is created
	}
	if len(data[keyPrevious]) > 0 {
		s.previous, _ = readChain(data[keyPrevious], name) // nil if unusable: no replica serves it
	}
	return s, err
}

// write writes the state into a Secret's data.
func (s state) write(data map[string][]byte) {
	for _, key := range []string{keyNext, keyNextKey, keyPrevious} {
		delete(data, key)
	}
	data[keyServing], data[keyServingKey], data[keyBundle] = s.serving.chain(), s.serving.key, s.bundle
	if s.next != nil {
		data[keyNext], data[keyNextKey] = s.next.chain(), s.next.key
	}
	if s.previous != nil {
		data[keyPrevious] = s.previous.chain()
	}
}

// cas returns the CAs of the bundle, in an order that stays the same when the next pair is
// promoted.
func (s state) cas() []*x509.Certificate {
	var cas []*x509.Certificate
	for _, p := range []*pair{s.previous, s.serving, s.next} {
		if p != nil && !slices.ContainsFunc(cas, p.ca.Equal) {
			cas = append(cas, p.ca)
		}
	}
	return cas
}

// plan returns the state that must follow and the reason, or "" if nothing must change. The state
// remembered is the last usable one that this replica saw; nextTrusted is set once every API server
// trusts the CA of the next pair.
//
// Whatever the Secret holds, the returned state has a valid pair to serve, and its bundle has
// exactly the CAs of its pairs.
func (s state) plan(now time.Time, c Config, remembered state, nextTrusted bool) (
	following state, reason string, err error,
) {
	found := s.bundle
	s.previous = s.findPrevious(remembered)
	lost := s.serving == nil && remembered.serving != nil && remembered.serving.validAt(now)
	if lost {
		s.serving, s.previous = remembered.serving, cmp.Or(remembered.previous, s.previous)
		if s.next != nil && s.next.leaf.Equal(s.serving.leaf) {
			s.next = nil // a backup of the time before it was promoted
		}
	}
	switch {
	case s.serving != nil && s.serving.validAt(now):
		reason, err = s.renew(now, c, nextTrusted, lost)
	case s.next != nil && s.next.validAt(now):
		s.promote()
		reason = "no valid certificate was left except the next one, which is now served"
	default:
		s.next, err = issue(c.Names, now, c.Lifetime)
		s.promote()
		reason = "no valid certificate was left: created a new one"
	}
	if err != nil {
		return state{}, "", err
	}
	s = s.bundled(now)
	if reason == "" && !bytes.Equal(s.bundle, found) {
		reason = "the bundle did not have exactly the CAs of the certificates in use"
	}
	return s, reason, nil
}

// unrenewed returns the state to serve and to publish while the Secret, which has a pair to serve, cannot be written:
// what it holds, except pairs that must not be served, or that outlive the policy.
func (s state) unrenewed(now time.Time, c Config, remembered state) state {
	s.previous = s.findPrevious(remembered)
	if s.previous != nil && c.outlives(s.previous, now) {
		s.previous = nil
	}
	if !c.fresh(s.next, now) {
		s.next = nil
	}
	return s.bundled(now)
}

// bundled returns the state with the CAs of its pairs, and without a previous pair that has expired.
func (s state) bundled(now time.Time) state {
	if s.previous != nil && now.After(s.previous.leaf.NotAfter) {
		s.previous = nil
	}
	s.bundle = encodePEM(s.cas()...)
	return s
}

// findPrevious returns the previous pair, which other replicas may still serve. If the current pair
// has been replaced without a renewal, it is the one that this replica remembers.
func (s state) findPrevious(remembered state) *pair {
	last := remembered.serving
	switch {
	case s.serving == nil || last == nil || last.leaf.Equal(s.serving.leaf):
		return s.previous
	case s.previous != nil && !last.leaf.NotBefore.After(s.previous.leaf.NotBefore):
		return s.previous
	default:
		return last
	}
}

// promote makes the next pair the one that is served.
func (s *state) promote() {
	if s.serving != nil {
		s.previous = s.serving
	}
	s.serving, s.next = s.next, nil
}

// renew advances the renewal of a valid pair to serve. A pair that was lost is restored before it is
// renewed, so that no request fails: the Secret may have been emptied because its key leaked.
func (s *state) renew(now time.Time, c Config, nextTrusted, lost bool) (reason string, err error) {
	switch fresh := c.fresh(s.next, now); {
	case fresh && nextTrusted && !lost:
		s.promote()
		reason = "every API server trusts the next certificate, which is now served"
	case !fresh && (lost || c.stale(s.serving, now)):
		s.next, err = issue(c.Names, now, c.Lifetime)
		reason = "the certificate is due for renewal: created the next one"
	case !fresh && s.next != nil:
		s.next = nil
		reason = "removed the next certificate, which was not usable"
	}
	if lost {
		reason = "no usable certificate was left: restored the one that this replica serves and started its renewal"
	}
	return reason, err
}
