package scrape

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/health"
)

// activeNodes is what most tests configure: with few active nodes, the resolution is 5 s.
var activeNodes = Active{Resolution: 5 * time.Second, Budget: 2}

// after returns the times after t.
func after(times []time.Duration, t time.Duration) []time.Duration {
	i := slices.IndexFunc(times, func(at time.Duration) bool { return at > t })
	if i < 0 {
		return nil
	}
	return times[i:]
}

// times returns when a node was scraped so far.
func (c *cluster) times(node string) []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.scrapes[node])
}

func gaps(times []time.Duration) []time.Duration {
	var gaps []time.Duration
	for i := 1; i < len(times); i++ {
		gaps = append(gaps, times[i]-times[i-1])
	}
	return gaps
}

// setNodes sets n nodes with the names n0, n1, … and returns the names.
func setNodes(s *Scraper, n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint("n", i))
		s.Set(node(names[i]))
	}
	return names
}

func TestActiveNodeIsScrapedMoreOften(t *testing.T) {
	run(t, Config{Active: activeNodes}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		names := setNodes(s, 20)
		pass(2 * interval)
		s.NoteRead(slices.Values([]string{"n7", "unknown", "", "n7"}))
		read := time.Since(c.start)
		pass(activeFor - time.Second) // a scrape at the very end finds that the node is not active any more
		scrapes := after(c.times("n7"), read-1)
		if scrapes[0] > read+5*time.Second {
			t.Errorf("the first scrape came %v after the read", scrapes[0]-read)
		}
		if all := gaps(scrapes); slices.ContainsFunc(all, func(gap time.Duration) bool { return gap != 5*time.Second }) {
			t.Errorf("got %v between two scrapes of the active node, want 5s", all)
		}
		if got := s.ActiveStats(); got.Nodes != 1 || got.Resolution != 5*time.Second {
			t.Errorf("got %+v, want one node each 5 s", got)
		}
		status, _ := s.Node("n7")
		if all := s.Nodes(); !status.Active || slices.IndexFunc(all, func(n health.Node) bool { return n.Active }) < 0 {
			t.Errorf("got %+v, want a status of an active node", status)
		}
		if other, _ := s.Node("n8"); other.Active {
			t.Errorf("got %+v, want a status of a node that is not active", other)
		}
		kinds := map[Kind]int{}
		c.mu.Lock()
		results := slices.Clone(c.results)
		c.mu.Unlock()
		for _, r := range results {
			kinds[r.Kind]++
			if r.Kind != Regular && r.Node != "n7" {
				t.Errorf("scraped %s as %v", r.Node, r.Kind)
			}
		}
		// The first scrape is a regular one if that was due soon anyway.
		if n := kinds[OfActive]; n != len(scrapes) && n != len(scrapes)-1 {
			t.Errorf("got %v, want %d scrapes of active nodes, or one less", kinds, len(scrapes))
		}

		pass(interval) // nothing was read any more
		end := time.Since(c.start)
		pass(4 * interval)
		for _, name := range names {
			if n := len(after(c.times(name), end)); n != 4 {
				t.Errorf("%s: got %d scrapes in 4 intervals after the last read", name, n)
			}
		}
		if got := s.ActiveStats(); got.Nodes != 0 {
			t.Errorf("got %+v, want no active nodes", got)
		}
	})
}

func TestNoNodeIsActiveWithoutAResolution(t *testing.T) {
	run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		names := setNodes(s, 3)
		for range 12 {
			s.NoteRead(slices.Values(names))
			pass(interval / 4)
		}
		if n := len(c.times("n1")); n > 7 {
			t.Errorf("got %d scrapes in 5 intervals", n)
		}
		if got := s.ActiveStats(); got.Nodes != 0 {
			t.Errorf("got %+v", got)
		}
	})
}

