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
	maxAge = 60 * time.Second
	t0     = usage.Time(1_795_205_767 * int64(time.Second))
)

func at(seconds float64) usage.Time { return t0.Add(time.Duration(seconds * float64(time.Second))) }

// sample is one of a container that started long ago, taken at a number of seconds after t0.
func sample(seconds, coreSeconds float64) usage.Sample {
	return usage.Sample{At: at(seconds), MemoryAt: at(seconds), StartedAt: t0.Add(-time.Hour), CPUSeconds: coreSeconds, Memory: 1 << 20, Has: usage.HasCPU | usage.HasMemory}
}

func started(seconds float64, s usage.Sample) usage.Sample { s.StartedAt = at(seconds); return s }

// of returns a sample of the container that path names: pod/container, in the namespace "n".
func of(path string, s usage.Sample) usage.ContainerSample {
	pod, name, _ := strings.Cut(path, "/")
	return usage.ContainerSample{Namespace: []byte("n"), Pod: []byte(pod), Name: []byte(name), Sample: s}
}

func scrape(seconds float64, containers ...usage.ContainerSample) *usage.Scrape {
	return &usage.Scrape{At: at(seconds), Containers: containers}
}

func newStore() *Store { return New(Config{MaxSampleAge: maxAge, MaxContainers: 100}) }

// show returns a pod's metrics as text: its time and window in seconds, each container's CPU in
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
		t.Errorf("pod %s %v s after the start:\n got %s\nwant %s", pod, now, got, want)
	}
}

func TestRatesComeFromTwoScrapes(t *testing.T) {
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 10)), of("p/b", sample(1, 20))))
	expect(t, s, "p", 0, "none")
	s.Put("n1", scrape(15, of("p/a", sample(15, 11.5)), of("p/b", sample(16, 20))))
	expect(t, s, "p", 15, "at 15 window 15: a=100m b=0m") // rule 6: zero is data; the time is that of the oldest container
	if s.Pod("n1", "other", "p", at(15)) != nil || s.Pod("n1", "n", "q", at(15)) != nil || s.Pod("n2", "n", "p", at(15)) != nil {
		t.Error("a pod that was not reported is served")
	}
}

func TestNodeMetrics(t *testing.T) {
	s := newStore()
	put := func(seconds, core float64) {
		s.Put("n1", &usage.Scrape{At: at(seconds), Node: sample(seconds, core)})
	}
	put(0, 100)
	if s.Node("n1", at(0)) != nil {
		t.Error("a rate out of one sample")
	}
	put(10, 120)
	n := s.Node("n1", at(10))
	if n == nil || n.Name != "n1" || n.CPUNanocores != 2e9 || n.Window != 10*time.Second || n.Memory != 1<<20 {
		t.Fatalf("node %+v", n)
	}
	s.Put("n1", scrape(20)) // the response does not mention the node: what is known ages
	if s.Node("n1", at(70)) != n || s.Node("n1", at(70.1)) != nil {
		t.Error("the node's metrics are not served for just the maximum age")
	}
	put(80, 121)
	if s.Node("n1", at(80)) != nil {
		t.Error("a rate over 70 s is served") // rule 5
	}
	put(90, 131)
	if n := s.Node("n1", at(90)); n == nil || n.CPUNanocores != 1e9 {
		t.Errorf("the node is not back with its second sample: %+v", n)
	}
	s.Forget("n1")
	if s.Node("n1", at(90)) != nil {
		t.Error("a forgotten node is served") // rule 9
	}
}

func TestRepeatedSampleKeepsItsTime(t *testing.T) { // rule 2
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 10))))
	s.Put("n1", scrape(15, of("p/a", sample(10, 11))))
	s.Put("n1", scrape(30, of("p/a", sample(10, 11))))
	expect(t, s, "p", 30, "at 10 window 10: a=100m")
	s.Put("n1", scrape(45, of("p/a", sample(40, 17))))
	expect(t, s, "p", 45, "at 40 window 30: a=200m")
}

