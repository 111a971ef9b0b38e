package server

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-vitals/kube-vitals/pkg/scrape"
)

// clockSkews exports the clock skew of nodes, as seen by this server. To keep the number of series
// low, only nodes with more than scrape.MaxClockSkew have one.
type clockSkews struct {
	node, largest *prometheus.Desc

	mu    sync.Mutex
	skews map[string]time.Duration // by node
}

func newClockSkews() *clockSkews {
	return &clockSkews{
		node: prometheus.NewDesc(namespace+"_node_clock_skew_seconds",
			"Clock of the node minus clock of this server, for nodes with a skew of more than 5 seconds.",
			[]string{"node"}, nil),
		largest: prometheus.NewDesc(namespace+"_max_clock_skew_seconds",
			"Largest absolute difference between the clock of a node and the clock of this server.", nil, nil),
		skews: map[string]time.Duration{},
	}
}

func (c *clockSkews) set(node string, skew time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skews[node] = skew
}

func (c *clockSkews) remove(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.skews, node)
}

// Describe implements prometheus.Collector.
func (c *clockSkews) Describe(out chan<- *prometheus.Desc) {
	out <- c.node
	out <- c.largest
}

// Collect implements prometheus.Collector.
func (c *clockSkews) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var largest time.Duration
	for node, skew := range c.skews {
		largest = max(largest, skew.Abs())
		if skew.Abs() > scrape.MaxClockSkew {
			out <- prometheus.MustNewConstMetric(c.node, prometheus.GaugeValue, skew.Seconds(), node)
		}
	}
	out <- prometheus.MustNewConstMetric(c.largest, prometheus.GaugeValue, largest.Seconds())
}
