package api

import (
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestIsCurrent checks which snapshots are not served because they were sampled before the pod's
// containers had started.
func TestIsCurrent(t *testing.T) {
	const main, sidecar, setup = "main", "sidecar", "setup"
	type states = []inventory.ContainerState
	started := func(name string, sinceSample time.Duration) inventory.ContainerState {
		return inventory.ContainerState{Name: name, Running: true, StartedAt: at.Add(sinceSample)}
	}
	restarted := func(name string, sinceSample time.Duration) inventory.ContainerState {
		c := started(name, sinceSample)
		c.Restarted = true
		return c
	}
	for _, test := range []struct {
		name    string
		states  states
		sampled []string // containers, at the same time
		want    bool
	}{
		{"all running before",
			states{started(main, -time.Hour), started(sidecar, -time.Hour)}, []string{main, sidecar}, true},
		{"no states yet", nil, []string{main}, true},
		{"init container sampled only", states{started(main, 2*time.Second)}, []string{setup}, false},
		{"init container sampled, main not reported yet", states{started(main, -time.Second)}, []string{setup}, false},
		{"sidecar sampled before main started",
			states{started(main, time.Second), started(sidecar, -time.Minute)}, []string{sidecar}, false},
		{"container not reported for long",
			states{started(main, -31*time.Second), started(sidecar, -time.Minute)}, []string{sidecar}, true},
		{"deleted pod of the same name", states{started(main, time.Second)}, []string{main}, false},
		{"sampled in the second of the start", states{started(main, 0)}, []string{main}, true},
		{"whole pod sampled before a restart",
			states{restarted(main, 5*time.Second), started(sidecar, -time.Hour)}, []string{main, sidecar}, true},
		{"no metrics since a restart",
			states{restarted(main, -time.Second), started(sidecar, -time.Hour)}, []string{sidecar}, true},
		{"container ended", states{started(main, -time.Hour), {Name: sidecar}}, []string{main}, true},
		{"clock set back by 10 minutes since the start", states{started(main, 10*time.Minute)}, []string{main}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &usage.Pod{At: at, MaxClockShown: at}
			for _, name := range test.sampled {
				p.Containers = append(p.Containers, usage.Container{Name: name, Amount: usage.Amount{At: at}})
			}
			if got := isCurrent(&inventory.Object{Containers: test.states}, p); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
			p.MaxClockShown = at.Add(time.Second)
			if !isCurrent(&inventory.Object{Containers: test.states}, p) {
				t.Error("got false while a clock that was set back shows the same times again, want true")
			}
		})
	}
}
