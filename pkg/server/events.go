package server

import (
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/event"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
)

// newReporter returns the Reporter of events, or nil if they are not configured.
func newReporter(c Config, client *rest.Config, nodes *inventory.Index) (*event.Reporter, error) {
	if c.EventDeployment == "" {
		return nil, nil
	}
	namespace, err := podNamespace("--deployment", c.Kubeconfig, inClusterNamespaceFile)
	if err != nil {
		return nil, err
	}
	clients, err := kubernetes.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for events: %w", err)
	}
	return event.New(event.Config{
		Events:      clients.CoreV1(),
		Deployments: clients.AppsV1(),
		Namespace:   namespace,
		Deployment:  c.EventDeployment,
		Interval:    c.Resolution,
		Nodes:       nodes.Len,
	}), nil
}

// observers notifies each of several observers.
type observers []scrape.Observer

// Scraped implements scrape.Observer.
func (o observers) Scraped(r scrape.Result) {
	for _, each := range o {
		each.Scraped(r)
	}
}

// Summarized implements scrape.Observer.
func (o observers) Summarized(err error) {
	for _, each := range o {
		each.Summarized(err)
	}
}

// NodeDeleted implements scrape.Observer.
func (o observers) NodeDeleted(node string) {
	for _, each := range o {
		each.NodeDeleted(node)
	}
}
