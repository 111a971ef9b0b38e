package store

import (
	"fmt"
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestBase puts samples whose source knows the readings that their rates start at.
func TestBase(t *testing.T) { // rule 4
	from := func(second, coreSeconds float64, s usage.Sample) usage.Sample {
		s.Base = usage.Reading{At: nodeAt(second), CPUSeconds: coreSeconds}
		return s
	}
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 100))))
	s.Put("n1", scrape(15, of("p/a", sample(15, 101.5))))
	expect(t, s, "p", 15, "at 15 window 15: a=100m")
	s.Put("n1", scrape(45, of("p/a", from(30, 200, sample(30, 200))))) // another counter: not 6.6 cores
	expect(t, s, "p", 45, "at 15 window 15: a=100m")
	s.Put("n1", scrape(45, of("p/a", sample(45, 203))))
	expect(t, s, "p", 45, "at 45 window 15: a=200m")
	s.Put("n1", scrape(60, of("p/a", from(40, 7, sample(55, 13))))) // the other replica of a scraper
	expect(t, s, "p", 60, "at 55 window 15: a=400m")
	s.Put("n1", scrape(70, of("p/a", from(10, 4, sample(70, 22))))) // times of scrapes
	expect(t, s, "p", 70, "at 70 window 60: a=300m")
	s.Put("n2", scrape(0, of("p/a", from(0, 1, sample(0, 1))))) // the first of a container
	s.Put("n2", scrape(15, of("p/a", sample(15, 4)), of("p/b", from(0, 0.5, sample(15, 2)))))
	if got, want := show(s.Pod("n2", "n", "p", at(15))), "at 15 window 15: a=200m b=100m"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestOmittedContainersAreLimited has scrapes that mention others of many containers, which all run.
func TestOmittedContainersAreLimited(t *testing.T) { // rule 12
	s := New(Config{MaxSampleAge: maxAge, MaxContainers: 10, State: allRun})
	for i := range 100 {
		now := float64(i) / 10
		s.Put("n1", scrape(now, of(fmt.Sprintf("p%d/a", i), started(now-20, sample(now, 1)))))
	}
	if n := len(s.nodes["n1"].containers); n > 10 {
		t.Errorf("got %d containers, want at most 10", n)
	}
}

// TestOnePodWithManyContainers has a hostile kubelet that reports one pod with the largest number
// of containers, with new names each time and in reverse order. The CPU time must not grow with the
// square of their number: four times the containers would then take sixteen times as long.
func TestOnePodWithManyContainers(t *testing.T) { // rule 12
	testenv.CheckLinear(t, func(containers int, start func()) {
		start()
		s := New(Config{MaxSampleAge: maxAge, MaxContainers: containers, State: allEnded})
		for i := range 3 {
			sc := scrape(float64(15 * i))
			for c := range containers {
				sc.Containers = append(sc.Containers, of(fmt.Sprintf("p/%d-%d", i, 99999-c), sample(float64(15*i), 1)))
			}
			s.Put("n1", sc)
		}
	})
}

// TestMemoryOfRemovedPods has pods come and go for days on a node whose scrapes all fail, or are
// all partial.
func TestMemoryOfRemovedPods(t *testing.T) { // rule 12
	const pods = 3 * maxRemoved
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
	t.Run("clock set back again and again", func(t *testing.T) { // so that start times are ambiguous for ever
		s := newStore()
		for i := range pods {
			sc := scrape(float64(15*i), of("p/a", sample(float64(-5*i), 100)))
			sc.Sent, sc.Date = sc.At, nodeAt(float64(-5*i))
			s.Put("n1", sc)
			s.RemovePod("n1", "n", fmt.Sprint("job", i), sc.At)
		}
		n := s.node("n1")
		if !n.clock.isAmbiguous(n.clock.at) {
			t.Fatal("the clock is not ambiguous")
		}
		if len(n.removed) > 50 {
			t.Errorf("%d removed pods are remembered", len(n.removed))
		}
	})
	t.Run("partial", func(t *testing.T) {
		s := New(Config{MaxSampleAge: maxAge, MaxContainers: pods, State: allEnded})
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

// TestManyRecentRemovals checks that many removals within rememberFor forget nothing: new pods do not look as if
// they had been overlooked.
func TestManyRecentRemovals(t *testing.T) {
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 100))))
	for i := range 3 * maxRemoved {
		s.RemovePod("n1", "n", fmt.Sprint("job", i), at(float64(i)/100))
	}
	if n := s.node("n1"); n.completeAt == 0 || len(n.removed) != 3*maxRemoved {
		t.Errorf("%d of %d removals are remembered", len(n.removed), 3*maxRemoved)
	}
}

// BenchmarkRemovePod removes pods of a node where many pods were removed, and many containers have ended, within
// two minutes.
func BenchmarkRemovePod(b *testing.B) {
	s := New(Config{MaxSampleAge: maxAge, MaxContainers: 20_000, State: allEnded})
	sc := scrape(0, of("p/a", sample(0, 100)))
	for i := range 20_000 {
		sc.Containers = append(sc.Containers, of(fmt.Sprintf("pod%d/a", i), sample(0, 1)))
	}
	s.Put("n1", sc)
	s.Put("n1", scrape(15, of("p/a", sample(15, 101))))
	names := make([]string, 20_000)
	for i := range names {
		names[i] = fmt.Sprint("job", i)
	}
	for i := 0; b.Loop(); i++ {
		s.RemovePod("n1", "n", names[i%len(names)], at(20))
	}
}
