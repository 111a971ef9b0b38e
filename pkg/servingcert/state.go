package servingcert

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"slices"
	"time"
)

// The keys of the Secret. Other keys are left as they are.
const (
	keyServing    = "tls.crt" // the certificate that is served, and its CA
	keyServingKey = "tls.key"
	keyNext       = "next.crt" // the certificate to serve once its CA is trusted, and its CA
	keyNextKey    = "next.key"
	keyPrevious   = "previous.crt" // the certificate that was served before, and its CA
	keyBundle     = "ca.crt"       // the CAs of these three: what belongs in every caBundle
)

// clockTolerance is by how much a certificate may outlive the policy before it counts as stale.
// Certificates are made and judged by the clocks of API servers, which differ.
const clockTolerance = backdate

// state is what the Secret holds. It is immutable, and so is what it points to.
//
// The bundle follows from the pairs and is never read back into them. So a CA is trusted only as
// long as it signed a certificate that some replica may serve: the current one, the next one, or
// the previous one, which a replica that has not seen the change yet still serves.
type state struct {
	serving  *pair  // nil: there is none that can be used
	next     *pair  // nil: no renewal is under way
	previous *pair  // has no key; nil: there is none, or it has expired
	bundle   []byte // PEM; as read, whatever the Secret has there
}

// policy says how certificates have to be.
type policy struct {
	names    []string      // that the certificate covers; the API server dials the first
	lifetime time.Duration // of a certificate
	settle   time.Duration // for which a CA is trusted before a certificate that it signed is served
}

// lastThird returns the last third of a certificate's life. The life is the certificate's own where
// that is shorter than the policy's, so that replicas with different policies agree on the shorter
// one instead of replacing each other's.
func (p policy) lastThird(c *x509.Certificate) time.Duration {
	life := c.NotAfter.Sub(c.NotBefore) - backdate
	return max(min(life, p.lifetime), 0) / 3
}

// renewal returns how long before its end a certificate is replaced. A renewal takes a little more
// than settle.
func (p policy) renewal(c *x509.Certificate) time.Duration { return max(p.lastThird(c), 2*p.settle) }

// outlives reports whether the pair is valid for longer than a pair made now would be. The CA is
// valid for as long as the certificate, or longer.
func (p policy) outlives(pair *pair, now time.Time) bool {
	return pair.ca.NotAfter.Sub(now) > p.lifetime+clockTolerance
}

// stale reports whether a valid pair that is served has to be replaced.
func (p policy) stale(pair *pair, now time.Time) bool {
	return pair.leaf.NotAfter.Sub(now) <= p.renewal(pair.leaf) || p.outlives(pair, now) || !pair.covers(p.names)
}

// fresh reports whether the pair is good enough to be served next. The names are not compared here:
// replicas that differ in them, as during an update, would replace each other's next pair without
// end.
func (p policy) fresh(pair *pair, now time.Time) bool {
	return pair != nil && pair.validAt(now) && !p.outlives(pair, now) && pair.leaf.NotAfter.Sub(now) > p.lastThird(pair.leaf)
}

// readState reads a Secret's data. It leaves out what cannot be used; the error says why there is
// no pair to serve.
func readState(data map[string][]byte, p policy) (state, error) {
	s := state{bundle: data[keyBundle]}
	var err error
	if len(data[keyServing])+len(data[keyServingKey]) > 0 {
		if s.serving, err = readPair(data[keyServing], data[keyServingKey], p.names[0]); err != nil {
			s.serving, err = nil, fmt.Errorf("%s and %s cannot be used: %w", keyServing, keyServingKey, err)
		}
	}
	if len(data[keyNext])+len(data[keyNextKey]) > 0 {
		s.next, _ = readPair(data[keyNext], data[keyNextKey], p.names[0]) // nil if it cannot be used: another one is made
	}
	if len(data[keyPrevious]) > 0 {
		s.previous, _ = readChain(data[keyPrevious], p.names[0]) // nil if it cannot be used: then nobody serves it
	}
	return s, err
}

// write puts the state into a Secret's data, and reports whether that changed them.
func (s state) write(data map[string][]byte) (changed bool) {
	orEmpty := func(p *pair) *pair {
		if p == nil {
			return &pair{}
		}
		return p
	}
	next, previous := orEmpty(s.next), orEmpty(s.previous)
	for key, value := range map[string][]byte{
		keyServing: s.serving.chain, keyServingKey: s.serving.key,
		keyNext: next.chain, keyNextKey: next.key,
		keyPrevious: previous.chain,
		keyBundle:   s.bundle,
	} {
		if bytes.Equal(data[key], value) {
			continue
		}
		changed = true
		if len(value) == 0 {
			delete(data, key)
		} else {
			data[key] = value
		}
	}
	return changed
}

