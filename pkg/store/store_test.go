package store

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	maxAge     = 60 * time.Second
	rateWindow = 15 * time.Second
	t0         = usage.Time(1_795_205_767 * int64(time.Second))
)

func at(seconds float64) usage.Time { return t0.Add(time.Duration(seconds * float64(time.Second))) }

// sample returns a sample of a container that started long ago, taken a number of seconds after t0.
func sample(seconds, coreSeconds float64) usage.Sample {
	return usage.Sample{
		At: at(seconds), StartedAt: at(-3600),
		CPUSeconds: coreSeconds, Memory: 1 << 20, Has: usage.HasCPU | usage.HasMemory,
	}
}

func started(seconds float64, s usage.Sample) usage.Sample { s.StartedAt = at(seconds); return s }

func untimed(s usage.Sample) usage.Sample { s.Untimed = true; return s }

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

// running returns a Config.State of which only Running is known.
func running(isRunning func(namespace, pod, container string) bool) func(_, _, _, _ string) ContainerState {
	if isRunning == nil {
		return nil
	}
	return func(_, namespace, pod, container string) ContainerState {
		return ContainerState{Running: isRunning(namespace, pod, container)}
	}
}

// newStoreWith returns a store without a rate window. The API server shows this state of every container.
func newStoreWith(state *ContainerState) *Store {
	return New(Config{MaxSampleAge: maxAge, MaxContainers: 100,
		State: func(_, _, _, _ string) ContainerState { return *state }})
}

func newStore() *Store { return newWideStore(rateWindow) }

// newWideStore returns a store whose rates should cover a time.
func newWideStore(rateWindow time.Duration) *Store {
	return New(Config{MaxSampleAge: maxAge, RateWindow: rateWindow, MaxContainers: 100})
}

