package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
)

// collectorFunc is a prometheus.Collector that reads its values when /metrics is scraped. It describes
// no metrics in advance: some of its values may not exist when it is registered.
type collectorFunc func(out chan<- prometheus.Metric)

// Describe implements prometheus.Collector.
func (collectorFunc) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (f collectorFunc) Collect(out chan<- prometheus.Metric) { f(out) }

// newDesc describes a metric of this server with the names of its labels.
func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// gauge returns the present value of a gauge with the values of its labels.
func gauge(desc *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

// counter returns the present value of a counter without labels.
func counter(desc *prometheus.Desc, value float64) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value)
}

// boolGauge returns a gauge that is 1 if the condition is true.
func boolGauge(desc *prometheus.Desc, condition bool, labels ...string) prometheus.Metric {
	if condition {
		return gauge(desc, 1, labels...)
	}
	return gauge(desc, 0, labels...)
}

// registerNodes registers what a source knows of each node. To keep the number of series low,
// only nodes with a clock skew of more than scrape.MaxClockSkew have one for it.
func (i *instruments) registerNodes(source health.Source) {
	var (
		lastSuccess = newDesc("node_last_success_timestamp_seconds",
			"Time of the last successful scrape of the node, or of the last refresh with its series, in seconds since 1970; "+
				"0: none yet.", "node")
		failing = newDesc("node_failing", "1 for each node that cannot be read, by reason.", "node", "reason")
		skew    = newDesc("node_clock_skew_seconds",
			"Clock of the node minus clock of this server, for nodes with a skew of more than 5 seconds.", "node")
		maxSkew = newDesc("max_clock_skew_seconds",
			"Largest absolute difference between the clock of a node and the clock of this server.")
	)
	i.registry.MustRegister(collectorFunc(func(out chan<- prometheus.Metric) {
		var largest time.Duration
		for _, n := range source.Nodes() {
			if n.Last.IsZero() {
				continue
			}
			success := 0.0
			if !n.LastSuccess.IsZero() {
				success = float64(n.LastSuccess.UnixMilli()) / 1000
			}
			out <- gauge(lastSuccess, success, n.Name)
			if n.Failures > 0 {
				out <- gauge(failing, 1, n.Name, string(n.Reason))
			}
			if !n.ClockKnown {
				continue
			}
			largest = max(largest, n.ClockOffset.Abs())
			if n.ClockOffset.Abs() > scrape.MaxClockSkew {
				out <- gauge(skew, n.ClockOffset.Seconds(), n.Name)
			}
		}
		out <- gauge(maxSkew, largest.Seconds())
	}))
}
