package servingcert

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/klog/v2"
)

// readSecret returns the Secret. It makes an empty one if there is none.
func (m *Manager) readSecret(ctx context.Context) (*corev1.Secret, error) {
	secret, err := m.secrets.Get(ctx, m.secret, metav1.GetOptions{})
	if err == nil {
		return secret, nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("cannot read %s, which is to hold the serving certificate; the server's ServiceAccount needs "+
			"the right to get, watch and update it: %w", m.secretName(), err)
	}
	return m.makeSecret(ctx)
}

// makeSecret makes the Secret as it was, but empty. It applies it instead of creating it: so a
// right to create can be limited to this one name, and a Secret that somebody else has just made
// and filled stays as it is.
func (m *Manager) makeSecret(ctx context.Context) (*corev1.Secret, error) {
	if err := m.allowWrite(m.secretName()); err != nil {
		return nil, err
	}
	empty := applycorev1.Secret(m.secret, m.namespace).WithType(corev1.SecretTypeOpaque).
		WithLabels(m.keeper.labels).WithAnnotations(m.keeper.annotations)
	secret, err := m.secrets.Apply(ctx, empty, metav1.ApplyOptions{FieldManager: manager})
	if err != nil {
		return nil, fmt.Errorf("%s, which is to hold the serving certificate, is gone and cannot be made anew; make an empty one by "+
			"kubectl create secret generic %s --namespace %s: %w", m.secretName(), m.secret, m.namespace, err)
	}
	klog.FromContext(ctx).Info("Made the Secret for the serving certificate, which was not there", "secret", klog.KRef(m.namespace, m.secret))
	return secret, nil
}

// writeSecret puts the state into the Secret, and updates the object to the API server's response.
func (m *Manager) writeSecret(ctx context.Context, secret *corev1.Secret, s state, why string, unusable error) error {
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	if !s.write(secret.Data) {
		return nil
	}
	if err := m.allowWrite(m.secretName()); err != nil {
		return err
	}
	written, err := m.secrets.Update(ctx, secret, metav1.UpdateOptions{FieldManager: manager})
	if apierrors.IsConflict(err) {
		return err // another replica was quicker
	}
	if err != nil {
		return fmt.Errorf("cannot write %s, which is to hold the serving certificate; the server's ServiceAccount needs the right "+
			"to update it: %w", m.secretName(), err)
	}
	*secret = *written
	if unusable != nil {
		why += " (" + unusable.Error() + ")"
	}
	klog.FromContext(ctx).Info("Wrote the serving certificate's Secret", "secret", klog.KObj(secret), "because", why,
		"validUntil", s.serving.leaf.NotAfter, "trustedCAs", len(s.cas()))
	return nil
}

// allowWrite returns an error if there have been so many writes that somebody must be undoing them.
func (m *Manager) allowWrite(what string) error {
	if m.writes.TryAccept() {
		return nil
	}
	return fmt.Errorf("%s keeps being changed by somebody else; find out who, by kubectl get --show-managed-fields, and let them leave it alone", what)
}