// show returns a pod's metrics as text: its time and window in seconds, and each container's CPU in
// millicores.
func show(p *usage.Pod) string {
	if p == nil {
		return "none"
	}
	var s strings.Builder
	fmt.Fprintf(&s, "at %v window %v:", p.At.Sub(t0).Seconds(), p.Window.Seconds())
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

// TestPods puts scrapes of one node and reads a pod after each of them.
func TestPods(t *testing.T) {
	type step struct {
		containers []usage.ContainerSample
		want       string
	}
	type list = []usage.ContainerSample
	noCPU := func(seconds float64) usage.Sample {
		s := sample(seconds, 0)
		s.Has = usage.HasMemory
		return s
	}
	for _, tc := range []struct {
		name  string
		steps []step // every 15 s
	}{
		{"a rate needs two samples", []step{
			{list{of("p/a", sample(0, 10)), of("p/b", sample(1, 20))}, "none"},
			// rule 6: zero is data; the time is that of the oldest container
			{list{of("p/a", sample(15, 11.5)), of("p/b", sample(16, 20))}, "at 15 window 15: a=100m b=0m"},
		}},
		{"rule 2: a repeated sample keeps its time", []step{
			{list{of("p/a", sample(0, 10))}, "none"},
			{list{of("p/a", sample(10, 11))}, "at 10 window 10: a=100m"},
			{list{of("p/a", sample(10, 11))}, "at 10 window 10: a=100m"},
			{list{of("p/a", sample(40, 17))}, "at 40 window 30: a=200m"},
		}},
		{"rules 4, 7: a restart keeps the last complete snapshot", []step{
			{list{of("p/a", sample(0, 10)), of("p/b", sample(0, 5))}, "none"},
			{list{of("p/a", sample(15, 11.5)), of("p/b", sample(15, 6.5))}, "at 15 window 15: a=100m b=100m"},
			{list{of("p/a", started(27, sample(30, 0.1))), of("p/b", sample(30, 9.5))}, "at 15 window 15: a=100m b=100m"},
			{list{of("p/a", started(27, sample(45, 3.1))), of("p/b", sample(45, 9.5))}, "at 45 window 15: a=200m b=0m"},
			// 12 s after a restart, the mean since the start is served at once.
			{list{of("p/a", started(48, sample(60, 2.4))), of("p/b", sample(60, 9.5))}, "at 60 window 12: a=200m b=0m"},
		}},
		{"rule 7: a whole pod or none", []step{
			{list{of("p/a", sample(0, 10))}, "none"},
			{list{of("p/a", sample(15, 11.5))}, "at 15 window 15: a=100m"},
			{list{of("p/a", sample(30, 13)), of("p/b", started(28, sample(30, 1)))}, "at 15 window 15: a=100m"},
			{list{of("p/a", sample(45, 14.5)), of("p/b", noCPU(45))}, "at 15 window 15: a=100m"},
			{list{of("p/a", sample(60, 16)), of("p/b", started(28, sample(60, 4)))}, "at 60 window 15: a=100m b=100m"},
			// A container that ended leaves the pod, even if nothing else is new.
			{list{of("p/b", started(28, sample(60, 4)))}, "at 60 window 30: b=100m"},
		}},
		{"rule 9: a pod that ended", []step{
			{list{of("p/a", sample(0, 10)), of("q/a", sample(0, 10))}, "none"},
			{list{of("p/a", sample(15, 11.5)), of("q/a", sample(15, 10))}, "at 15 window 15: a=100m"},
			{list{of("o/a", started(18, sample(30, 6))), of("q/a", sample(30, 13))}, "none"},
		}},
		{"rule 9: a new pod", []step{
			{list{of("q/a", sample(0, 10))}, "none"},
			{list{of("q/a", sample(15, 11.5))}, "none"},
			{list{of("p/a", started(18, sample(30, 6))), of("q/a", sample(30, 13))}, "at 30 window 12: a=500m"},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStore()
			for i, step := range tc.steps {
				now := float64(15 * i)
				s.Put("n1", scrape(now, step.containers...))
				expect(t, s, "p", now, step.want)
			}
		})
	}
}

func TestUnknownPods(t *testing.T) {
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 10))))
	s.Put("n1", scrape(15, of("p/a", sample(15, 11.5))))
	expect(t, s, "p", 15, "at 15 window 15: a=100m")
	for _, key := range [][3]string{{"n1", "other", "p"}, {"n1", "n", "q"}, {"n2", "n", "p"}} {
		if got := s.Pod(key[0], key[1], key[2], at(15)); got != nil {
			t.Errorf("%v: got %s, want none", key, show(got))
		}
	}
	expect(t, s, "p", 75, "at 15 window 15: a=100m") // rule 8
	expect(t, s, "p", 75.1, "none")
	s.Forget("n1")
	expect(t, s, "p", 15, "none")
	if got := s.Stats(at(15)); got != (Stats{}) {
		t.Errorf("after Forget: got %+v, want none", got)
	}
	s.Forget("n1") // an unknown node
}

func TestNodeMetrics(t *testing.T) {
	s := newStore()
	put := func(seconds, core float64) {
		s.Put("n1", &usage.Scrape{At: at(seconds), Node: sample(seconds, core)})
	}
	put(0, 100)
	if s.Node("n1", at(0)) != nil {
		t.Error("got a rate from one sample")
	}
	put(10, 120)
	n := s.Node("n1", at(10))
	if n == nil || n.Name != "n1" || n.CPUNanocores != 2e9 || n.Window != 10*time.Second || n.Memory != 1<<20 {
		t.Fatalf("got %+v, want 2 cores over 10s", n)
	}
	s.Put("n1", scrape(20)) // a response without the node
	if s.Node("n1", at(70)) != n || s.Node("n1", at(70.1)) != nil {
		t.Error("the node's metrics do not expire at the maximum age")
	}
	put(80, 121)
	if s.Node("n1", at(80)) != nil {
		t.Error("got a rate over 70 s") // rule 5
	}
	put(90, 131)
	if n := s.Node("n1", at(90)); n == nil || n.CPUNanocores != 1e9 {
		t.Errorf("got %+v, want a rate from the second sample after the gap", n)
	}
	s.Forget("n1")
	if s.Node("n1", at(90)) != nil {
		t.Error("a forgotten node is served") // rule 9
	}
}

