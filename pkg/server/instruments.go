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
	_ "k8s.io/component-base/metrics/prometheus/restclient" // of the requests to the API server

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// instruments are what kube-vitals tells of itself. Nothing in it grows with the number of pods;
// what there is for each node goes when the node goes.
type instruments struct {
	registry *prometheus.Registry
	now      func() time.Time
	clock    usage.Clock

	scrapes     *prometheus.CounterVec // by result and reason
	early       prometheus.Counter
	summaries   *prometheus.CounterVec // by result and reason
	duration    prometheus.Histogram
	lateness    prometheus.Histogram
	skipped     *prometheus.CounterVec   // by reason
	lastSuccess *prometheus.GaugeVec     // by node
	failing     *prometheus.GaugeVec     // by node and reason
	answerAge   *prometheus.HistogramVec // by resource
	clockSkews  *clockSkews
}

const namespace = "kube_vitals"

func newInstruments(version, commit string, now func() time.Time, clock usage.Clock) *instruments {
	i := &instruments{
		registry:   prometheus.NewRegistry(),
		clockSkews: newClockSkews(),
		now:        now,
		clock:      clock,
		scrapes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "scrapes_total",
			Help: "Scrapes of kubelets, by result (success or failure) and, of failures, by reason.",
		}, []string{"result", "reason"}),
		early: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "early_scrapes_total",
			Help: "Scrapes before the regular time, for figures of new nodes and new containers.",
		}),
		summaries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "summaries_total",
			Help: "Requests to kubelets for the rates that they have reckoned themselves, by result (success or failure) and, of failures, by reason.",
		}, []string{"result", "reason"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "scrape_duration_seconds",
			Help:    "Time from the start of a scrape to the last byte decoded, or to the failure.",
			Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
		}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "scrape_lateness_seconds",
			Help:    "Time for which a scrape waited for this server: until it began, and for its turn to connect and to read.",
			Buckets: []float64{0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 15},
		}),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "samples_skipped_total",
			Help: "Lines of kubelets' answers that were left out, by reason.",
		}, []string{"reason"}),
		lastSuccess: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "node_last_success_timestamp_seconds",
			Help: "When the node was last scraped with success, as seconds since 1970; 0: never yet.",
		}, []string{"node"}),
		failing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "node_failing",
			Help: "1 for each node whose last scrape failed, with the reason.",
		}, []string{"node", "reason"}),
		answerAge: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "answer_age_seconds",
			Help:    "Age of the oldest figure in each answer, by resource.",
			Buckets: []float64{2, 5, 10, 15, 20, 25, 30, 45, 60, 90, 120, 180, 300},
		}, []string{"resource"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info",
		Help:        "1, with what this program was built from as labels.",
		ConstLabels: prometheus.Labels{"version": version, "commit": commit, "go_version": runtime.Version()},
	})
	build.Set(1)
	i.registry.MustRegister(i.scrapes, i.early, i.summaries, i.duration, i.lateness, i.skipped, i.lastSuccess, i.failing, i.answerAge,
		i.clockSkews, build)
	for r := range usage.Reason(usage.NumReasons) {
		i.skipped.WithLabelValues(r.String())
	}
	return i
}

// watchOver adds the state of the store and of the inventory. It is looked at when it is asked for.
func (i *instruments) watchOver(metrics *store.Store, nodes, pods *inventory.Index) {
	i.registry.MustRegister(&stateCollector{now: i.now, clock: i.clock, metrics: metrics, nodes: nodes, pods: pods})
}

// tell adds how the server is set, by which thresholds of alerts can go.
func (i *instruments) tell(resolution, maxSampleAge time.Duration) {
	for name, value := range map[string]time.Duration{"metric_resolution_seconds": resolution, "max_sample_age_seconds": maxSampleAge} {
		gauge := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: "The flag of that name, as it is set or by default."})
		gauge.Set(value.Seconds())
		i.registry.MustRegister(gauge)
	}
}

// certificate adds when the serving certificate expires.
func (i *instruments) certificate(serving dynamiccertificates.CertKeyContentProvider) {
	i.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "serving_certificate_expiry_timestamp_seconds",
		Help: "When the certificate that is served now expires, as seconds since 1970; 0: it cannot be read.",
	}, func() float64 {
		pem, _ := serving.CurrentCertKeyContent()
		certificates, err := certutil.ParseCertsPEM(pem)
		if err != nil {
			return 0
		}
		return float64(certificates[0].NotAfter.Unix())
	}))
}

// apiServices adds what the API server does with requests for this server, as far as the server may
// know it.
func (i *instruments) apiServices(states func() map[string]servingcert.APIServiceState) {
	i.registry.MustRegister(&apiServiceCollector{
		states: states,
		misdirected: prometheus.NewDesc(prometheus.BuildFQName(namespace, "", "apiservice_misdirected"),
			"1 if the APIService does not lead to the Service of this server, else 0.", []string{"apiservice"}, nil),
		unverified: prometheus.NewDesc(prometheus.BuildFQName(namespace, "", "apiservice_insecure_skip_tls_verify"),
			"1 if the API server does not verify the server that the APIService leads to, else 0.", []string{"apiservice"}, nil),
	})
}

