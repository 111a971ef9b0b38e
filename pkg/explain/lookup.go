package explain

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
)

// The limits of the requests of a Client, of all callers together.
const (
	lookupsPerSecond = 5
	lookupBurst      = 10
	lookupTimeout    = time.Second
)

// errThrottled is the error of a lookup above the limit.
var errThrottled = errors.New("too many lookups")

// Client looks up single objects in the API server, with a limited rate and a short timeout. It
// needs no permission except list: a request is a LIST of one name, which the API server serves
// from its watch cache.
type Client struct {
	core    corev1client.CoreV1Interface
	limiter flowcontrol.PassiveRateLimiter
	timeout time.Duration
}

// NewClient returns a Client whose requests have this timeout. 0: the default.
func NewClient(core corev1client.CoreV1Interface, timeout time.Duration) *Client {
	limiter := flowcontrol.NewTokenBucketPassiveRateLimiter(lookupsPerSecond, lookupBurst)
	return &Client{core, limiter, cmp.Or(timeout, lookupTimeout)}
}

// Pod returns a pod, or nil if it does not exist.
func (c *Client) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pods, err := find(ctx, c, "pods", name, c.core.Pods(namespace).List)
	if err == nil {
		for i := range pods.Items {
			if p := &pods.Items[i]; p.Namespace == namespace && p.Name == name {
				return p, nil
			}
		}
	}
	return nil, err
}

// NodeExists reports whether a node exists.
func (c *Client) NodeExists(ctx context.Context, name string) (bool, error) {
	nodes, err := find(ctx, c, "nodes", name, c.core.Nodes().List)
	return err == nil && slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return n.Name == name }), err
}

// find lists the object with the name. The version "0" is any that the API server has in memory.
func find[L metav1.ListInterface](
	ctx context.Context, c *Client, resource, name string, list func(context.Context, metav1.ListOptions) (L, error),
) (found L, err error) {
	if !c.limiter.TryAccept() {
		return found, errThrottled
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	found, err = list(ctx, metav1.ListOptions{FieldSelector: selector, ResourceVersion: "0", Limit: 1})
	if err == nil && found.GetResourceVersion() == "" { // client-go ignores an object that is not a list
		err = errors.New("the response is not a list")
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Lookup for an explanation failed", "resource", resource, "name", name, "err", err)
	}
	return found, err
}
