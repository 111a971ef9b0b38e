package server

import (
	"context"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/prometheus"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// source reads the usage of the nodes that it is set to, and puts it into the store. It is a
// *scrape.Scraper or a *prometheus.Source.
type source interface {
	inventory.Targets
	warmUp
	Run(context.Context)
	Alive() error // returns an error if Run is stuck
}

// newSource returns the configured source. synced reports whether the nodes and pods are known.
func newSource(
	c Config, client *rest.Config, clock usage.Clock, metrics *store.Store, pods *inventory.Index,
	instruments *instruments, synced func() bool,
) (source, error) {
	if c.Prometheus != nil {
		return newPrometheusSource(c, client, clock, metrics, pods, instruments, synced)
	}
	c.Kubelet.Clock = clock
	if c.KubeletServiceAccount != "" {
		namespace, err := kubeletTokenNamespace(c.Kubeconfig, inClusterNamespaceFile)
		if err != nil {
			return nil, err
		}
		tokens, err := newKubeletTokens(client, namespace, c.KubeletServiceAccount)
		if err != nil {
			return nil, err
		}
		c.Kubelet.Token = tokens.Token
	}
	fetcher, err := kubelet.NewClient(kubeletConfig(c.Kubelet, client))
	if err != nil {
		return nil, err
	}
	return scrape.New(scrape.Config{
		Fetcher:  fetcher,
		Sink:     metrics,
		Observer: instruments,
		Reason:   kubelet.Reason,
		Interval: c.Resolution,
	}), nil
}

func newPrometheusSource(
	c Config, client *rest.Config, clock usage.Clock, metrics *store.Store, pods *inventory.Index,
	instruments *instruments, synced func() bool,
) (source, error) {
	bound := func(node, namespace, pod string) *inventory.Object {
		if o := pods.Get(namespace, pod); o != nil && o.Node == node {
			return o
		}
		return nil
	}
	p := *c.Prometheus
	p.Interval, p.MaxSampleAge, p.MaxContainers = c.Resolution, c.MaxSampleAge, maxContainers
	p.Sink, p.Observer, p.Clock = metrics, instruments.registerEngine(), clock
	p.Synced, p.UserAgent = synced, client.UserAgent
	p.IsBound = func(node, namespace, pod string) bool { return bound(node, namespace, pod) != nil }
	p.IsRunning = func(node, namespace, pod, container string) bool {
		o := bound(node, namespace, pod)
		return o != nil && o.Running(container)
	}
	p.Reloaded = func(file string, err error) {
		if err != nil {
			klog.Background().Error(err, "Cannot reload the configuration of the engine; the previous one stays in use",
				"file", file)
			return
		}
		klog.Background().Info("Reloaded the configuration of the engine", "file", file)
	}
	return prometheus.New(p)
}
