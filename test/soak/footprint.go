package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

const mebibyte = 1 << 20

// footprint is what must not grow in the long run: the values of footprintParts.
type footprint []float64

// footprintParts are read from /metrics. slack is how many more are allowed of something small: each reason of a
// failure has a series in several metrics from its first occurrence on.
var footprintParts = []struct {
	name  string
	slack float64
	read  func(cluster.Telemetry) float64
}{
	{"goroutines", 5, func(t cluster.Telemetry) float64 { return t.Sum("go_goroutines") }},
	{"MiB of heap", 2, func(t cluster.Telemetry) float64 { return t.Sum("go_memstats_heap_alloc_bytes") / mebibyte }},
	{"file descriptors", 5, func(t cluster.Telemetry) float64 { return t.Sum("process_open_fds") }},
	{"series of its own", 30, ownSeries},
	{"series of libraries", 50, func(t cluster.Telemetry) float64 { return float64(len(t)) - ownSeries(t) }},
}

func ownSeries(t cluster.Telemetry) (n float64) {
	for series := range t {
		if strings.HasPrefix(series, "kube_vitals_") {
			n++
		}
	}
	return n
}

// checkGrowth prints both footprints, and returns an error for each value that has grown beyond its limit.
func checkGrowth(before, after footprint) error {
	var errs []error
	for i, part := range footprintParts {
		limit := before[i]*maxGrowth + part.slack
		fmt.Printf("%-20s %7.1f before, %7.1f after (%.1f are allowed)\n", part.name+":", before[i], after[i], limit)
		if after[i] > limit {
			errs = append(errs, fmt.Errorf("%s of the server grew from %.1f to %.1f, allowed are %.1f",
				part.name, before[i], after[i], limit))
		}
	}
	return errors.Join(errs...)
}

// measureFootprint returns the smallest values of several footprints, each after a garbage collection.
func measureFootprint(ctx context.Context, s *cluster.Standalone) (smallest footprint, err error) {
	smallest = make(footprint, len(footprintParts))
	for i := range 5 {
		if err := program.Sleep(ctx, 2*time.Second); err != nil {
			return nil, err
		}
		for range 2 { // pools are empty after the second collection
			if _, _, err := s.Get(ctx, "/debug/pprof/heap?gc=1", "*/*"); err != nil {
				return nil, fmt.Errorf("collect garbage: %w", err)
			}
		}
		t, err := s.Telemetry(ctx)
		if err != nil {
			return nil, err
		}
		for j, part := range footprintParts {
			if v := part.read(t); i == 0 || v < smallest[j] {
				smallest[j] = v
			}
		}
	}
	return smallest, nil
}
