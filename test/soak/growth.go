package main

import (
	"errors"
	"fmt"
)

// footprint is what a process holds: what it must not hold more and more of.
type footprint struct {
	goroutines  float64
	heap        float64 // MiB that are in use, right after a garbage collection
	own         float64 // series on /metrics that are the server's own; there are some for each node
	libraries   float64 // all other series
	descriptors float64 // open files and connections
}

// measures are the parts of a footprint. Beside the margin, each has some slack: a few more of
// something small are not growth.
var measures = []struct {
	name  string
	slack float64
	of    func(footprint) float64
}{
	{"goroutines", 5, func(f footprint) float64 { return f.goroutines }},
	{"MiB of heap", 2, func(f footprint) float64 { return f.heap }},
	{"series of its own", 10, func(f footprint) float64 { return f.own }},
	{"series of libraries", 50, func(f footprint) float64 { return f.libraries }},
	{"file descriptors", 5, func(f footprint) float64 { return f.descriptors }},
}

// least takes the smaller one of each part: what a process holds between two requests.
func least(a, b footprint) footprint {
	return footprint{
		goroutines:  min(a.goroutines, b.goroutines),
		heap:        min(a.heap, b.heap),
		own:         min(a.own, b.own),
		libraries:   min(a.libraries, b.libraries),
		descriptors: min(a.descriptors, b.descriptors),
	}
}

// allowed is up to where a figure may grow.
func allowed(before, margin, slack float64) float64 { return before*margin + slack }

// judgeGrowth says what has grown by more than the margin, a multiple.
func judgeGrowth(before, after footprint, margin float64) error {
	var errs []error
	for _, m := range measures {
		if limit := allowed(m.of(before), margin, m.slack); m.of(after) > limit {
			errs = append(errs, fmt.Errorf("the server's %s grew from %.1f to %.1f, and %.1f are allowed: %g times as many, and %g more",
				m.name, m.of(before), m.of(after), limit, margin, m.slack))
		}
	}
	return errors.Join(errs...)
}
