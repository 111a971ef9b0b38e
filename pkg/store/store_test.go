package store

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/leaktest"
	"github.com/kube-vitals/kube-vitals/internal/sim/cases"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	maxAge     = 60 * time.Second
	rateWindow = 15 * time.Second
	t0         = cases.Zero // not a whole second, see usage.Amount.IsShort
)

func at(seconds float64) usage.Time { return t0.Add(time.Duration(seconds * float64(time.Second))) }

// nodeAt is at by the clock of a node that agrees with ours.
func nodeAt(seconds float64) usage.NodeTime { return usage.NodeTime(at(seconds)) }

// sample returns a sample of a container that started long ago, taken a number of seconds after t0.
func sample(seconds, coreSeconds float64) usage.Sample {
	return usage.Sample{
		At: nodeAt(seconds), StartedAt: nodeAt(-3600),
		CPUSeconds: coreSeconds, Memory: 1 << 20, Has: usage.HasCPU | usage.HasMemory,
	}
}

func started(seconds float64, s usage.Sample) usage.Sample { s.StartedAt = nodeAt(seconds); return s }

// rated adds a kubelet-reported rate, in millicores.
func rated(millicores uint64, s usage.Sample) usage.Sample {
	s.Rate, s.Has = millicores*1_000_000, s.Has|usage.HasRate
	return s
}

// of returns a sample of the container pod/container in the namespace "n".
func of(path string, s usage.Sample) usage.ContainerSample {
	pod, name, _ := strings.Cut(path, "/")
	return usage.ContainerSample{Namespace: []byte("n"), Pod: []byte(pod), Name: []byte(name), Sample: s}
}

func scrape(seconds float64, containers ...usage.ContainerSample) *usage.Scrape {
	return &usage.Scrape{At: at(seconds), Containers: containers}
}

// newStoreWith returns a store without a rate window. The API server shows this state of every container.
func newStoreWith(state *usage.ContainerState) *Store {
	return New(Config{MaxSampleAge: maxAge, MaxContainers: 100, State: always(state)})
}

// always returns a Config.State that shows this state of every container.
func always(state *usage.ContainerState) func(_, _, _, _ string) usage.ContainerState {
	return func(_, _, _, _ string) usage.ContainerState { return *state }
}

// The API server shows that all containers run, or that all have ended.
var (
	allRun   = always(&usage.ContainerState{Running: true, Alive: true, EarliestStart: usage.OldestStart * 1e9})
	allEnded = always(&usage.ContainerState{EarliestStart: usage.OldestStart * 1e9})
)

func newStore() *Store { return newWideStore(rateWindow) }

// newWideStore returns a store whose rates should cover a time.
func newWideStore(rateWindow time.Duration) *Store {
	return New(Config{MaxSampleAge: maxAge, RateWindow: rateWindow, MaxContainers: 100, State: allRun})
}

// show returns a pod's metrics as text: its time and window in seconds, and each container's CPU in
// millicores.
func show(p *usage.Pod) string {
	if p == nil {
		return "none"
	}
	var s strings.Builder
	fmt.Fprintf(&s, "at %v window %v:", p.At.AheadOf(t0).Seconds(), p.Window.Seconds())
	for _, c := range p.Containers {
		fmt.Fprintf(&s, " %s=%dm", c.Name, c.CPUNanocores/1_000_000)
	}
	return s.String()
}

func expect(t *testing.T, s *Store, pod string, now float64, want string) {
	t.Helper()
	if got := show(s.Pod("n1", "n", pod, at(now))); got != want {
		t.Errorf("pod %s after %v s:\n got %s\nwant %s", pod, now, got, want)
	}
}

// fill makes sc a scrape of a node at some time, with 30 pods of 2 containers.
func fill(sc *usage.Scrape, node string, now float64) {
	sc.At, sc.Node, sc.Containers = at(now), sample(now, now), sc.Containers[:0]
	for p := range 30 {
		for c := range 2 {
			name := fmt.Sprintf("some-deployment-7d9f8b6c5-%s-%d/container-%d", node, p, c)
			sc.Containers = append(sc.Containers, of(name, sample(now, now/10)))
		}
	}
}

// paces are the times between two samples, in seconds: the default, and such that stores keep a
// history.
var paces = []float64{15, 5}

func BenchmarkPut(b *testing.B) {
	for _, pace := range paces {
		b.Run(fmt.Sprintf("every %v s", pace), func(b *testing.B) {
			sc, s, now := &usage.Scrape{}, newStore(), 0.0
			fill(sc, "0", now)
			b.ReportAllocs()
			for b.Loop() {
				now += pace
				sc.At = at(now)
				sc.Node = sample(now, now)
				for i := range sc.Containers {
					sc.Containers[i].Sample = sample(now, now/10)
				}
				s.Put("n1", sc)
			}
		})
	}
}

// BenchmarkKept reports the memory per container of 1000 nodes with 30 pods of 2 containers, after
// some scrapes.
func BenchmarkKept(b *testing.B) {
	const nodes = 1000
	for _, pace := range paces {
		b.Run(fmt.Sprintf("every %v s", pace), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				s := newStore()
				sc := &usage.Scrape{}
				for i := range 3 {
					for n := range nodes {
						fill(sc, fmt.Sprint(n), float64(i)*pace)
						s.Put(fmt.Sprintf("node-%d", n), sc)
					}
				}
				b.ReportMetric(float64(heap()-before)/float64(nodes*len(sc.Containers)), "B/container")
				runtime.KeepAlive(s)
				runtime.KeepAlive(sc)
			}
		})
	}
}

// heap returns the bytes in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // empties the pools that the first one left
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
