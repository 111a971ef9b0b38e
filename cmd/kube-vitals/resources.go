package main

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	// defaultStorageInterval is the shortest interval between two measurements of volumes by kubelets. A complete
	// summary costs a kubelet about as much as a scrape, so this adds a quarter to the cost of scrapes
	// every 15 seconds.
	defaultStorageInterval = time.Minute
	// minStorageInterval is how often containerd measures the writable layers of containers.
	minStorageInterval = 10 * time.Second
)

// defaultResources returns the resources that are always served.
func defaultResources() []string { return []string{"cpu", "memory", "swap"} }

func (o *options) addResourceFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.resources, "resources", defaultResources(),
		"The resources to serve: cpu, memory and swap, and optionally ephemeral-storage, which is read from the kubelets' "+
			"complete /stats/summary at a slower pace. See docs/numbers.md.")
	fs.DurationVar(&o.StorageInterval, "ephemeral-storage-interval", defaultStorageInterval,
		"The time between two requests to a kubelet for ephemeral-storage; at least 10s. It expires after 3 intervals.")
}

func (o *options) validateResources() {
	for _, name := range o.resources {
		if name != usage.EphemeralStorage && !slices.Contains(defaultResources(), name) {
			o.errorf("--resources: %q is not a resource that can be served; these are %s and %s", name,
				strings.Join(defaultResources(), ", "), usage.EphemeralStorage)
		}
	}
	for _, name := range defaultResources() {
		if !slices.Contains(o.resources, name) {
			o.errorf("--resources must contain %s, which is always served: add it", name)
		}
	}
	serves := slices.Contains(o.resources, usage.EphemeralStorage)
	if serves && o.usesEngine() {
		o.errorf("--resources: ephemeral-storage is read from kubelets, so it cannot be served with --source=prometheus: " +
			"remove one of them")
	}
	switch {
	case !serves && o.all.Changed("ephemeral-storage-interval"):
		o.errorf("--ephemeral-storage-interval has no effect without ephemeral-storage in --resources: add it, or remove " +
			"--ephemeral-storage-interval")
	case o.StorageInterval < minStorageInterval:
		o.errorf("--ephemeral-storage-interval must be at least %v, but is %v", minStorageInterval,
			o.StorageInterval)
	}
}
