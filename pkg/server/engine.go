package server

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/kube-vitals/kube-vitals/pkg/engine"
	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// addEngine adds an engine that has scraped the kubelets.
func (a *assembly) addEngine() error {
	c := a.Engine
	c.Interval, c.MaxSampleAge, c.MaxContainers = a.Resolution, a.MaxSampleAge, maxContainers
	c.Sink, c.Clock, c.Refreshed = a.view.Store, a.clock, a.instruments.registerEngine()
	c.Synced, c.UserAgent = a.synced, a.client.UserAgent
	c.State = a.view.ContainerState
	c.Reloaded = logReloads("configuration of the engine")
	s, err := engine.New(c)
	if err != nil {
		return err
	}
	a.instruments.registerEngineState(s.Overall)
	a.source = s
	return nil
}

// registerEngine registers the metrics of refreshes, which servers that scrape kubelets do not have, and
// returns a function that adds one.
func (i *instruments) registerEngine() func(engine.Result) {
	refreshes := i.newResults("engine_refreshes_total", "Refreshes from the Prometheus-compatible engine")
	partial := i.newCounter("engine_partial_refreshes_total",
		"Successful refreshes with a warning of the engine that it does not have all series.")
	took := i.newHistogram("engine_refresh_duration_seconds",
		"Time from the first query of a refresh until its samples are stored, or until the failure.",
		0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)
	missing := promauto.With(i.registry).NewGauge(prometheus.GaugeOpts{
		Namespace: metricPrefix, Name: "engine_nodes_without_series",
		Help: "Known nodes without series in the last successful refresh of the engine.",
	})
	return func(r engine.Result) {
		took.Observe(r.Took.Seconds())
		i.countSkipped(r.Skipped)
		refreshes.add(reason.Of(r.Err))
		if r.Err != nil {
			return
		}
		if r.Engine.Warning != "" {
			partial.Inc()
		}
		missing.Set(float64(r.Missing))
	}
}

// registerEngineState registers what is known of the engine.
func (i *instruments) registerEngineState(overall func() health.Overall) {
	series := newDesc("engine_series", "Series of known nodes in the last successful refresh, by query.", "query")
	lastSuccess := newDesc("engine_last_success_timestamp_seconds",
		"Time of the last successful refresh, in seconds since 1970; 0: none yet.")
	i.collect(func(out chan<- prometheus.Metric) {
		o := overall()
		out <- gauge(lastSuccess, timestamp(o.LastSuccess))
		for query, n := range o.Engine.Series {
			out <- gauge(series, float64(n), query)
		}
	})
}