// cas returns the CAs that the API server has to trust. Their order is such that a promotion of the
// next pair does not change the bundle.
func (s state) cas() []*x509.Certificate {
	var cas []*x509.Certificate
	for _, p := range []*pair{s.previous, s.serving, s.next} {
		if p != nil && !slices.ContainsFunc(cas, p.ca.Equal) {
			cas = append(cas, p.ca)
		}
	}
	return cas
}

// plan returns the state that has to follow now, and in words why; no words if nothing has to
// change. Kept is what this server has from the Secret as it was when it could be used. NextTrusted
// says that every API server trusts the next CA.
//
// Whatever the Secret holds, the state that follows has a valid pair to serve, and a bundle of the
// CAs of its pairs.
func (s state) plan(now time.Time, p policy, kept state, nextTrusted bool) (following state, why string, err error) {
	found := s.bundle
	s.previous = s.predecessor(kept)
	switch {
	case s.serving != nil && s.serving.validAt(now):
		following, why, err = s.renew(now, p, nextTrusted)
	case s.serving == nil && kept.serving != nil && kept.serving.validAt(now):
		following, err = s.restore(now, p, kept)
		why = "there was no certificate that can be used: the one that this server serves was put back, and is being replaced"
	case s.next != nil && s.next.validAt(now):
		following = s.promote()
		why = "there was no valid certificate but the next one, which is served now"
	default:
		if s.next, err = issue(p.names, now, p.lifetime); err == nil {
			following = s.promote()
		}
		why = "there was no valid certificate: a new one was made"
	}
	if err != nil {
		return state{}, "", err
	}
	if following.previous != nil && now.After(following.previous.leaf.NotAfter) {
		following.previous = nil
	}
	following.bundle = encodePEM(following.cas()...)
	if why == "" && !bytes.Equal(following.bundle, found) {
		why = "the bundle had CAs that signed no certificate in use or had expired, or it lacked some"
	}
	return following, why, nil
}

// predecessor returns the pair that other replicas may still serve. If this server saw somebody
// else replace what it serves, that pair is newer than the one in the Secret.
func (s state) predecessor(kept state) *pair {
	switch {
	case s.serving == nil || kept.serving == nil || kept.serving.leaf.Equal(s.serving.leaf):
		return s.previous
	case s.previous != nil && !kept.serving.leaf.NotBefore.After(s.previous.leaf.NotBefore):
		return s.previous
	default:
		return kept.serving.withoutKey()
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

// restore returns the state that follows one of which nothing is left to serve, while this server
// still has it. The loss may have been on purpose, because a key became known: so the pair is also
// replaced, in the order in which no request fails.
func (s state) restore(now time.Time, p policy, kept state) (state, error) {
	if kept.previous == nil {
		kept.previous = s.previous
	}
	if kept.next = s.next; p.fresh(kept.next, now) {
		return kept, nil
	}
	var err error
	kept.next, err = issue(p.names, now, p.lifetime)
	return kept, err
}

// renew returns the state that follows one with a valid pair.
func (s state) renew(now time.Time, p policy, nextTrusted bool) (following state, why string, err error) {
	fresh := p.fresh(s.next, now)
	switch {
	case fresh && nextTrusted:
		return s.promote(), "every API server trusts the next certificate, which is served now", nil
	case fresh:
		return s, "", nil
	case p.stale(s.serving, now):
		s.next, err = issue(p.names, now, p.lifetime)
		return s, "the certificate is due for renewal: the next one was made", err
	case s.next != nil:
		s.next = nil
		return s, "the next certificate could not be used", nil
	default:
		return s, "", nil
	}
}

// wait returns the time until something has to be done that depends on nothing but the time.
func (s state) wait(now time.Time, p policy) time.Duration {
	first := s.serving.leaf.NotAfter
	if s.next == nil {
		first = first.Add(-p.renewal(s.serving.leaf))
	}
	if s.previous != nil {
		expired := s.previous.leaf.NotAfter.Add(time.Second) // to the second, it is still valid
		if expired.Before(first) {
			first = expired
		}
	}
	return max(first.Sub(now), 0)
}
