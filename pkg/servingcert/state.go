package servingcert

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"maps"
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

// clockTolerance is how much a certificate may outlive the policy before it counts as stale. It
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
	previous *pair  // without a key; nil: there is none, or it has expired
	bundle   []byte // PEM; after readState, whatever the Secret has
}

// policy is the part of Config that plan needs.
type policy struct {
	names    []string // the API server connects to the first
	lifetime time.Duration
	settle   time.Duration
}

// lastThird returns the last third of a certificate's life: its own, or the policy's if that is
// shorter. So replicas with different policies agree instead of replacing each other's
// certificates.
func (p policy) lastThird(c *x509.Certificate) time.Duration {
	life := c.NotAfter.Sub(c.NotBefore) - backdate
	return max(min(life, p.lifetime), 0) / 3
}

// renewBefore returns how long before its expiry a certificate is renewed. A renewal takes a little
// more than settle.
func (p policy) renewBefore(c *x509.Certificate) time.Duration {
	return max(p.lastThird(c), 2*p.settle)
}

// outlives reports whether the pair is valid for longer than a pair created now. The CA is valid at
// least as long as the certificate.
func (p policy) outlives(pair *pair, now time.Time) bool {
	return pair.ca.NotAfter.Sub(now) > p.lifetime+clockTolerance
}

// stale reports whether a valid pair that is served must be renewed.
func (p policy) stale(pair *pair, now time.Time) bool {
	return pair.leaf.NotAfter.Sub(now) <= p.renewBefore(pair.leaf) || p.outlives(pair, now) || !pair.covers(p.names)
}

// fresh reports whether the pair can be served next. It does not compare the names: replicas with
// different names, as during an update, would replace each other's next pair forever.
func (p policy) fresh(pair *pair, now time.Time) bool {
	return pair != nil && pair.validAt(now) && !p.outlives(pair, now) &&
		pair.leaf.NotAfter.Sub(now) > p.lastThird(pair.leaf)
}

// readState returns the usable contents of a Secret. The error is the reason why the pair to serve
// is not usable.
func readState(data map[string][]byte, p policy) (state, error) {
	s := state{bundle: data[keyBundle]}
	var err error
	if len(data[keyServing])+len(data[keyServingKey]) > 0 {
		if s.serving, err = readPair(data[keyServing], data[keyServingKey], p.names[0]); err != nil {
			s.serving, err = nil, fmt.Errorf("%s and %s are not usable: %w", keyServing, keyServingKey, err)
		}
	}
	if len(data[keyNext])+len(data[keyNextKey]) > 0 {
		s.next, _ = readPair(data[keyNext], data[keyNextKey], p.names[0]) // nil if unusable: another one is created
	}
	if len(data[keyPrevious]) > 0 {
		s.previous, _ = readChain(data[keyPrevious], p.names[0]) // nil if unusable: no replica serves it
	}
	return s, err
}

// write writes the state into a Secret's data, and reports whether that changed.
func (s state) write(data map[string][]byte) (changed bool) {
	before := maps.Clone(data)
	for _, key := range []string{keyNext, keyNextKey, keyPrevious} {
		delete(data, key)
	}
	data[keyServing], data[keyServingKey], data[keyBundle] = s.serving.chain, s.serving.key, s.bundle
	if s.next != nil {
		data[keyNext], data[keyNextKey] = s.next.chain, s.next.key
	}
	if s.previous != nil {
		data[keyPrevious] = s.previous.chain
	}
	return !maps.EqualFunc(before, data, bytes.Equal)
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
func (s state) plan(now time.Time, p policy, remembered state, nextTrusted bool) (
	following state, reason string, err error,
) {
	found := s.bundle
	s.previous = s.findPrevious(remembered)
	switch {
	case s.serving != nil && s.serving.validAt(now):
		following, reason, err = s.renew(now, p, nextTrusted)
	case s.serving == nil && remembered.serving != nil && remembered.serving.validAt(now):
		following, err = s.restore(now, p, remembered)
		reason = "no usable certificate was left: restored the one that this replica serves and started its renewal"
	case s.next != nil && s.next.validAt(now):
		following = s.promote()
		reason = "no valid certificate was left except the next one, which is now served"
	default:
		if s.next, err = issue(p.names, now, p.lifetime); err == nil {
			following = s.promote()
		}
		reason = "no valid certificate was left: created a new one"
	}
	if err != nil {
		return state{}, "", err
	}
	if following.previous != nil && now.After(following.previous.leaf.NotAfter) {
		following.previous = nil
	}
	following.bundle = encodePEM(following.cas()...)
	if reason == "" && !bytes.Equal(following.bundle, found) {
		reason = "the bundle did not have exactly the CAs of the certificates in use"
	}
	return following, reason, nil
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
		return last.withoutKey()
	}
}

// promote returns the state in which the next pair is served.
func (s state) promote() state {
	if s.serving != nil {
		s.previous = s.serving.withoutKey()
	}
	s.serving, s.next = s.next, nil
	return s
}

// restore returns the remembered state with a renewal in progress. The Secret may have been emptied
// because its key leaked, so the pair is replaced, but in the order in which no request fails.
func (s state) restore(now time.Time, p policy, remembered state) (state, error) {
	if remembered.previous == nil {
		remembered.previous = s.previous
	}
	if remembered.next = s.next; p.fresh(remembered.next, now) {
		return remembered, nil
	}
	var err error
	remembered.next, err = issue(p.names, now, p.lifetime)
	return remembered, err
}

// renew returns the state that follows one with a valid pair to serve.
func (s state) renew(now time.Time, p policy, nextTrusted bool) (following state, reason string, err error) {
	fresh := p.fresh(s.next, now)
	switch {
	case fresh && nextTrusted:
		return s.promote(), "every API server trusts the next certificate, which is now served", nil
	case fresh:
		return s, "", nil
	case p.stale(s.serving, now):
		s.next, err = issue(p.names, now, p.lifetime)
		return s, "the certificate is due for renewal: created the next one", err
	case s.next != nil:
		s.next = nil
		return s, "removed the next certificate, which was not usable", nil
	default:
		return s, "", nil
	}
}

// wait returns the time until a renewal or the removal of the previous pair is due.
func (s state) wait(now time.Time, p policy) time.Duration {
	first := s.serving.leaf.NotAfter
	if s.next == nil {
		first = first.Add(-p.renewBefore(s.serving.leaf))
	}
	if s.previous != nil {
		expired := s.previous.leaf.NotAfter.Add(time.Second) // valid until the end of that second
		if expired.Before(first) {
			first = expired
		}
	}
	return max(first.Sub(now), 0)
}