// apiServiceCollector reads the state of the APIServices when it is collected.
type apiServiceCollector struct {
	states                  func() map[string]servingcert.APIServiceState
	misdirected, unverified *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *apiServiceCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.misdirected
	out <- c.unverified
}

// Collect implements prometheus.Collector.
func (c *apiServiceCollector) Collect(out chan<- prometheus.Metric) {
	for name, state := range c.states() {
		for desc, is := range map[*prometheus.Desc]bool{c.misdirected: state.Misdirected, c.unverified: state.InsecureSkipTLSVerify} {
			value := 0.0
			if is {
				value = 1
			}
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, name)
		}
	}
}

// Scraped implements scrape.Observer.
func (i *instruments) Scraped(r scrape.Result) {
	i.duration.Observe(r.Took.Seconds())
	i.lateness.Observe(max(r.Late, 0).Seconds())
	if r.Early {
		i.early.Inc()
	}
	i.failing.DeletePartialMatch(prometheus.Labels{"node": r.Node})
	if r.Err != nil {
		reason := kubelet.Reason(r.Err)
		i.scrapes.WithLabelValues("failure", reason).Inc()
		i.failing.WithLabelValues(r.Node, reason).Set(1)
		i.lastSuccess.WithLabelValues(r.Node) // 0, if it has none
		return
	}
	i.scrapes.WithLabelValues("success", "").Inc()
	i.lastSuccess.WithLabelValues(r.Node).Set(float64(i.now().UnixMilli()) / 1000)
	if r.ClockKnown {
		i.clockSkews.set(r.Node, r.ClockOffset)
	}
	for reason, n := range r.Skipped {
		if n > 0 {
			i.skipped.WithLabelValues(usage.Reason(reason).String()).Add(float64(n))
		}
	}
}

// Summarized implements scrape.Observer.
func (i *instruments) Summarized(err error) {
	if err != nil {
		i.summaries.WithLabelValues("failure", kubelet.Reason(err)).Inc()
		return
	}
	i.summaries.WithLabelValues("success", "").Inc()
}

// NodeDeleted implements scrape.Observer.
func (i *instruments) NodeDeleted(node string) {
	i.clockSkews.remove(node)
	i.lastSuccess.DeleteLabelValues(node)
	i.failing.DeletePartialMatch(prometheus.Labels{"node": node})
}

// answered takes in the age of an answer.
func (i *instruments) answered(resource string, oldest time.Duration) {
	i.answerAge.WithLabelValues(resource).Observe(oldest.Seconds())
}

// handler serves these instruments together with those of the API server library, of the Go runtime
// and of the process.
func (i *instruments) handler() http.Handler {
	apimetrics.Register()
	return promhttp.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, i.registry}, promhttp.HandlerOpts{})
}

// stateCollector reads the state of the store and of the inventory when it is collected.
type stateCollector struct {
	now         func() time.Time
	clock       usage.Clock
	metrics     *store.Store
	nodes, pods *inventory.Index
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	send := func(kind prometheus.ValueType, name, help string, value float64, label ...string) {
		var names []string
		if len(label) > 0 {
			names = []string{"kind"}
		}
		desc := prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, names, nil)
		out <- prometheus.MustNewConstMetric(desc, kind, value, label...)
	}

	const known = "Nodes that are scraped and running pods, as the API server tells them."
	send(prometheus.GaugeValue, "known_objects", known, float64(c.nodes.Len()), "node")
	send(prometheus.GaugeValue, "known_objects", known, float64(c.pods.LenOf(inventory.PodRunning)), "pod")

	stats := c.metrics.Stats(c.clock.At(c.now()))
	const points = "Nodes, pods and containers whose figures can be served."
	send(prometheus.GaugeValue, "points", points, float64(stats.Nodes), "node")
	send(prometheus.GaugeValue, "points", points, float64(stats.Pods), "pod")
	send(prometheus.GaugeValue, "points", points, float64(stats.Containers), "container")
	const age = "Age of the oldest figure that can be served; 0 where there is none."
	send(prometheus.GaugeValue, "oldest_point_age_seconds", age, stats.OldestNode.Seconds(), "node")
	send(prometheus.GaugeValue, "oldest_point_age_seconds", age, stats.OldestPod.Seconds(), "pod")

	counts := c.metrics.Counts()
	send(prometheus.CounterValue, "older_samples_total",
		"Samples that were older than the one before, and ignored.", float64(counts.OlderSamples))
	send(prometheus.CounterValue, "clock_steps_back_total",
		"Series started again because their samples went on being older than before.", float64(counts.ClockStepsBack))
	send(prometheus.CounterValue, "clock_jumps_total",
		"Jumps of the offset between a node's clock and the clock of this server.", float64(counts.ClockJumps))
	send(prometheus.CounterValue, "baselines_total",
		"First samples of a series or after a restart, from which no rate follows yet.", float64(counts.Baselines))
}
