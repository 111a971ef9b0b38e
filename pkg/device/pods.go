package device

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/internal/untrusted"
)

// indexOfNodes is the index of the informer by node, of pods that can be scraped.
const indexOfNodes = "node"

// indexers returns that index.
func indexers() cache.Indexers {
	return cache.Indexers{indexOfNodes: func(obj any) ([]string, error) {
		if pod := obj.(*corev1.Pod); isScrapeable(pod) {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	}}
}

// newInformer returns a watch of the pods of an exporter. It calls changed for a node whose pods have
// changed.
func newInformer(client kubernetes.Interface, e *Exporter, changed func(node string)) cache.SharedIndexInformer {
	informer := coreinformers.NewFilteredPodInformer(client, e.Namespace, 0, indexers(), func(o *metav1.ListOptions) {
		o.LabelSelector = e.PodSelector
	})
	notify := func(obj any) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		if pod, ok := obj.(*corev1.Pod); ok {
			changed(pod.Spec.NodeName)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: notify, UpdateFunc: func(old, obj any) { notify(old); notify(obj) }, DeleteFunc: notify,
	})
	utilruntime.Must(errors.Join(err, informer.SetTransform(reduce))) // the informer has not been started
	return informer
}

// reduce removes what isScrapeable and endpoint do not need from a pod.
func reduce(obj any) (any, error) {
	if pod, ok := obj.(*corev1.Pod); ok {
		pod.ObjectMeta = metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
		}
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
		pod.Status = corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP}
	}
	return obj, nil
}

// isScrapeable reports whether a pod runs on a node and has an address.
func isScrapeable(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" &&
		pod.Status.PodIP != ""
}

// endpoint returns the URL of an exporter. The request goes to the address of the pod and to the
// configured port. The kubelet of the pod's node sets the address. Nothing that the pod's spec contains
// decides.
func (e *Exporter) endpoint(pod *corev1.Pod, allowLoopback bool) (string, error) {
	ip, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil {
		return "", fmt.Errorf("the pod has an invalid address: %w", err)
	}
	if err := untrusted.CheckAddress(ip, allowLoopback); err != nil {
		return "", fmt.Errorf("the pod's %w", err)
	}
	u := url.URL{Scheme: e.Scheme, Host: net.JoinHostPort(ip.String(), e.Port), Path: e.Path}
	return u.String(), nil
}
