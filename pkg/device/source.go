package device

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Config configures a Source. All fields are required, except AllowLoopback.
type Config struct {
	File    string               // the configuration file
	Client  kubernetes.Interface // of the API server; exporters get none of its credentials
	Sink    Sink
	Clock   usage.Clock
	Scraped func(Result) // is called after each scrape; calls may overlap

	// IsKnown reports whether the API server has a container in a pod that is bound to a node.
	IsKnown func(node, namespace, pod, container string) bool
	// Synced reports whether the pods are known. There are no scrapes before that.
	Synced func() bool

	AllowLoopback bool // whether exporters may have addresses of this machine; for tests
}

// Sink keeps the values. *store.Resources implements it.
type Sink interface {
	Put(node, source string, r usage.ResourceReport)
	Remove(node, source string)
}

// Result is the outcome of one scrape.
type Result struct {
	Exporter string
	Reason   reason.Reason  // of the failure; "": success
	Skipped  map[string]int // number of series that were skipped, by reason; reasons without any are missing
}

const (
	// startWindow is the time over which the first scrapes of pods that are found at once are spread.
	// The second ones are spread over the interval.
	startWindow = 2 * time.Second
	// maxPodsPerNode is the number of pods that are scraped for one node and exporter: an update may run
	// two. Who may create pods with the exporter's labels could create any number.
	maxPodsPerNode = 2
)

// Source scrapes the exporters of all nodes.
type Source struct {
	Config
	groups []*group
	// permits limits the number of responses that are decoded at the same moment: even if all exporters
	// send the most expensive responses, they leave processors to the scrapes of kubelets. A permit is
	// not held while its scrape waits for an exporter.
	permits *semaphore.Weighted
}

// New returns a Source. It reads the configuration file once.
func New(c Config) (*Source, error) {
	content, err := os.ReadFile(c.File)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration of device exporters: %w", err)
	}
	file, err := Parse(content, filepath.Dir(c.File))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.File, err)
	}
	s := newSource(c)
	for i := range file.Exporters {
		e := &file.Exporters[i]
		transport, err := newTransport(e)
		if err != nil {
			return nil, fmt.Errorf("device exporter %q: %w", e.Name, err)
		}
		s.groups = append(s.groups, s.newGroup(e, transport))
	}
	return s, nil
}

func newSource(c Config) *Source {
	return &Source{Config: c, permits: semaphore.NewWeighted(max(1, int64(runtime.GOMAXPROCS(0)/2)))}
}

func (s *Source) newGroup(e *Exporter, transport http.RoundTripper) *group {
	g := &group{
		Exporter: e, source: s, series: map[string][]int{},
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // not followed
		},
		targets: map[string][]*target{}, active: map[string]*active{}, missing: map[string]bool{},
	}
	for i := range e.Resources {
		g.series[e.Resources[i].Series] = append(g.series[e.Resources[i].Series], i)
	}
	return g
}

// Run scrapes until the context ends.
func (s *Source) Run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), s.Synced) {
		return // the context ended
	}
	var running sync.WaitGroup
	for _, g := range s.groups {
		running.Go(func() { g.run(ctx) })
	}
	running.Wait()
}

// Exporters returns what is known of the exporters, in the order of the configuration.
func (s *Source) Exporters() []health.Exporter {
	now := s.Clock.At(time.Now())
	exporters := make([]health.Exporter, 0, len(s.groups))
	for _, g := range s.groups {
		exporters = append(exporters, g.exporter(now))
	}
	return exporters
}
