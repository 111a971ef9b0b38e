package servingcert

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// reconcile reads the Secret, the APIServices and the ConfigMap, and writes what must change.
//
// The order makes it safe without a leader. The APIServices and the ConfigMap are read before the
// Secret, and written on condition that they have not changed since. A replica with an outdated
// bundle has read the Secret before the newer bundle was in it. So it has read the APIService and
// the ConfigMap before the newer bundle was written there, and the condition fails.
func (m *Manager) reconcile(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	defer func() { m.setReady(err) }()
	services, readErr := m.readAPIServices(ctx)
	configMap, configMapErr := m.readConfigMap(ctx)
	secret, err := m.readSecret(ctx)
	if err != nil {
		return errors.Join(readErr, err)
	}
	if m.firstRead.IsZero() {
		m.firstRead = time.Now()
	}
	stored, unusableErr := readState(secret.Data, m.Names[0])
	hasBundle := func(a *apiService) bool { return len(a.Spec.CABundle) > 0 }
	isLost := stored.serving == nil && stored.next == nil && m.state.serving == nil
	if isLost && time.Since(m.firstRead) < peerGrace && slices.ContainsFunc(services, hasBundle) {
		return errors.Join(readErr, fmt.Errorf("%s has no usable certificate, though an APIService has a caBundle: "+
			"waiting %v for a replica that still serves the certificate to restore it", m.secretName(), peerGrace))
	}
	settled := m.settling.done(stored.next, services, m.Settle) && readErr == nil
	state, reason, err := stored.plan(m.clock.now(), m.Config, m.state, settled)
	if err != nil {
		return err
	}
	if reason != "" {
		if unusableErr != nil {
			reason += " (" + unusableErr.Error() + ")"
		}
		if err := m.writeSecret(ctx, secret, state, reason); err != nil {
			return errors.Join(readErr, err)
		}
	}
	m.state, m.labels, m.annotations = state, secret.Labels, secret.Annotations
	m.serve(state.serving)

	errs := []error{readErr}
	for _, service := range services {
		if !bytes.Equal(service.Spec.CABundle, state.bundle) {
			errs = append(errs, m.writeBundle(ctx, service, state))
		}
	}
	m.publish(ctx, configMap, configMapErr, state)
	return errors.Join(errs...)
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
