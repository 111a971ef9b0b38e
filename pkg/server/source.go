package server

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/event"
	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// source reads the usage of the nodes that it is set to, and puts it into the store. It is a
// *scrape.Scraper or a *engine.Source.
type source interface {
	health.Source
	inventory.Targets
	Run(context.Context)
	Alive() error   // returns an error if Run is stuck
	WarmedUp() bool // reports whether the nodes have the first metrics that can be had
}

// addScraper adds a scraper of kubelets.
func (a *assembly) addScraper() error {
	a.Kubelet.Clock = a.clock
	a.addPins()
	if a.KubeletServiceAccount != "" {
		tokens := newKubeletTokens(a.clients.CoreV1(), a.namespace, a.KubeletServiceAccount)
		a.Kubelet.Token = tokens.Token
		a.loops = append(a.loops, func(ctx context.Context) {
			// Before the nodes are known, failures would only delay the token that the first scrapes need.
			if cache.WaitForCacheSync(ctx.Done(), func() bool { return a.watches.NodesSynced() == nil }) {
				tokens.run(ctx)
			}
		})
	}
	config := kubeletConfig(a.Kubelet, a.client)
	if !passesCredentials(config, a.client) {
		klog.Background().Info("Kubelets get no credentials: those of --kubeconfig are of a plugin, or a password. If they " +
			"need some, set --kubelet-client-certificate and --kubelet-client-key, or --kubelet-service-account")
	}
	fetcher, err := kubelet.NewClient(config)
	if err != nil {
		return err
	}
	s := scrape.New(scrape.Config{
		Fetcher:   fetcher,
		Sink:      a.view.Store,
		Observer:  a.instruments,
		Interval:  a.Resolution,
		MinWindow: usage.ShortestWindow(a.RateWindow),
		Active:    a.Active,
		Storage:   a.storageConfig(),
	})
	if a.Active.Resolution > 0 {
		a.noteRead = s.NoteRead
		a.instruments.registerActive(s.ActiveStats)
	}
	a.source = s
	return nil
}

// addEvents adds the Reporter of events, if they are configured.
func (a *assembly) addEvents() {
	if a.EventDeployment == "" {
		return
	}
	reporter := event.New(event.Config{
		Events:      a.clients.CoreV1(),
		Deployments: a.clients.AppsV1(),
		Namespace:   a.namespace,
		Deployment:  a.EventDeployment,
		Interval:    a.Resolution,
		Source:      a.source,
	})
	a.loops = append(a.loops, reporter.Run)
}

// registerActive registers the metrics of active nodes.
func (i *instruments) registerActive(stats func() scrape.ActiveStats) {
	nodes := newDesc("active_nodes",
		"Nodes whose metrics were read by name or by label selector in the last 2 minutes.")
	resolution := newDesc("active_resolution_seconds",
		"Time between two scrapes of an active node: --active-resolution, or longer if the budget requires it.")
	i.active = i.newCounter("active_scrapes_total",
		"Scrapes of active nodes, once in their resolution, instead of regular scrapes.")
	i.collect(func(out chan<- prometheus.Metric) {
		s := stats()
		out <- gauge(nodes, float64(s.Nodes))
		out <- gauge(resolution, s.Resolution.Seconds())
	})
}

// kubeletConfig completes the configuration for kubelets. By default, kubelets are verified by the
// CA of the API server and get the credentials that the API server gets.
func kubeletConfig(c kubelet.Config, client *rest.Config) kubelet.Config {
	c.UserAgent = client.UserAgent
	c.Reloaded = logReloads("files for kubelets")
	if c.PlainHTTP {
		return c
	}
	if c.TLS.CAFile == "" && !c.TLS.Insecure {
		c.TLS.CAFile, c.TLS.CAData = client.CAFile, client.CAData
	}
	if c.Token != nil {
		return c // kubelets must not get the credentials of this process, which have more permissions
	}
	if c.TLS.CertFile == "" {
		c.TLS.CertFile, c.TLS.KeyFile = client.CertFile, client.KeyFile
		c.TLS.CertData, c.TLS.KeyData = client.CertData, client.KeyData
	}
	c.BearerTokenFile, c.BearerToken = client.BearerTokenFile, client.BearerToken
	return c
}

// passesCredentials reports whether kubelets get credentials if the API server gets some: those of a plugin, and a
// password, are not passed on.
func passesCredentials(c kubelet.Config, client *rest.Config) bool {
	return c.PlainHTTP || c.Token != nil || c.BearerToken != "" || c.BearerTokenFile != "" ||
		c.TLS.CertFile != "" || len(c.TLS.CertData) > 0 ||
		client.ExecProvider == nil && client.AuthProvider == nil && client.Username == ""
}

// logReloads returns a function that logs that files were reloaded, or why not.
func logReloads(what string) func(files string, err error) {
	return func(files string, err error) {
		if err != nil {
			klog.Background().Error(err, "Cannot reload the "+what+"; the previous content stays in use", "files", files)
			return
		}
		klog.Background().Info("Reloaded the "+what, "files", files)
	}
}
