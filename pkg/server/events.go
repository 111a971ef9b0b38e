package server

import "github.com/kube-vitals/kube-vitals/pkg/event"

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
