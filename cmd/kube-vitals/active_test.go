package main

import (
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/scrape"
)

func TestActiveNodes(t *testing.T) {
	for args, want := range map[string]scrape.Active{
		"":                             {Resolution: defaultActiveResolution, Budget: 2},
		"--metric-resolution=30s":      {Resolution: defaultActiveResolution, Budget: 2},
		"--metric-resolution=5s":       {Budget: 2}, // nothing shorter is the default
		"--active-resolution=0":        {Budget: 2},
		"--active-resolution=10s":      {Resolution: 10 * time.Second, Budget: 2},
		"--active-budget=1.5":          {Resolution: defaultActiveResolution, Budget: 1.5},
		"--active-resolution=14999ms":  {Resolution: 14999 * time.Millisecond, Budget: 2},
		"--active-resolution=1s -l a=": {Resolution: time.Second, Budget: 2},
		"--metric-resolution=5s --active-resolution=2s --active-budget=1": {Resolution: 2 * time.Second, Budget: 1},
		"--source=prometheus --prometheus-url=http://p":                   {Budget: 2},
	} {
		c, err := parse(strings.Fields(args)...)
		if err != nil || c.Active != want {
			t.Errorf("%s: got %+v, %v, want %+v", args, c.Active, err, want)
		}
	}
}

func TestActiveNodesErrors(t *testing.T) {
	checkErrors(t, map[string][]string{
		"--active-resolution=-5s":                        {"must be 0 (off) or at least 1s, but is -5s"},
		"--active-resolution=999ms":                      {"must be 0 (off) or at least 1s, but is 999ms"},
		"--active-resolution=15s":                        {"must be less than --metric-resolution, 15s, but is 15s"},
		"--metric-resolution=6s --active-resolution=10s": {"--metric-resolution, 6s, but is 10s"},
		"--metric-resolution=1s --active-resolution=2s":  {"--metric-resolution must be at least 5s"},
		"--active-budget=0.9":                            {"--active-budget must be a number of at least 1"},
		"--active-budget=NaN":                            {"--active-budget must be a number of at least 1"},
		"--active-budget=+Inf --active-resolution=500ms": {"--active-budget must be", "--active-resolution must be 0"},
		"--source=prometheus --prometheus-url=http://p --active-resolution=5s --active-budget=3": {
			"--active-resolution has no effect with --source=prometheus", "--active-budget has no effect"},
	})
}
