package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

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

// registerNodes registers what is known of the scrapes of each node. To keep the number of series low,
// only nodes with a clock skew of more than scrape.MaxClockSkew have one for it.
func (i *instruments) registerNodes(statuses func() []scrape.Status) {
	var (
		lastSuccess = newDesc("node_last_success_timestamp_seconds",
			"Time of the last successful scrape of the node, in seconds since 1970; 0: none yet.", "node")
		failing = newDesc("node_failing", "1 for each node whose last scrape failed, by reason.", "node", "reason")
		skew    = newDesc("node_clock_skew_seconds",
			"Clock of the node minus clock of this server, for nodes with a skew of more than 5 seconds.", "node")
		maxSkew = newDesc("max_clock_skew_seconds",
			"Largest absolute difference between the clock of a node and the clock of this server.")
	)
	i.registry.MustRegister(collectorFunc(func(out chan<- prometheus.Metric) {
		var largest time.Duration
		for _, s := range statuses() {
			if s.LastScrape.IsZero() {
				continue
			}
			success := 0.0
			if !s.LastSuccess.IsZero() {
				success = float64(s.LastSuccess.UnixMilli()) / 1000
			}
			out <- gauge(lastSuccess, success, s.Node)
			if s.Err != nil {
				out <- gauge(failing, 1, s.Node, string(s.Reason))
			}
			if !s.ClockKnown {
				continue
			}
			largest = max(largest, s.ClockOffset.Abs())
			if s.ClockOffset.Abs() > scrape.MaxClockSkew {
				out <- gauge(skew, s.ClockOffset.Seconds(), s.Node)
			}
		}
		out <- gauge(maxSkew, largest.Seconds())
	}))
}
