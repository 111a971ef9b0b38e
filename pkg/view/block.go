package view

import (
	"iter"
	"runtime"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// block is a part of a list of pods, which are looked up at the same time. What a lookup reads of so
// many fits into the first cache of a processor.
type block struct {
	pods  []*inventory.Object // at most store.LookupBatch
	keys  []usage.PodKey
	found []*usage.Pod // of the pods
}

// PodUsages yields the index of each of these running pods and its usage, or nil if there is none to
// serve at that time.
func (v *View) PodUsages(pods []*inventory.Object, now usage.Time) iter.Seq2[int, *usage.Pod] {
	return func(yield func(int, *usage.Pod) bool) {
		size := min(len(pods), store.LookupBatch)
		b := &block{keys: make([]usage.PodKey, size), found: make([]*usage.Pod, size)}
		for start := 0; start < len(pods); start += store.LookupBatch {
			b.pods = pods[start:min(start+store.LookupBatch, len(pods))]
			v.lookUp(b, now)
			for i, pod := range b.found[:len(b.pods)] {
				if !yield(start+i, pod) {
					return
				}
			}
		}
	}
}

// lookUp sets the usage of the pods of a block.
func (v *View) lookUp(b *block, now usage.Time) {
	for i, o := range b.pods {
		b.keys[i] = usage.PodKey{Node: o.Node, Namespace: o.Namespace, Name: o.Name}
	}
	v.Store.Pods(b.found, b.keys[:len(b.pods)], now)
	b.readContainers()
	for i, o := range b.pods {
		if pod := b.found[i]; pod != nil && !isCurrent(o, pod) {
			b.found[i] = nil
		}
	}
}

// readContainers reads what isCurrent compares, first of all pods: the processor then waits for the
// memory of all of them at the same time.
func (b *block) readContainers() {
	read := 0 // without it, the compiler would remove the reads
	for i, o := range b.pods {
		if pod := b.found[i]; pod != nil {
			read += len(pod.Containers)
		}
		for j := range o.Containers {
			read += int(o.Containers[j].StartedAt)
		}
	}
	for _, pod := range b.found[:len(b.pods)] {
		if pod == nil {
			continue
		}
		for j := range pod.Containers {
			read += int(pod.Containers[j].At)
		}
	}
	runtime.KeepAlive(read)
}
