package prometheus

import (
	"cmp"
	"context"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-vitals/kube-vitals/pkg/prometheus/decode"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// refresh sends the queries and stores the new samples. After a failure it stores nothing, so the
// last metrics are served until they expire.
func (s *Source) refresh(ctx context.Context) (result Result) {
	start := time.Now()
	defer func() {
		result.Took = time.Since(start)
		if p := recover(); p != nil {
			result.Err = panicError(p)
		}
	}()
	s.refreshes++
	sent := s.Clock.At(start)
	s.reindex(ctx)
	a := responses{result: &result}
	if result.Err = s.queryAll(ctx, &a); result.Err != nil {
		return result
	}
	if a.matched[containerCPU]+a.matched[nodeCPU] == 0 && len(s.index) > 0 {
		result.Err = s.noSamples(a.series)
		return result
	}
	engine := &result.Engine
	engine.Series, engine.UnknownSeries = map[string]int{}, a.series
	for k, n := range a.matched {
		engine.Series[kind(k).String()] = n
		engine.UnknownSeries -= n
	}
	for _, n := range result.Skipped {
		engine.Skipped += n
	}
	arrived := s.Clock.At(time.Now())
	for _, n := range s.snapshot() {
		s.put(n, sent, arrived, engine.Partial)
		if !s.recordNode(n, time.Now()) {
			result.Missing++
		}
	}
	return result
}

// responses are the responses of a refresh.
type responses struct {
	mu      sync.Mutex
	result  *Result
	matched [numKinds]int // series of known nodes
	series  int
}

// queryAll sends all queries. Those of the counters come first: they decide which of several series
// of a container counts.
func (s *Source) queryAll(ctx context.Context, a *responses) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.maxDuration, reason.Errorf(reason.Timeout,
		"all queries together have taken more than %v (check the load of the engine; see Sizing in docs/prometheus.md)",
		s.maxDuration))
	defer cancel()
	err := s.queryKinds(ctx, a, containerCPU, nodeCPU)
	if err == nil {
		err = s.queryKinds(ctx, a, containerMemory, containerStartTime, containerSwap, nodeMemory, nodeSwap)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// queryKinds sends the queries of some kinds, and returns the first error.
func (s *Source) queryKinds(ctx context.Context, a *responses, kinds ...kind) error {
	queries, ctx := errgroup.WithContext(ctx)
	queries.SetLimit(parallelQueries)
	for _, k := range kinds {
		queries.Go(func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = panicError(p)
				}
			}()
			return s.query(ctx, k, a)
		})
	}
	return queries.Wait()
}

func (s *Source) query(ctx context.Context, k kind, a *responses) error {
	response, err := s.client.query(ctx, k, func(series *decode.Series) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if s.add(k, series, a.result) {
			a.matched[k]++
		}
	})
	if response != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.series += response.Series
		a.result.Skipped[usage.OverLimit] += response.OverLimit
		engine := &a.result.Engine // it warns when it does not have all series
		engine.Warning = cmp.Or(engine.Warning, response.Warning)
		engine.Partial = engine.Warning != ""
	}
	return err
}

// panicError returns the error for a panic, which must not end the process.
func panicError(p any) error {
	return reason.Errorf(reason.InternalFailure,
		"the engine's response made kube-vitals panic; please report this bug: %v\n%s", p, debug.Stack())
}

// noSamples returns the error for responses without samples of the cluster's nodes.
func (s *Source) noSamples(series int) error {
	f := s.client.file
	if series == 0 {
		return reason.Errorf(reason.NoSamples, "the engine at %s has no series of nodes or containers in the last %v "+
			"(check preset, matchers and queries in --prometheus-config, and the header of the tenant)",
			s.client.url.Host, s.client.window)
	}
	return reason.Errorf(reason.NoSamples, "the engine at %s has %d series, but none of this cluster's nodes and pods: "+
		"no label %s has the name or address of a node (set labels.node or matchers in --prometheus-config)",
		s.client.url.Host, series, strings.Join(f.Labels.Node, ", "))
}
