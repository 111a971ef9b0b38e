package engine

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-vitals/kube-vitals/pkg/engine/decode"
	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// refresh sends the queries and stores the new samples. After a failure it stores nothing, so the
// last metrics are served until they expire.
func (s *Source) refresh(ctx context.Context) (result Result) {
	start := time.Now()
	defer func() { result.Took = time.Since(start) }()
	defer reason.Recover(&result.Err, "the engine's response")
	s.refreshes++
	sent := s.Clock.At(start)
	nodes := s.reindex(ctx)
	engine := &result.Engine
	engine.Series = map[string]int{}
	if result.Err = s.queryAll(ctx, &result); result.Err != nil {
		return result
	}
	if engine.Series[string(containerCPU)]+engine.Series[string(nodeCPU)] == 0 && len(s.index) > 0 {
		result.Err = s.noSamples(engine)
		return result
	}
	for _, n := range result.Skipped {
		engine.Skipped += n
	}
	arrived := s.Clock.At(time.Now())
	for _, n := range nodes {
		if !s.put(n, sent, arrived, engine.Warning != "") {
			result.Missing++
		}
	}
	return result
}

// queryAll sends all queries. Those of the counters come first: they decide which of several series
// of a container counts.
func (s *Source) queryAll(ctx context.Context, result *Result) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.maxDuration, &reason.Error{
		Reason: reason.Timeout,
		Err:    fmt.Errorf("all queries together have taken more than %v", s.maxDuration),
		Cure:   "check the load of the engine; see Sizing in docs/prometheus.md",
	})
	defer cancel()
	for _, kinds := range [][]kind{
		{containerCPU, nodeCPU}, {containerMemory, containerStartTime, containerSwap, nodeMemory, nodeSwap},
	} {
		queries, queryCtx := errgroup.WithContext(ctx)
		queries.SetLimit(parallelQueries)
		for _, k := range kinds {
			queries.Go(func() (err error) {
				defer reason.Recover(&err, "the engine's response")
				return s.query(queryCtx, k, result)
			})
		}
		if err := queries.Wait(); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
	return nil
}

// query sends the query of a kind, and adds the response to the result.
func (s *Source) query(ctx context.Context, k kind, result *Result) error {
	matched := 0
	response, err := s.client.query(ctx, k, func(series *decode.Series) {
		s.adding.Lock()
		defer s.adding.Unlock()
		if s.add(k, series, result) {
			matched++
		}
	})
	if err != nil {
		return err
	}
	s.adding.Lock()
	defer s.adding.Unlock()
	result.Skipped[usage.OverLimit] += response.OverLimit
	engine := &result.Engine // it warns when it does not have all series
	engine.Series[string(k)] = matched
	engine.UnknownSeries += response.Series - matched
	engine.Warning = cmp.Or(engine.Warning, response.Warning)
	return nil
}

// noSamples returns the error for responses without samples of the cluster's nodes.
func (s *Source) noSamples(engine *health.Engine) error {
	series := engine.UnknownSeries
	for _, n := range engine.Series {
		series += n
	}
	if series == 0 {
		return &reason.Error{
			Reason: reason.NoSamples,
			Err: fmt.Errorf("the engine at %s has no series of nodes or containers in the last %v", s.client.url.Host,
				s.client.window),
			Cure: "check preset, matchers and queries in --prometheus-config, and the header of the tenant",
		}
	}
	return &reason.Error{
		Reason: reason.NoSamples,
		Err: fmt.Errorf("the engine at %s has %d series, but none of this cluster's nodes and pods: no label %s has the "+
			"name or address of a node", s.client.url.Host, series, strings.Join(s.client.settings.Labels.Node, ", ")),
		Cure: "set labels.node or matchers in --prometheus-config",
	}
}
