package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/scrape"
)

func TestWatchedNodes(t *testing.T) {
	for args, want := range map[string]scrape.Watched{
		"":                              {Resolution: defaultWatchedResolution, Budget: 2},
		"--metric-resolution=30s":       {Resolution: defaultWatchedResolution, Budget: 2},
		"--metric-resolution=5s":        {}, // nothing shorter is the default
		"--watched-resolution=0":        {},
		"--watched-resolution=10s":      {Resolution: 10 * time.Second, Budget: 2},
		"--watched-budget=1.5":          {Resolution: defaultWatchedResolution, Budget: 1.5},
		"--watched-resolution=14999ms":  {Resolution: 14999 * time.Millisecond, Budget: 2},
		"--watched-resolution=1s -l a=": {Resolution: time.Second, Budget: 2},
		"--metric-resolution=5s --watched-resolution=2s --watched-budget=1": {Resolution: 2 * time.Second, Budget: 1},
		"--source=prometheus --prometheus-url=http://p":                     {},
	} {
		c, err := parse(strings.Fields(args)...)
		if err != nil || c.Watched != want {
			t.Errorf("%s: got %+v, %v, want %+v", args, c.Watched, err, want)
		}
	}
}

func TestWatchedNodesMistakes(t *testing.T) {
	for args, want := range map[string][]string{
		"--watched-resolution=-5s":                         {"must be 0 (off) or at least 1s, but is -5s"},
		"--watched-resolution=999ms":                       {"must be 0 (off) or at least 1s, but is 999ms"},
		"--watched-resolution=15s":                         {"must be less than --metric-resolution, 15s, but is 15s"},
		"--metric-resolution=6s --watched-resolution=10s":  {"--metric-resolution, 6s, but is 10s"},
		"--metric-resolution=1s --watched-resolution=2s":   {"--metric-resolution must be at least 5s"},
		"--watched-budget=0.9":                             {"--watched-budget must be a number of at least 1"},
		"--watched-budget=NaN":                             {"--watched-budget must be a number of at least 1"},
		"--watched-budget=+Inf --watched-resolution=500ms": {"--watched-budget must be", "--watched-resolution must be 0"},
		"--source=prometheus --prometheus-url=http://p --watched-resolution=5s --watched-budget=3": {
			"--watched-resolution has no effect with --source=prometheus", "--watched-budget has no effect"},
	} {
		_, err := parse(strings.Fields(args)...)
		text := fmt.Sprint(err)
		if n := strings.Count(text, "\n") + 1; err == nil || n != len(want) {
			t.Errorf("%s: got %d errors, want %q:\n%s", args, n, want, text)
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: got %s, want %q", args, text, w)
			}
		}
	}
}
