package world

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Objects changes what exists through the API server, as kubelets and controllers do.
type Objects struct{ Client kubernetes.Interface }

// CreateNamespace creates a namespace.
func (o Objects) CreateNamespace(ctx context.Context, name string) error {
	object := NamespaceObject(name, time.Now())
	object.UID = ""
	if _, err := o.Client.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("namespace %s cannot be created: %w", name, err)
	}
	return nil
}

// CreateNode registers the i-th node, whose kubelet answers on a port.
func (o Objects) CreateNode(ctx context.Context, i int, port uint16) error {
	object := NodeObject(i, port, time.Now())
	object.UID, object.ManagedFields = "", nil
	if _, err := o.Client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("node %s cannot be created: %w", object.Name, err)
	}
	return nil
}

// DeleteNode deletes the i-th node. Its pods stay: there is no controller that collects them.
func (o Objects) DeleteNode(ctx context.Context, i int) error {
	if err := o.Client.CoreV1().Nodes().Delete(ctx, NodeName(i), metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("node %s cannot be deleted: %w", NodeName(i), err)
	}
	return nil
}

// CreatePod creates a pod that is bound to its node, and pending.
func (o Objects) CreatePod(ctx context.Context, p Pod) error {
	object := PodObject(p, time.Now())
	object.UID, object.ManagedFields = "", nil
	if _, err := o.Client.CoreV1().Pods(p.Namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("pod %s/%s cannot be created: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// SetRunning sets the status of a pod whose containers started at a time by the node's clock.
func (o Objects) SetRunning(ctx context.Context, p Pod, startedAt time.Time) error {
	object := PodObject(p, startedAt)
	object.UID, object.ManagedFields = "", nil
	if _, err := o.Client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("pod %s/%s cannot be made running: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// DeletePod deletes a pod at once.
func (o Objects) DeletePod(ctx context.Context, p Pod) error {
	err := o.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("pod %s/%s cannot be deleted: %w", p.Namespace, p.Name, err)
	}
	return nil
}
