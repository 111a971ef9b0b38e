package store

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// maxStorageLag is how long before a response the kubelet may have measured what it reports. It
// measures nodes every 10 to 30 seconds, and some part of each pod at every request.
const maxStorageLag = time.Minute

// EphemeralStorage stores the local ephemeral storage that kubelets report. All fields are required.
type EphemeralStorage struct {
	Resources *Resources
	MaxAge    time.Duration // of values, from the request on
	// IsBound reports whether a pod is bound to a node. uid is the pod's UID as the kubelet reports it.
	IsBound func(node, namespace, pod, uid string) bool
}

// Put stores the storage that a kubelet reports of its node. Pods that are not bound to the node are
// ignored, and so is what the kubelet measured too long ago. It does not retain scrape.
func (e *EphemeralStorage) Put(node string, scrape *usage.Scrape) {
	at := sentAt(scrape)
	r := usage.ResourceReport{At: at, MaxAge: e.MaxAge, Whole: true}
	r.Containers = make([]usage.ContainerResource, 0, len(scrape.Storage))
	var pod usage.ContainerResource // of the previous sample
	isBound := false
	for i := range scrape.Storage {
		sample := &scrape.Storage[i]
		if scrape.Date != 0 && sample.At != 0 && scrape.Date.Sub(sample.At) > maxStorageLag {
			continue
		}
		used := usage.Resource{Name: usage.EphemeralStorage, Value: sample.Bytes, Unit: usage.Bytes}
		if len(sample.Pod) == 0 {
			r.Node = append(r.Node, used)
			continue
		}
		if string(sample.Namespace) != pod.Namespace || string(sample.Pod) != pod.Pod {
			pod.Namespace, pod.Pod = string(sample.Namespace), string(sample.Pod)
			isBound = e.IsBound(node, pod.Namespace, pod.Pod, string(sample.UID))
		}
		if isBound {
			pod.Container, pod.Resource = string(sample.Container), used
			r.Containers = append(r.Containers, pod)
		}
	}
	e.Resources.Put(node, usage.EphemeralStorage, r)
}
