package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/pflag"

	"github.com/kube-vitals/kube-vitals/pkg/scrape"
)

const (
	// defaultWatchedResolution is the default of --watched-resolution, if that is less than
	// --metric-resolution.
	defaultWatchedResolution = 5 * time.Second
	defaultWatchedBudget     = 2
	minWatchedResolution     = time.Second
)

func (o *options) addWatchedFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.watched.Resolution, "watched-resolution", 0, fmt.Sprintf(
		"The time between two scrapes of a watched node: one whose metrics, or those of pods on it, were read by name "+
			"or with a label selector in the last 120 to 160 seconds. At least 1s and less than --metric-resolution; 0: off. "+
			"See docs/configuration.md. (default %v, or 0 if --metric-resolution is not longer)", defaultWatchedResolution))
	fs.Float64Var(&o.watched.Budget, "watched-budget", defaultWatchedBudget,
		"How many times as often as with --metric-resolution alone all nodes together may be scraped; at least 1. "+
			"--watched-resolution is lengthened as needed.")
}

// completeWatched sets the default of --watched-resolution.
func (o *options) completeWatched() {
	if !o.all.Changed("watched-resolution") && !o.usesPrometheus() && o.interval() > defaultWatchedResolution {
		o.watched.Resolution = defaultWatchedResolution
	}
}

// watchedConfig returns the configuration of watched nodes.
func (o *options) watchedConfig() scrape.Watched {
	if o.watched.Resolution == 0 {
		return scrape.Watched{}
	}
	return o.watched
}

func (o *options) validateWatched() []error {
	var mistakes []error
	if o.usesPrometheus() {
		for _, name := range []string{"watched-resolution", "watched-budget"} {
			if o.all.Changed(name) {
				mistakes = append(mistakes, fmt.Errorf("--%s has no effect with --source=prometheus, which does not connect to "+
					"kubelets: remove it", name))
			}
		}
		return mistakes
	}
	if r := o.watched.Resolution; r != 0 && r < minWatchedResolution {
		mistakes = append(mistakes, fmt.Errorf("--watched-resolution must be 0 (off) or at least %v, but is %v",
			minWatchedResolution, r))
	}
	if o.watched.Resolution >= o.interval() && o.resolutionKnown() {
		mistakes = append(mistakes, fmt.Errorf("--watched-resolution must be less than --metric-resolution, %v, but is %v: "+
			"watched nodes are scraped more often than others", o.interval(), o.watched.Resolution))
	}
	if b := o.watched.Budget; !(b >= 1) || math.IsInf(b, 1) {
		mistakes = append(mistakes, errors.New("--watched-budget must be a number of at least 1, the scrapes without "+
			"watched nodes"))
	}
	return mistakes
}
