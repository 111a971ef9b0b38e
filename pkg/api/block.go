package api

import (
	"iter"
	"runtime"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// blockSize is the number of objects whose usage is looked up at the same time, as many as the Store
// can. What a lookup reads of so many fits into the first cache of a processor.
const blockSize = 32

// block is a part of a list.
type block struct {
	objects []*inventory.Object // at most blockSize
	found   []encode.Usage      // of the objects; nil: there is none to serve

	// Of pods only:
	keys []usage.PodKey
	pods []*usage.Pod
}

// usages yields the index of each object and its usage, or nil if there is none to serve.
func (c *collection) usages(objects []*inventory.Object, now usage.Time) iter.Seq2[int, encode.Usage] {
	return func(yield func(int, encode.Usage) bool) {
		size := min(len(objects), blockSize)
		b := &block{
			found: make([]encode.Usage, size), keys: make([]usage.PodKey, size), pods: make([]*usage.Pod, size),
		}
		for start := 0; start < len(objects); start += blockSize {
			b.objects = objects[start:min(start+blockSize, len(objects))]
			c.find(b, now)
			for i, u := range b.found[:len(b.objects)] {
				if !yield(start+i, u) {
					return
				}
			}
		}
	}
}

// readContainers reads what isCurrent compares, first of all pods: the processor then waits for the
// memory of all of them at the same time.
func (b *block) readContainers() {
	read := 0 // without it, the compiler would remove the reads
	for i, o := range b.objects {
		if pod := b.pods[i]; pod != nil {
			read += len(pod.Containers)
		}
		for j := range o.Containers {
			read += int(o.Containers[j].StartedAt)
		}
	}
	for _, pod := range b.pods[:len(b.objects)] {
		if pod == nil {
			continue
		}
		for j := range pod.Containers {
			read += int(pod.Containers[j].At)
		}
	}
	runtime.KeepAlive(read)
}
