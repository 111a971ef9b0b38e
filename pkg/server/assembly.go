package server

import (
	"context"
	"fmt"
	"iter"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
)

// assembly is what a Server is built of. New calls its methods in order: each adds one part, and uses
// only the parts before it. Loops and callbacks, which run later, may use all.
type assembly struct {
	Config
	client      *rest.Config // of the API server
	clients     *kubernetes.Clientset
	namespace   string // of this program and of the objects that flags name
	clock       usage.Clock
	view        *view.View
	instruments *instruments
	source      source
	watches     *inventory.Watches
	exporters   func() []health.Exporter // of devices; nil: there are none
	cert        *servingcert.Manager     // nil: the serving certificate is not ours
	// noteRead is nil if --active-resolution is off.
	noteRead func(nodes iter.Seq[string])

	api   *genericapiserver.GenericAPIServer
	ready readiness               // for /readyz
	loops []func(context.Context) // that run until the last request has ended
}

// newAssembly returns an assembly with an empty store and empty inventories, and with their instruments.
func newAssembly(c Config) (*assembly, error) {
	file := &clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig} // "": none
	kubeconfig := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(file, nil)
	client, err := kubeconfig.ClientConfig() // without a file, that of this pod
	if err != nil {
		return nil, fmt.Errorf("cannot find the API server with --kubeconfig=%q: %w", c.Kubeconfig, err)
	}
	client.QPS = -1 // there are few requests, most of them watches, and API servers protect themselves
	client.UserAgent = "kube-vitals/" + c.Version
	client.ContentType = runtime.ContentTypeProtobuf
	client.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	clients, err := kubernetes.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("cannot make clients of the API server: %w", err)
	}
	namespace, _, err := kubeconfig.Namespace() // like kubectl, "default" if it is unknown
	if err != nil {
		return nil, fmt.Errorf("cannot find the namespace of this pod: %w", err)
	}
	clock := usage.NewClock(time.Now())
	v := view.New(store.Config{
		MaxSampleAge: c.MaxSampleAge, RateWindow: c.RateWindow, MaxContainers: maxContainers,
	}, clock)
	if c.Devices.File != "" || c.StorageInterval > 0 {
		v.Store.Resources = store.NewResources()
	}
	i := newInstruments(c, clock)
	i.registerState(v)
	return &assembly{
		Config: c, client: client, clients: clients, namespace: namespace, clock: clock, view: v, instruments: i,
	}, nil
}

// addWatches adds the watches of nodes and pods. Those of nodes set the targets of the source.
func (a *assembly) addWatches() (err error) {
	a.watches, err = inventory.NewWatches(inventory.WatchConfig{
		Client:          a.client,
		Nodes:           a.view.Nodes,
		Pods:            a.view.Pods,
		Targets:         a.source,
		NodeSelector:    a.NodeSelector,
		NodeAnnotations: []string{kubelet.PathAnnotation},
	})
	if err == nil {
		a.loops = append(a.loops, a.watches.Run)
	}
	return err
}

// synced reports whether the nodes and pods are known.
func (a *assembly) synced() bool {
	return a.watches.NodesSynced() == nil && a.watches.PodsSynced() == nil
}

// addSource adds the source of the usage, and events about it.
func (a *assembly) addSource() error {
	add := a.addScraper
	if a.Engine.URL != "" {
		add = a.addEngine
	}
	if err := add(); err != nil {
		return err
	}
	a.instruments.registerNodes(a.source)
	a.loops = append(a.loops, a.source.Run)
	a.addEvents()
	return nil
}

// addServingCert adds the Monitor of the APIServices if the Service is configured, and the Manager of the
// serving certificate, which then runs the Monitor, if a Secret is.
func (a *assembly) addServingCert() error {
	c := a.ServingCert
	c.Client = a.client
	if c.Secret == "" && c.Service == "" {
		return nil
	}
	monitor, err := servingcert.NewMonitor(c)
	if err != nil {
		return err
	}
	run := monitor.Run
	if c.Secret != "" {
		if a.cert, err = servingcert.New(c, monitor); err != nil {
			return err
		}
		run = a.cert.Run
	}
	a.loops = append(a.loops, run)
	a.instruments.registerAPIServices(monitor.States)
	return nil
}
