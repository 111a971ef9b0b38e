package main

import (
	"strings"
	"testing"
	"time"
)

func TestResources(t *testing.T) {
	for args, want := range map[string]time.Duration{
		"":                            0,
		"--resources=swap,memory,cpu": 0,
		"--resources=cpu,memory,swap,ephemeral-storage":                                  time.Minute,
		"--resources=cpu,memory,swap --resources=ephemeral-storage":                      time.Minute,
		"--resources=cpu,memory,swap,ephemeral-storage --ephemeral-storage-interval=10s": 10 * time.Second,
		"--source=prometheus --prometheus-url=http://p --resources=cpu,memory,swap ":     0,
	} {
		c, err := parse(strings.Fields(args)...)
		if err != nil || c.StorageInterval != want {
			t.Errorf("%s: got interval %v, error %v; want %v", args, c.StorageInterval, err, want)
		}
	}
}

func TestResourceErrors(t *testing.T) {
	checkErrors(t, map[string][]string{
		"--resources=cpu,disk": {
			`--resources: "disk" is not a resource that can be served; these are cpu, memory, swap and ephemeral-storage`,
			"--resources must contain memory", "--resources must contain swap"},
		"--resources=": {
			"--resources must contain cpu", "--resources must contain memory", "--resources must contain swap"},
		"--ephemeral-storage-interval=1m": {
			"--ephemeral-storage-interval has no effect without ephemeral-storage in --resources"},
		"--resources=cpu,memory,swap,ephemeral-storage --ephemeral-storage-interval=9s": {
			"--ephemeral-storage-interval must be at least 10s, but is 9s"},
		"--resources=cpu,memory,swap,ephemeral-storage --ephemeral-storage-interval=-1s": {"must be at least 10s"},
		"--source=prometheus --prometheus-url=http://p --resources=cpu,memory,swap,ephemeral-storage": {
			"--resources: ephemeral-storage is read from kubelets, so it cannot be served with --source=prometheus"},
	})
}
