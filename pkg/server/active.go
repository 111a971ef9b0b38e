package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-vitals/kube-vitals/pkg/scrape"
)

// registerActive registers the metrics of active nodes.
func (i *instruments) registerActive(stats func() scrape.ActiveStats) {
	nodes := newDesc("active_nodes",
		"Nodes whose metrics were read by name or by label selector in the last 120 to 160 seconds.")
	resolution := newDesc("active_resolution_seconds",
		"Time between two scrapes of an active node: --active-resolution, or longer if the budget requires it.")
	refused := newDesc("active_scrapes_refused_total",
		"Further scrapes of active nodes that --active-resolution requires and --active-budget does not allow.")
	i.registry.MustRegister(i.active, collectorFunc(func(out chan<- prometheus.Metric) {
		s := stats()
		out <- gauge(nodes, float64(s.Nodes))
		out <- gauge(resolution, s.Resolution.Seconds())
		out <- counter(refused, s.Refused)
	}))
}
