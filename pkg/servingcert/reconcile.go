package servingcert

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
)

// reconcile reads the Secret, the APIServices and the ConfigMap, and writes what must change.
//
// The order makes it safe without a leader. The APIServices and the ConfigMap are read before the
// Secret, and written on condition that they have not changed since. A replica with an outdated
// bundle has read the Secret before the newer bundle was in it. So it has read the APIService and
// the ConfigMap before the newer bundle was written there, and the condition fails.
func (m *Manager) reconcile(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	unwritten, err := m.update(ctx)
	m.setReady(err)
	return errors.Join(unwritten, err)
}

// update reconciles once. The error unwritten, if the Secret has a certificate to serve but cannot be written,
// does not make this server less ready.
func (m *Manager) update(ctx context.Context) (unwritten, err error) {
	services, readErr := m.readAPIServices(ctx)
	configMap, configMapErr := m.readConfigMap(ctx)
	secret, err := m.readSecret(ctx)
	if err != nil {
		return nil, errors.Join(readErr, err)
	}
	if m.firstRead.IsZero() {
		m.firstRead = time.Now()
	}
	now := m.clock.now()
	stored, unusableErr := readState(secret.Data, m.Names[0])
	if unusableErr == nil {
		unusableErr = m.checkReplaced(stored, services, now)
	}
	if unusableErr != nil {
		stored.serving = nil
	}
	isLost := stored.serving == nil && m.state.serving == nil && trustOther(services, stored.next, now)
	if isLost && m.mayHavePeers() {
		return nil, errors.Join(readErr, fmt.Errorf("%s has no usable certificate, though an APIService has a caBundle: "+
			"waiting %v for a replica that still serves the certificate to restore it", m.secretName(), peerGrace))
	}
	settled := m.settling.done(stored.next, services, m.Settle) && readErr == nil
	state, reason, err := stored.plan(now, m.Config, m.state, settled)
	if err != nil {
		return nil, err
	}
	if reason != "" {
		if unusableErr != nil {
			reason += " (" + unusableErr.Error() + ")"
		}
		if unwritten = m.writeSecret(ctx, secret, state, reason); unwritten != nil {
			if stored.serving == nil || !stored.serving.validAt(now) || m.outlives(stored.serving, now) {
				return nil, errors.Join(readErr, unwritten)
			}
			state = stored.unrenewed(now, m.Config, m.state)
		}
	}
	if unwritten == nil || m.state.serving == nil {
		m.state, m.labels, m.annotations = state, secret.Labels, secret.Annotations
	}
	m.serve(state.serving)

	errs := []error{readErr}
	for _, service := range services {
		if !bytes.Equal(service.Spec.CABundle, state.bundle) {
			errs = append(errs, m.writeBundle(ctx, service, state))
		}
	}
	m.publish(ctx, configMap, configMapErr, state)
	return unwritten, errors.Join(errs...)
}

// mayHavePeers reports whether another replica may still restore the pair that it serves.
func (m *Manager) mayHavePeers() bool { return time.Since(m.firstRead) < peerGrace }

// checkReplaced returns why the stored pair cannot be served if something else, such as a backup, has replaced
// the pair that is served. A replica takes any valid pair after a renewal, if the APIServices trust it, or if
// there is nothing better to serve.
func (m *Manager) checkReplaced(stored state, services []*apiService, now time.Time) error {
	p, last := stored.serving, m.state.serving
	switch {
	case p == nil || last != nil && last.leaf.Equal(p.leaf):
		return nil
	case !p.validAt(now):
		return fmt.Errorf("%s is valid from %v to %v only", keyServing,
			p.leaf.NotBefore.Format(time.RFC3339), p.leaf.NotAfter.Format(time.RFC3339))
	case last == nil && !m.mayHavePeers(), last != nil && !last.validAt(now):
		return nil
	case last != nil && stored.previous != nil && stored.previous.leaf.Equal(last.leaf):
		return nil
	case trustOther(services, p, now):
		return fmt.Errorf("%s is not the certificate whose CA an APIService has", keyServing)
	}
	return nil
}

// trustOther reports whether an APIService has a valid CA, but not that of the pair, which may be nil. An
// APIService without any loses nothing with another CA.
func trustOther(services []*apiService, p *pair, now time.Time) bool {
	return slices.ContainsFunc(services, func(a *apiService) bool {
		cas, _ := cert.ParseCertsPEM(a.Spec.CABundle) // an error is as good as none
		return slices.ContainsFunc(cas, func(ca *x509.Certificate) bool { return !now.After(ca.NotAfter) }) &&
			(p == nil || !slices.ContainsFunc(cas, p.ca.Equal))
	})
}

// settling measures how long the CA of the next pair has been in every caBundle. It counts only
// what this replica has seen, by its own clock, so that neither a wrong clock nor a forged
// timestamp shortens it.
type settling struct {
	ca    *x509.Certificate // nil: the CA is not in every caBundle, or there is no next pair
	since time.Time
}

// done reports whether the CA of the next pair has been in every caBundle for the settle time.
func (s *settling) done(next *pair, services []*apiService, settle time.Duration) bool {
	isMissing := func(a *apiService) bool { return !bytes.Contains(a.Spec.CABundle, encodePEM(next.ca)) }
	if next == nil || slices.ContainsFunc(services, isMissing) {
		*s = settling{}
		return false
	}
	if !next.ca.Equal(s.ca) {
		*s = settling{ca: next.ca, since: time.Now()}
	}
	return time.Since(s.since) >= settle
}
