package device

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/internal/backoff"
	"github.com/kube-vitals/kube-vitals/pkg/internal/printable"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// scrapeRegularly scrapes a pod once in each interval until the context ends. No pod waits for
// another: a scrape takes little memory.
func (g *group) scrapeRegularly(ctx context.Context, t *target) {
	defer t.stop()
	delay := rand.N(startWindow) //nolint:gosec // to spread load
	for first := true; backoff.Sleep(ctx, delay, nil); first = false {
		start := time.Now()
		g.scrape(ctx, t)
		if delay = g.Interval - time.Since(start); first {
			delay = rand.N(g.Interval) //nolint:gosec // to spread load
		}
	}
}

// scrape scrapes a pod once.
func (g *group) scrape(ctx context.Context, t *target) {
	at := g.source.Clock.At(time.Now())
	r, err := g.fetch(ctx, t)
	if ctx.Err() != nil {
		return // the pod has been removed, or the server ends
	}
	result := Result{Exporter: g.Name, Reason: reason.Of(err)}
	if r != nil {
		result.Skipped = r.skipped
	}
	g.finish(t, at, r, err)
	g.source.Scraped(result)
}

// fetch calls get, with a timeout. It shortens errors, except those of panics, which have their stack.
func (g *group) fetch(ctx context.Context, t *target) (r *response, err error) {
	defer reason.Recover(&err, "the exporter's response")
	ctx, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	if r, err = g.get(ctx, t); err != nil {
		err = reason.Flatten(err, "%.1000s", printable.Text(err.Error())) // the exporter's text in it may be long
	}
	return r, err
}

// finish stores the result of a scrape: r, if err is nil.
func (g *group) finish(t *target, at usage.Time, r *response, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isScraped(t) {
		return
	}
	cause := reason.Of(err)
	t.health.Add(time.Now(), 0, cause, err)
	logger := klog.Background().WithValues("exporter", g.Name, "pod", klog.KObj(t.pod), "node", t.pod.Spec.NodeName)
	if err != nil || t.log.IsFailing() {
		t.log.Note(logger, string(cause), cause.DescribeExporter().Explain(err), "reason", cause)
	}
	if err != nil {
		return
	}
	t.health.Devices = slices.Max(r.series)
	g.logMissing(logger, r)
	node := t.pod.Spec.NodeName
	if a := g.active[node]; a != nil && !g.replaces(t, a, at) {
		return
	}
	a := &active{t, usage.ResourceReport{At: at.Add(-r.age), MaxAge: g.MaxAge, Containers: r.containers}}
	g.active[node] = a
	g.source.Sink.Put(node, g.sinkName(), a.ResourceReport)
}

// sinkName returns the name of the source in the Sink, which no source but this group has.
func (g *group) sinkName() string { return "device/" + g.Name }

// replaces reports whether the values of a target replace those that are served: the oldest pod that
// can be scraped counts, so that no new pod decides.
func (g *group) replaces(t *target, a *active, now usage.Time) bool {
	return t == a.target || !g.isScraped(a.target) || a.target.health.Reason != "" || a.IsExpired(now) ||
		byAge(t.pod, a.target.pod) < 0
}

// logMissing logs each configured series that a valid response does not have, once for all pods: some GPUs
// never have it.
func (g *group) logMissing(logger klog.Logger, r *response) {
	for i, n := range r.series {
		if series := g.Resources[i].Series; n == 0 && r.skipped[malformed] == 0 && !g.missing[series] {
			g.missing[series] = true
			logger.Info("A device exporter does not export a configured series, so the resource is missing on its node; "+
				"this is logged once", "series", series, "resource", g.Resources[i].Resource)
		}
	}
}
