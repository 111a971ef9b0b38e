package servingcert

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// reconcile reads the Secret, the APIServices and the ConfigMap, writes what has to change, and
// returns the time until something will.
//
// The order is what makes it safe without a leader. The APIServices and the ConfigMap are read
// before the Secret, and written on condition that they have not changed since: a replica that
// writes an old bundle over a newer one must have read the Secret before the newer one was in it,
// so the APIService or ConfigMap before that as well, and the condition fails.
func (m *Manager) reconcile(ctx context.Context) (delay time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestsTimeout)
	defer cancel()
	defer func() { m.notReady(err) }()
	services, unread := m.readAPIServices(ctx)
	published := m.publisher.read(ctx)
	secret, err := m.readSecret(ctx)
	if err != nil {
		return 0, errors.Join(unread, err)
	}
	stored, unusable := readState(secret.Data, m.policy)
	if m.keeper.waitForPeers(stored, services) {
		return 0, errors.Join(unread, fmt.Errorf("%s has no certificate that can be used, though the API server trusts one; a replica "+
			"that serves it is given the time to put it back", m.secretName()))
	}
	settled := m.keeper.settling.over(stored.next, services, m.policy.settle) && unread == nil
	state, why, err := stored.plan(m.clock.now(), m.policy, m.keeper.state, settled)
	if err != nil {
		return 0, err
	}
	if why != "" {
		if err := m.writeSecret(ctx, secret, state, why, unusable); err != nil {
			return 0, errors.Join(unread, err)
		}
	}
	m.keep(secret, state)
	m.serve(state.serving)

	untrusted := []error{unread}
	for _, service := range services {
		if !bytes.Equal(service.caBundle, state.bundle) {
			untrusted = append(untrusted, m.writeBundle(ctx, service, state.bundle))
			delay = pause // to read it back
		}
	}
	if delay == 0 {
		delay = min(state.wait(m.clock.now(), m.policy), m.keeper.settling.remaining(m.policy.settle))
	}
	retry := m.publisher.publish(ctx, published, state.bundle)
	return min(delay, retry), errors.Join(untrusted...)
}

// keep remembers the Secret for the case that it is lost.
func (m *Manager) keep(secret *corev1.Secret, s state) {
	m.keeper.state = s
	m.keeper.labels, m.keeper.annotations = secret.Labels, secret.Annotations
}

// waitForPeers reports whether to leave it to other replicas to put something into the Secret. If
// there is nothing to serve and this server remembers nothing, but there is a caBundle, another
// replica may remember the certificate that belongs to it.
func (k *keeper) waitForPeers(stored state, services []apiService) bool {
	trusting := func(a apiService) bool { return len(a.caBundle) > 0 }
	if stored.serving != nil || stored.next != nil || k.state.serving != nil || !slices.ContainsFunc(services, trusting) {
		k.emptySince = time.Time{}
		return false
	}
	if k.emptySince.IsZero() {
		k.emptySince = time.Now()
	}
	return time.Since(k.emptySince) < peerGrace
}

// settling measures how long the next CA has been trusted, by this server's own clock and under its
// own eyes: neither a clock that is wrong nor a note of somebody else's can make it short.
type settling struct {
	ca    *x509.Certificate // nil: the next CA is not trusted by all, or there is none
	since time.Time
}

// over reports whether all have trusted the next pair's CA for long enough.
func (s *settling) over(next *pair, services []apiService, enough time.Duration) bool {
	if next == nil || slices.ContainsFunc(services, func(a apiService) bool { return !a.trusts(next.ca) }) {
		*s = settling{}
		return false
	}
	if !next.ca.Equal(s.ca) {
		*s = settling{ca: next.ca, since: time.Now()}
	}
	return time.Since(s.since) >= enough
}

// remaining returns the time until it is over, if nothing happens.
func (s *settling) remaining(enough time.Duration) time.Duration {
	if s.ca == nil {
		return enough
	}
	return max(enough-time.Since(s.since), 0)
}
