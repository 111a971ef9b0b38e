package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/pins"
)

// addPins adds the pinned keys of kubelets, if they are configured.
func (a *assembly) addPins() {
	if a.KubeletPins == "" {
		return
	}
	core := a.clients.CoreV1()
	keys := pins.New(pins.Config{
		ConfigMaps: core.ConfigMaps(a.namespace),
		Namespace:  a.namespace,
		Name:       a.KubeletPins,
		IsCurrent: func(node string, uid types.UID) bool {
			o := a.view.Nodes.Get("", node)
			return o != nil && o.UID == inventory.UIDOf(uid)
		},
		ReadUID: func(ctx context.Context, node string) (types.UID, error) { return readUID(ctx, core.Nodes(), node) },
	})
	a.instruments.registerPins(keys.Stats)
	a.Kubelet.Pins = keys
	a.loops = append(a.loops, keys.Run)
}

// readTimeout bounds readUID.
const readTimeout = 10 * time.Second

// readUID returns the UID of the node that the API server has now, "" if there is none. It lists one
// name, since kube-vitals may list nodes, but not get them.
func readUID(ctx context.Context, client corev1client.NodeInterface, node string) (types.UID, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	name := fields.OneTermEqualSelector(metav1.ObjectNameField, node)
	list, err := client.List(ctx, metav1.ListOptions{FieldSelector: name.String()})
	if err != nil || len(list.Items) == 0 {
		return "", err
	}
	return list.Items[0].UID, nil
}

// registerPins registers the numbers of pinned keys.
func (i *instruments) registerPins(stats func() pins.Stats) {
	nodes := newDesc("kubelet_pins",
		"Nodes by what --kubelet-pins has stored: key (pinned) or ca (a CA has verified the certificate).", "kind")
	created := newDesc("kubelet_keys_pinned_total", "Keys of kubelets that this server has pinned at first sight.")
	i.collect(func(out chan<- prometheus.Metric) {
		s := stats()
		out <- gauge(nodes, float64(s.Keys), "key")
		out <- gauge(nodes, float64(s.Authorities), "ca")
		out <- counter(created, float64(s.Created))
	})
}
