package device

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// newClient returns a client of the API server for pods.
func newClient(c *rest.Config) (corev1client.PodsGetter, error) {
	config := rest.CopyConfig(c)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for the pods of device exporters: %w", err)
	}
	return client, nil
}

// newInformer returns a watch of the pods of an exporter, which calls the handler.
func newInformer(client corev1client.PodsGetter, e *Exporter, handler cache.ResourceEventHandler) cache.Controller {
	pods := client.Pods(e.Namespace)
	selected := func(o *metav1.ListOptions) { o.LabelSelector = e.PodSelector }
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			selected(&o)
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			selected(&o)
			return pods.Watch(ctx, o)
		},
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(source, client),
		ObjectType:    &corev1.Pod{},
		Handler:       handler,
		Transform:     reduce,
	})
	return informer
}

// reduce returns a pod with only the fields that isScrapeable and endpoint need.
func reduce(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP},
	}, nil
}

// isScrapeable reports whether a pod runs on a node and has an address.
func isScrapeable(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" &&
		pod.Status.PodIP != ""
}

// endpoint returns the URL of an exporter. The request goes to the address of the pod and to the
// configured port. Nothing that the pod's spec contains decides.
func (e *Exporter) endpoint(pod *corev1.Pod, allowLoopback bool) (string, error) {
	ip, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil {
		return "", fmt.Errorf("the pod has an invalid address: %w", err)
	}
	if err := checkAddress(ip, allowLoopback); err != nil {
		return "", err
	}
	u := url.URL{Scheme: e.Scheme, Host: net.JoinHostPort(ip.String(), e.Port), Path: e.Path}
	return u.String(), nil
}

// checkAddress returns an error if no request may be sent to an address. The kubelet of the pod's
// node sets it. Addresses outside of the network lead to this machine, or to services that every
// machine can reach, such as a cloud's metadata service.
func checkAddress(ip netip.Addr, allowLoopback bool) error {
	bare := ip.Unmap()
	if ip.Zone() != "" || bare.IsLoopback() && !allowLoopback || bare.IsUnspecified() || bare.IsMulticast() ||
		bare.IsLinkLocalUnicast() {
		return fmt.Errorf("the pod's address %s is not allowed: it is not that of another machine of the network", ip)
	}
	return nil
}
