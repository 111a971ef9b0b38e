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

// published is the ConfigMap as it was read.
type published struct {
	object *corev1.ConfigMap // nil: it could not be read, or there is none
	err    error             // why it could not be read
}

// read reads the ConfigMap. It must be called before the Secret is read: see reconcile.
func (p *publisher) read(ctx context.Context) published {
	if p.name == "" {
		return published{}
	}
	object, err := p.client.Get(ctx, p.name, metav1.GetOptions{})
	switch {
	case err == nil:
		return published{object: object}
	case apierrors.IsNotFound(err):
		return published{err: fmt.Errorf("ConfigMap %s/%s does not exist: create an empty one with "+
			"kubectl create configmap %s --namespace %s: %w", p.namespace, p.name, p.name, p.namespace, err)}
	default:
		return published{err: p.failed("read", err)}
	}
}

// publish writes the bundle into the ConfigMap if it has a different one, and returns the time
// until the next attempt. Writes need no limit: the ConfigMap is not watched, so there is at most
// one write in each resyncPeriod, however often it changes.
func (p *publisher) publish(ctx context.Context, before published, bundle []byte) time.Duration {
	err := before.err
	if before.object != nil && before.object.Data[keyBundle] != string(bundle) {
		err = p.write(ctx, before.object, bundle)
	}
	if err != nil {
		return p.failures.add(ctx, err)
	}
	p.failures.reset(ctx)
	return resyncPeriod
}

// write writes the bundle, on condition that the ConfigMap has not changed since it was read.
func (p *publisher) write(ctx context.Context, object *corev1.ConfigMap, bundle []byte) error {
	if object.Data == nil {
		object.Data = map[string]string{}
	}
	object.Data[keyBundle] = string(bundle)
	_, err := p.client.Update(ctx, object, metav1.UpdateOptions{FieldManager: fieldManager})
	switch {
	case err == nil:
		klog.FromContext(ctx).Info("Published the CAs of the serving certificate",
			"configMap", klog.KRef(p.namespace, p.name), "trustedCAs", len(readPEM(bundle)))
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
