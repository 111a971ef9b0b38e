package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	prom "github.com/kube-vitals/kube-vitals/pkg/prometheus"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// engine has the instruments of an engine that usage is read from.
type engine struct {
	skipped     *prometheus.CounterVec // by reason
	now         func() time.Time
	refreshes   *prometheus.CounterVec // by result and reason
	partial     prometheus.Counter
	duration    prometheus.Histogram
	series      *prometheus.GaugeVec // by query
	missing     prometheus.Gauge
	lastSuccess prometheus.Gauge
}

// registerEngine registers the metrics of an engine, and returns its observer. Servers that scrape kubelets
// do not have these metrics.
func (i *instruments) registerEngine() *engine {
	e := &engine{
		skipped: i.skipped,
		now:     i.now,
		refreshes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "engine_refreshes_total",
			Help: "Refreshes from the Prometheus-compatible engine, by result (success or failure) and, of failures, by reason.",
		}, []string{"result", "reason"}),
		partial: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "engine_partial_refreshes_total",
			Help: "Successful refreshes for which the engine warned that it does not have all series.",
		}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "engine_refresh_duration_seconds",
			Help:    "Time from the first query of a refresh until its samples are stored, or until the failure.",
			Buckets: []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60},
		}),
		series: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "engine_series",
			Help: "Series of known nodes in the last successful refresh, by query.",
		}, []string{"query"}),
		missing: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "engine_nodes_without_series",
			Help: "Known nodes of which the engine had no series in the last successful refresh.",
		}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "engine_last_success_timestamp_seconds",
			Help: "Time of the last successful refresh, in seconds since 1970; 0: none yet.",
		}),
	}
	i.registry.MustRegister(e.refreshes, e.partial, e.duration, e.series, e.missing, e.lastSuccess)
	return e
}

// Refreshed implements the Observer of pkg/prometheus.
func (e *engine) Refreshed(r prom.Result) {
	e.duration.Observe(r.Took.Seconds())
	for reason, n := range r.Skipped {
		if n > 0 {
			e.skipped.WithLabelValues(usage.Reason(reason).String()).Add(float64(n))
		}
	}
	if r.Err != nil {
		e.refreshes.WithLabelValues("failure", string(r.Reason)).Inc()
		return
	}
	e.refreshes.WithLabelValues("success", "").Inc()
	if r.Partial {
		e.partial.Inc()
	}
	for query, n := range r.Series {
		e.series.WithLabelValues(query).Set(float64(n))
	}
	e.missing.Set(float64(r.Missing))
	e.lastSuccess.Set(float64(e.now().UnixMilli()) / 1000)
}
