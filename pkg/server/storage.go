package server

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// EphemeralStorage configures the resource ephemeral-storage. It needs a server that scrapes kubelets.
type EphemeralStorage struct {
	Interval time.Duration // between two scrapes of a node; 0: the resource is not served
}

const (
	// storageIntervals is the age in intervals at which the ephemeral storage of nodes and pods expires.
	storageIntervals = 3
	// storageSpread is the time over which the first requests are spread, at most. At once, they would
	// delay the scrapes of CPU and memory right after the start.
	storageSpread = 15 * time.Second
)

// newStorageScraper returns a scraper of the ephemeral storage that kubelets report.
func newStorageScraper(
	c EphemeralStorage, client *kubelet.Client, extra *store.Extra, pods *inventory.Index, instruments *instruments,
) *scrape.Scraper {
	return scrape.New(scrape.Config{
		Fetcher:  storageFetcher{client},
		Sink:     &store.StorageSink{Extra: extra, MaxAge: storageIntervals * c.Interval, IsBound: isBound(pods)},
		Observer: instruments.registerStorage(),
		Reason:   kubelet.Reason,
		Interval: c.Interval,
		Spread:   min(storageSpread, c.Interval),
	})
}

// isBound returns a function that reports whether a pod is bound to a node. The UID that a kubelet
// reports distinguishes it from an earlier pod of the same name, except if the pod is a static one:
// its UID is then a hash without hyphens, and not that of the pod in the API server.
func isBound(pods *inventory.Index) func(node, namespace, pod, uid string) bool {
	return func(node, namespace, pod, uid string) bool {
		o := pods.Get(namespace, pod)
		return o != nil && o.Node == node &&
			(!strings.Contains(uid, "-") || o.UID == inventory.UIDOf(types.UID(uid)))
	}
}

// storageFetcher is a scrape.Fetcher of complete summaries. It shares the connections of the other
// scraper, so that the requests need neither handshakes nor further connections. If one is in use, the
// other scraper opens another.
type storageFetcher struct{ *kubelet.Client }

// Fetch implements scrape.Fetcher.
func (f storageFetcher) Fetch(ctx context.Context, node *corev1.Node, dst *usage.Scrape) error {
	return f.FetchStorage(ctx, node, dst)
}

// runStorage runs a scraper of ephemeral storage as soon as ready returns true.
func runStorage(ctx context.Context, s *scrape.Scraper, ready func() bool) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !ready() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	tick.Stop()
	logger := klog.FromContext(ctx).WithValues("resource", store.EphemeralStorage)
	s.Run(klog.NewContext(ctx, logger))
}

// targets passes nodes on to several scrapers.
type targets []inventory.Targets

// Set implements inventory.Targets.
func (t targets) Set(node *corev1.Node) {
	for _, target := range t {
		target.Set(node)
	}
}

// Delete implements inventory.Targets.
func (t targets) Delete(name string) {
	for _, target := range t {
		target.Delete(name)
	}
}

// storageInstruments are the metrics of scrapes of ephemeral storage. It is a scrape.Observer.
type storageInstruments struct {
	scrapes  *prometheus.CounterVec // by result and reason
	duration prometheus.Histogram
}

// registerStorage registers the metrics of scrapes of ephemeral storage.
func (i *instruments) registerStorage() *storageInstruments {
	s := &storageInstruments{
		scrapes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "ephemeral_storage_scrapes_total",
			Help: "Scrapes of kubelets for ephemeral-storage, by result (success or failure) and, of failures, by reason.",
		}, []string{"result", "reason"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "ephemeral_storage_scrape_duration_seconds",
			Help:    "Time from the start of a scrape for ephemeral-storage to the last byte decoded, or to the failure.",
			Buckets: []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
		}),
	}
	i.registry.MustRegister(s.scrapes, s.duration)
	return s
}

// Scraped implements scrape.Observer.
func (s *storageInstruments) Scraped(r scrape.Result) {
	s.duration.Observe(r.Took.Seconds())
	if r.Err != nil {
		s.scrapes.WithLabelValues("failure", string(r.Reason)).Inc()
		return
	}
	s.scrapes.WithLabelValues("success", "").Inc()
}

// Summarized implements scrape.Observer.
func (*storageInstruments) Summarized(error) {}

// NodeDeleted implements scrape.Observer.
func (*storageInstruments) NodeDeleted(string) {}
