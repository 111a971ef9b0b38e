package servingcert

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
)

// publisher writes the bundle of CAs into a ConfigMap, so that clients that verify this server need
// no access to the Secret with the key. Failures are logged and retried; they affect neither
// readiness nor renewals. It is used by Run only.
type publisher struct {
	client          corev1client.ConfigMapInterface
	namespace, name string // name "": there is no ConfigMap
	failures        failureLog
}

func newPublisher(client corev1client.ConfigMapInterface, namespace, name string) publisher {
	return publisher{client: client, namespace: namespace, name: name, failures: failureLog{
		failing:   "Cannot publish the CAs of the serving certificate; retrying",
		recovered: "Publishing the CAs of the serving certificate succeeds again",
	}}
}

// read returns the ConfigMap, or nil if there is none. It must be called before the Secret is read:
// see reconcile.
func (p *publisher) read(ctx context.Context) (*corev1.ConfigMap, error) {
	if p.name == "" {
		return nil, nil
	}
	object, err := p.client.Get(ctx, p.name, metav1.GetOptions{})
	switch {
	case err == nil:
		return object, nil
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("ConfigMap %s/%s does not exist: create an empty one with "+
			"kubectl create configmap %s --namespace %s: %w", p.namespace, p.name, p.name, p.namespace, err)
	default:
		return nil, p.failed("read", err)
	}
}

// publish writes the bundle into the ConfigMap that read returned, if it has a different one. It
// returns the time until the next attempt. Writes need no limit: the ConfigMap is not watched, so
// there is at most one write in each resyncPeriod, however often it changes.
func (p *publisher) publish(ctx context.Context, object *corev1.ConfigMap, err error, s state) time.Duration {
	if object != nil && object.Data[keyBundle] != string(s.bundle) {
		err = p.write(ctx, object, s)
	}
	if err != nil {
		return p.failures.add(ctx, err)
	}
	p.failures.reset(ctx)
	return resyncPeriod
}

// write writes the bundle, on condition that the ConfigMap has not changed since it was read.
func (p *publisher) write(ctx context.Context, object *corev1.ConfigMap, s state) error {
	if object.Data == nil {
		object.Data = map[string]string{}
	}
	object.Data[keyBundle] = string(s.bundle)
	_, err := p.client.Update(ctx, object, metav1.UpdateOptions{FieldManager: fieldManager})
	switch {
	case err == nil:
		klog.FromContext(ctx).Info("Published the CAs of the serving certificate",
			"configMap", klog.KRef(p.namespace, p.name), "trustedCAs", len(s.cas()))
		return nil
	case apierrors.IsConflict(err):
		return err // another replica was faster
	default:
		return p.failed("write", err)
	}
}

func (p *publisher) failed(verb string, err error) error {
	return fmt.Errorf("cannot %s ConfigMap %s/%s of the CAs: the ServiceAccount needs permission to get and "+
		"update it: %w", verb, p.namespace, p.name, err)
}