// TestSamplesThatGoOnBeingOlder is the fallback for kubelets that send no Date header.
func TestSamplesThatGoOnBeingOlder(t *testing.T) { // rule 3
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(40, 10))))
	s.Put("n1", scrape(15, of("p/a", sample(55, 11.5))))
	want := "at 55 window 15: a=100m"
	for i := range 3 {
		s.Put("n1", scrape(20+float64(i)*5, of("p/a", sample(20+float64(i)*5, 13))))
		expect(t, s, "p", 20+float64(i)*5, want)
	}
	s.Put("n1", scrape(40, of("p/a", sample(40, 15))))
	expect(t, s, "p", 40, "at 40 window 10: a=200m")
	if c := s.Counts(); c.OlderSamples != 3 || c.ClockStepsBack != 1 {
		t.Errorf("%+v", c)
	}
}

func TestOneOlderSampleIsIgnored(t *testing.T) { // rule 3
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 10))))
	s.Put("n1", scrape(15, of("p/a", sample(15, 11.5))))
	for i := range 6 {
		now := 30 + 15*float64(i)
		s.Put("n1", scrape(now, of("p/a", sample(now-40, 1))))
		s.Put("n1", scrape(now, of("p/a", sample(now, 11.5+1.5*float64(i+1)))))
		expect(t, s, "p", now, fmt.Sprintf("at %v window 15: a=100m", now))
	}
	if c := s.Counts(); c.ClockStepsBack != 0 || c.OlderSamples != 6 {
		t.Errorf("%+v", c)
	}
}

func TestRestartKeepsTheLastCompleteSnapshot(t *testing.T) { // rules 4, 7
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 10)), of("p/b", sample(0, 5))))
	s.Put("n1", scrape(15, of("p/a", sample(15, 11.5)), of("p/b", sample(15, 6.5))))
	s.Put("n1", scrape(30, of("p/a", started(27, sample(30, 0.1))), of("p/b", sample(30, 9.5))))
	expect(t, s, "p", 30, "at 15 window 15: a=100m b=100m")
	s.Put("n1", scrape(45, of("p/a", started(27, sample(45, 3.1))), of("p/b", sample(45, 9.5))))
	expect(t, s, "p", 45, "at 45 window 15: a=200m b=0m")
	// 12 s after a restart the mean since the start serves at once.
	s.Put("n1", scrape(60, of("p/a", started(48, sample(60, 2.4))), of("p/b", sample(60, 9.5))))
	expect(t, s, "p", 60, "at 60 window 12: a=200m b=0m")
}

func TestWholePodOrNone(t *testing.T) { // rule 7
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 10))))
	s.Put("n1", scrape(15, of("p/a", sample(15, 11.5))))
	s.Put("n1", scrape(30, of("p/a", sample(30, 13)), of("p/b", started(28, sample(30, 1)))))
	expect(t, s, "p", 30, "at 15 window 15: a=100m")
	noCPU := sample(45, 0)
	noCPU.Has = usage.HasMemory
	s.Put("n1", scrape(45, of("p/a", sample(45, 14.5)), of("p/b", noCPU)))
	expect(t, s, "p", 45, "at 15 window 15: a=100m")
	s.Put("n1", scrape(60, of("p/a", sample(60, 16)), of("p/b", started(28, sample(60, 4)))))
	expect(t, s, "p", 60, "at 60 window 15: a=100m b=100m")
	// A container that is gone from the scrape is gone from the pod, even if nothing else is new.
	s.Put("n1", scrape(75, of("p/b", started(28, sample(60, 4)))))
	expect(t, s, "p", 75, "at 60 window 30: b=100m")
}

func TestNeverOlderThanTheMaximumAge(t *testing.T) { // rule 8
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 10))))
	s.Put("n1", scrape(15, of("p/a", sample(15, 11.5))))
	expect(t, s, "p", 75, "at 15 window 15: a=100m")
	expect(t, s, "p", 75.1, "none")
}

