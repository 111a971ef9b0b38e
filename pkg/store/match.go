package store

import (
	"cmp"
	"slices"
	"strings"
	"unique"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// matchContainers sorts n.containers into the order of the scrape: first those that it mentions,
// one for one, then those that it does not mention but that may still run. It reports whether they
// matched already, which is the steady state.
func (n *node) matchContainers(scrape *usage.Scrape) (unchanged bool) {
	if n.isInOrder(scrape) {
		return true
	}
	known := n.containersByKey()
	reported := make(map[podKey]*reportedPod, len(n.reported))
	for _, r := range n.reported {
		reported[r.key] = r
	}

	old := n.containers
	n.containers = make([]*container, 0, len(scrape.Containers))
	mentioned := make(map[*container]bool, len(scrape.Containers))
	for i := range scrape.Containers {
		c := n.getOrCreateContainer(&scrape.Containers[i], known, reported)
		n.containers = append(n.containers, c)
		mentioned[c] = true
	}
	for _, c := range old {
		switch {
		case mentioned[c]:
		case len(n.containers) < n.config.MaxContainers && n.mayRun(c, scrape.At):
			n.containers = append(n.containers, c)
		default:
			n.endContainer(c, scrape.At)
		}
	}
	n.groupByPod()
	return false
}

// groupByPod assigns n.containers to their pods, drops pods without containers, and sorts the pods.
// It sorts each pod's containers once: the time must not grow with the square of their number.
func (n *node) groupByPod() {
	for _, r := range n.reported {
		clear(r.containers)
		r.containers = r.containers[:0]
	}
	for _, c := range n.containers {
		c.pod.containers = append(c.pod.containers, c)
	}
	n.reported = slices.DeleteFunc(n.reported, func(r *reportedPod) bool { return len(r.containers) == 0 })
	slices.SortFunc(n.reported, func(a, b *reportedPod) int { return cmp.Compare(a.hash, b.hash) })
	for _, r := range n.reported {
		slices.SortFunc(r.containers, func(a, b *container) int { return strings.Compare(a.name.Value(), b.name.Value()) })
	}
}

// mayRun reports whether a container that a scrape does not mention still belongs to its pod. Kubelets omit
// running containers if the runtime fails to read them, and those that wait for a restart
// (kubernetes#83504), so the API server decides. One that waits is kept for the pod's last whole
// snapshot, until that expires: asOf is that of its last Amount, also after a restart.
func (n *node) mayRun(c *container, now usage.Time) bool {
	state, last := n.state(c.key()), c.pod.snapshot
	return state.Running ||
		state.Alive && last != nil && !min(c.asOf, last.AsOf).IsExpired(n.config.MaxSampleAge, now)
}

// isInOrder reports whether the scrape mentions exactly the containers of n, in the same order.
func (n *node) isInOrder(scrape *usage.Scrape) bool {
	if len(n.containers) != len(scrape.Containers) {
		return false
	}
	for i, c := range n.containers {
		s, pod := &scrape.Containers[i], &c.pod.key
		if c.name.Value() != string(s.Name) || pod.name != string(s.Pod) || pod.namespace != string(s.Namespace) {
			return false
		}
	}
	return true
}

// getOrCreateContainer returns the container of a sample. It creates the container and its pod if
// they are unknown; groupByPod then adds the container to the pod.
func (n *node) getOrCreateContainer(
	s *usage.ContainerSample, known map[containerKey]*container, reported map[podKey]*reportedPod,
) *container {
	key := keyOf(s)
	if c := known[key]; c != nil {
		return c
	}
	pod := reported[key.podKey]
	if pod == nil {
		pod = &reportedPod{key: podKey{intern(s.Namespace).Value(), key.name}, hash: key.hash()}
		reported[pod.key] = pod
		n.reported = append(n.reported, pod)
	}
	c := &container{pod: pod, name: intern(s.Name)}
	c.isNew = n.completeAt != 0 && !n.wasOverlooked(key, s)
	delete(n.ended, key)
	known[key] = c
	return c
}

// intern returns the handle of a string that is stored once for all its users. Few different names of
// namespaces and containers exist, compared to those of pods.
func intern(name []byte) unique.Handle[string] { return unique.Make(string(name)) }
