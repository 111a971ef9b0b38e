package usage

import (
	"math"
	"testing"
	"time"
)

const t0 = NodeTime(1_795_205_767 * int64(time.Second))

// cpu returns a sample taken some seconds after t0, of a container that started at startedAt (0:
// not known).
func cpu(seconds, coreSeconds float64, startedAt NodeTime) Sample {
	at := t0.Add(time.Duration(seconds * float64(time.Second)))
	return Sample{
		At: at, StartedAt: startedAt,
		CPUSeconds: coreSeconds, Memory: 7 << 20, Has: HasCPU | HasMemory,
	}
}

func TestRate(t *testing.T) {
	const (
		maxWindow = 60 * time.Second
		capacity  = 8_000_000_000
	)
	old := t0.Add(-time.Hour)
	fresh := func(nanocores uint64, window time.Duration) Amount {
		return Amount{CPUNanocores: nanocores, Window: window}
	}
	for _, tc := range []struct {
		name      string
		prev, cur Sample
		verdict   Verdict
		want      Amount // CPU and window
	}{
		{"rule 1: the difference over the kubelet's own time", cpu(0, 100, old), cpu(15, 103, old), Fresh,
			fresh(200_000_000, 15*time.Second)},
		{"rule 1: no start time", cpu(0, 100, 0), cpu(10, 101, 0), Fresh, fresh(100_000_000, 10*time.Second)},
		{"rule 2: the same timestamp", cpu(0, 100, old), cpu(0, 100, old), Unchanged, Amount{}},
		{"rule 2: the same timestamp with another value", cpu(0, 100, old), cpu(0, 101, old), Unchanged, Amount{}},
		{"too short a window", cpu(0, 100, old), cpu(0.5, 100.4, old), Unchanged, Amount{}},
		{"more than the node can use in half a second", cpu(0, 100, old), cpu(0.5, 120.5, old), Excess,
			fresh(41_000_000_000, 500*time.Millisecond)},
		{"all that it can use in half a second, and the slack", cpu(0, 100, old), cpu(0.5, 120.3, old), Unchanged, Amount{}},
		{"the shortest window", cpu(0, 100, old), cpu(1, 100.5, old), Fresh, fresh(500_000_000, time.Second)},
		{"an older timestamp", cpu(0, 100, old), cpu(-1, 99, old), Older, Amount{}},
		{"rule 4: the counter fell", cpu(0, 100, old), cpu(15, 1, old), Fell, Amount{}},
		{"rule 4: the counter fell within a second", cpu(0, 100, old), cpu(0.5, 1, old), Fell, Amount{}},
		{"rule 4: the start time moved", cpu(0, 1000, old), cpu(15, 1001.5, t0.Add(3*time.Second)), Fresh,
			fresh(100_000_000, 15*time.Second)},
		{"rule 4: a start time after the sample", cpu(0, 100, old), cpu(15, 103, t0.Add(time.Hour)), Fresh,
			fresh(200_000_000, 15*time.Second)},
		{"rule 4: a start time relative to the pod's (kwok)", cpu(0, 100, NodeTime(12*time.Second)),
			cpu(15, 103, NodeTime(27*time.Second)), Fresh, fresh(200_000_000, 15*time.Second)},
		{"rule 5: the longest window", cpu(0, 100, old), cpu(60, 106, old), Fresh, fresh(100_000_000, time.Minute)},
		{"rule 5: a longer one", cpu(0, 100, old), cpu(60.1, 106, old), Gap, Amount{}},
		{"rule 6: zero is data", cpu(0, 0, old), cpu(15, 0, old), Fresh, fresh(0, 15*time.Second)},
		{"more than the API allows", cpu(0, 1, old), cpu(1, 1e12, old), Excess, fresh(math.MaxInt64, time.Second)},
		{"an infinite counter", cpu(0, 1, old), cpu(1, math.Inf(1), old), Excess, fresh(math.MaxInt64, time.Second)},
		{"all CPUs of the node, and the slack", cpu(0, 100, old), cpu(15, 247.9, old), Fresh,
			fresh(9_860_000_000, 15*time.Second)},
		{"more than the node can use", cpu(0, 100, old), cpu(15, 248.1, old), Excess, fresh(9_873_333_333, 15*time.Second)},
		{"the slack of the shortest window", cpu(0, 100, old), cpu(1, 124.75, old), Fresh,
			fresh(24_750_000_000, time.Second)},
		{"more than that", cpu(0, 100, old), cpu(1, 124.9, old), Excess, fresh(24_900_000_000, time.Second)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.want != (Amount{}) {
				tc.want.Memory, tc.want.At = tc.cur.Memory, tc.cur.At
			}
			if got, verdict := Rate(tc.prev.Reading(), &tc.cur, maxWindow, capacity); verdict != tc.verdict || got != tc.want {
				t.Errorf("\n got %d, %+v\nwant %d, %+v", verdict, got, tc.verdict, tc.want)
			}
		})
	}
}

func TestRateCopiesMemoryAndSwap(t *testing.T) {
	prev, cur := cpu(0, 1, 0), cpu(15, 1, 0)
	for _, tc := range []struct {
		memory, swap uint64
		has          Has
	}{{0, 0, 0}, {5, 0, HasSwap}, {5, 42, HasSwap}} {
		cur.Memory, cur.Swap, cur.Has = tc.memory, tc.swap, HasCPU|HasMemory|tc.has
		want := Amount{Memory: tc.memory, Swap: tc.swap, HasSwap: tc.has != 0, At: cur.At, Window: 15 * time.Second}
		if got, _ := Rate(prev.Reading(), &cur, time.Minute, 0); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestMeanSinceStart(t *testing.T) { // rule 4
	const capacity = 4_000_000_000
	started := func(ago float64, coreSeconds float64) Sample {
		return cpu(0, coreSeconds, t0.Add(-time.Duration(ago*float64(time.Second))))
	}
	untimed := started(20, 5)
	untimed.Untimed = true
	for _, tc := range []struct {
		name      string
		cur       Sample
		capacity  uint64
		nanocores uint64
		ok        bool
	}{
		{"9.9 s old", started(9.9, 5), capacity, 0, false},
		{"10 s old", started(10, 5), capacity, 500_000_000, true},
		{"60 s old", started(60, 6), capacity, 100_000_000, true},
		{"60.1 s old", started(60.1, 6), capacity, 0, false},
		{"start not known", cpu(0, 5, 0), capacity, 0, false},
		{"start after the sample", started(-3600, 5), capacity, 0, false},
		{"the sample's time is by another clock", untimed, capacity, 0, false},
		{"the node's capacity", started(10, 40), capacity, 4_000_000_000, true},
		{"more than the node's capacity", started(10, 40.1), capacity, 0, false},
		{"the node's capacity is not known", started(10, 40.1), 0, 4_010_000_000, true},
		{"more than the API allows", started(10, 1e12), 0, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := MeanSinceStart(&tc.cur, tc.capacity)
			if ok != tc.ok || ok && got.CPUNanocores != tc.nanocores {
				t.Errorf("got %v, %v, want %d nanocores, %v", got, ok, tc.nanocores, tc.ok)
			}
		})
	}
}
