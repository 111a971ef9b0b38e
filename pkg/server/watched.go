package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-vitals/kube-vitals/pkg/scrape"
)

// registerWatched registers the metrics of watched nodes.
func (i *instruments) registerWatched(stats func() scrape.WatchedStats) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	i.registry.MustRegister(i.watched, i.requested, &watchedCollector{
		stats: stats,
		nodes: desc(prometheus.BuildFQName(namespace, "", "watched_nodes"),
			"Nodes whose metrics were read by name or by label selector in the last 120 to 160 seconds."),
		resolution: desc(prometheus.BuildFQName(namespace, "", "watched_resolution_seconds"),
			"Time between two scrapes of a watched node: --watched-resolution, or longer if the budget requires it."),
		refused: desc(prometheus.BuildFQName(namespace, "", "watched_scrapes_refused_total"),
			"Further scrapes of watched nodes that --watched-resolution requires and --watched-budget does not allow."),
		waits: desc(prometheus.BuildFQName(namespace, "", "refresh_waits_total"),
			"Requests of one node or pod that waited for a scrape, by result (success or timeout).", "result"),
	})
}

// watchedCollector exports the state of the watched nodes.
type watchedCollector struct {
	stats                             func() scrape.WatchedStats
	nodes, resolution, refused, waits *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *watchedCollector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.nodes, c.resolution, c.refused, c.waits} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *watchedCollector) Collect(out chan<- prometheus.Metric) {
	s := c.stats()
	out <- prometheus.MustNewConstMetric(c.nodes, prometheus.GaugeValue, float64(s.Nodes))
	out <- prometheus.MustNewConstMetric(c.resolution, prometheus.GaugeValue, s.Resolution.Seconds())
	out <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, s.Refused)
	out <- prometheus.MustNewConstMetric(c.waits, prometheus.CounterValue, float64(s.Refreshed), "success")
	out <- prometheus.MustNewConstMetric(c.waits, prometheus.CounterValue, float64(s.TimedOut), "timeout")
}
