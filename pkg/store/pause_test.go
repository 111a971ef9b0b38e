package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// paused is the time, by our clock, at which it stands still, or at which nodes' clocks are set.
const paused = 100 * time.Second

// simCluster scrapes nodes every 15 seconds, evenly spread. It calls read after each second.
func simCluster(nodes []*simNode, until time.Duration, isUp func(i int, real time.Duration) bool,
	read func(s *Store, real time.Duration),
) {
	s := newStore()
	for real := time.Duration(0); real < until; real += 100 * time.Millisecond {
		for i, n := range nodes {
			offset := (15 * time.Second * time.Duration(i) / time.Duration(len(nodes))).Truncate(100 * time.Millisecond)
			if real%(15*time.Second) == offset && isUp(i, real) {
				s.Put(fmt.Sprint(i), n.scrape(real))
			}
		}
		if real%time.Second == 0 {
			read(s, real)
		}
	}
}

func alwaysUp(int, time.Duration) bool { return true }

// setForward returns nodes with clocks that are wrong, of which each is set at the time paused.
func setForward(by ...time.Duration) []*simNode {
	nodes := make([]*simNode, len(by))
	for i := range nodes {
		nodes[i] = &simNode{ahead: stepsAt([]time.Duration{0, paused}, time.Duration(7*i)*time.Second, by[i])}
	}
	return nodes
}

// TestPause pauses this process for an hour, with one of the nodes. The other nodes' metrics of
// before the pause must not be served for longer than an interval, and new ones after two samples.
func TestPause(t *testing.T) { // rules 3, 8
	const pause, interval = time.Hour, 15 * time.Second
	for _, count := range []int{3, 5, 10} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			by := make([]time.Duration, count)
			for i := 1; i < count; i++ {
				by[i] = pause
			}
			// The last node is down after the pause.
			isUp := func(i int, real time.Duration) bool { return i < count-1 || real < paused }
			if count == 3 {
				isUp = alwaysUp // two of two nodes must agree
			}
			simCluster(setForward(by...), 3*time.Minute, isUp, func(s *Store, real time.Duration) {
				for i := range by {
					name, now := fmt.Sprint(i), t0.Add(real)
					node, pod := s.Node(name, now), s.Pod(name, "n", "p", now)
					found := make([]*usage.Pod, 1)
					s.Pods(found, []usage.PodKey{{Node: name, Namespace: "n", Name: "p"}}, now)
					if found[0] != pod {
						t.Fatalf("after %v: Pods returned %v, Pod %v", real, found[0], pod)
					}
					switch {
					case real <= paused && real > 40*time.Second || real >= paused+3*interval && isUp(i, real):
						if node == nil || pod == nil {
							t.Errorf("after %v: node %s: got none", real, name)
						}
					case real >= paused+interval:
						if node != nil && node.AsOf < t0.Add(paused) || pod != nil && pod.AsOf < t0.Add(paused) {
							t.Errorf("after %v: node %s: got metrics from before the pause", real, name)
						}
					}
				}
				if got := s.Stats(t0.Add(real)); real >= paused+interval && got.OldestPod > 2*interval {
					t.Errorf("after %v: got %+v", real, got)
				}
			})
		})
	}
}

// TestPauseWhileNodesAreDown pauses this process while most nodes have been down for so long that their
// metrics have expired: they do not count.
func TestPauseWhileNodesAreDown(t *testing.T) {
	nodes := setForward(0, time.Hour, time.Hour, time.Hour, 0, 0, 0, 0, 0, 0)
	isUp := func(i int, real time.Duration) bool { return i < 4 || real < 20*time.Second }
	simCluster(nodes, 3*time.Minute, isUp, func(s *Store, real time.Duration) {
		for i := range 4 {
			p := s.Pod(fmt.Sprint(i), "n", "p", t0.Add(real))
			if p != nil && real >= paused+15*time.Second && p.AsOf < t0.Add(paused) {
				t.Errorf("after %v: node %d: got metrics from before the pause", real, i)
			}
		}
	})
}

