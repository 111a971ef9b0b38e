package server

import (
	"fmt"

	"k8s.io/client-go/kubernetes"

	"github.com/kube-vitals/kube-vitals/pkg/event"
)

// addEvents adds the Reporter of events, if they are configured.
func (a *assembly) addEvents() error {
	if a.EventDeployment == "" {
		return nil
	}
	namespace, err := podNamespace(a.Kubeconfig)
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(a.client)
	if err != nil {
		return fmt.Errorf("cannot make a client for events: %w", err)
	}
	reporter := event.New(event.Config{
		Events:      clients.CoreV1(),
		Deployments: clients.AppsV1(),
		Namespace:   namespace,
		Deployment:  a.EventDeployment,
		Interval:    a.Resolution,
		Source:      a.source,
	})
	a.loops = append(a.loops, reporter.Run)
	return nil
}