// TestActiveBudget checks that all nodes together are scraped at most Budget times as often as without
// active nodes, in small clusters a little more often, and that active nodes have equal shares.
func TestActiveBudget(t *testing.T) {
	for _, tc := range []struct {
		budget        float64
		nodes, active int
		want          time.Duration // resolution
	}{
		{1, 10, 10, interval},
		{1, 10, 1, interval},
		{1.5, 20, 20, 10 * time.Second},
		{2, 20, 20, 7500 * time.Millisecond},
		{2, 20, 10, 5 * time.Second},
		{2, 30, 25, interval * 25 / 55},
		{3, 20, 20, 5 * time.Second},
		{10, 20, 20, 5 * time.Second},
		{2, 10, 10, 7500 * time.Millisecond},
		{2, 7, 7, interval * 7 / 17}, // as many further scrapes as with 10 nodes
		{2, 1, 1, 5 * time.Second},
		{1, 1, 1, interval},
	} {
		t.Run(fmt.Sprint(tc.budget, tc.nodes, tc.active), func(t *testing.T) {
			run(t, Config{Active: Active{5 * time.Second, tc.budget}}, nil, func(t *testing.T, c *cluster, s *Scraper) {
				names := setNodes(s, tc.nodes)
				for range 10 {
					s.NoteRead(slices.Values(names[:tc.active]))
					pass(interval)
				}
				if got := s.ActiveStats().Resolution; got != tc.want {
					t.Errorf("got resolution %v, want %v", got, tc.want)
				}
				const intervals = 40
				start, total := time.Since(c.start), 0
				var counts []int
				for range intervals {
					s.NoteRead(slices.Values(names[:tc.active]))
					pass(interval)
				}
				for i, name := range names {
					scrapes := after(c.times(name), start)
					total += len(scrapes)
					if i < tc.active {
						counts = append(counts, len(scrapes))
					}
					for _, gap := range gaps(scrapes) {
						if gap > interval {
							t.Errorf("%s: got %v between two scrapes", name, gap)
						}
						if i < tc.active && gap < tc.want {
							t.Errorf("%s: got %v between two scrapes, want at least %v", name, gap, tc.want)
						}
					}
				}
				further := (tc.budget - 1) * float64(max(smallCluster, tc.nodes))
				most := int(intervals*(float64(tc.nodes)+further)) + tc.nodes // each interval has an edge
				if total > most {
					t.Errorf("got %d scrapes, want at most %d", total, most)
				}
				often := intervals * float64(tc.active) * float64(interval) / float64(tc.want)
				least := intervals*(tc.nodes-tc.active) + int(0.93*often)
				if total < least {
					t.Errorf("got %d scrapes, want at least %d", total, least)
				}
				if low, high := slices.Min(counts), slices.Max(counts); high-low > 1+high/50 {
					t.Errorf("active nodes got between %d and %d scrapes", low, high)
				}
			})
		})
	}
}

// TestBursts checks that many nodes that become active at once are not scraped at once, whether one read
// is of all of them, or many reads are of a node each, such as the first events of a watch.
func TestBursts(t *testing.T) {
	const nodes = 2000
	for _, tc := range []struct {
		name   string
		budget float64
		split  int // reads
		pass   time.Duration
		most   int // scrapes in a slot of a quarter of a second
	}{
		// Evenly, there would be 2000 ÷ 7.5 s × 0.25 s = 67. Within half of the resolution, there are twice as
		// many. Right after the first read, there are these and the regular ones.
		{"one reader", 2, 1, 20 * interval, 260},
		{"many reads", 10, nodes, 5 * time.Second, 3 * nodes / 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run(t, Config{Active: Active{5 * time.Second, tc.budget}}, nil, func(t *testing.T, c *cluster, s *Scraper) {
				names := setNodes(s, nodes)
				pass(2*interval + interval/3)
				start := time.Since(c.start)
				for now := time.Duration(0); now < tc.pass; now += interval {
					for part := range slices.Chunk(names, nodes/tc.split) {
						s.NoteRead(slices.Values(part))
					}
					pass(min(interval, tc.pass))
				}
				perSlot, total := map[time.Duration]int{}, 0
				for _, name := range names {
					for _, at := range after(c.times(name), start-1) {
						perSlot[at.Truncate(interval/slots)]++
						total++
					}
				}
				if most := slices.Max(slices.Collect(maps.Values(perSlot))); most > tc.most {
					t.Errorf("got up to %d scrapes in a slot", most)
				}
				if limit := int(tc.budget*nodes*tc.pass.Seconds()/interval.Seconds()) + nodes; total > limit {
					t.Errorf("got %d scrapes, want at most %d", total, limit)
				}
			})
		})
	}
}