// TestShortPause pauses this process for less than the maximum age: metrics are served for the rest
// of it.
func TestShortPause(t *testing.T) {
	const pause = 20 * time.Second
	isUp := func(i int, real time.Duration) bool { return i != 0 || real <= 90*time.Second }
	simCluster(setForward(pause, pause, pause, pause), 3*time.Minute, isUp, func(s *Store, real time.Duration) {
		got := s.Pod("0", "n", "p", t0.Add(real))
		if age := real - 90*time.Second; age > maxAge-pause+2*time.Second && got != nil {
			t.Errorf("after %v: got %s", real, show(got))
		} else if real > 40*time.Second && age < maxAge-pause-2*time.Second && got == nil {
			t.Errorf("after %v: got none", real)
		}
	})
}

// TestClocksSetForward sets the clocks of nodes, while ours goes on: their metrics are always served.
func TestClocksSetForward(t *testing.T) { // rule 3
	later := setForward(0, 0, 0, 0)
	for i, n := range later { // by the same time, but at different times
		n.ahead = stepsAt([]time.Duration{paused + time.Duration(i)*45*time.Second}, time.Hour)
	}
	dateless := setForward(time.Hour, time.Hour, time.Hour)
	for _, n := range dateless { // as by an engine, whose one clock all samples have
		n.dateless = true
	}
	for name, nodes := range map[string][]*simNode{
		"the only node":          setForward(time.Hour),
		"one of two":             setForward(time.Hour, 0),
		"half of the nodes":      setForward(time.Hour, time.Hour, 0, 0),
		"two of five":            setForward(0, time.Hour, 0, time.Hour, 0),
		"by different times":     setForward(time.Hour, 2*time.Hour, 3*time.Hour, 4*time.Hour),
		"backwards":              setForward(-time.Hour, -time.Hour, -time.Hour),
		"at different times":     later,
		"without a Date header":  dateless,
		"by a second, together":  setForward(time.Second, time.Second, time.Second),
		"by 5 seconds, together": setForward(5*time.Second, 5*time.Second, 5*time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			simCluster(nodes, 5*time.Minute, alwaysUp, func(s *Store, real time.Duration) {
				for i := range nodes {
					name, now := fmt.Sprint(i), t0.Add(real)
					if real > 40*time.Second && (s.Node(name, now) == nil || s.Pod(name, "n", "p", now) == nil) {
						t.Errorf("after %v: no metrics of node %s", real, name)
					}
				}
			})
		})
	}
}

// TestAgesWithPause pauses this process for an hour, and soon after that for a short time. It checks
// that the facts of samples, and what others ask for, have their age with both pauses.
func TestAgesWithPause(t *testing.T) {
	s := newStore()
	s.Put("n1", scrape(0, of("web/a", sample(0, 1))))
	check := func(now usage.Time, age time.Duration) {
		t.Helper()
		facts, ok := s.PodFacts("n1", "n", "web")
		if !ok {
			t.Fatal("there are no facts of the pod")
		}
		c := facts.Containers[0]
		for what, of := range map[string]usage.Time{"sample": c.SampledAt, "series": c.Since, "time": s.Corrected(t0)} {
			if got := now.Sub(of); got != age {
				t.Errorf("got a %s of %v ago, want %v", what, got, age)
			}
		}
		if got := s.Corrected(now); got != now {
			t.Errorf("got a correction of %v for what is from after the pause", now.Sub(got))
		}
	}
	check(at(20), 20*time.Second)
	for _, pause := range []struct {
		end         usage.Time
		length, age time.Duration
	}{{at(20), time.Hour, time.Hour + 20*time.Second}, {at(40), 5 * time.Second, time.Hour + 45*time.Second}} {
		for node := range 2 {
			noticed := pause.end.Add(time.Duration(node) * time.Second)
			s.pauses.observe(fmt.Sprint(node), jump{noticed, bounds{pause.length, pause.length + time.Second}}, 3)
		}
		check(pause.end, pause.age)
	}
}
