package server

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/store"
)

// The ephemeral storage of nodes and pods expires after so many intervals.
const storageIntervals = 3

// storageConfig returns the configuration of the requests for ephemeral storage, which follow the scrapes
// of CPU and memory. They start when the pods are known: the storage of others would be dropped.
func (a *assembly) storageConfig() scrape.Storage {
	if a.StorageInterval == 0 {
		return scrape.Storage{}
	}
	maxAge := storageIntervals * max(a.StorageInterval, a.Resolution)
	return scrape.Storage{
		Interval: a.StorageInterval,
		Sink:     &store.EphemeralStorage{Resources: a.view.Store.Resources, MaxAge: maxAge, IsBound: a.isBound},
		Ready:    a.synced,
		Observe:  a.instruments.registerStorage(),
	}
}

// isBound reports whether a pod is bound to a node. The UID that a kubelet reports distinguishes it from an
// earlier pod of the same name, except if the pod is a static one: its UID is then a hash without hyphens, and
// not that of the pod in the API server.
func (a *assembly) isBound(node, namespace, pod, uid string) bool {
	o := a.view.BoundPod(node, namespace, pod)
	return o != nil && (!strings.Contains(uid, "-") || o.UID == inventory.UIDOf(types.UID(uid)))
}

// registerStorage registers the metrics of requests for ephemeral storage, and returns a function that
// counts one. The reason is empty if it succeeded.
func (i *instruments) registerStorage() func(took time.Duration, r reason.Reason) {
	requests := i.newResults("ephemeral_storage_scrapes_total", "Scrapes of kubelets for ephemeral-storage")
	duration := i.newHistogram("ephemeral_storage_scrape_duration_seconds",
		"Time from the start of a scrape for ephemeral-storage to the last byte decoded, or to the failure.",
		0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
	return func(took time.Duration, r reason.Reason) {
		duration.Observe(took.Seconds())
		requests.add(r)
	}
}
