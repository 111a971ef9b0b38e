package servingcert

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// readConfigMap returns the ConfigMap, or nil if none is configured. It must be called before the
// Secret is read: see reconcile.
func (m *Manager) readConfigMap(ctx context.Context) (*corev1.ConfigMap, error) {
	if m.ConfigMap == "" {
		return nil, nil
	}
	object, err := m.configMaps.Get(ctx, m.ConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, &reason.Error{
			Err:     fmt.Errorf("ConfigMap %s/%s does not exist: %w", m.namespace, m.ConfigMap, err),
			Cure:    "create an empty one",
			Command: "kubectl create configmap " + m.ConfigMap + " --namespace " + m.namespace,
		}
	}
	return object, m.configMapError("read", err)
}

// publish writes the bundle into the ConfigMap that readConfigMap returned, if it has a different one,
// on condition that it has not changed since. Writes need no limit: the ConfigMap is not watched, so
// there are few, however often it changes. Failures, among them that of the read, are logged and retried; they
// affect neither readiness nor renewals.
func (m *Manager) publish(ctx context.Context, object *corev1.ConfigMap, err error, s state) {
	if err == nil && object != nil && object.Data[keyBundle] != string(s.bundle) {
		if object.Data == nil {
			object.Data = map[string]string{}
		}
		object.Data[keyBundle] = string(s.bundle)
		_, err = m.configMaps.Update(ctx, object, metav1.UpdateOptions{FieldManager: fieldManager})
		if err = m.configMapError("write", err); err == nil {
			klog.FromContext(ctx).Info("Published the CAs of the serving certificate",
				"configMap", klog.KRef(m.namespace, m.ConfigMap), "trustedCAs", len(s.cas()))
		}
	}
	m.publishing.add(ctx, err)
}

func (m *Manager) configMapError(verb string, err error) error {
	action := fmt.Sprintf("%s ConfigMap %s/%s of the CAs", verb, m.namespace, m.ConfigMap)
	return requestError(err, action, "get and update")
}
