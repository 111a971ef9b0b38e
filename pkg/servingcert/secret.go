package servingcert

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// readSecret returns the Secret. It creates an empty one if there is none.
func (m *Manager) readSecret(ctx context.Context) (*corev1.Secret, error) {
	secret, err := m.secrets.Get(ctx, m.Secret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return m.createSecret(ctx)
	}
	return secret, requestError(err, "read "+m.secretName()+" of the serving certificate", "get, watch and update")
}

// createSecret creates an empty Secret with the labels and annotations of the lost one. It applies
// it, because RBAC can limit a patch to this one name, but not a creation, and because a Secret
// that another replica has just created and filled is not changed.
func (m *Manager) createSecret(ctx context.Context) (*corev1.Secret, error) {
	if err := m.allowWrite(m.secretName()); err != nil {
		return nil, err
	}
	empty := applycorev1.Secret(m.Secret, m.namespace).WithType(corev1.SecretTypeOpaque).
		WithLabels(m.labels).WithAnnotations(m.annotations)
	secret, err := m.secrets.Apply(ctx, empty, metav1.ApplyOptions{FieldManager: fieldManager})
	if err != nil {
		return nil, &reason.Error{
			Err: fmt.Errorf("%s of the serving certificate does not exist and cannot be created: %w",
				m.secretName(), err),
			Cure:    "create an empty one",
			Command: "kubectl create secret generic " + m.Secret + " --namespace " + m.namespace,
		}
	}
	m.writes.Allow()
	klog.FromContext(ctx).Info("Created the missing Secret of the serving certificate",
		"secret", klog.KRef(m.namespace, m.Secret))
	return secret, nil
}

// writeSecret writes the state into the Secret.
func (m *Manager) writeSecret(ctx context.Context, secret *corev1.Secret, s state, why string) error {
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	s.write(secret.Data)
	if err := m.allowWrite(m.secretName()); err != nil {
		return err
	}
	if _, err := m.secrets.Update(ctx, secret, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return requestError(err, "write "+m.secretName()+" of the serving certificate", "update")
	}
	m.writes.Allow()
	klog.FromContext(ctx).Info("Wrote the Secret of the serving certificate", "secret", klog.KObj(secret),
		"reason", why, "validUntil", s.serving.leaf.NotAfter, "trustedCAs", len(s.cas()))
	return nil
}

// requestError returns the error of a request with what failed and, if it is forbidden, the missing permission.
// It returns conflicts as they are: another replica was faster.
func requestError(err error, action, verbs string) error {
	switch {
	case err == nil || apierrors.IsConflict(err):
		return err
	case apierrors.IsForbidden(err):
		err = fmt.Errorf("the ServiceAccount needs permission to %s it: %w", verbs, err)
	}
	return fmt.Errorf("cannot %s: %w", action, err)
}

// allowWrite returns an error if so many writes have succeeded that something else must be undoing them.
func (m *Manager) allowWrite(object string) error {
	if m.writes.Tokens() >= 1 {
		return nil
	}
	return &reason.Error{
		Err:  fmt.Errorf("%s keeps being changed by something else", object),
		Cure: "find out what with kubectl get --show-managed-fields -o yaml, and stop it",
	}
}
