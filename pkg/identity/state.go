package identity

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"slices"
	"time"
)

// The keys of the Secret. Others are left as they are.
const (
	keyServing      = "tls.crt" // the certificate that is served, and its CA
	keyServingKey   = "tls.key"
	keyNext         = "next.crt" // the one to be served once its CA is trusted, and its CA
	keyNextKey      = "next.key"
	keyCertificates = "ca.crt" // the bundle: every CA that the API server is to trust
)

// maxTrusted bounds the bundle. In regular rotation it has three CAs at most; each time that someone empties the Secret
// adds one. Those beyond the bound are the oldest, which nobody serves any more.
const maxTrusted = 16

// state is what the Secret holds. It is immutable, and so is what it points to.
type state struct {
	serving *pair               // nil: there is none that can be used
	next    *pair               // nil: none is to come
	trusted []*x509.Certificate // the CAs of both, and those of pairs that were served and have not expired
}

// policy says how certificates are to be.
type policy struct {
	names    []string // that the certificate is for; the API server dials the first
	lifetime time.Duration
}

// renewal is how long before its end a certificate is replaced.
func (p policy) renewal() time.Duration { return p.lifetime / 3 }

// readState reads a Secret's data. What cannot be used is left out, and the error says why.
func readState(data map[string][]byte, p policy) (state, error) {
	var s state
	var err error
	if len(data[keyServing])+len(data[keyServingKey]) > 0 {
		if s.serving, err = readPair(data[keyServing], data[keyServingKey], p.names[0]); err != nil {
			s.serving, err = nil, fmt.Errorf("%s and %s cannot be used: %w", keyServing, keyServingKey, err)
		}
	}
	if len(data[keyNext])+len(data[keyNextKey]) > 0 {
		s.next, _ = readPair(data[keyNext], data[keyNextKey], p.names[0]) // if it cannot be used, another one is made
	}
	s.trusted = readPEM(data[keyCertificates])
	return s, err
}

// write puts the state into a Secret's data, and tells whether that changed them.
func (s state) write(data map[string][]byte) (changed bool) {
	next := s.next
	if next == nil {
		next = &pair{}
	}
	for key, value := range map[string][]byte{
		keyServing: s.serving.chain, keyServingKey: s.serving.key,
		keyNext: next.chain, keyNextKey: next.key,
		keyCertificates: s.bundle(),
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

// bundle is what belongs into every caBundle.
func (s state) bundle() []byte { return encodePEM(s.trusted...) }

// due gives the state that is to follow, now, and in words why; no words if nothing is to change. Kept is what the server
// has from the Secret as it was when it could be used. NextTrusted says that every API server trusts the next pair's CA.
//
// Whatever the Secret holds, the state that follows has a valid pair to serve, and trusts its CA.
func (s state) due(now time.Time, p policy, kept state, nextTrusted bool) (following state, why string, err error) {
	following = s
	switch {
	case s.serving != nil && s.serving.validAt(now):
		following, why, err = s.renew(now, p, nextTrusted)
	case s.serving == nil && kept.serving != nil && kept.serving.validAt(now):
		following, err = s.restore(now, p, kept)
		why = "there was no certificate that can be used: the one that this server serves was put back, and is being replaced"
	case s.next != nil && s.next.validAt(now):
		following.serving, following.next = s.next, nil
		why = "there was no valid certificate but the next one, which is served now"
	default:
		following.next = nil
		following.serving, err = issue(p.names, now, p.lifetime)
		why = "there was no valid certificate: a new one was made"
	}
	if err != nil {
		return state{}, "", err
	}
	following.trusted = following.trust(now)
	if why == "" && !slices.EqualFunc(following.trusted, s.trusted, (*x509.Certificate).Equal) {
		why = "the bundle had CAs that have expired, or lacked some"
	}
	return following, why, nil
}

// restore gives the state that follows one of which nothing is left to serve, while this server still has it. What was
// lost may have been deleted because it is not to be used any longer, or is known to others: so it is replaced, in the
// order in which no request fails.
func (s state) restore(now time.Time, p policy, kept state) (state, error) {
	kept.trusted = slices.Concat(kept.trusted, s.trusted)
	if kept.next = s.next; kept.next != nil && kept.next.validAt(now) {
		return kept, nil
	}
	var err error
	kept.next, err = issue(p.names, now, p.lifetime)
	return kept, err
}

// renew gives the state that follows one with a valid pair.
func (s state) renew(now time.Time, p policy, nextTrusted bool) (state, string, error) {
	stale := s.serving.leaf.NotAfter.Sub(now) <= p.renewal() || !s.serving.bears(p.names)
	fresh := s.next != nil && s.next.validAt(now) && s.next.leaf.NotAfter.Sub(now) > p.renewal()
	var err error
	switch {
	case fresh && nextTrusted:
		s.serving, s.next = s.next, nil
		return s, "every API server trusts the next certificate, which is served now", nil
	case fresh:
		return s, "", nil
	case stale:
		s.next, err = issue(p.names, now, p.lifetime)
		return s, "the certificate is due for renewal: the next one was made", err
	case s.next != nil:
		s.next = nil
		return s, "the next certificate could not be used", nil
	default:
		return s, "", nil
	}
}

// trust gives the CAs to trust: those that are trusted and have not expired, and those of the pairs. Their order stays, so
// that the bundle changes only where it has to.
func (s state) trust(now time.Time) []*x509.Certificate {
	needed := []*x509.Certificate{s.serving.ca}
	if s.next != nil {
		needed = append(needed, s.next.ca)
	}
	var trusted []*x509.Certificate
	for _, ca := range slices.Concat(s.trusted, needed) {
		if !now.After(ca.NotAfter) && !slices.ContainsFunc(trusted, ca.Equal) {
			trusted = append(trusted, ca)
		}
	}
	for i := 0; len(trusted) > maxTrusted; {
		if slices.ContainsFunc(needed, trusted[i].Equal) {
			i++
			continue
		}
		trusted = slices.Delete(trusted, i, i+1)
	}
	return trusted
}

// wait is after what time something is due that depends on nothing but the time.
func (s state) wait(now time.Time, p policy) time.Duration {
	first := s.serving.leaf.NotAfter
	if s.next == nil {
		first = first.Add(-p.renewal())
	}
	for _, ca := range s.trusted {
		if expired := ca.NotAfter.Add(time.Second); expired.Before(first) { // to the second, it is still valid
			first = expired
		}
	}
	return max(first.Sub(now), 0)
}
