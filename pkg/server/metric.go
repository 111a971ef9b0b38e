package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// metricPrefix is the first part of the names of the metrics.
const metricPrefix = "kube_vitals"

// newCounters registers a counter for each combination of the values of labels.
func (i *instruments) newCounters(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(i.registry).NewCounterVec(
		prometheus.CounterOpts{Namespace: metricPrefix, Name: name, Help: help}, labels)
}

// newCounter registers a counter.
func (i *instruments) newCounter(name, help string) prometheus.Counter {
	return i.newCounters(name, help).WithLabelValues()
}

// newHistogram registers a histogram with the upper bounds of its buckets.
func (i *instruments) newHistogram(name, help string, buckets ...float64) prometheus.Histogram {
	return promauto.With(i.registry).NewHistogram(
		prometheus.HistogramOpts{Namespace: metricPrefix, Name: name, Help: help, Buckets: buckets})
}

// registerGauge registers a gauge whose value is read when /metrics is scraped.
func (i *instruments) registerGauge(name, help string, value func() float64) {
	promauto.With(i.registry).NewGaugeFunc(prometheus.GaugeOpts{Namespace: metricPrefix, Name: name, Help: help}, value)
}

// results counts attempts by result and, of failures, by reason.
type results struct{ *prometheus.CounterVec }

// newResults registers the counters of attempts; what is their plural. They may have further labels.
func (i *instruments) newResults(name, what string, labels ...string) results {
	help := what + ", by result (success or failure) and, of failures, by reason."
	return results{i.newCounters(name, help, append(labels, "result", "reason")...)}
}

// add counts an attempt. The reason is empty if it succeeded.
func (c results) add(r reason.Reason, labels ...string) {
	result := "success"
	if r != "" {
		result = "failure"
	}
	c.WithLabelValues(append(labels, result, string(r))...).Inc()
}

// collect registers metrics whose values are read when /metrics is scraped, and now, to describe those that
// exist. A pedantic registry would reject the others later.
func (i *instruments) collect(read func(out chan<- prometheus.Metric)) {
	i.registry.MustRegister(prometheus.CollectorFunc(read))
}

// newDesc describes a metric of this server with the names of its labels.
func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(metricPrefix, "", name), help, labels, nil)
}

// gauge returns the present value of a gauge with the values of its labels.
func gauge(desc *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

// counter returns the present value of a counter without labels.
func counter(desc *prometheus.Desc, value float64) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value)
}

// timestamp returns a time in seconds since 1970; 0: there is none.
func timestamp(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