func TestPodsComeAndGo(t *testing.T) { // rule 9
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 10)), of("q/a", sample(0, 10))))
	s.Put("n1", scrape(15, of("p/a", sample(15, 11.5)), of("q/a", sample(15, 10))))
	expect(t, s, "q", 15, "at 15 window 15: a=0m")
	s.Put("n1", scrape(30, of("o/a", started(18, sample(30, 6))), of("p/a", sample(30, 13))))
	expect(t, s, "q", 30, "none")
	expect(t, s, "o", 30, "at 30 window 12: a=500m")
	expect(t, s, "p", 30, "at 30 window 15: a=100m")
	s.Forget("n1")
	expect(t, s, "p", 30, "none")
	if st := s.Stats(at(30)); st != (Stats{}) {
		t.Errorf("after Forget: %+v", st)
	}
	s.Forget("n1") // a node that is not known
}

func TestUnreadableLinesProveNothing(t *testing.T) {
	s := newStore()
	both := func(now float64) []usage.ContainerSample {
		return []usage.ContainerSample{of("p/a", sample(now, now/10)), of("p/b", sample(now, 0)), of("q/a", sample(now, 0))}
	}
	s.Put("n1", scrape(0, both(0)...))
	s.Put("n1", scrape(15, both(15)...))
	partial := scrape(30, both(30)[:1]...)
	partial.Partial = true
	s.Put("n1", partial)
	expect(t, s, "p", 30, "at 15 window 15: a=100m b=0m") // as old as its oldest container: the pod is whole
	expect(t, s, "q", 30, "at 15 window 15: a=0m")
	s.Put("n1", scrape(45, both(45)...))
	expect(t, s, "p", 45, "at 45 window 15: a=100m b=0m")
	// What is not mentioned for longer than the maximum age is forgotten, and so is what exceeds
	// the bound.
	late := scrape(200, both(200)[:1]...)
	late.Partial = true
	s.Put("n1", late)
	if n := len(s.nodes["n1"].containers); n != 1 {
		t.Errorf("%d containers are kept, want 1", n)
	}
}

func TestPartialScrapesCannotGrowANode(t *testing.T) {
	s := New(Config{MaxSampleAge: maxAge, MaxContainers: 10})
	for i := range 100 {
		now := float64(i) / 10
		partial := scrape(now, of(fmt.Sprintf("p%d/a", i), started(now-20, sample(now, 1))))
		partial.Partial = true
		s.Put("n1", partial)
	}
	if n := len(s.nodes["n1"].containers); n > 10 {
		t.Errorf("%d containers are kept, want 10 at the most", n)
	}
}

