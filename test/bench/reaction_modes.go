package main

import (
	"flag"
	"fmt"
	"slices"
	"strings"
)

// reactionOptions are the flags of this measurement.
type reactionOptions struct {
	modes       string
	autoscalers int
	active      float64
	ownPhases   bool
	parallel    int
	plot        string
}

func (cfg *config) addReactionFlags(flags *flag.FlagSet) {
	flags.StringVar(&cfg.modes, "modes", "", "for -only=reaction: `names` such as plain,active-7.5s; default: all")
	flags.DurationVar(&cfg.duration, "duration", minReactionDuration, "for -only=reaction: how long to measure")
	flags.BoolVar(&cfg.onDemand, "on-demand", true,
		"for -only=reaction: kubelets sample containers for each request, not every 10s")
	flags.IntVar(&cfg.autoscalers, "autoscalers", 24, "for -only=reaction: `number` for each kind of load")
	flags.Float64Var(&cfg.active, "active", 0.25, "for -only=reaction: the `share` of nodes with pods of autoscalers")
	flags.BoolVar(&cfg.ownPhases, "own-phases", false, "for -only=reaction: each autoscaler reads at a time of its own; "+
		"by default, those of a node read together, as they do after the controller has started")
	flags.IntVar(&cfg.parallel, "parallel", 3, "for -only=reaction: `number` of modes to measure at the same time")
	flags.StringVar(&cfg.plot, "plot", "", "for -only=reaction: the SVG `file` to write")
}

// mode is a server with flags, which is measured in a cluster of its own.
type mode struct {
	name   string
	beside bool // the server is the one that -beside names
	args   []string
}

// allModes are in the order of the table. Without active nodes, scrapes are not aligned with reads.
var allModes = []mode{
	{name: "metrics-server", beside: true},
	{name: "plain", args: []string{"--active-resolution=0"}},
	{name: "all-5s", args: []string{"--active-resolution=0", "--metric-resolution=5s"}},
	{name: "all-5s-window-5s", args: []string{"--active-resolution=0", "--metric-resolution=5s", "--rate-window=5s"}},
	{name: "active-7.5s", args: []string{"--active-resolution=7.5s"}},
	{name: "active-5s-window-10s", args: []string{"--active-resolution=5s", "--rate-window=10s"}},
	{name: "active-5s-window-5s", args: []string{"--active-resolution=5s", "--rate-window=5s"}},
	{name: "default"},
}

// selectModes returns the modes that -modes names, by default all that can run.
func (cfg config) selectModes() (selected []mode, err error) {
	if cfg.modes == "" {
		return slices.DeleteFunc(slices.Clone(allModes), func(m mode) bool { return m.beside && cfg.beside == "" }), nil
	}
	for name := range strings.SplitSeq(cfg.modes, ",") {
		i := slices.IndexFunc(allModes, func(m mode) bool { return m.name == name })
		switch {
		case i < 0:
			return nil, fmt.Errorf("-modes: %q is not one of %v", name, allModes)
		case allModes[i].beside && cfg.beside == "":
			return nil, fmt.Errorf("-modes: %s needs -beside", name)
		}
		selected = append(selected, allModes[i])
	}
	return selected, nil
}
