package main

import (
	"math"
	"time"

	"github.com/spf13/pflag"
)

const (
	// defaultActiveResolution lets an autoscaler know a change of load within 15 % of the best that any times
	// of scrapes could do (make bench ONLY=rules). It is less than minResolution.
	defaultActiveResolution = 4 * time.Second
	defaultActiveBudget     = 2
	minActiveResolution     = time.Second
)

func (o *options) addActiveFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.Active.Resolution, "active-resolution", defaultActiveResolution,
		"The time between two scrapes of an active node: one whose metrics, or those of pods on it, were read by name "+
			"or with a label selector in the last 2 minutes. At least 1s and less than --metric-resolution; 0: off. "+
			"See docs/configuration.md.")
	fs.Float64Var(&o.Active.Budget, "active-budget", defaultActiveBudget,
		"How many times as often as with --metric-resolution alone all nodes together may be scraped; at least 1. "+
			"Fewer than 10 nodes count as 10. --active-resolution is lengthened as needed.")
}

func (o *options) validateActive() {
	if o.usesEngine() { // see validateSource
		return
	}
	if r := o.Active.Resolution; r != 0 && r < minActiveResolution {
		o.errorf("--active-resolution must be 0 (off) or at least %v, but is %v", minActiveResolution, r)
	}
	if o.Active.Resolution >= o.interval() && o.resolutionKnown() {
		o.errorf("--active-resolution must be less than --metric-resolution, %v, but is %v: "+
			"active nodes are scraped more often than others", o.interval(), o.Active.Resolution)
	}
	if b := o.Active.Budget; !(b >= 1) || math.IsInf(b, 1) {
		o.errorf("--active-budget must be a number of at least 1, the scrapes without active nodes")
	}
}
