package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/internal/pages"
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
		ListNodes: func(ctx context.Context) (map[string]types.UID, error) { return listNodes(ctx, core.Nodes()) },
	})
	a.instruments.registerPins(keys.Stats)
	a.Kubelet.Pins = keys
	a.loops = append(a.loops, keys.Run)
}

// listNodes returns the UIDs of all nodes that the API server has now.
func listNodes(ctx context.Context, client corev1client.NodeInterface) (map[string]types.UID, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	nodes := map[string]types.UID{}
	err := pages.Each(ctx, client.List, metav1.ListOptions{}, func(node *corev1.Node) { nodes[node.Name] = node.UID })
	return nodes, err
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
