package view

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	// startDelay is how long a kubelet may report a pod without a container that has started.
	startDelay = 30 * time.Second
	// maxOutage is longer than metrics are usually served without a new sample. A start that is further
	// ahead of the last sample is by a clock that was set back, and proves nothing.
	maxOutage = 10 * time.Minute
)

// isCurrent reports whether the snapshot of a pod is that of the containers that the API server
// shows: it has at least one of them, and was sampled after all of them had started. Other
// snapshots are those of its init containers, of only some of its containers, or of a deleted pod
// of the same name. Both times are by the node's clock. A pod without container statuses counts as
// current.
//
// Restarted containers are ignored: until they have metrics, the last metrics of the whole pod are
// served. While a clock that was set back shows times that it has shown before, the times of pods
// that were created before cannot be compared.
func isCurrent(o *inventory.Object, pod *usage.Pod) bool {
	isRepeated := pod.At < pod.MaxClockShown && o.CreatedAt <= pod.ClockSetBackAt
	hasOne := len(o.Containers) == 0
	rest := pod.Containers // both are sorted by name
	for i := range o.Containers {
		c := &o.Containers[i]
		for len(rest) > 0 && rest[0].Name < c.Name {
			rest = rest[1:]
		}
		sampledAt, needed, maxLead := pod.At, c.StartedAt.Add(startDelay), maxOutage
		if len(rest) > 0 && rest[0].Name == c.Name {
			sampledAt, needed, maxLead = rest[0].At, c.StartedAt, usage.MaxLead
			hasOne = true
		}
		if !c.Running || c.Restarted || c.StartedAt == 0 || isRepeated {
			continue
		}
		if sampledAt < needed && c.StartedAt.Sub(sampledAt) < maxLead {
			return false
		}
	}
	return hasOne
}
