package main

import (
	"time"

	"github.com/spf13/pflag"
)

// minStorageInterval is how often containerd measures the writable layers of containers.
const minStorageInterval = 10 * time.Second

func (o *options) addStorageFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.StorageInterval, "ephemeral-storage-interval", 0,
		"The time between two requests to a kubelet for ephemeral-storage, which is served if this is set; at least 10s. "+
			"It is read from the kubelets' complete /stats/summary, and expires after 3 intervals. By default, kubelets "+
			"measure volumes at most once a minute, so 1m is usual. See docs/numbers.md. (default: not served)")
}

func (o *options) validateStorage() {
	switch interval := o.StorageInterval; {
	case interval == 0:
	case o.usesEngine():
		o.errorf("--ephemeral-storage-interval: ephemeral-storage is read from kubelets, so it cannot be served with " +
			"--source=prometheus: remove one of them")
	case interval < minStorageInterval:
		o.errorf("--ephemeral-storage-interval must be 0 (off) or at least %v, but is %v", minStorageInterval, interval)
	}
}
