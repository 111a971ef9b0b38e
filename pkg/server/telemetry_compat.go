package server

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/store"
)

// metricsServerTelemetry exports the six metrics that metrics-server 0.9 exposes about itself, under
// the same names, with the same types, labels and buckets, for dashboards and alerts that read them.
// docs/moving-from-metrics-server.md lists what they mean here. A nil *metricsServerTelemetry
// ignores all events.
//
// Two metrics have series for each node: 15 series with the default buckets. They are removed with
// the node.
type metricsServerTelemetry struct {
	duration  *prometheus.HistogramVec // by node
	requests  *prometheus.CounterVec   // by success
	last      *prometheus.GaugeVec     // by node
	tick      prometheus.Histogram
	freshness prometheus.Histogram

	resolution time.Duration
	now        func() time.Time

	mu      sync.Mutex
	round   time.Time     // start of the current round; zero: no scrape has ended yet
	slowest time.Duration // of the scrapes that ended in this round
}

// metricsServer is the prefix of the names of metrics-server's metrics.
const metricsServer = "metrics_server"

// registerMetricsServer registers metrics-server's names for the metrics of this server.
func (i *instruments) registerMetricsServer(resolution time.Duration, metrics *store.Store) {
	m := &metricsServerTelemetry{
		resolution: resolution,
		now:        i.now,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metricsServer, Name: "kubelet_request_duration_seconds",
			Help:    "Time of a scrape, without the wait for permits of this server, by node.",
			Buckets: prometheus.DefBuckets,
		}, []string{"node"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsServer, Name: "kubelet_request_total",
			Help: "Scrapes of kubelets, by success (true or false).",
		}, []string{"success"}),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: metricsServer, Name: "kubelet_last_request_time_seconds",
			Help: "Time of the end of the last scrape of the node, failed or not, in whole seconds since 1970.",
		}, []string{"node"}),
		tick: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: metricsServer, Name: "manager_tick_duration_seconds",
			Help:    "Time of the slowest scrape in each interval of --metric-resolution, with its delay by this server.",
			Buckets: tickBuckets(resolution),
		}),
		freshness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: metricsServer, Name: "api_metric_freshness_seconds",
			Help:    "Age of the oldest sample in each response.",
			Buckets: prometheus.ExponentialBuckets(1, 1.364, 20),
		}),
	}
	points := prometheus.NewDesc(metricsServer+"_storage_points", "Nodes and containers with metrics, by type.",
		[]string{"type"}, nil)
	i.registry.MustRegister(m.duration, m.requests, m.last, m.tick, m.freshness,
		collectorFunc(func(out chan<- prometheus.Metric) {
			stats := metrics.Stats(i.clock.At(i.now()))
			out <- prometheus.MustNewConstMetric(points, prometheus.GaugeValue, float64(stats.Nodes), "node")
			out <- prometheus.MustNewConstMetric(points, prometheus.GaugeValue, float64(stats.Containers), "container")
		}))
	i.metricsServer = m
}

// tickBuckets returns the default buckets, and buckets around the resolution as metrics-server has
// them.
func tickBuckets(resolution time.Duration) []float64 {
	buckets := slices.Clone(prometheus.DefBuckets)
	longest, seconds := buckets[len(buckets)-1], resolution.Seconds()
	if seconds > longest {
		return append(buckets, (longest+seconds)/2, seconds, 1.5*seconds, 2*seconds)
	}
	buckets = append(buckets, seconds)
	slices.Sort(buckets)
	return slices.Compact(buckets)
}

// scraped records the end of a scrape.
func (m *metricsServerTelemetry) scraped(r scrape.Result) {
	if m == nil {
		return
	}
	success := "true"
	if r.Err != nil {
		success = "false"
	}
	m.requests.WithLabelValues(success).Inc()
	m.duration.WithLabelValues(r.Node).Observe(r.Took.Seconds())
	now := m.now()
	m.last.WithLabelValues(r.Node).Set(float64(now.Unix()))
	m.observeRound(now, max(r.Late, 0)+r.Took)
}

// observeRound records the slowest scrape of a round as soon as a scrape ends after the round.
// metrics-server scrapes all nodes in rounds, and a round lasts as long as its slowest scrape. Here
// each node has a schedule of its own, so a round is an interval of time.
func (m *metricsServerTelemetry) observeRound(now time.Time, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.round.IsZero() {
		m.round = now
	}
	if now.Sub(m.round) >= m.resolution {
		m.tick.Observe(m.slowest.Seconds())
		m.round, m.slowest = now, 0
	}
	m.slowest = max(m.slowest, took)
}

// observeAge records the age of the oldest sample in a response.
func (m *metricsServerTelemetry) observeAge(oldest time.Duration) {
	if m != nil {
		m.freshness.Observe(oldest.Seconds())
	}
}

// nodeDeleted removes the series of a node.
func (m *metricsServerTelemetry) nodeDeleted(node string) {
	if m != nil {
		m.duration.DeleteLabelValues(node)
		m.last.DeleteLabelValues(node)
	}
}

// collectorFunc is a prometheus.Collector that always sends the same series.
type collectorFunc func(chan<- prometheus.Metric)

// Describe implements prometheus.Collector.
func (f collectorFunc) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, out) }

// Collect implements prometheus.Collector.
func (f collectorFunc) Collect(out chan<- prometheus.Metric) { f(out) }
