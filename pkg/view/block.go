package view

import (
	"iter"
	"runtime"
	"slices"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// PodUsages yields the index of each of these running pods and its usage at that time, or nil if there is none to
// serve. It looks up a block of pods at the same time.
func (v *View) PodUsages(pods []*inventory.Object, now usage.Time) iter.Seq2[int, *usage.Pod] {
	return func(yield func(int, *usage.Pod) bool) {
		index, found := 0, make([]*usage.Pod, min(len(pods), usage.ReadAhead))
		for block := range slices.Chunk(pods, usage.ReadAhead) {
			found = found[:len(block)]
			v.lookUp(found, block, now)
			for _, pod := range found {
				if !yield(index, pod) {
					return
				}
				index++
			}
		}
	}
}

// lookUp sets found to the usage of a block of pods.
func (v *View) lookUp(found []*usage.Pod, block []*inventory.Object, now usage.Time) {
	var keys [usage.ReadAhead]usage.PodKey
	for i, o := range block {
		keys[i] = usage.PodKey{Node: o.Node, Namespace: o.Namespace, Name: o.Name}
	}
	v.Store.Pods(found, keys[:len(block)], now)
	readContainers(found, block)
	for i, o := range block {
		if found[i] != nil && !isCurrent(o, found[i]) {
			found[i] = nil
		}
	}
}

// readContainers reads what isCurrent compares, first of all pods: the processor then waits for the
// memory of all of them at the same time.
func readContainers(found []*usage.Pod, block []*inventory.Object) {
	read := 0 // without it, the compiler would remove the reads
	for i, o := range block {
		if pod := found[i]; pod != nil {
			read += len(pod.Containers)
		}
		for j := range o.Containers {
			read += int(o.Containers[j].StartedAt)
		}
	}
	for _, pod := range found {
		if pod == nil {
			continue
		}
		for j := range pod.Containers {
			read += int(pod.Containers[j].At)
		}
	}
	runtime.KeepAlive(read)
}
