// Package server is the one place where all parts meet: the watches that tell what exists, the
// scrapes that tell what is used, and the API server that serves both.
//
// New builds everything and opens the port; Run serves until its context ends, then drains. Neither
// needs the cluster's API server to be there: until it has told what exists and whom to trust,
// requests are answered with 503 and the server is not ready. From then on it goes on serving from
// what is known, whatever happens to the API server or to kubelets.
package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/api"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Config says how to serve. All fields are needed but Kubeconfig and NodeSelector.
type Config struct {
	Version, Commit string // of this program, for telemetry

	Kubeconfig   string          // how to reach the cluster's API server; "" inside of the cluster
	NodeSelector labels.Selector // which nodes to scrape; nil: all
	Resolution   time.Duration   // between two scrapes of a node
	MaxSampleAge time.Duration   // up to which a figure is served
	Kubelet      kubelet.Config

	// KubeletServiceAccount is the ServiceAccount whose tokens are sent to kubelets, in the
	// namespace of this pod. If it is empty, kubelets are sent the credentials that the API server
	// is.
	KubeletServiceAccount string

	// Identity is how to keep a serving certificate that renews itself, but for the Client. If it
	// names no Secret, the certificate comes from Serving, and Identity is only how to check the
	// APIServices, if it names the Service.
	ServingCert servingcert.Config

	Generic        *genericoptions.ServerRunOptions
	Serving        *genericoptions.SecureServingOptions
	Authentication *genericoptions.DelegatingAuthenticationOptions
	Authorization  *genericoptions.DelegatingAuthorizationOptions
	Audit          *genericoptions.AuditOptions
	Features       *genericoptions.FeatureOptions
}

const (
	// maxContainers bounds what is kept of a node whose responses cannot be read in full. It is
	// what one response can have.
	maxContainers = kubelet.DefaultMaxBodyBytes / 128
	// sayWaiting is how often the log says what the server is waiting for before it is ready.
	sayWaiting = 15 * time.Second
)

// Server is kube-vitals, ready to run.
type Server struct {
	api         *genericapiserver.GenericAPIServer
	scraper     *scrape.Scraper
	watches     *watches
	servingCert *servingcert.Manager // nil: the certificate comes from somewhere else
	monitor     *servingcert.Monitor // of the APIServices, where the identity does not read them; may be nil
	ready       readiness
}

