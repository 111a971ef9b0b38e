package usage

import (
	"math"
	"testing"
	"time"
)

const t0 = Time(1_795_205_767 * int64(time.Second))

// cpu returns a sample taken some seconds after t0, of a container that started at startedAt (0:
// not known).
func cpu(seconds, coreSeconds float64, startedAt Time) Sample {
	at := t0.Add(time.Duration(seconds * float64(time.Second)))
	return Sample{At: at, MemoryAt: at, StartedAt: startedAt, CPUSeconds: coreSeconds, Memory: 7 << 20, Has: HasCPU | HasMemory}
}

func TestRate(t *testing.T) {
	const maxWindow = 60 * time.Second
	long := t0.Add(-time.Hour)
	without := func(s Sample, has Has) Sample { s.Has &^= has; return s }
	for _, tc := range []struct {
		name      string
		prev, cur Sample
		verdict   Verdict
		nanocores uint64
		window    time.Duration
	}{
		{"rule 1: the rate is the difference over the kubelet's own time", cpu(0, 100, long), cpu(15, 103, long), Fresh, 200_000_000, 15 * time.Second},
		{"rule 1: no start time", cpu(0, 100, 0), cpu(10, 101, 0), Fresh, 100_000_000, 10 * time.Second},
		{"rule 2: the same timestamp", cpu(0, 100, long), cpu(0, 100, long), Unchanged, 0, 0},
		{"rule 2: the same timestamp with another value", cpu(0, 100, long), cpu(0, 101, long), Unchanged, 0, 0},
		{"too short a window", cpu(0, 100, long), cpu(0.5, 100.4, long), Unchanged, 0, 0},
		{"the shortest window", cpu(0, 100, long), cpu(1, 100.5, long), Fresh, 500_000_000, time.Second},
		{"an older timestamp", cpu(0, 100, long), cpu(-1, 99, long), Older, 0, 0},
		{"rule 4: the counter fell", cpu(0, 100, long), cpu(15, 1, long), Reset, 0, 0},
		{"rule 4: the counter fell within a second", cpu(0, 100, long), cpu(0.5, 1, long), Reset, 0, 0},
		{"rule 4: the start time moved, the counter rose", cpu(0, 1000, long), cpu(15, 1001.5, t0.Add(3*time.Second)), Fresh, 100_000_000, 15 * time.Second},
		{"rule 4: a start time after the sample", cpu(0, 100, long), cpu(15, 103, t0.Add(time.Hour)), Fresh, 200_000_000, 15 * time.Second},
		{"rule 4: a start time since the pod's start (kwok)", cpu(0, 100, Time(12*time.Second)), cpu(15, 103, Time(27*time.Second)), Fresh, 200_000_000, 15 * time.Second},
		{"rule 5: the longest window", cpu(0, 100, long), cpu(60, 106, long), Fresh, 100_000_000, 60 * time.Second},
		{"rule 5: a longer one", cpu(0, 100, long), cpu(60.1, 106, long), Gap, 0, 0},
		{"rule 6: zero is data", cpu(0, 0, long), cpu(15, 0, long), Fresh, 0, 15 * time.Second},
		{"no CPU", cpu(0, 1, long), without(cpu(15, 2, long), HasCPU), Incomplete, 0, 0},
		{"no memory", cpu(0, 1, long), without(cpu(15, 2, long), HasMemory), Incomplete, 0, 0},
		{"a rate that the API cannot carry", cpu(0, 1, long), cpu(1, 1e12, long), Gap, 0, 0},
		{"a counter without end", cpu(0, 1, long), cpu(1, math.Inf(1), long), Gap, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, verdict := Rate(tc.prev, tc.cur, maxWindow)
			if verdict != tc.verdict {
				t.Fatalf("verdict %d, want %d", verdict, tc.verdict)
			}
			if verdict != Fresh {
				return
			}
			want := Amount{CPUNanocores: tc.nanocores, Memory: tc.cur.Memory, At: tc.cur.At, Window: tc.window}
			if got != want {
				t.Errorf("\n got %+v\nwant %+v", got, want)
			}
		})
	}
}

