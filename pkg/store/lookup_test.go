package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// podsWithEqualHash returns two pods whose keys have the same hash.
func podsWithEqualHash() (a, b podKey) {
	known := map[uint32]podKey{}
	for i := 0; ; i++ {
		b := podKey{"n", fmt.Sprint("pod-", i)}
		if a, ok := known[b.hash()]; ok {
			return a, b
		}
		known[b.hash()] = b
	}
}

// TestPodsAreFound looks up pods in lists of several lengths, and compares with what was stored: among
// others, pods of the same name on other nodes and in other namespaces, and two with equal hashes.
func TestPodsAreFound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s := newStore()
	keys := []usage.PodKey{
		{}, {Node: "node-1"}, {Node: "node-1", Namespace: "n"}, {Node: "none", Namespace: "n", Name: "other-0"},
	}
	want := map[usage.PodKey]bool{}
	equal1, equal2 := podsWithEqualHash()
	for n := range 60 {
		node, start, forgotten := fmt.Sprint("node-", n), 0.0, n%7 == 0
		if n%11 == 0 {
			start = -100 // expired
		}
		pods := []podKey{equal1, equal2}
		for i := range n {
			pods = append(pods, podKey{"n", fmt.Sprint("other-", i)}, podKey{fmt.Sprint("n", i%3), "web-0"})
		}
		slices.SortFunc(pods, func(a, b podKey) int { return strings.Compare(a.namespace+a.name, b.namespace+b.name) })
		pods = slices.Compact(pods)
		random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })

		first, second := scrape(start), scrape(start+15)
		var removed []podKey
		for _, pod := range pods {
			key := usage.PodKey{Node: node, Namespace: pod.namespace, Name: pod.name}
			keys = append(keys, key)
			add := func(sc *usage.Scrape) {
				c := of(pod.name+"/c", sample(sc.At.Sub(t0).Seconds(), 1))
				c.Namespace = []byte(pod.namespace)
				sc.Containers = append(sc.Containers, c)
			}
			switch random.IntN(6) {
			case 0: // unknown
			case 1: // incomplete
				add(second)
			case 2:
				removed = append(removed, pod)
				add(first)
				add(second)
			default:
				want[key] = start == 0 && !forgotten
				add(first)
				add(second)
			}
		}
		s.Put(node, first)
		s.Put(node, second)
		for _, pod := range removed {
			s.RemovePod(node, pod.namespace, pod.name, at(15))
		}
		if forgotten {
			s.Forget(node)
		}
	}
	stale := &usage.Pod{}
	for _, length := range []int{1, 2, usage.ReadAhead - 1, usage.ReadAhead} {
		random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		s.Pods(nil, nil, at(30))
		for keys := range slices.Chunk(keys, length) {
			found := slices.Repeat([]*usage.Pod{stale}, len(keys))
			s.Pods(found, keys, at(30))
			for i, key := range keys {
				switch p := found[i]; {
				case p != s.Pod(key.Node, key.Namespace, key.Name, at(30)):
					t.Errorf("%+v of %d: got another pod than in a lookup of it alone", key, length)
				case (p != nil) != want[key]:
					t.Errorf("%+v of %d: found: %t, want %t", key, length, p != nil, want[key])
				case p != nil && (p.Namespace != key.Namespace || p.Name != key.Name):
					t.Errorf("%+v of %d: got %s/%s", key, length, p.Namespace, p.Name)
				}
			}
		}
	}
}

// TestReadsDuringChanges is for the race detector. It also checks that a lookup returns the pod that was
// requested or none, and that there is nothing of nodes that were forgotten.
func TestReadsDuringChanges(t *testing.T) {
	s := newStore()
	var writers sync.WaitGroup
	for n := range 3 {
		writers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(n), 1))
			node := fmt.Sprint("node-", n)
			for i := range 150 {
				now := float64(i) * 15
				sc := scrape(now)
				for p := range 40 {
					if random.IntN(8) > 0 {
						sc.Containers = append(sc.Containers, of(fmt.Sprintf("pod-%d/c", p), sample(now, now)))
					}
				}
				s.Put(node, sc)
				if random.IntN(20) == 0 {
					s.Forget(node)
				}
			}
			s.Forget(node)
		})
	}
	var keys [usage.ReadAhead]usage.PodKey
	for i := range keys {
		keys[i] = usage.PodKey{Node: fmt.Sprint("node-", i%3), Namespace: "n", Name: fmt.Sprint("pod-", i)}
	}
	found := make([]*usage.Pod, len(keys))
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for i, reading := 0, true; reading; i++ {
		select {
		case <-done:
			reading = false
		default:
		}
		s.Pods(found, keys[:], at(0))
		for i, p := range found {
			if p != nil && (p.Name != keys[i].Name || p.Namespace != keys[i].Namespace) {
				t.Fatalf("got pod %s/%s, want %s/%s", p.Namespace, p.Name, keys[i].Namespace, keys[i].Name)
			}
		}
		key := keys[i%len(keys)]
		s.Pod(key.Node, key.Namespace, key.Name, at(15))
		s.PodFacts(key.Node, key.Namespace, key.Name)
		s.NodeFacts(key.Node)
		s.Stats(at(15))
		if i%8 == 0 {
			s.RemovePod(key.Node, key.Namespace, key.Name, at(15))
		}
	}
	if got := s.Stats(at(0)); got != (Stats{}) {
		t.Errorf("got %+v after all nodes were forgotten, want none", got)
	}
}