// New builds a Server. It fails only for what its user has to put right.
func New(c Config) (*Server, error) {
	client, err := restConfig(c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	client.UserAgent = "kube-vitals/" + c.Version
	clock := usage.NewClock(time.Now())
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
	metrics, pods, nodes := newState(c.MaxSampleAge, clock)
	instruments := newInstruments(c.Version, c.Commit, time.Now, clock)
	instruments.tell(c.Resolution, c.MaxSampleAge)
	instruments.watchOver(metrics, nodes, pods)
	scraper := scrape.New(scrape.Config{
		Fetcher:  fetcher,
		Sink:     metrics,
		Observer: instruments,
		Reason:   kubelet.Reason,
		Interval: c.Resolution,
	})
	watches, err := newWatches(client, c.NodeSelector, &nodeStore{Index: nodes, scraper: scraper}, pods)
	if err != nil {
		return nil, err
	}

	servingCert, err := newServingCert(c, client)
	if err != nil {
		return nil, err
	}

	monitor, err := newMonitor(c, client)
	if err != nil {
		return nil, err
	}
	switch {
	case servingCert != nil:
		instruments.apiServices(servingCert.Monitor().States)
	case monitor != nil:
		instruments.apiServices(monitor.States)
	}

	server, ready, err := newAPIServer(c, watches, scraper, servingCert, instruments, api.Config{
		Usage:      metrics,
		Pods:       pods,
		Nodes:      nodes,
		Now:        time.Now,
		Clock:      clock,
		ObserveAge: instruments.answered,
	})
	if err != nil {
		return nil, err
	}
	return &Server{api: server, scraper: scraper, watches: watches, servingCert: servingCert, monitor: monitor, ready: ready}, nil
}

// newServingCert gives the serving certificate that renews itself, or nil where none is asked for.
func newServingCert(c Config, client *rest.Config) (*servingcert.Manager, error) {
	if c.ServingCert.Secret == "" {
		return nil, nil
	}
	c.ServingCert.Client = client
	return servingcert.New(c.ServingCert)
}

// newMonitor returns what checks the APIServices where no identity does, or nil if it is not known
// where they should lead.
func newMonitor(c Config, client *rest.Config) (*servingcert.Monitor, error) {
	if c.ServingCert.Secret != "" || c.ServingCert.Service == "" {
		return nil, nil
	}
	c.ServingCert.Client = client
	return servingcert.NewMonitor(c.ServingCert)
}

// newState returns an empty store and the inventories of pods and of nodes. What the store has of a
// pod goes before the inventory forgets the pod: a successor of the same name must not be served
// its usage.
func newState(maxSampleAge time.Duration, clock usage.Clock) (metrics *store.Store, pods, nodes *inventory.Index) {
	config := store.Config{MaxSampleAge: maxSampleAge, MaxContainers: maxContainers}
	config.IsRunning = func(namespace, pod, container string) bool {
		o := pods.Get(namespace, pod)
		return o != nil && o.Running(container)
	}
	metrics = store.New(config)
	pods = inventory.NewNotifying(func(old *inventory.Object) {
		metrics.RemovePod(old.Node, old.Namespace, old.Name, clock.At(time.Now()))
	})
	return metrics, pods, inventory.New()
}

// Run serves until the context ends. Then it is not ready any more, lets the requests in flight
// end, for a bounded time, and returns nil. Watches and scrapes go on until the last request has
// its answer.
func (s *Server) Run(ctx context.Context) error {
	collectOften()
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stop()
	loops.Go(func() { s.watches.run(background) })
	loops.Go(func() { s.scraper.Run(background) })
	if s.servingCert != nil {
		loops.Go(func() { s.servingCert.Run(background) })
	}
	if s.monitor != nil {
		loops.Go(func() { s.monitor.Run(background) })
	}
	loops.Go(func() {
		s.announce(background)
		saveMemory(background)
	})
	return s.api.PrepareRun().RunWithContext(ctx)
}

// announce says in the log when the server is ready, and what it waits for as long as it is not. It
// returns then.
func (s *Server) announce(ctx context.Context) {
	logger := klog.FromContext(ctx)
	began := time.Now()
	said := began
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		_, reasons := s.ready.missing()
		if reasons == nil {
			logger.Info("Ready", "after", time.Since(began).Round(time.Millisecond))
			return
		}
		if time.Since(said) >= sayWaiting {
			said = time.Now()
			logger.Info("Not ready yet", "because", strings.Join(reasons, "; "))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// restConfig says how to reach the API server. Few requests go there, most of them watches; the API
// server itself has better means than a client's rate limit to protect itself.
func restConfig(kubeconfig string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		if config, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("cannot find the API server; outside of a cluster give a kubeconfig file by --kubeconfig: %w", err)
		}
	} else {
		file := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
		if config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(file, nil).ClientConfig(); err != nil {
			return nil, fmt.Errorf("cannot use the kubeconfig file %q: %w", kubeconfig, err)
		}
	}
	config.QPS = -1
	return config, nil
}

// kubeletConfig completes the configuration for kubelets. What the flags do not set is as for the
// API server: the cluster's CA, and the credentials of this process, unless kubelets are sent
// tokens of their own.
func kubeletConfig(c kubelet.Config, client *rest.Config) kubelet.Config {
	c.UserAgent = client.UserAgent
	c.Reloaded = func(files string, err error) {
		if err != nil {
			klog.Background().Error(err, "The files for kubelets have changed, but cannot be used; what was read before stays in use", "files", files)
			return
		}
		klog.Background().Info("The files for kubelets have changed and were read again", "files", files)
	}
	if c.PlainHTTP {
		return c
	}
	if c.CertificateAuthority == "" && !c.InsecureTLS {
		c.CertificateAuthority, c.Inline.CertificateAuthority = client.CAFile, client.CAData
	}
	if c.Token != nil {
		return c // a kubelet must not see credentials that have more rights than it needs
	}
	if c.ClientCertificate == "" {
		c.ClientCertificate, c.ClientKey = client.CertFile, client.KeyFile
		c.Inline.ClientCertificate, c.Inline.ClientKey = client.CertData, client.KeyData
	}
	c.BearerTokenFile, c.Inline.BearerToken = client.BearerTokenFile, client.BearerToken
	return c
}

var (
	_ api.Usage       = (*store.Store)(nil)
	_ api.Inventory   = (*inventory.Index)(nil)
	_ scrape.Fetcher  = (*kubelet.Client)(nil)
	_ scrape.Sink     = (*store.Store)(nil)
	_ scrape.Observer = (*instruments)(nil)
)
