package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// telemetry is what a server says of itself on /metrics.
type telemetry struct {
	values map[string]float64 // name and labels, as they stand there → value
}

func readTelemetry(ctx context.Context, s *cluster.Standalone) (telemetry, error) {
	text, _, err := s.Get(ctx, "/metrics", "text/plain")
	if err != nil {
		return telemetry{}, err
	}
	return parseTelemetry(string(text))
}

func parseTelemetry(text string) (telemetry, error) {
	t := telemetry{values: map[string]float64{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		space := strings.LastIndexByte(line, ' ') // nothing there has a timestamp
		value, err := strconv.ParseFloat(line[space+1:], 64)
		if space < 0 || err != nil {
			return t, fmt.Errorf("/metrics has a line that cannot be read: %q", line)
		}
		t.values[line[:space]] = value
	}
	return t, nil
}

// sum adds up all series of a name that have these labels, as they stand there.
func (t telemetry) sum(name string, labels ...string) (sum float64) {
	for series, value := range t.values {
		base, rest, _ := strings.Cut(series, "{")
		has := func(label string) bool { return strings.Contains(rest, label) }
		if base == name && !slices.ContainsFunc(labels, func(label string) bool { return !has(label) }) {
			sum += value
		}
	}
	return sum
}

const mebibyte = 1 << 20

func (t telemetry) footprint() footprint {
	f := footprint{
		goroutines:  t.sum("go_goroutines"),
		heap:        t.sum("go_memstats_heap_alloc_bytes") / mebibyte,
		descriptors: t.sum("process_open_fds"),
	}
	for series := range t.values {
		if strings.HasPrefix(series, "kube_vitals_") {
			f.own++
		} else {
			f.libraries++
		}
	}
	return f
}

// How a footprint is taken: the smallest of some, with a garbage collection before each, and pauses
// in between.
const (
	footprintRounds = 5
	footprintPause  = 2 * time.Second
)

// takeFootprint says what a server holds while nobody asks it anything.
func takeFootprint(ctx context.Context, s *cluster.Standalone) (f footprint, err error) {
	for i := range footprintRounds {
		if err := sleep(ctx, footprintPause); err != nil {
			return f, err
		}
		for range 2 { // pools give up what they hold at the second collection
			if _, _, err := s.Get(ctx, "/debug/pprof/heap?gc=1", "*/*"); err != nil {
				return f, fmt.Errorf("a garbage collection cannot be asked for: %w", err)
			}
		}
		t, err := readTelemetry(ctx, s)
		if err != nil {
			return f, err
		}
		if f = least(t.footprint(), f); i == 0 {
			f = t.footprint()
		}
	}
	return f, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
