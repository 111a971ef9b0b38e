package api

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestIsCurrent checks which snapshots are withheld because they were sampled before the containers
// of the pod ran.
func TestIsCurrent(t *testing.T) {
	const main, sidecar, setup = "main", "sidecar", "setup"
	state := func(name string, sinceSample time.Duration) inventory.ContainerState {
		return inventory.ContainerState{Name: name, Running: true, StartedAt: at.Add(sinceSample)}
	}
	restarted := func(c inventory.ContainerState) inventory.ContainerState { c.Restarted = true; return c }
	ended := inventory.ContainerState{Name: sidecar}
	for _, tc := range []struct {
		name    string
		states  []inventory.ContainerState
		sampled []string // containers, at the same time
		want    bool
	}{
		{"the containers ran", []inventory.ContainerState{state(main, -time.Hour), state(sidecar, -time.Hour)}, []string{main, sidecar}, true},
		{"the API server has no states yet", nil, []string{main}, true},
		{"only an ended init container was sampled", []inventory.ContainerState{state(main, 2*time.Second)}, []string{setup}, false},
		{"an init container, when the kubelet does not report the others yet", []inventory.ContainerState{state(main, -time.Second)}, []string{setup}, false},
		{"the sidecar was sampled before the main container started", []inventory.ContainerState{state(main, time.Second), state(sidecar, -time.Minute)}, []string{sidecar}, false},
		{"the kubelet does not report a container for long", []inventory.ContainerState{state(main, -31*time.Second), state(sidecar, -time.Minute)}, []string{sidecar}, true},
		{"a predecessor", []inventory.ContainerState{state(main, time.Second)}, []string{main}, false},
		{"sampled in the second of the start", []inventory.ContainerState{state(main, 0)}, []string{main}, true},
		{"a container restarted: the whole pod from before", []inventory.ContainerState{restarted(state(main, 5*time.Second)), state(sidecar, -time.Hour)}, []string{main, sidecar}, true},
		{"a container is back after a restart, and has no metrics yet", []inventory.ContainerState{restarted(state(main, -time.Second)), state(sidecar, -time.Hour)}, []string{sidecar}, true},
		{"a container ended", []inventory.ContainerState{state(main, -time.Hour), ended}, []string{main}, true},
		{"the clock was set back by 10 minutes since the start", []inventory.ContainerState{state(main, 10*time.Minute)}, []string{main}, true},
	} {
		t.Run(tc.name+", and the clock was set back", func(t *testing.T) {
			p := &usage.Pod{At: at, ClockShown: at.Add(time.Second)}
			if !isCurrent(&inventory.Object{Containers: tc.states}, p) {
				t.Error("false, want true: it may have started before the clock was set back")
			}
		})
		t.Run(tc.name, func(t *testing.T) {
			p := &usage.Pod{At: at, ClockShown: at}
			for _, name := range tc.sampled {
				p.Containers = append(p.Containers, usage.Container{Name: name, Amount: usage.Amount{At: at}})
			}
			if got := isCurrent(&inventory.Object{Containers: tc.states}, p); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// reportOf is a Usage that has pods on one node only.
type reportOf struct {
	node string
	used
}

func (r reportOf) Pod(node, namespace, name string, now usage.Time) *usage.Pod {
	if node != r.node {
		return nil
	}
	return r.used.Pod(node, namespace, name, now)
}

// TestPodsAreReadFromTheNodeThatTheyAreBoundTo: what other nodes report of a pod is not served.
func TestPodsAreReadFromTheNodeThatTheyAreBoundTo(t *testing.T) {
	c := world()
	c.Usage = reportOf{node: "node-a", used: c.Usage.(used)}
	for _, o := range c.Pods.(existing) {
		o.Node = "node-b"
		if o.Name == "web-1" {
			o.Node = "node-a"
		}
	}
	h := serve(t, c)
	want := []string{"apps/web-1", "data/web-1"}
	if got := get[list](t, h, "/apis/metrics.k8s.io/v1/pods", http.StatusOK).names(); !slices.Equal(got, want) {
		t.Errorf("the list has %q, want %q", got, want)
	}
	get[any](t, h, "/apis/metrics.k8s.io/v1/namespaces/apps/pods/web-1", http.StatusOK)
	get[any](t, h, "/apis/metrics.k8s.io/v1/namespaces/apps/pods/web-2", http.StatusNotFound)
}
