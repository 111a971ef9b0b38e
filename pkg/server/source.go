package server

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/prometheus"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
)

// source reads the usage of the nodes that it is set to, and puts it into the store. It is a
// *scrape.Scraper or a *prometheus.Source.
type source interface {
	health.Source
	inventory.Targets
	warmUp
	Run(context.Context)
	Alive() error // returns an error if Run is stuck
}

// addScraper adds a scraper of kubelets.
func (a *assembly) addScraper() error {
	a.Kubelet.Clock = a.clock
	if a.KubeletServiceAccount != "" {
		namespace, err := podNamespace("--kubelet-service-account", a.Kubeconfig, inClusterNamespaceFile)
		if err != nil {
			return err
		}
		tokens, err := newKubeletTokens(a.client, namespace, a.KubeletServiceAccount)
		if err != nil {
			return err
		}
		a.Kubelet.Token = tokens.Token
	}
	fetcher, err := kubelet.NewClient(kubeletConfig(a.Kubelet, a.client))
	if err != nil {
		return err
	}
	s := scrape.New(scrape.Config{
		Fetcher:  fetcher,
		Sink:     a.view.Usage,
		Observer: a.instruments,
		Interval: a.Resolution,
		Active:   a.Active,
		Storage:  a.storage(),
	})
	if a.Active.Resolution > 0 {
		a.resources.Reads = s
		a.instruments.registerActive(s.ActiveStats)
	}
	a.source = s
	a.loops = append(a.loops, func(ctx context.Context) { warnOfFileLimit(ctx, a.view.Nodes.Len) })
	return nil
}

// addEngine adds an engine that has scraped the kubelets.
func (a *assembly) addEngine() error {
	c := *a.Prometheus
	c.Interval, c.MaxSampleAge, c.MaxContainers = a.Resolution, a.MaxSampleAge, maxContainers
	c.Sink, c.Observer, c.Clock = a.view.Usage, a.instruments.registerEngine(), a.clock
	c.Synced, c.UserAgent = a.synced, a.client.UserAgent
	c.Started = func(node, namespace, pod, container string) (prometheus.Start, bool) {
		return startOf(boundPod(a.view.Pods, node, namespace, pod), container)
	}
	c.Reloaded = func(file string, err error) {
		if err != nil {
			klog.Background().Error(err, "Cannot reload the configuration of the engine; the previous one stays in use",
				"file", file)
			return
		}
		klog.Background().Info("Reloaded the configuration of the engine", "file", file)
	}
	s, err := prometheus.New(c)
	if err != nil {
		return err
	}
	a.source = s
	a.resources.FromEngine = true
	return nil
}

// startOf returns the start of a container for the engine as source. There may be no pod.
func startOf(pod *inventory.Object, container string) (start prometheus.Start, ok bool) {
	if pod == nil || pod.StartedAt == 0 && pod.Phase == inventory.PodPending { // its kubelet has not accepted it yet
		return start, false
	}
	start = prometheus.Start{At: pod.StartedAt, PodCreatedAt: pod.CreatedAt, IsRunning: pod.Running(container)}
	for i := range pod.Containers {
		if c := &pod.Containers[i]; c.Name == container && c.StartedAt != 0 {
			start.At = c.StartedAt
		}
	}
	return start, true
}
