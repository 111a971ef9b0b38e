package usage

import (
	"slices"
	"testing"
	"time"
)

// TestDropUnknown checks which values of 0 are removed because the kubelet does not know them.
func TestDropUnknown(t *testing.T) { // rules 4, 6
	const both = HasCPU | HasMemory
	sample := func(coreSeconds float64, memory uint64, age time.Duration) Sample {
		s := Sample{At: t0, CPUSeconds: coreSeconds, Memory: memory, Has: both | HasSwap | HasRate}
		if age >= 0 {
			s.StartedAt = t0.Add(-age)
		}
		return s
	}
	untimed := sample(0, 5, time.Hour)
	untimed.Untimed = true // its age is not known
	const noStart = -time.Second
	running := sample(7, 7, time.Hour)
	for _, tc := range []struct {
		name    string
		samples []Sample
		want    []Has // of these values, of each sample; those that are missing are lost
	}{
		{"known", []Sample{running}, []Has{both | HasRate}},
		{"neither CPU nor memory", []Sample{running, sample(0, 0, time.Hour)}, []Has{both | HasRate, 0}},
		{"neither, of a new container", []Sample{running, sample(0, 0, time.Second)}, []Has{both | HasRate, 0}},
		{"neither, without a start time", []Sample{running, sample(0, 0, noStart)}, []Has{both | HasRate, 0}},
		{"no CPU in the first 10 s", []Sample{sample(0, 5, 9999*time.Millisecond)}, []Has{both | HasRate}},
		{"no CPU after 10 s", []Sample{sample(0, 5, 10*time.Second)}, []Has{HasMemory}},
		{"no CPU at an unknown age", []Sample{sample(0, 5, noStart), untimed}, []Has{both | HasRate, both | HasRate}},
		{"no memory beside CPU", []Sample{running, sample(3, 0, time.Hour)}, []Has{both | HasRate, both | HasRate}},
		{"no memory on the node", []Sample{sample(3, 0, time.Hour), sample(4, 0, noStart)},
			[]Has{HasCPU | HasRate, HasCPU | HasRate}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := Scrape{Node: tc.samples[len(tc.samples)-1]}
			for _, c := range tc.samples {
				s.Containers = append(s.Containers, ContainerSample{Sample: c})
			}
			original := slices.Clone(s.Containers)
			s.DropUnknown()
			for i, c := range s.Containers {
				want := original[i].Sample
				want.Has = HasSwap | tc.want[i]
				if want.Has != original[i].Has {
					want.Loss = LostZero
				}
				if c.Sample != want {
					t.Errorf("container %d: got %+v, want %+v", i, c.Sample, want)
				}
			}
		})
	}
	for _, tc := range []struct {
		node Sample
		want Has
	}{
		{sample(3, 5, noStart), both | HasRate},
		{sample(0, 5, noStart), HasMemory},
		{sample(3, 0, noStart), HasCPU | HasRate},
		{sample(0, 0, noStart), 0},
	} {
		s := Scrape{Node: tc.node}
		s.DropUnknown()
		if got := s.Node; got.Has != HasSwap|tc.want || (got.Loss == LostZero) != (got.Has != tc.node.Has) {
			t.Errorf("of the node %+v: got %+v, want %b", tc.node, got, tc.want)
		}
	}
}

func TestDropUnknownSwap(t *testing.T) { // rule 6
	const none = -1 // the value is not reported
	for _, tc := range []struct {
		node       int
		containers []int
		isKnown    bool
	}{
		{0, []int{0, 0}, true},
		{9, []int{0, 5}, true},
		{none, []int{0, 5}, true},
		{9, []int{0, 0}, false},
		{none, []int{0, 0}, false},
	} {
		s := Scrape{Node: Sample{CPUSeconds: 7, Memory: 7, Has: HasCPU | HasMemory}}
		if tc.node != none {
			s.Node.Swap, s.Node.Has = uint64(tc.node), s.Node.Has|HasSwap
		}
		before := s.Node
		for _, swap := range tc.containers {
			s.Containers = append(s.Containers, ContainerSample{Sample: Sample{
				CPUSeconds: 7, Memory: 7, Swap: uint64(swap), Has: HasCPU | HasMemory | HasSwap}})
		}
		s.DropUnknown()
		for i, c := range s.Containers {
			if isKnown := c.Has&HasSwap != 0; isKnown != tc.isKnown || c.Loss != NotLost || s.Node != before {
				t.Errorf("%+v: got container %d %+v, node %+v", tc, i, c.Sample, s.Node)
			}
		}
	}
}
