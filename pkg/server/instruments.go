package server

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apimetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // metrics of requests to the API server

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// instruments is the registry of the metrics of kube-vitals itself. No metric has a series per pod.
// The series of a node are removed with the node.
type instruments struct {
	registry *prometheus.Registry
	now      func() time.Time
	clock    usage.Clock

	scrapes     *prometheus.CounterVec // by result and reason
	early       prometheus.Counter
	active      prometheus.Counter
	summaries   *prometheus.CounterVec // by result and reason
	duration    prometheus.Histogram
	lateness    prometheus.Histogram
	skipped     *prometheus.CounterVec   // by reason
	responseAge *prometheus.HistogramVec // by resource
}

const namespace = "kube_vitals"

func newInstruments(version, commit string, now func() time.Time, clock usage.Clock) *instruments {
	i := &instruments{
		registry: prometheus.NewRegistry(),
		now:      now,
		clock:    clock,
		scrapes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "scrapes_total",
			Help: "Scrapes of kubelets, by result (success or failure) and, of failures, by reason.",
		}, []string{"result", "reason"}),
		early: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "early_scrapes_total",
			Help: "Scrapes ahead of schedule, for the metrics of new nodes and new containers.",
		}),
		active: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "active_scrapes_total",
			Help: "Scrapes of active nodes, once in their resolution, instead of regular scrapes.",
		}),
		summaries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "summaries_total",
			Help: "Requests to kubelets for kubelet-reported rates, by result (success or failure) and, of failures, by reason.",
		}, []string{"result", "reason"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "scrape_duration_seconds",
			Help:    "Time from the start of a scrape to the last byte decoded, or to the failure.",
			Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
		}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "scrape_lateness_seconds",
			Help:    "Delay of a scrape by this server: its late start, and its wait for permits to connect and to read.",
			Buckets: []float64{0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 15},
		}),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "samples_skipped_total",
			Help: "Lines in responses of kubelets that were skipped, by reason.",
		}, []string{"reason"}),
		responseAge: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "answer_age_seconds",
			Help:    "Age of the oldest sample in each response, by resource.",
			Buckets: []float64{2, 5, 10, 15, 20, 25, 30, 45, 60, 90, 120, 180, 300},
		}, []string{"resource"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info",
		Help:        "1, with the version of this program as labels.",
		ConstLabels: prometheus.Labels{"version": version, "commit": commit, "go_version": runtime.Version()},
	})
	build.Set(1)
	i.registry.MustRegister(i.scrapes, i.early, i.summaries, i.duration, i.lateness, i.skipped,
		i.responseAge, build)
	for r := range usage.Reason(usage.NumReasons) {
		i.skipped.WithLabelValues(r.String())
	}
	return i
}

// registerState registers the metrics of the store and of the inventory.
func (i *instruments) registerState(metrics *store.Store, nodes, pods *inventory.Index) {
	var (
		known  = newDesc("known_objects", "Nodes to scrape and running pods in the API server.", "kind")
		points = newDesc("points", "Nodes, pods and containers with metrics.", "kind")
		oldest = newDesc("oldest_point_age_seconds",
			"Age of the oldest sample that can be served; 0: there is none.", "kind")
		older     = newDesc("older_samples_total", "Samples that were ignored because they were older than the previous one.")
		stepsBack = newDesc("clock_steps_back_total", "Series restarted because their samples stayed older than before.")
		jumps     = newDesc("clock_jumps_total", "Jumps of the offset between a node's clock and the clock of this server.")
		baselines = newDesc("baselines_total", "First samples of a series or after a restart, which give no rate yet.")
	)
	i.registry.MustRegister(collectorFunc(func(out chan<- prometheus.Metric) {
		out <- gauge(known, float64(nodes.Len()), "node")
		out <- gauge(known, float64(pods.LenOf(inventory.PodRunning)), "pod")
		stats := metrics.Stats(i.clock.At(i.now()))
		out <- gauge(points, float64(stats.Nodes), "node")
		out <- gauge(points, float64(stats.Pods), "pod")
		out <- gauge(points, float64(stats.Containers), "container")
		out <- gauge(oldest, stats.OldestNode.Seconds(), "node")
		out <- gauge(oldest, stats.OldestPod.Seconds(), "pod")
		counts := metrics.Counts()
		out <- counter(older, float64(counts.OlderSamples))
		out <- counter(stepsBack, float64(counts.ClockStepsBack))
		out <- counter(jumps, float64(counts.ClockJumps))
		out <- counter(baselines, float64(counts.Baselines))
	}))
}

// registerConfig registers the values of flags that alerts derive thresholds from.
func (i *instruments) registerConfig(resolution, maxSampleAge time.Duration) {
	for name, value := range map[string]time.Duration{
		"metric_resolution_seconds": resolution,
		"max_sample_age_seconds":    maxSampleAge,
	} {
		gauge := prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: name, Help: "Value of the flag of this name.",
		})
		gauge.Set(value.Seconds())
		i.registry.MustRegister(gauge)
	}
}

// registerCertificate registers the expiry of the serving certificate.
func (i *instruments) registerCertificate(serving dynamiccertificates.CertKeyContentProvider) {
	i.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "serving_certificate_expiry_timestamp_seconds",
		Help: "Expiry of the serving certificate, in seconds since 1970; 0: it cannot be parsed.",
	}, func() float64 {
		pem, _ := serving.CurrentCertKeyContent()
		certificates, err := certutil.ParseCertsPEM(pem)
		if err != nil {
			return 0
		}
		return float64(certificates[0].NotAfter.Unix())
	}))
}

// registerAPIServices registers the states of the APIServices.
func (i *instruments) registerAPIServices(states func() map[string]servingcert.APIServiceState) {
	misdirected := newDesc("apiservice_misdirected",
		"1 if the APIService refers to another Service than this server's, else 0.", "apiservice")
	unverified := newDesc("apiservice_insecure_skip_tls_verify",
		"1 if the API server does not verify the certificate of this server, else 0.", "apiservice")
	i.registry.MustRegister(collectorFunc(func(out chan<- prometheus.Metric) {
		for name, state := range states() {
			out <- boolGauge(misdirected, state.Misdirected, name)
			out <- boolGauge(unverified, state.InsecureSkipTLSVerify, name)
		}
	}))
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
	if r.Err != nil {
		i.scrapes.WithLabelValues("failure", string(r.Reason)).Inc()
		return
	}
	i.scrapes.WithLabelValues("success", "").Inc()
	for reason, n := range r.Skipped {
		if n > 0 {
			i.skipped.WithLabelValues(usage.Reason(reason).String()).Add(float64(n))
		}
	}
}

// Summarized implements scrape.Observer.
func (i *instruments) Summarized(err error) {
	if err != nil {
		i.summaries.WithLabelValues("failure", string(reason.Of(err))).Inc()
		return
	}
	i.summaries.WithLabelValues("success", "").Inc()
}

// observeAge records the age of the oldest sample in a response.
func (i *instruments) observeAge(resource string, oldest time.Duration) {
	i.responseAge.WithLabelValues(resource).Observe(oldest.Seconds())
}

// handler returns the handler of /metrics: these metrics, and those of the API server library, the
// Go runtime and the process.
func (i *instruments) handler() http.Handler {
	apimetrics.Register()
	return promhttp.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, i.registry}, promhttp.HandlerOpts{})
}
