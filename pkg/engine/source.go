package engine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/internal/backoff"
	"github.com/kube-vitals/kube-vitals/pkg/internal/failure"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Sink stores metrics. Calls for the same node never overlap.
type Sink interface {
	// Put stores the samples of a node. It must not retain them.
	Put(node string, s *usage.Scrape) usage.Report
	// Forget drops a node.
	Forget(node string)
}

// Result is the outcome of a refresh: one response to each query.
type Result struct {
	Took    time.Duration
	Err     error                     // with a reason; nil: success
	Engine  health.Engine             // what the engine had, if the refresh succeeded
	Skipped [usage.NumSkipReasons]int // samples and series that were skipped, by reason
	Missing int                       // known nodes without series
}

// Config configures a Source. File and UserAgent are optional.
type Config struct {
	URL  string // of the engine; see ParseURL
	File string // the configuration file; see ParseFile

	Interval     time.Duration // between two refreshes
	MaxSampleAge time.Duration // a metric expires at this age
	// MaxContainers limits the containers of one node.
	MaxContainers int

	Sink      Sink
	Clock     usage.Clock
	Refreshed func(Result) // is called after each refresh

	// Synced reports whether the nodes and pods of the API server are known. There is no query
	// before.
	Synced func() bool
	// State returns what the API server shows of a container. If its pod is not Accepted, the samples
	// are ignored.
	State func(node, namespace, pod, container string) usage.ContainerState

	UserAgent string
	// Reloaded is called once for each change of the file: with nil when the new content is in use,
	// or with the error that keeps the old content in use.
	Reloaded func(file string, err error)
}

const (
	// maxWindow is the longest range of a query. The store ignores samples of a removed pod for two
	// minutes: later, the range must not have any.
	maxWindow = 2 * time.Minute
	// maxAhead is how far samples may be ahead of the engine's clock. Without the offset that it needs
	// in the queries, an engine returns samples only after its own clock has reached their time.
	// Engines such as Mimir reject samples and queries that are 10 minutes ahead.
	maxAhead = 5 * time.Minute
	// maxTimeout is the longest timeout of a query.
	maxTimeout = time.Minute
	// stuckAfter is how late a refresh must be for the loop to be reported as stuck.
	stuckAfter = 2 * maxTimeout
	// endedAfter is how much older than the reference of its node the newest sample of a container must
	// be, for the container to have ended if the API server does not report it as running. It is below the usual 15 s
	// between two samples, so that one sample of the others is enough.
	endedAfter = 14 * time.Second
	// parallelQueries is the number of queries that are sent at the same time.
	parallelQueries = 2
	// retries is the number of failures in a row that are followed by an early refresh.
	retries = 3
)

// Source keeps a Sink up to date with the samples that an engine has of a set of nodes.
type Source struct {
	Config
	client  *client
	overall atomic.Pointer[health.Overall] // the loop replaces it
	// maxDuration is the longest duration of a refresh. The samples of its first response, which may be
	// a scrape old already, must not expire before the next refresh has ended.
	maxDuration time.Duration

	// These fields belong to the loop.
	log       failure.Log
	refreshes uint64                    // the number of the current refresh
	index     map[string]*node          // by name and by address
	previous  map[string]usage.NodeTime // the time that the clock of a node that was removed has shown, by name
	key       []byte
	scrape    usage.Scrape
	names     []byte                    // of scrape
	times     map[[2]usage.NodeTime]int // of observeStamps: the number of counters with these times
	newest    []usage.NodeTime          // of reference

	adding sync.Mutex // held while a series is added: queries overlap

	mu    sync.Mutex // held by calls of the Sink
	nodes map[string]*node
}

// New returns a Source without nodes. It reads the configuration file.
func New(c Config) (*Source, error) {
	client, err := newClient(c, window(c.MaxSampleAge))
	if err != nil {
		return nil, err
	}
	s := &Source{Config: c, client: client, nodes: map[string]*node{}, previous: map[string]usage.NodeTime{},
		times: map[[2]usage.NodeTime]int{}, maxDuration: max(c.Interval, c.MaxSampleAge/3),
		log: failure.Log{
			Failing:   "Reading the engine failed; the last metrics are served until they expire",
			Recovered: "The engine can be read again",
		}}
	// Two samples must be in the range of the queries.
	s.overall.Store(&health.Overall{Window: client.window, Startup: client.window + c.Interval,
		Engine: &health.Engine{Host: client.url.Host}})
	return s, nil
}

// window returns the range of the queries. It is shorter than the maximum age of a sample, because
// the store assumes that a node's newest sample is not older than that.
func window(maxSampleAge time.Duration) time.Duration {
	return min(maxSampleAge*3/4, maxWindow).Truncate(time.Second)
}

// Set adds or updates a node, which must not be modified afterwards. Calls to Set and Delete for
// the same node must not overlap.
func (s *Source) Set(object *corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[object.Name]
	if n == nil || n.health.UID != object.UID {
		if n != nil {
			s.Sink.Forget(object.Name) // another node with the same name
		}
		n = &node{name: object.Name, containers: map[string]*counter{}, foreign: map[foreign]bool{},
			health: health.Node{Name: object.Name, UID: object.UID}}
		n.counter.isRunning, n.all = true, []*counter{&n.counter}
		s.nodes[object.Name] = n
	}
	n.object = object
}

// Delete removes a node. When it returns, everything kept for the node is dropped, and no sample of
// it will be stored.
func (s *Source) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[name] != nil {
		delete(s.nodes, name)
		s.Sink.Forget(name)
	}
}

// Alive returns an error if the loop is stuck.
func (s *Source) Alive() error {
	next := s.overall.Load().Next
	if late := time.Since(next); !next.IsZero() && late > s.maxDuration+stuckAfter {
		return fmt.Errorf("the loop that queries the engine has been stuck for %v", late.Round(time.Second))
	}
	return nil
}

// WarmedUp reports whether the samples of a refresh have been stored.
func (s *Source) WarmedUp() bool { return !s.overall.Load().LastSuccess.IsZero() }

// Run refreshes until ctx is done.
func (s *Source) Run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), s.Synced) {
		return // the context ended
	}
	due := time.Now()
	for {
		s.setNext(due)
		if !backoff.Sleep(ctx, time.Until(due), nil) {
			return
		}
		s.setNext(time.Now()) // the process may have stood still until now
		s.client.reload()
		result := s.refresh(ctx)
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		s.record(ctx, &result, now)
		s.Refreshed(result)
		if due = due.Add(s.Interval); due.Before(now) {
			due = now
		}
		early := now.Add(s.Interval / 4)
		if failures := s.overall.Load().Failures; 0 < failures && failures <= retries && early.Before(due) {
			due = early
		}
	}
}