func TestFailingNodeIsNotScrapedMoreOften(t *testing.T) {
	run(t, Config{Active: activeNodes}, fails, func(t *testing.T, c *cluster, s *Scraper) {
		setNodes(s, 10)
		for range 120 {
			s.NoteRead(slices.Values([]string{"n1"}))
			pass(interval / 6)
		}
		if n := len(c.times("n1")); n > 21+fastRetries {
			t.Errorf("a failing node was scraped %d times in 20 intervals", n)
		}
		c.set(func() { c.fetch = nil })
		pass(interval)
		recovered := time.Since(c.start)
		pass(4 * interval)
		if n := len(after(c.times("n1"), recovered)); n < 11 {
			t.Errorf("got %d scrapes in 4 intervals after the node recovered, want 12", n)
		}
	})
}

func TestDeletedNodesAreNotActive(t *testing.T) {
	run(t, Config{Active: activeNodes}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		names := setNodes(s, 4)
		pass(time.Second)
		s.NoteRead(slices.Values(names))
		s.Delete("n0")
		s.Delete("n0")
		replacement := node("n1")
		replacement.UID = "another"
		s.Set(replacement)
		if got := s.ActiveStats().Nodes; got != 2 {
			t.Errorf("got %d active nodes, want 2", got)
		}
		c.set(func() { c.fetch = func(context.Context, string) error { time.Sleep(time.Second); return nil } })
		pass(interval / 2) // is being scraped, or will be
		for _, name := range names {
			s.Delete(name)
		}
		pass(interval)
		if got := s.ActiveStats(); got.Nodes != 0 {
			t.Errorf("got %+v, want nothing", got)
		}
	})
}

// BenchmarkNoteRead measures what a LIST costs the Scraper. All 5000 nodes are active. The 400 pods of the list are
// on 400 nodes.
func BenchmarkNoteRead(b *testing.B) {
	s := New(Config{Interval: interval, Active: activeNodes})
	names := make([]string, 5000)
	for i := range names {
		names[i] = fmt.Sprint("node-", i)
		s.Set(node(names[i]))
	}
	s.NoteRead(slices.Values(names))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		first := i * 400 % (len(names) - 400)
		s.NoteRead(slices.Values(names[first : first+400]))
	}
}

// TestRandomReads checks what must hold whatever readers, nodes and kubelets do: the budget, the time between
// scrapes of a node, that no node is forgotten, and that no active node is counted wrongly.
func TestRandomReads(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		active := Active{time.Duration(1+random.IntN(10)) * time.Second, 1 + random.Float64()*3}
		t.Run(fmt.Sprint(seed, active), func(t *testing.T) {
			failing := map[string]bool{}
			var c *cluster
			fetch := func(_ context.Context, node string) error {
				c.mu.Lock()
				defer c.mu.Unlock()
				if failing[node] {
					return errors.New("no")
				}
				return nil
			}
			run(t, Config{Active: active}, fetch, func(t *testing.T, cluster *cluster, s *Scraper) {
				c = cluster
				exists := map[string]time.Duration{}
				name := func() string { return fmt.Sprint("n", random.IntN(40)) }
				periods := make([]time.Duration, 12)
				next := make([]time.Duration, len(periods))
				selections := make([][]string, len(periods))
				for range 20 {
					n := name()
					s.Set(node(n))
					exists[n] = 0
				}
				for range 8000 { // steps of 0.1 s: 53 intervals
					now := time.Since(c.start)
					for i := range periods {
						if next[i] > now {
							continue
						}
						if periods[i] == 0 || random.IntN(30) == 0 { // another reader
							periods[i] = time.Duration(random.Int64N(int64(40 * time.Second)))
							selections[i] = nil
							for range 1 + random.IntN(15) {
								selections[i] = append(selections[i], name())
							}
						}
						s.NoteRead(slices.Values(selections[i]))
						next[i] = now + periods[i] + time.Duration(random.Int64N(int64(time.Second)))
					}
					switch n := name(); random.IntN(200) {
					case 0:
						s.Delete(n)
						delete(exists, n)
						c.set(func() {
							delete(c.scrapes, n)
							c.results = slices.DeleteFunc(c.results, func(r Result) bool { return r.Node == n })
						})
					case 1:
						if _, ok := exists[n]; !ok {
							s.Set(node(n))
							exists[n] = now
						}
					case 2:
						c.set(func() { failing[n] = true })
					case 3, 4, 5:
						c.set(func() { delete(failing, n) })
					}
					pass(100 * time.Millisecond)
					s.checkInvariants(t)
				}
				c.checkGaps(t, active.Resolution)
				for n, since := range exists {
					times := append([]time.Duration{since}, c.times(n)...)
					for _, gap := range gaps(append(times, time.Since(c.start))) {
						if gap > interval+time.Second {
							t.Errorf("%s was not scraped for %v", n, gap)
						}
					}
				}
				plain := 0.0
				for _, since := range exists {
					plain += float64(time.Since(c.start)-since) / float64(interval)
				}
				all := 0
				for n := range exists {
					all += len(c.times(n))
				}
				// Each node that fails, recovers or is new has a few scrapes more.
				if extra := float64(fastRetries * len(exists) * 6); float64(all) > active.Budget*plain+extra {
					t.Errorf("got %d scrapes, want at most %v × %v", all, active.Budget, plain)
				}
			})
		})
	}
}

