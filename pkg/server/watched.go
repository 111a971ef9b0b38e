package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-vitals/kube-vitals/pkg/scrape"
)

// registerWatched registers the metrics of watched nodes.
func (i *instruments) registerWatched(stats func() scrape.WatchedStats) {
	nodes := newDesc("watched_nodes",
		"Nodes whose metrics were read by name or by label selector in the last 120 to 160 seconds.")
	resolution := newDesc("watched_resolution_seconds",
		"Time between two scrapes of a watched node: --watched-resolution, or longer if the budget requires it.")
	refused := newDesc("watched_scrapes_refused_total",
		"Further scrapes of watched nodes that --watched-resolution requires and --watched-budget does not allow.")
	i.registry.MustRegister(i.watched, collectorFunc(func(out chan<- prometheus.Metric) {
		s := stats()
		out <- gauge(nodes, float64(s.Nodes))
		out <- gauge(resolution, s.Resolution.Seconds())
		out <- counter(refused, s.Refused)
	}))
}
