package view

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// at is when the samples of most tests were taken.
var at = usage.NodeAt(time.Date(2026, 11, 20, 11, 59, 50, 0, time.UTC))

// TestIsCurrentOfManyContainers checks that the time grows with the number of containers, not with the product
// of what the API server and the node show.
func TestIsCurrentOfManyContainers(t *testing.T) {
	testenv.CheckLinear(t, func(containers int, start func()) {
		o, p := &inventory.Object{}, &usage.Pod{At: at}
		for i := range containers {
			name := fmt.Sprintf("%04d", i)
			o.Containers = append(o.Containers, inventory.ContainerState{Name: name, Running: true, StartedAt: at})
			p.Containers = append(p.Containers, usage.Container{Name: name, Amount: usage.Amount{At: at}})
		}
		start()
		for range 100 {
			if !isCurrent(o, p) {
				t.Fatal("not current")
			}
		}
	})
}

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
		{"main started a minute after the sample",
			states{started(main, 65*time.Second), started(sidecar, -time.Minute)}, []string{sidecar}, false},
		{"container not reported for long",
			states{started(main, -31*time.Second), started(sidecar, -time.Minute)}, []string{sidecar}, false},
		{"deleted pod of the same name", states{started(main, time.Second)}, []string{main}, false},
		{"sampled in the second of the start", states{started(main, 0)}, []string{main}, true},
		{"whole pod sampled before a restart",
			states{restarted(main, 5*time.Second), started(sidecar, -time.Hour)}, []string{main, sidecar}, true},
		{"without a container, sampled before its restart",
			states{restarted(main, time.Second), started(sidecar, -time.Hour)}, []string{sidecar}, true},
		{"without a container, sampled since its restart",
			states{restarted(main, -time.Second), started(sidecar, -time.Hour)}, []string{sidecar}, false},
		{"without a container, sampled in the second of its restart",
			states{restarted(main, -900*time.Millisecond), started(sidecar, -time.Hour)}, []string{sidecar}, true},
		{"init container sampled, main crashed since",
			states{restarted(main, 5*time.Second), started(sidecar, -time.Minute)}, []string{setup, sidecar}, false},
		{"debug container sampled, main not since a restart",
			states{restarted(main, 5*time.Second), started(sidecar, -time.Hour)}, []string{"debugger", sidecar}, false},
		{"container ended", states{started(main, -time.Hour), {Name: sidecar}}, []string{main}, true},
		{"clock set back by 10 minutes since the start", states{started(main, 10*time.Minute)}, []string{main}, true},
		{"only the init container runs again after a reboot",
			states{restarted(main, -time.Hour), {Name: sidecar}}, []string{setup}, false},
		{"main waits for its restart, a debug container runs", states{{Name: main}}, []string{"debugger", main}, true},
		{"only a debug container is left", states{{Name: main}}, []string{"debugger"}, false},
		{"main restarts while the sidecar runs", states{{Name: main}, restarted(sidecar, -time.Hour)},
			[]string{setup, sidecar}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			o, p := &inventory.Object{Containers: test.states}, &usage.Pod{At: at}
			for _, name := range test.sampled {
				p.Containers = append(p.Containers, usage.Container{Name: name, Amount: usage.Amount{At: at}})
			}
			slices.SortFunc(p.Containers, func(a, b usage.Container) int { return strings.Compare(a.Name, b.Name) })
			if got := isCurrent(o, p); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
			p.Ambiguous = true
			hasOne := len(test.states) == 0 || slices.ContainsFunc(test.states, func(c inventory.ContainerState) bool {
				return slices.Contains(test.sampled, c.Name)
			})
			isPartial := slices.ContainsFunc(test.states, func(c inventory.ContainerState) bool {
				return c.Running && !c.Restarted && !slices.Contains(test.sampled, c.Name)
			})
			if got, want := isCurrent(o, p), hasOne && !isPartial; got != want {
				t.Errorf("got %t while a clock that was set back shows the same times again, want %t", got, want)
			}
		})
	}
}
