package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-vitals/kube-vitals/pkg/api"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/memory"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
)

// listMemory returns what lists may take, with a memory limit of the container in bytes; 0: none. The
// rest is for scrapes and for the cluster's objects.
func listMemory(limit uint64) api.ListMemory {
	if limit == 0 {
		return api.ListMemory{Large: 128 << 20, Small: 64 << 20, Max: 1 << 30}
	}
	return api.ListMemory{Large: int64(limit / 8), Small: int64(limit / 16), Max: int64(limit / 2)}
}

// memoryReport returns a function that compares the memory of this process, and what the present
// number of objects needs, with the limit of the container. The forecast is for servers that scrape
// kubelets; others have none.
func memoryReport(nodes, pods *inventory.Index, scrapes bool) func() *nodez.Memory {
	return func() *nodez.Memory {
		m := &nodez.Memory{ResidentBytes: memory.Resident(), LimitBytes: memory.Limit()}
		if scrapes {
			objects := memory.Objects{Nodes: nodes.Len(), Pods: pods.Len(), Containers: pods.RunningContainers()}
			m.ForecastBytes = memory.Forecast(objects)
		}
		return m
	}
}

// registerMemory registers what the server needs, if there is a forecast, and what it may use. The library's
// process_resident_memory_bytes is what it uses.
func (i *instruments) registerMemory(report func() *nodez.Memory) {
	i.registry.MustRegister(&memoryCollector{
		report: report,
		forecast: prometheus.NewDesc(prometheus.BuildFQName(namespace, "", "memory_forecast_bytes"),
			"Highest resident memory that the server needs for the present number of nodes, pods and containers.", nil, nil),
		limit: prometheus.NewDesc(prometheus.BuildFQName(namespace, "", "memory_limit_bytes"),
			"Memory limit of the container; 0: there is none, or it cannot be read.", nil, nil),
	})
}

// memoryCollector exports a report.
type memoryCollector struct {
	report          func() *nodez.Memory
	forecast, limit *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *memoryCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.forecast
	out <- c.limit
}

// Collect implements prometheus.Collector.
func (c *memoryCollector) Collect(out chan<- prometheus.Metric) {
	m := c.report()
	if m.ForecastBytes > 0 {
		out <- prometheus.MustNewConstMetric(c.forecast, prometheus.GaugeValue, float64(m.ForecastBytes))
	}
	out <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(m.LimitBytes))
}