func untimed(s Sample) Sample { s.Untimed = true; return s }

func TestMeanSinceStart(t *testing.T) { // rule 4
	const capacity = 4_000_000_000
	ago := func(d time.Duration) Time { return t0.Add(-d) }
	for _, tc := range []struct {
		name      string
		cur       Sample
		capacity  uint64
		nanocores uint64
		ok        bool
	}{
		{"9.9 s old", cpu(0, 5, ago(9900*time.Millisecond)), capacity, 0, false},
		{"10 s old", cpu(0, 5, ago(10*time.Second)), capacity, 500_000_000, true},
		{"60 s old", cpu(0, 6, ago(60*time.Second)), capacity, 100_000_000, true},
		{"60.1 s old", cpu(0, 6, ago(60100*time.Millisecond)), capacity, 0, false},
		{"start not known", cpu(0, 5, 0), capacity, 0, false},
		{"start after the sample", cpu(0, 5, ago(-time.Hour)), capacity, 0, false},
		{"the sample's time is by another clock", untimed(cpu(0, 5, ago(20*time.Second))), capacity, 0, false},
		{"as much as the node has", cpu(0, 40, ago(10*time.Second)), capacity, 4_000_000_000, true},
		{"more than the node has", cpu(0, 40.1, ago(10*time.Second)), capacity, 0, false},
		{"the node's capacity is not known", cpu(0, 40.1, ago(10*time.Second)), 0, 4_010_000_000, true},
		{"more than the API can carry", cpu(0, 1e12, ago(10*time.Second)), 0, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := MeanSinceStart(tc.cur, tc.capacity)
			if ok != tc.ok || ok && got.CPUNanocores != tc.nanocores {
				t.Errorf("%v, %v, want %d nanocores, %v", got, ok, tc.nanocores, tc.ok)
			}
		})
	}
}

func TestRateServesSwapOnlyWhereThereIsSome(t *testing.T) {
	prev, cur := cpu(0, 1, 0), cpu(15, 1, 0)
	if got, _ := Rate(prev, cur, time.Minute); got.HasSwap || got.Swap != 0 {
		t.Errorf("swap out of nothing: %+v", got)
	}
	cur.Has |= HasSwap
	if got, _ := Rate(prev, cur, time.Minute); !got.HasSwap || got.Swap != 0 {
		t.Errorf("a swap usage of 0 was lost: %+v", got)
	}
	cur.Swap = 42
	if got, _ := Rate(prev, cur, time.Minute); !got.HasSwap || got.Swap != 42 {
		t.Errorf("swap: %+v", got)
	}
}

func TestRateUsesMemoryOfTheCurrentSample(t *testing.T) {
	prev, cur := cpu(0, 1, 0), cpu(15, 1, 0)
	prev.Memory, cur.Memory = 5, 0
	cur.MemoryAt = prev.At // memory has a timestamp of its own, which the Amount does not take
	got, verdict := Rate(prev, cur, time.Minute)
	if verdict != Fresh || got.Memory != 0 || got.At != cur.At {
		t.Errorf("verdict %d, %+v; want 0 bytes at the CPU's time", verdict, got)
	}
}

func TestTimeConversion(t *testing.T) {
	at := time.Date(2026, 11, 20, 20, 16, 7, 486_000_000, time.UTC)
	if got := At(at).Time(); !got.Equal(at) {
		t.Errorf("%v became %v", at, got)
	}
	if At(time.Time{}) != 0 || !Time(0).Time().IsZero() {
		t.Error("the zero time is not kept")
	}
	if got := At(at).Add(time.Second).Sub(At(at)); got != time.Second {
		t.Errorf("Add and Sub differ: %v", got)
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range Reason(NumReasons) {
		if name := r.String(); name == "" || seen[name] {
			t.Errorf("reason %d is called %q", r, name)
		}
		seen[r.String()] = true
	}
}
