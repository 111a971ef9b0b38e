package server

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-vitals/kube-vitals/pkg/scrape"
)

// clockSkews exports how far the clocks of nodes are ahead of the clock of this server. There is a
// series only for nodes whose clock is wrong by more than scrape.MaxClockSkew, so that there are
// few of them.
type clockSkews struct {
	node, largest *prometheus.Desc

	mu    sync.Mutex
	skews map[string]time.Duration // by node
}

func newClockSkews() *clockSkews {
	return &clockSkews{
		node: prometheus.NewDesc(namespace+"_node_clock_skew_seconds",
			"How far the clock of the node is ahead of the clock of this server (below 0: behind), for nodes with more than 5 seconds.",
			[]string{"node"}, nil),
		largest: prometheus.NewDesc(namespace+"_max_clock_skew_seconds",
			"The largest difference between the clock of a node and the clock of this server, in either direction.", nil, nil),
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
