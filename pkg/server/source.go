package server

import (
	"context"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/api"
	"github.com/kube-vitals/kube-vitals/pkg/event"
	"github.com/kube-vitals/kube-vitals/pkg/explain"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/pins"
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

// newSource returns the configured source, and the loops that run it. synced reports whether the nodes
// and pods are known. extra is nil if nothing is put there.
func newSource(
	c Config, client *rest.Config, clock usage.Clock, metrics *store.Store, extra *store.Extra,
	pods, nodes *inventory.Index, instruments *instruments, synced func() bool,
) (source, []func(context.Context), error) {
	events, err := newReporter(c, client, nodes)
	if err != nil {
		return nil, nil, err
	}
	keys, err := newPins(c, client, nodes, synced)
	if err != nil {
		return nil, nil, err
	}
	var s source
	if c.Prometheus != nil {
		s, err = newPrometheusSource(c, client, clock, metrics, pods, instruments, events, synced)
	} else {
		storage := newStorage(c, extra, pods, instruments, synced)
		s, err = newScraper(c, client, clock, metrics, storage, instruments, events, keys)
	}
	if err != nil {
		return nil, nil, err
	}
	loops := []func(context.Context){s.Run}
	if c.Prometheus == nil {
		loops = append(loops, func(ctx context.Context) { warnOfFileLimit(ctx, nodes.Len) })
	}
	if keys != nil {
		instruments.registerPins(keys.Stats)
		loops = append(loops, keys.Run)
	}
	if events != nil {
		loops = append(loops, events.Run)
	}
	return s, loops, nil
}

// newScraper returns a scraper of kubelets. The Reporter of events and the pinned keys may be nil.
func newScraper(
	c Config, client *rest.Config, clock usage.Clock, metrics *store.Store, storage scrape.Storage,
	instruments *instruments, events *event.Reporter, keys *pins.Pins,
) (*scrape.Scraper, error) {
	c.Kubelet.Clock = clock
	if keys != nil {
		c.Kubelet.Pins = keys
	}
	if c.KubeletServiceAccount != "" {
		namespace, err := podNamespace("--kubelet-service-account", c.Kubeconfig, inClusterNamespaceFile)
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
	observer := scrape.Observer(instruments)
	if events != nil {
		observer = observers{instruments, events}
	}
	s := scrape.New(scrape.Config{
		Fetcher:  fetcher,
		Sink:     metrics,
		Observer: observer,
		Interval: c.Resolution,
		Active:   c.Active,
		Storage:  storage,
	})
	instruments.registerNodes(s.Statuses)
	return s, nil
}

// explainMissing lets the API and the page of nodes explain by the state of the source why nodes and
// pods have no metrics.
func explainMissing(
	s source, resources *api.Config, page *nodez.Config, c Config, client *rest.Config, metrics *store.Store,
	pods, nodes *inventory.Index,
) error {
	lookup, err := explain.NewClient(client)
	if err != nil {
		return err
	}
	explanations := explain.Config{
		Pods:         pods,
		Nodes:        nodes,
		Samples:      metrics,
		Lookup:       lookup,
		SelectsNodes: c.NodeSelector != nil && !c.NodeSelector.Empty(),
		Resolution:   c.Resolution,
		MaxSampleAge: c.MaxSampleAge,
		Clock:        resources.Clock,
	}
	switch s := s.(type) {
	case *scrape.Scraper:
		explanations.Scrapes, page.Scrapes = s, s
	case *prometheus.Source:
		explanations.Refreshes, page.Refreshes = s, s
	}
	resources.ExplainPods, resources.ExplainNodes = explain.NewPods(explanations), explain.NewNodes(explanations)
	resources.Warnings = c.MissingMetricsWarnings
	return nil
}

func newPrometheusSource(
	c Config, client *rest.Config, clock usage.Clock, metrics *store.Store, pods *inventory.Index,
	instruments *instruments, events *event.Reporter, synced func() bool,
) (*prometheus.Source, error) {
	bound := func(node, namespace, pod string) *inventory.Object {
		if o := pods.Get(namespace, pod); o != nil && o.Node == node {
			return o
		}
		return nil
	}
	p := *c.Prometheus
	p.Interval, p.MaxSampleAge, p.MaxContainers = c.Resolution, c.MaxSampleAge, maxContainers
	p.Sink, p.Observer, p.Clock = metrics, instruments.registerEngine(events), clock
	p.Synced, p.UserAgent = synced, client.UserAgent
	p.Started = func(node, namespace, pod, container string) (prometheus.Start, bool) {
		return startOf(bound(node, namespace, pod), container)
	}
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
