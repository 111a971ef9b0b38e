package view

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// isCurrent reports whether the snapshot of a pod is that of the containers that the API server
// shows: it has each of them that runs, at least one, and was sampled after all of them had started. Other
// snapshots are those of its init containers, of only some of its containers, or of a deleted pod
// of the same name. A pod without container statuses counts as current.
//
// A container that was restarted after the snapshot is ignored: until it has metrics, the last metrics of the
// whole pod are served, unless they have init or debug containers instead. The times of an ambiguous snapshot cannot be
// compared.
func isCurrent(o *inventory.Object, pod *usage.Pod) bool {
	reported, missesRestarted := 0, false
	rest := pod.Containers // both are sorted by name
	for i := range o.Containers {
		c := &o.Containers[i]
		for len(rest) > 0 && rest[0].Name < c.Name {
			rest = rest[1:]
		}
		isReported := len(rest) > 0 && rest[0].Name == c.Name
		if isReported {
			reported++
		}
		switch {
		case !c.Running:
		case isReported:
			// A start that is much later is by a clock that was set back. For restarts, the store allows for a longer
			// --max-sample-age (node.awaitsRestart).
			lead := c.StartedAt.Sub(rest[0].At)
			isLater := c.StartedAt != 0 && lead > 0 && lead < usage.MaxLead
			if !c.Restarted && isLater && !pod.Ambiguous {
				return false
			}
		case !c.Restarted || pod.At >= c.StartedAt.Add(time.Second) && !pod.Ambiguous: // StartedAt is in whole seconds
			return false
		default:
			missesRestarted = true
		}
	}
	if missesRestarted && reported < len(pod.Containers) && !pod.Ambiguous {
		return false
	}
	return len(o.Containers) == 0 || reported > 0
}
