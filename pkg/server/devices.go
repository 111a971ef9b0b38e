package server

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/device"
	"github.com/kube-vitals/kube-vitals/pkg/device/status"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// newDevices returns the source of the usage of devices. It needs the nodes of pods, but neither
// kubelets nor an engine.
func newDevices(
	c Config, client *rest.Config, clock usage.Clock, extra *store.Extra, pods *inventory.Index,
	watches *inventory.Watches, instruments *instruments,
) (*device.Source, error) {
	d := *c.Devices
	d.Client, d.Sink, d.Clock, d.AllowLoopback = client, extra, clock, c.Kubelet.AllowLoopback
	d.Synced = func() bool { return watches.PodsSynced() == nil }
	d.IsKnown = func(node, namespace, pod, container string) bool {
		o := pods.Get(namespace, pod)
		return o != nil && o.Node == node && slices.ContainsFunc(o.Containers, func(s inventory.ContainerState) bool {
			return s.Name == container
		})
	}
	observer := instruments.registerDevices()
	d.Observer = observer
	source, err := device.New(d)
	if err == nil {
		observer.statuses = source.Statuses
	}
	return source, err
}

// devices has the instruments of device exporters. Servers without such exporters do not have them.
type devices struct {
	scrapes  *prometheus.CounterVec // by exporter, result and reason
	skipped  *prometheus.CounterVec // by exporter and reason
	statuses func() []status.Exporter

	pods, failing, containers, oldest *prometheus.Desc
}

// registerDevices registers the metrics of device exporters. The caller sets statuses.
func (i *instruments) registerDevices() *devices {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
	}
	d := &devices{
		scrapes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "device_scrapes_total",
			Help: "Scrapes of device exporters, by result (success or failure) and, of failures, by reason.",
		}, []string{"exporter", "result", "reason"}),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "device_series_skipped_total",
			Help: "Configured series in responses of device exporters that were skipped, by reason.",
		}, []string{"exporter", "reason"}),
		pods:    desc("device_exporter_pods", "Pods of device exporters that are scraped.", "exporter"),
		failing: desc("device_exporter_pods_failing", "Of these pods, those whose last scrape failed.", "exporter"),
		containers: desc("device_containers", "Containers with a value of a device, by resource.", "exporter",
			"resource"),
		oldest: desc("device_oldest_age_seconds", "Age of the oldest values of devices that are served; 0: there are none.",
			"exporter"),
	}
	i.registry.MustRegister(d.scrapes, d.skipped, d)
	return d
}

// DeviceScraped implements device.Observer.
func (d *devices) DeviceScraped(r device.Result) {
	result := "success"
	if r.Reason != "" {
		result = "failure"
	}
	d.scrapes.WithLabelValues(r.Exporter, result, string(r.Reason)).Inc()
	for reason, n := range r.Skipped {
		d.skipped.WithLabelValues(r.Exporter, reason).Add(float64(n))
	}
}

// Describe implements prometheus.Collector.
func (d *devices) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{d.pods, d.failing, d.containers, d.oldest} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (d *devices) Collect(out chan<- prometheus.Metric) {
	send := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for _, s := range d.statuses() {
		send(d.pods, float64(len(s.Pods)), s.Name)
		send(d.failing, float64(s.Failing()), s.Name)
		send(d.oldest, s.Oldest.Seconds(), s.Name)
		for resource, n := range s.Containers {
			send(d.containers, float64(n), s.Name, resource)
		}
	}
}

var _ device.Observer = (*devices)(nil)
