package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

const mebibyte = 1 << 20

// footprint is what must not grow in the long run.
type footprint struct {
	goroutines  float64
	heap        float64 // MiB after a garbage collection
	ownSeries   float64 // on /metrics, of kube-vitals: some of them for each node
	otherSeries float64 // of libraries
	descriptors float64 // files and connections
}

// measure is a part of a footprint. The slack allows a few more of something small.
type measure struct {
	name  string
	slack float64
	of    func(footprint) float64
}

var measures = []measure{
	{"goroutines", 5, func(f footprint) float64 { return f.goroutines }},
	{"MiB of heap", 2, func(f footprint) float64 { return f.heap }},
	// Each reason of a failure has a series in several metrics from its first occurrence on.
	{"series of its own", 30, func(f footprint) float64 { return f.ownSeries }},
	{"series of libraries", 50, func(f footprint) float64 { return f.otherSeries }},
	{"file descriptors", 5, func(f footprint) float64 { return f.descriptors }},
}

// allowed returns the limit after the churn.
func (m measure) allowed(before footprint, margin float64) float64 {
	return m.of(before)*margin + m.slack
}

// checkGrowth returns an error for each measure that grew beyond its limit.
func checkGrowth(before, after footprint, margin float64) error {
	var errs []error
	for _, m := range measures {
		if limit := m.allowed(before, margin); m.of(after) > limit {
			errs = append(errs, fmt.Errorf("%s of the server grew from %.1f to %.1f, allowed are %.1f (%g times as many and %g)",
				m.name, m.of(before), m.of(after), limit, margin, m.slack))
		}
	}
	return errors.Join(errs...)
}

// measureFootprint returns the smallest of several footprints, each after a garbage collection.
func measureFootprint(ctx context.Context, s *cluster.Standalone) (f footprint, err error) {
	for i := range 5 {
		if err := sleep(ctx, 2*time.Second); err != nil {
			return f, err
		}
		for range 2 { // pools are empty after the second collection
			if _, _, err := s.Get(ctx, "/debug/pprof/heap?gc=1", "*/*"); err != nil {
				return f, fmt.Errorf("collect garbage: %w", err)
			}
		}
		t, err := readTelemetry(ctx, s)
		if err != nil {
			return f, err
		}
		now := t.footprint()
		if i == 0 {
			f = now
		}
		f = footprint{
			goroutines:  min(f.goroutines, now.goroutines),
			heap:        min(f.heap, now.heap),
			ownSeries:   min(f.ownSeries, now.ownSeries),
			otherSeries: min(f.otherSeries, now.otherSeries),
			descriptors: min(f.descriptors, now.descriptors),
		}
	}
	return f, nil
}

// telemetry is the content of /metrics: values by name and labels.
type telemetry map[string]float64

func readTelemetry(ctx context.Context, s *cluster.Standalone) (telemetry, error) {
	text, _, err := s.Get(ctx, "/metrics", "text/plain")
	if err != nil {
		return nil, err
	}
	return parseTelemetry(string(text))
}

func parseTelemetry(text string) (telemetry, error) {
	t := telemetry{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		space := strings.LastIndexByte(line, ' ') // the samples have no timestamps
		value, err := strconv.ParseFloat(line[space+1:], 64)
		if space < 0 || err != nil {
			return nil, fmt.Errorf("parse /metrics: invalid line %q", line)
		}
		t[line[:space]] = value
	}
	return t, nil
}

// sum returns the sum of all series of a name that have the labels, such as `result="failure"`.
func (t telemetry) sum(name string, labels ...string) (sum float64) {
	for series, value := range t {
		base, rest, _ := strings.Cut(series, "{")
		isMissing := func(label string) bool { return !strings.Contains(rest, label) }
		if base == name && !slices.ContainsFunc(labels, isMissing) {
			sum += value
		}
	}
	return sum
}

func (t telemetry) footprint() footprint {
	f := footprint{
		goroutines:  t.sum("go_goroutines"),
		heap:        t.sum("go_memstats_heap_alloc_bytes") / mebibyte,
		descriptors: t.sum("process_open_fds"),
	}
	for series := range t {
		if strings.HasPrefix(series, "kube_vitals_") {
			f.ownSeries++
		} else {
			f.otherSeries++
		}
	}
	return f
}