// TestAPodIsReadFromItsNode is rule 10: what other nodes report of a pod is never served for it.
func TestAPodIsReadFromItsNode(t *testing.T) {
	s := newStore()
	put := func(node string, seconds, startedAt, core float64) {
		s.Put(node, scrape(seconds, of("p/a", started(startedAt, sample(seconds, core)))))
	}
	read := func(node string, now float64, want string) {
		t.Helper()
		if got := show(s.Pod(node, "n", "p", at(now))); got != want {
			t.Errorf("on %s after %v s: %s, want %s", node, now, got, want)
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

func TestStats(t *testing.T) {
	s := newStore()
	for i := range 2 {
		now := 15 * float64(i)
		s.Put("n1", &usage.Scrape{At: at(now), Node: sample(now, now), Containers: []usage.ContainerSample{
			of("p/a", sample(now, 0)), of("p/b", sample(now, 0)), of("q/a", sample(now, 0))}})
	}
	want := Stats{Nodes: 1, Pods: 2, Containers: 3, OldestNode: 5 * time.Second, OldestPod: 5 * time.Second}
	if got := s.Stats(at(20)); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := s.Stats(at(100)); got != (Stats{}) {
		t.Errorf("expired metrics are counted: %+v", got)
	}
}

// TestReadsAndScrapesAtOnce is for the race detector.
func TestReadsAndScrapesAtOnce(t *testing.T) {
	s := newStore()
	done := make(chan struct{})
	for n := range 4 {
		go func() {
			name := fmt.Sprint("n", n)
			for i := range 200 {
				now := float64(i) * 15
				s.Put(name, scrape(now, of("shared/a", sample(now, now)), of(name+"/a", sample(now, now))))
			}
			s.Forget(name)
			done <- struct{}{}
		}()
	}
	for range 4 {
		for reading := true; reading; {
			select {
			case <-done:
				reading = false
			default:
				s.Pod("n1", "n", "shared", at(15))
				s.RemovePod("n1", "n", "n1", at(15))
				s.Stats(at(15))
			}
		}
	}
	if st := s.Stats(at(0)); st != (Stats{}) {
		t.Errorf("after all nodes were forgotten: %+v", st)
	}
}

func BenchmarkPut(b *testing.B) {
	var now float64
	sc := &usage.Scrape{}
	for p := range 30 {
		for c := range 2 {
			sc.Containers = append(sc.Containers, of(fmt.Sprintf("some-deployment-7d9f8b6c5-%05d/container-%d", p, c), sample(0, 0)))
		}
	}
	s := newStore()
	b.ReportAllocs()
	for b.Loop() {
		now += 15
		sc.At = at(now)
		sc.Node = sample(now, now)
		for i := range sc.Containers {
			sc.Containers[i].Sample = sample(now, now/10)
		}
		s.Put("n1", sc)
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
	const nodes, pods = 1000, 30
	for b.Loop() {
		before := heap()
		s := newStore()
		sc := &usage.Scrape{}
		for round := range 3 {
			now := float64(round * 15)
			sc.At, sc.Node = at(now), sample(now, now)
			for n := range nodes {
				sc.Containers = sc.Containers[:0]
				for p := range pods {
					for c := range 2 {
						sc.Containers = append(sc.Containers, of(fmt.Sprintf("some-deployment-7d9f8b6c5-%d-%d/container-%d", n, p, c), sample(now, now/10)))
					}
				}
				s.Put(fmt.Sprintf("node-%d", n), sc)
			}
		}
		b.ReportMetric(float64(heap()-before)/(nodes*pods*2), "B/container")
		runtime.KeepAlive(s)
		runtime.KeepAlive(sc)
	}
}

// heap returns the bytes that are in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what a first one finds in pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestOnePodOfManyContainers has a hostile kubelet report all containers of one pod, others each
// time and in reverse order. With a time that grows with the square of their number, it takes a
// minute or more.
func TestOnePodOfManyContainers(t *testing.T) { // rule 11
	const containers = 32768
	s := New(Config{MaxSampleAge: maxAge, MaxContainers: containers})
	began := time.Now()
	for i := range 3 {
		sc := scrape(float64(15 * i))
		for c := range containers {
			sc.Containers = append(sc.Containers, of(fmt.Sprintf("p/%d-%d", i, 99999-c), sample(float64(15*i), 1)))
		}
		s.Put("n1", sc)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("three scrapes took %v", took)
	}
}

// TestMemoryOfPodsThatAreGone has pods come and go for days on a node whose scrapes all fail, or
// are all partial.
func TestMemoryOfPodsThatAreGone(t *testing.T) { // rule 11
	const pods = 20_000
	t.Run("failing", func(t *testing.T) {
		s := newStore()
		s.Put("n1", scrape(0, of("p/a", sample(0, 100))))
		for i := range pods {
			s.RemovePod("n1", "n", fmt.Sprint("job", i), at(float64(10*i)))
		}
		if n := len(s.node("n1").removed); n > maxRemoved {
			t.Errorf("%d removed pods are remembered", n)
		}
	})
	t.Run("partial", func(t *testing.T) {
		s := New(Config{MaxSampleAge: maxAge, MaxContainers: pods})
		for i := range pods {
			now, job := float64(15*i), fmt.Sprint("job", i)
			sc := scrape(now, of(job+"/a", sample(now, 1)))
			sc.Partial = true
			s.Put("n1", sc)
			s.RemovePod("n1", "m", job, at(now))
		}
		if n := s.node("n1"); len(n.removed) > 20 || len(n.ended) > 20 {
			t.Errorf("%d removed pods and %d ended containers are remembered", len(n.removed), len(n.ended))
		}
	})
}
