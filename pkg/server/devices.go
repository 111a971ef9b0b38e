package server

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-vitals/kube-vitals/pkg/device"
	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
)

// addDevices adds the source of the usage of devices, if it is configured. It needs the nodes of pods,
// but neither kubelets nor an engine.
func (a *assembly) addDevices() error {
	if a.Devices.File == "" {
		return nil
	}
	c := a.Devices
	c.Client, c.Sink, c.Clock, c.AllowLoopback = a.clients, a.view.Store.Resources, a.clock, a.Kubelet.AllowLoopback
	c.Synced = func() bool { return a.watches.PodsSynced() == nil }
	c.IsKnown = func(node, namespace, pod, container string) bool {
		o := a.view.BoundPod(node, namespace, pod)
		return o != nil && slices.ContainsFunc(o.Containers, func(s inventory.ContainerState) bool {
			return s.Name == container
		})
	}
	c.Scraped = a.instruments.registerDevices()
	source, err := device.New(c)
	if err != nil {
		return err
	}
	a.instruments.registerExporters(source.Exporters)
	a.exporters = source.Exporters
	a.loops = append(a.loops, source.Run)
	return nil
}

// registerDevices registers the metrics of the scrapes of device exporters, and returns a function that adds
// one.
func (i *instruments) registerDevices() func(device.Result) {
	scrapes := i.newResults("device_scrapes_total", "Scrapes of device exporters", "exporter")
	skipped := i.newCounters("device_series_skipped_total",
		"Configured series in responses of device exporters that were skipped, by reason.", "exporter", "reason")
	return func(r device.Result) {
		scrapes.add(r.Reason, r.Exporter)
		for reason, n := range r.Skipped {
			skipped.WithLabelValues(r.Exporter, reason).Add(float64(n))
		}
	}
}

// registerExporters registers the states of device exporters.
func (i *instruments) registerExporters(exporters func() []health.Exporter) {
	pods := newDesc("device_exporter_pods", "Pods of device exporters that are scraped.", "exporter")
	failing := newDesc("device_exporter_pods_failing", "Of these pods, those whose last scrape failed.", "exporter")
	containers := newDesc("device_containers", "Containers with a value of a device, by resource.", "exporter", "resource")
	oldest := newDesc("device_oldest_age_seconds",
		"Age of the oldest values of devices that are served; 0: there are none.", "exporter")
	i.collect(func(out chan<- prometheus.Metric) {
		for _, e := range exporters() {
			out <- gauge(pods, float64(len(e.Pods)), e.Name)
			out <- gauge(failing, float64(e.Failing()), e.Name)
			out <- gauge(oldest, e.Oldest.Seconds(), e.Name)
			for resource, n := range e.Containers {
				out <- gauge(containers, float64(n), e.Name, resource)
			}
		}
	})
}
