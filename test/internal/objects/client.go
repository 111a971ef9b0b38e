package objects

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Client creates and changes objects through the API server, as kubelets and controllers do.
type Client struct{ kubernetes.Interface }

// CreateNamespace creates a namespace.
func (c Client) CreateNamespace(ctx context.Context, name string) error {
	object := Namespace(name, time.Now())
	object.UID = ""
	_, err := c.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{})
	return err
}

// CreateNode registers node i, whose kubelet listens on the port. cores is the CPU in its status.
func (c Client) CreateNode(ctx context.Context, i int, port uint16, cores int) error {
	object := Node(i, port, time.Now())
	SetCores(object, cores)
	object.UID, object.ManagedFields = "", nil
	_, err := c.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
	return err
}

// DeleteNode deletes node i. Its pods stay: no controller deletes them.
func (c Client) DeleteNode(ctx context.Context, i int) error {
	return c.CoreV1().Nodes().Delete(ctx, NodeName(i), metav1.DeleteOptions{})
}

// CreatePod creates a pod that is bound to its node and pending.
func (c Client) CreatePod(ctx context.Context, p Pod) error {
	object := p.Object(time.Now())
	object.UID, object.ManagedFields = "", nil
	_, err := c.CoreV1().Pods(p.Namespace).Create(ctx, object, metav1.CreateOptions{})
	return err
}

// SetRunning makes a pod running, with containers that started at the given time by the node's
// clock.
func (c Client) SetRunning(ctx context.Context, p Pod, startedAt time.Time) error {
	object := p.Object(startedAt)
	object.UID, object.ManagedFields = "", nil
	_, err := c.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
	return err
}

// DeletePod deletes a pod without a grace period. A pod that does not exist is not an error.
func (c Client) DeletePod(ctx context.Context, p Pod) error {
	err := c.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