// TestOlderSamples has kubelets without Date headers. Single older samples are ignored; several in
// a row show that the node's clock was set back.
func TestOlderSamples(t *testing.T) { // rule 3
	s := newStore()
	put := func(now, sampled, coreSeconds float64, want string) {
		t.Helper()
		s.Put("n1", scrape(now, of("p/a", sample(sampled, coreSeconds))))
		expect(t, s, "p", now, want)
	}
	put(0, 0, 10, "none")
	put(15, 15, 11.5, "at 15 window 15: a=100m")
	for i := range 6 {
		now := 30 + 15*float64(i)
		put(now, now-40, 1, fmt.Sprintf("at %v window 15: a=100m", now-15))
		put(now, now, 11.5+1.5*float64(i+1), fmt.Sprintf("at %v window 15: a=100m", now))
	}
	if got, want := s.Counts(), (Counts{OlderSamples: 6, Baselines: 1}); got != want {
		t.Errorf("single older samples: got %+v, want %+v", got, want)
	}

	s = newStore()
	put(0, 40, 10, "none")
	put(15, 55, 11.5, "at 55 window 15: a=100m")
	for _, now := range []float64{20, 25, 30} {
		put(now, now, 13, "at 55 window 15: a=100m")
	}
	put(40, 40, 15, "at 40 window 10: a=200m")
	if got, want := s.Counts(), (Counts{OlderSamples: 3, ClockStepsBack: 1, Baselines: 2}); got != want {
		t.Errorf("a clock that was set back: got %+v, want %+v", got, want)
	}
}

// TestPodIsReadFromItsNode is rule 10: what other nodes report of a pod is never served for it.
func TestPodIsReadFromItsNode(t *testing.T) {
	s := newStore()
	put := func(node string, seconds, startedAt, core float64) {
		s.Put(node, scrape(seconds, of("p/a", started(startedAt, sample(seconds, core)))))
	}
	read := func(node string, now float64, want string) {
		t.Helper()
		if got := show(s.Pod(node, "n", "p", at(now))); got != want {
			t.Errorf("on %s after %v s: got %s, want %s", node, now, got, want)
		}
	}
	put("bound", 0, -1000, 10)
	put("bound", 15, -1000, 25)
	put("cut off", 0, -1000, 10)
	put("cut off", 15, -1000, 10.15)
	put("cut off", 30, 17, 0.13) // its container restarts there
	put("cut off", 45, 17, 0.28)
	read("bound", 45, "at 15 window 15: a=1000m")
	read("cut off", 45, "at 45 window 15: a=10m")
	s.Put("cut off", scrape(50))
	s.Forget("cut off")
	read("bound", 50, "at 15 window 15: a=1000m")
	read("cut off", 50, "none")
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
			s.config.State = func(_, _, _, _ string) ContainerState {
				return ContainerState{Running: true, EarliestStart: at(-3600)}
			}
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

func BenchmarkPod(b *testing.B) {
	s := newStore()
	var keys [][2]string
	for n := range 1000 {
		for i := range 2 {
			sc := scrape(float64(i * 15))
			for p := range 30 {
				sc.Containers = append(sc.Containers, of(fmt.Sprintf("pod-%d-%d/a", n, p), sample(float64(i*15), 0)))
			}
			s.Put(fmt.Sprint(n), sc)
		}
		for p := range 30 {
			keys = append(keys, [2]string{fmt.Sprint(n), fmt.Sprintf("pod-%d-%d", n, p)})
		}
	}
	i := 0
	for b.Loop() {
		if key := &keys[i%len(keys)]; s.Pod(key[0], "n", key[1], at(15)) == nil {
			b.Fatal("none")
		}
		i++
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

// TestStartMovesInStartUp is rule 4: a start time that is just before each sample does not keep a
// container in its start-up.
func TestStartMovesInStartUp(t *testing.T) {
	s := newStoreWith(&ContainerState{Running: true, EarliestStart: at(1000)}) // not known yet by this clock
	for now := 0.0; now <= 60; now += 8 {
		s.Put("n1", scrape(now, of("p/a", started(now-3, sample(now, now/10)))))
		if now > 24 && s.Pod("n1", "n", "p", at(now)) == nil {
			t.Errorf("after %v s: the pod is not served", now)
		}
	}
}
