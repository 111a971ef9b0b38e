package explain

import (
	"fmt"
	"strconv"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// lostOfPod explains a pod that has no metrics because the last sample of one of its containers cannot be
// used. It promises no metrics: a loss may last.
func (m *moment) lostOfPod(o *inventory.Object, facts *store.PodFacts, n *nodeFinding) (finding, bool) {
	if facts.Lost == usage.NotLost {
		return finding{}, false
	}
	for i := range facts.Containers {
		if c := &facts.Containers[i]; c.Name == facts.LostContainer && !m.needsSample(&c.Facts) {
			return finding{}, false
		}
	}
	what, node := named(facts.LostContainer), o.Node
	for i := range o.Containers {
		c := &o.Containers[i]
		age, known := m.ageOf(c, node)
		if c.Name == facts.LostContainer && facts.Lost == usage.LostZero && known && age < m.overall.Startup {
			return newFinding(reason.PodStarting, "%s started %s ago, and %s does not know its usage yet",
				what, short(age), m.overall.Reporter(node)), true
		}
	}
	return m.lost(facts.Lost, node, what, n.health.Capacity), true
}

// needsSample reports whether a series has no value that has not expired.
func (m *moment) needsSample(f *store.Facts) bool {
	return !f.HasAmount || m.at.Sub(f.SampledAt) > m.MaxSampleAge
}

// lost explains a container or node whose last sample cannot be used, on a node of a CPU capacity in nanocores.
func (m *moment) lost(l usage.Loss, node, what string, capacity uint64) finding {
	if l == usage.LostExcess && capacity == 0 { // the rate is above any
		l = usage.LostValue
	}
	return finding{reason: health.ReasonOf(l), text: func() string {
		format := [...]string{
			usage.LostZero:  "%s reports 0 for the CPU or memory of %s, as kubelets do for what they do not know",
			usage.LostTime:  "%s reports the usage of %s with an impossible time",
			usage.LostValue: "%s reports an impossible value for the CPU or memory of %s",
			usage.LostFall:  "%s reports a lower CPU counter of %s than before, but no restart",
			usage.LostExcess: "%s reports more CPU usage of %s than the capacity in the node's status, which is " +
				cores(capacity) + "; it counts if that of the node itself is above the status in three samples in a row",
			usage.LostOwner: "%s reports usage of %s that is of an earlier pod or container of the same name, or may be",
		}[l]
		return fmt.Sprintf(format, m.overall.Reporter(node), what)
	}}
}

// cores returns a number of nanocores as text, such as "2.5".
func cores(nanocores uint64) string { return strconv.FormatFloat(float64(nanocores)/1e9, 'f', -1, 64) }