// checkInvariants checks the state between two events.
func (s *Scraper) checkInvariants(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	active := 0
	for _, target := range s.targets {
		if target.isActive {
			active++
		}
		if !target.waiting {
			t.Errorf("a target that is not being scraped does not wait: %+v", target)
		}
	}
	if s.active != active {
		t.Errorf("got %d active nodes, want %d", s.active, active)
	}
	if r := s.activeResolution(); r < s.Active.Resolution || r > s.Interval {
		t.Errorf("got resolution %v", r)
	}
}

// checkGaps checks that scrapes of an active node follow the one before after the shortest possible
// resolution at least.
func (c *cluster) checkGaps(t *testing.T, resolution time.Duration) {
	t.Helper()
	last := map[string]time.Duration{}
	counts := map[string]int{}
	for _, r := range c.results {
		times := c.times(r.Node)
		i := counts[r.Node]
		counts[r.Node]++
		if gap := times[i] - last[r.Node]; i > 0 && r.Kind == OfActive && gap < resolution {
			t.Errorf("%s was scraped %v after the scrape before, as kind %v", r.Node, gap, r.Kind)
		}
		last[r.Node] = times[i]
	}
}

// TestFirstReadInSmallCluster checks that nodes that become active wait for no more than their
// resolution: the fewer nodes there are, the less need be spread.
func TestFirstReadInSmallCluster(t *testing.T) {
	active := Active{Resolution: 5 * time.Second, Budget: 10}
	run(t, Config{Active: active}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		names := setNodes(s, 32)
		pass(2*interval + interval/3)
		start := time.Since(c.start)
		s.NoteRead(slices.Values(names))
		pass(interval)
		for _, name := range names {
			times := c.times(name)
			before := times[len(times)-1-len(after(times, start))]
			limit := max(start, before+active.Resolution) + 32*burstSpacing + interval/slots
			if next := after(times, start)[0]; next > limit {
				t.Errorf("%s was scraped after %v and read at %v: next after %v, want at most %v", name, before, start, next, limit)
			}
		}
	})
}

// TestSlowNodeIsNotScrapedAllTheTime checks that a node that takes longer than the resolution is left
// alone for as long as its scrapes take, but is still scraped once in each interval.
func TestSlowNodeIsNotScrapedAllTheTime(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		2 * time.Second: 5 * time.Second, 6 * time.Second: 12 * time.Second, 12 * time.Second: interval,
	} {
		slow := func(context.Context, string) error {
			time.Sleep(took)
			return nil
		}
		config := Config{Active: Active{Resolution: 5 * time.Second, Budget: 10}}
		run(t, config, slow, func(t *testing.T, c *cluster, s *Scraper) {
			names := setNodes(s, 1)
			for range 20 {
				s.NoteRead(slices.Values(names))
				pass(interval)
			}
			all := gaps(c.times("n0"))
			for i, gap := range all[1:] {
				if gap < want-want/10 || gap > want+interval/slots {
					t.Errorf("scrapes of %v: got %v before scrape %d, want about %v", took, gap, i+2, want)
				}
			}
		})
	}
}
