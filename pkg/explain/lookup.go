package explain

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
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
	limiter flowcontrol.RateLimiter
	timeout time.Duration
}

// NewClient returns a Client.
func NewClient(c *rest.Config) (*Client, error) {
	config := rest.CopyConfig(c)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for lookups: %w", err)
	}
	return &Client{core, flowcontrol.NewTokenBucketRateLimiter(lookupsPerSecond, lookupBurst), lookupTimeout}, nil
}

// Pod implements Lookup.
func (c *Client) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	var found *corev1.Pod
	err := c.do(ctx, "pod", namespace+"/"+name, func(ctx context.Context) error {
		list, err := c.core.Pods(namespace).List(ctx, only(name))
		if err != nil {
			return err
		}
		if list.ResourceVersion == "" {
			return errNotList
		}
		for i := range list.Items {
			if p := &list.Items[i]; p.Name == name && p.Namespace == namespace {
				found = p
			}
		}
		return nil
	})
	return found, err
}

// NodeExists implements Lookup.
func (c *Client) NodeExists(ctx context.Context, name string) (exists bool, err error) {
	err = c.do(ctx, "node", name, func(ctx context.Context) error {
		list, err := c.core.Nodes().List(ctx, only(name))
		if err != nil {
			return err
		}
		if list.ResourceVersion == "" {
			return errNotList
		}
		for i := range list.Items {
			exists = exists || list.Items[i].Name == name
		}
		return nil
	})
	return exists, err
}

// errNotList is the error of a response that is not a list: client-go ignores any other object.
var errNotList = errors.New("the response is not a list")

// only selects the object with the name. The version "0" is any that the API server has in memory.
func only(name string) metav1.ListOptions {
	return metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
		ResourceVersion: "0",
		Limit:           1,
	}
}

func (c *Client) do(ctx context.Context, kind, name string, request func(context.Context) error) error {
	if !c.limiter.TryAccept() {
		return errThrottled
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	err := request(ctx)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Lookup for an explanation failed", "kind", kind, "name", name, "err", err)
	}
	return err
}
