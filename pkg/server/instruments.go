package server

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apimetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // metrics of requests to the API server

	"github.com/kube-vitals/kube-vitals/pkg/filter"
	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
)

// instruments is the registry of the metrics of kube-vitals itself. No metric has a series per pod.
// The series of a node are removed with the node.
type instruments struct {
	registry *prometheus.Registry
	clock    usage.Clock

	scrapes   results
	early     prometheus.Counter
	active    prometheus.Counter // nil without --active-resolution
	summaries results
	duration  prometheus.Histogram
	lateness  prometheus.Histogram
	skipped   *prometheus.CounterVec   // by reason
	answerAge *prometheus.HistogramVec // of responses, by resource; "answer" is the word of the released metric
}

func newInstruments(c Config, clock usage.Clock) *instruments {
	i := &instruments{registry: prometheus.NewRegistry(), clock: clock}
	i.scrapes = i.newResults("scrapes_total", "Scrapes of kubelets")
	i.early = i.newCounter("early_scrapes_total",
		"Scrapes ahead of schedule, for the metrics of new nodes and new containers.")
	i.summaries = i.newResults("summaries_total", "Requests to kubelets for kubelet-reported rates")
	i.duration = i.newHistogram("scrape_duration_seconds",
		"Time from the start of a scrape to the last byte decoded, or to the failure.",
		0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
	i.lateness = i.newHistogram("scrape_lateness_seconds",
		"Delay of a scrape by this server: its late start, and its wait for permits to connect and to read.",
		0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 15)
	i.skipped = i.newCounters("samples_skipped_total",
		"Lines of kubelets, or samples of an engine, that were skipped, by reason.", "reason")
	for r := range usage.SkipReason(usage.NumSkipReasons) {
		i.skipped.WithLabelValues(r.String())
	}
	i.answerAge = promauto.With(i.registry).NewHistogramVec(prometheus.HistogramOpts{
		Namespace: metricPrefix, Name: "answer_age_seconds",
		Help:    "Age of the oldest sample in each response, by resource.",
		Buckets: []float64{2, 5, 10, 15, 20, 25, 30, 45, 60, 90, 120, 180, 300},
	}, []string{"resource"})
	build := newDesc("build_info", "1, with the version of this program as labels.", "version", "commit", "go_version")
	i.collect(func(out chan<- prometheus.Metric) { out <- gauge(build, 1, c.Version, c.Commit, runtime.Version()) })
	const flag = "Value of the flag of this name." // alerts derive thresholds from these
	i.registerGauge("metric_resolution_seconds", flag, c.Resolution.Seconds)
	i.registerGauge("max_sample_age_seconds", flag, c.MaxSampleAge.Seconds)
	// The library's process_resident_memory_bytes is what the server uses.
	i.registerGauge("memory_limit_bytes", "Memory limit of the container; 0: there is none, or it cannot be read.",
		func() float64 { return float64(memoryLimit()) })
	return i
}

// registerState registers the metrics of the store and of the inventory.
func (i *instruments) registerState(v *view.View) {
	var (
		known  = newDesc("known_objects", "Nodes to scrape, and pods with a container that runs, in the API server.", "kind")
		points = newDesc("points", "Nodes, pods and containers with metrics.", "kind")
		oldest = newDesc("oldest_point_age_seconds",
			"Age of the oldest sample that can be served; 0: there is none.", "kind")
		older     = newDesc("older_samples_total", "Samples that were ignored because they were older than the previous one.")
		stepsBack = newDesc("clock_steps_back_total", "Series restarted because their samples stayed older than before.")
		jumps     = newDesc("clock_jumps_total", "Jumps of the offset between a node's clock and the clock of this server.")
		baselines = newDesc("baselines_total",
			"First samples of a series, also after a restart: there is no earlier one for a rate.")
	)
	i.collect(func(out chan<- prometheus.Metric) {
		out <- gauge(known, float64(v.Nodes.LenOf(inventory.PhaseUnknown)), "node")
		out <- gauge(known, float64(v.Pods.LenOf(inventory.PodRunning)), "pod")
		stats := v.Store.Stats(i.clock.At(time.Now()))
		out <- gauge(points, float64(stats.Nodes), "node")
		out <- gauge(points, float64(stats.Pods), "pod")
		out <- gauge(points, float64(stats.Containers), "container")
		out <- gauge(oldest, stats.OldestNode.Seconds(), "node")
		out <- gauge(oldest, stats.OldestPod.Seconds(), "pod")
		counts := v.Store.Counts()
		out <- counter(older, float64(counts.OlderSamples))
		out <- counter(stepsBack, float64(counts.ClockStepsBack))
		out <- counter(jumps, float64(counts.ClockJumps))
		out <- counter(baselines, float64(counts.Baselines))
	})
}

// registerCertificate registers the expiry of the serving certificate.
func (i *instruments) registerCertificate(serving dynamiccertificates.CertKeyContentProvider) {
	i.registerGauge("serving_certificate_expiry_timestamp_seconds",
		"Expiry of the serving certificate, in seconds since 1970; 0: it cannot be parsed.", func() float64 {
			pem, _ := serving.CurrentCertKeyContent()
			certificates, err := certutil.ParseCertsPEM(pem)
			if err != nil {
				return 0
			}
			return float64(certificates[0].NotAfter.Unix())
		})
}

// registerNodes registers what a source knows of each node. To keep the number of series low,
// only nodes with a clock skew of more than scrape.MaxClockSkew have one for it.
func (i *instruments) registerNodes(source health.Source) {
	var (
		lastSuccess = newDesc("node_last_success_timestamp_seconds",
			"Time of the last successful scrape of the node, or of the last refresh with its series, in seconds since 1970; "+
				"0: none yet.", "node")
		failing = newDesc("node_failing", "1 for each node that cannot be read, by reason.", "node", "reason")
		skew    = newDesc("node_clock_skew_seconds",
			"Clock of the node minus clock of this server, for nodes with a skew of more than 5 seconds.", "node")
		maxSkew = newDesc("max_clock_skew_seconds",
			"Largest absolute difference between the clock of a node and the clock of this server.")
	)
	i.collect(func(out chan<- prometheus.Metric) {
		var largest time.Duration
		for _, n := range source.Nodes() {
			if n.Last.IsZero() {
				continue
			}
			out <- gauge(lastSuccess, timestamp(n.LastSuccess), n.Name)
			if n.Failures > 0 {
				out <- gauge(failing, 1, n.Name, string(n.Reason))
			}
			if !n.ClockKnown {
				continue
			}
			largest = max(largest, n.ClockOffset.Abs())
			if n.ClockOffset.Abs() > scrape.MaxClockSkew {
				out <- gauge(skew, n.ClockOffset.Seconds(), n.Name)
			}
		}
		out <- gauge(maxSkew, largest.Seconds())
	})
}

// registerAPIServices registers the states of the APIServices.
func (i *instruments) registerAPIServices(states func() map[string]servingcert.APIServiceState) {
	misdirected := newDesc("apiservice_misdirected",
		"1 if the APIService refers to another Service than this server's, else 0.", "apiservice")
	unverified := newDesc("apiservice_insecure_skip_tls_verify",
		"1 if the API server does not verify the certificate of this server, else 0.", "apiservice")
	value := map[bool]float64{true: 1}
	i.collect(func(out chan<- prometheus.Metric) {
		for name, state := range states() {
			out <- gauge(misdirected, value[state.Misdirected], name)
			out <- gauge(unverified, value[state.InsecureSkipTLSVerify], name)
		}
	})
}

// Scraped implements scrape.Observer.
func (i *instruments) Scraped(r scrape.Result) {
	i.duration.Observe(r.Took.Seconds())
	i.lateness.Observe(max(r.Late, 0).Seconds())
	switch r.Kind {
	case scrape.Early:
		i.early.Inc()
	case scrape.OfActive:
		i.active.Inc()
	case scrape.Regular:
	}
	i.scrapes.add(reason.Of(r.Err))
	if r.Err == nil {
		i.countSkipped(r.Skipped)
	}
}

// countSkipped counts what a response had that was skipped.
func (i *instruments) countSkipped(skipped [usage.NumSkipReasons]int) {
	for r, n := range skipped {
		if n > 0 {
			i.skipped.WithLabelValues(usage.SkipReason(r).String()).Add(float64(n))
		}
	}
}

// Summarized implements scrape.Observer.
func (i *instruments) Summarized(err error) { i.summaries.add(reason.Of(err)) }

// observeAnswerAge records the age of the oldest sample in a response.
func (i *instruments) observeAnswerAge(resource string, oldest time.Duration) {
	i.answerAge.WithLabelValues(resource).Observe(oldest.Seconds())
}

// maxGathered is how many responses of /metrics there are at the same time. Until its client has read it, each has all
// metrics: a megabyte, and 0.4 KB for each node.
const maxGathered = 8

// handler returns the handler of /metrics: these metrics, and those of the API server library, the
// Go runtime and the process.
func (i *instruments) handler() http.Handler {
	apimetrics.Register()
	all := promhttp.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, i.registry}, promhttp.HandlerOpts{})
	return filter.WithShares(all, maxGathered)
}
