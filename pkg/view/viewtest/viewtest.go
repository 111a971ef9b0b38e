// Package viewtest fills stores with usage, for tests of packages that read a view.View.
package viewtest

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Index returns an Index of these objects, of any type that it accepts. It panics if it rejects one.
func Index[T any](objects ...T) *inventory.Index {
	list := make([]any, len(objects))
	for i, o := range objects {
		list[i] = o
	}
	index := inventory.New()
	if err := index.Replace(list, "1"); err != nil {
		panic(err)
	}
	return index
}

// Objects returns all objects of an Index.
func Objects(index *inventory.Index) []*inventory.Object { return index.List("", labels.Everything()) }

// NewStore returns an empty store whose metrics expire after a minute. A container has ended when a scrape omits it.
func NewStore(maxContainers int) *store.Store {
	return store.New(store.Config{
		MaxSampleAge: time.Minute, MaxContainers: maxContainers,
		State: func(_, _, _, _ string) usage.ContainerState {
			return usage.ContainerState{EarliestStart: usage.NodeTime(usage.OldestStart * time.Second)}
		},
	})
}

// Put puts two scrapes of a node into a store, which computes this usage of the node from them (nil:
// none) and of the pods on it. The Amounts must have a time and a window. Where AsOf differs from
// the time of an Amount, the node's clock is ahead of ours by that much.
func Put(s *store.Store, name string, node *usage.Node, pods ...*usage.Pod) {
	for _, isLast := range []bool{false, true} {
		var scrape usage.Scrape
		var newest usage.NodeTime
		var asOf usage.Time
		add := func(a usage.Amount, ahead time.Duration) usage.Sample {
			sample := sampleOf(a, isLast)
			if sample.At >= newest {
				newest, asOf = sample.At, usage.Time(sample.At.Add(-ahead))
			}
			return sample
		}
		if node != nil {
			scrape.Node = add(node.Amount, node.At.AheadOf(node.AsOf))
		}
		for _, pod := range pods {
			for _, c := range pod.Containers {
				scrape.Containers = append(scrape.Containers, usage.ContainerSample{
					Namespace: []byte(pod.Namespace), Pod: []byte(pod.Name), Name: []byte(c.Name),
					Sample: add(c.Amount, pod.At.AheadOf(pod.AsOf)),
				})
			}
		}
		scrape.At = asOf
		if newest.AheadOf(asOf) != 0 {
			scrape.Date = newest
		}
		s.Put(name, &scrape)
	}
}

// sampleOf returns the last sample of an Amount, or the one before it.
func sampleOf(a usage.Amount, isLast bool) usage.Sample {
	sample := usage.Sample{
		At: a.At.Add(-a.Window), Memory: a.Memory, Swap: a.Swap, Has: usage.HasCPU | usage.HasMemory,
	}
	if isLast {
		sample.At, sample.CPUSeconds = a.At, float64(a.CPUNanocores)/1e9*a.Window.Seconds()
	}
	if a.HasSwap {
		sample.Has |= usage.HasSwap
	}
	return sample
}
