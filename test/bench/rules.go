package main

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	ruleRuns     = 150              // autoscalers for each load and seed
	ruleSeeds    = 5                // for each row of a kind of kubelet
	ruleDuration = 20 * time.Minute // of each run
	ruleWindow   = 15 * time.Second // --rate-window
)

// point is the value of a CPU counter: core-seconds at a time in seconds.
type point struct{ at, used float64 }

func (p point) rateTo(later point) float64 { return (later.used - p.used) / (later.at - p.at) }

// rule returns the usage in cores that is served after a sample. It gets all samples of a container.
type rule func(point) float64

// stored is the rule of the product: its store.
func stored() rule {
	s := store.New(store.Config{
		RateWindow: ruleWindow, MaxSampleAge: time.Minute, MaxContainers: 1,
		State: func(_, _, _, _ string) usage.ContainerState { return usage.ContainerState{Running: true} },
	})
	start := usage.Time(1e18)
	last := 0.0
	return func(p point) float64 {
		at := start.Add(time.Duration(p.at * 1e9))
		sample := usage.Sample{
			At: usage.NodeTime(at), StartedAt: usage.NodeTime(start.Add(-time.Hour)),
			CPUSeconds: p.used, Has: usage.HasCPU | usage.HasMemory,
		}
		s.Put("n", &usage.Scrape{At: at, Containers: []usage.ContainerSample{
			{Namespace: []byte("n"), Pod: []byte("p"), Name: []byte("c"), Sample: sample},
		}})
		if pod := s.Pod("n", "n", "p", at); pod != nil {
			last = float64(pod.Containers[0].CPUNanocores) / 1e9
		}
		return last
	}
}

// windowOf returns the rule of a fixed window.
func windowOf(width time.Duration) func() rule {
	return func() rule {
		var points []point // the newest first
		return func(p point) float64 {
			points = append([]point{p}, points[:min(len(points), 9)]...)
			if len(points) == 1 {
				return 0
			}
			distance := func(q point) float64 { return math.Abs(p.at - q.at - width.Seconds()) }
			closest := slices.MinFunc(points[1:], func(a, b point) int { return cmp.Compare(distance(a), distance(b)) })
			return closest.rateTo(p)
		}
	}
}

// schedule is when samples are taken: every interval from a random time on or, with a lead, so that one
// of them is that long before each read, as if reads could be predicted.
type schedule struct {
	interval, lead time.Duration
	atRead         bool          // each read waits for one more sample
	period         time.Duration // between two reads; 0: syncPeriod
	kubelet
}

// kubelet is when a kubelet takes its samples: after each interval, and up to jitter later. 0: on demand.
type kubelet struct{ housekeeping, jitter time.Duration }

// newestSample returns a function that returns the time of the newest sample at a time, in seconds. From call
// to call, the time only grows.
func (k kubelet) newestSample(random *rand.Rand) func(t float64) float64 {
	if k.housekeeping == 0 {
		return func(t float64) float64 { return t }
	}
	random = rand.New(rand.NewPCG(random.Uint64(), 0)) // so that loads do not depend on when scrapes are
	newest, next := 0.0, random.Float64()*k.housekeeping.Seconds()
	return func(t float64) float64 {
		for next <= t {
			newest, next = next, next+k.housekeeping.Seconds()+random.Float64()*k.jitter.Seconds()
		}
		return newest
	}
}

var (
	sparse    = schedule{interval: 15 * time.Second}
	dense     = schedule{interval: 4 * time.Second} // the default of --active-resolution
	predicted = schedule{interval: 5 * time.Second, lead: 700 * time.Millisecond}
)

// decide returns what an autoscaler decides for the loads of its pods.
func (r ruleRow) decide(random *rand.Rand, loads []load) (list decisions) {
	replicas := podsPerAutoscaler
	list.add(-syncPeriod, replicas)
	r.schedule.read(random, loads, r.newRule, func(at float64, served []float64) {
		if ratio := mean(served) / target; math.Abs(ratio-1) > 0.1 {
			wanted := min(max(int(math.Ceil(ratio*podsPerAutoscaler-1e-9)), podsPerAutoscaler), maxReplicas)
			replicas = min(wanted, max(2*replicas, replicas+4))
		}
		list.add(time.Duration(at*1e9), replicas)
	})
	return list
}

// read calls each with what is served for the loads of pods, once a period from a random time on, as the
// controller reads.
func (s schedule) read(random *rand.Rand, loads []load, newRule func() rule, each func(at float64, served []float64)) {
	counters, rules := make([]func(float64) float64, len(loads)), make([]rule, len(loads))
	served, last := make([]float64, len(loads)), make([]float64, len(loads))
	for i := range loads {
		counters[i], rules[i] = loads[i].counter(), newRule()
	}
	newestSample := s.newestSample(random)
	sample := func(t float64) {
		t = newestSample(t)
		for i := range loads {
			if t-last[i] >= 1 {
				served[i], last[i] = rules[i](point{t, counters[i](t)}), t
			}
		}
	}
	period, next := cmp.Or(s.period, syncPeriod), random.Float64()*s.interval.Seconds()
	for read := random.Float64() * period.Seconds(); read < ruleDuration.Seconds(); read += period.Seconds() {
		if s.lead > 0 {
			for t := period - s.interval; t >= 0; t -= s.interval {
				sample(read - (s.lead + t).Seconds())
			}
		}
		for ; s.lead == 0 && next <= read; next += s.interval.Seconds() {
			sample(next)
		}
		if s.atRead {
			sample(read)
		}
		each(read, served)
	}
}

// counter returns the CPU counter of a load: a function that returns the core-seconds at a time. From call to
// call, the time only grows.
func (l load) counter() func(t float64) float64 {
	i, used := 0, 0.0 // used is that at change i
	return func(t float64) float64 {
		for ; i+1 < len(l) && l[i+1].at.Seconds() <= t; i++ {
			used += l[i].cores * (l[i+1].at - l[i].at).Seconds()
		}
		return used + l[i].cores*(t-l[i].at.Seconds())
	}
}

// calm are loads that need no change. Waves are the worst for a rule that looks for changes: they have
// one all the time.
var calm = []kind{
	spikeKind,
	noiseKind,
	{name: "noise of 10 s", generate: noiseOf(0.3, 10*time.Second)},
	{name: "wave of 20 s", generate: wave(20 * time.Second)},
}

// wave returns a load around 80 % of the target with an amplitude of 80 % of that.
func wave(period time.Duration) func(*rand.Rand, time.Duration) []load {
	return func(random *rand.Rand, d time.Duration) []load {
		phase, l := random.Float64(), load{}
		for t := time.Duration(0); t < d; t += 500 * time.Millisecond {
			l = append(l, change{t, noiseMean * (1 + 0.8*math.Sin(2*math.Pi*(phase+t.Seconds()/period.Seconds())))})
		}
		return same(l)
	}
}

// ruleRow is a rule with a schedule, and their row in the table.
type ruleRow struct {
	name     string
	newRule  func() rule
	schedule schedule
}

// reactions are how soon autoscalers react, and how often they do without need.
type reactions struct {
	delays
	changes []float64 // per autoscaler and hour, for each of calm
}

// reactions plays the loads of a seed.
func (r ruleRow) reactions(seed uint64) (result reactions) {
	random := rand.New(rand.NewPCG(1, 2+seed))
	for range ruleRuns {
		for _, k := range []kind{stepKind, rampKind} {
			loads := k.generate(random, ruleDuration)
			k.add(&result.delays, loads[0], r.decide(random, loads), ruleDuration)
		}
	}
	for _, k := range calm {
		random, changes := rand.New(rand.NewPCG(3, 4+seed)), 0
		for range ruleRuns {
			changes += r.decide(random, k.generate(random, ruleDuration)).changes(ruleDuration)
		}
		result.changes = append(result.changes, float64(changes)/ruleRuns/ruleDuration.Hours())
	}
	return result
}

// cells are those of the row, of the first seed.
func (r ruleRow) cells() []string {
	result := r.reactions(0)
	cells := append([]string{r.name}, result.cells()...)
	for _, n := range result.changes {
		cells = append(cells, fmt.Sprintf("%.1f", n))
	}
	return cells
}

// simulateRules compares fixed windows, and schedules, with those of the product.
func simulateRules() {
	columns := append([]string{""}, reactionColumns...)
	for _, k := range calm {
		columns = append(columns, k.name)
	}
	t := newTable("Samples every 4 s, or as the row says", columns...)
	for _, r := range []ruleRow{
		{"15 s, a sample every 15 s", windowOf(ruleWindow), sparse},
		{"15 s", windowOf(ruleWindow), dense},
		{"5 s", windowOf(5 * time.Second), dense},
		{"kube-vitals", stored, dense},
		{"… every 5 s", stored, schedule{interval: 5 * time.Second}},
		{"… every 5 s, before predicted reads", stored, predicted},
		{"… every 15 s", stored, sparse},
		{"… and at each read", stored, schedule{interval: dense.interval, atRead: true}},
	} {
		t.row(r.cells()...)
	}
	t.print()
	fmt.Printf("\n%d autoscalers of %s for each load; changes of desiredReplicas are per autoscaler and hour.\n",
		ruleRuns, ruleDuration)
}

// namedKubelet is a kind of kubelet, and its name in tables.
type namedKubelet struct {
	name string
	kubelet
}

var kubelets = []namedKubelet{
	{"on demand", kubelet{}},
	{"every 10 s", kubelet{housekeeping: 10 * time.Second}},
	{"every 10 to 20 s", kubelet{housekeeping: 10 * time.Second, jitter: 10 * time.Second}},
	{"every 15 s", kubelet{housekeeping: 15 * time.Second}},
	{"every 15 to 30 s", kubelet{housekeeping: 15 * time.Second, jitter: 15 * time.Second}},
}

// servers returns metrics-server's rule, the two latest samples that it has scraped, and the product.
func (k namedKubelet) servers(period time.Duration) []ruleRow {
	return []ruleRow{
		{"metrics-server", windowOf(0), schedule{interval: sparse.interval, period: period, kubelet: k.kubelet}},
		{"kube-vitals", stored, schedule{interval: dense.interval, period: period, kubelet: k.kubelet}},
	}
}

// simulateKubelets compares the product with metrics-server's rule for each kind of kubelet.
func simulateKubelets() {
	t := newTable(fmt.Sprintf("Kinds of kubelets: the median of %d seeds, and their range", ruleSeeds),
		"kubelet", "rule", "right decision: p50", "p95", "behind a ramp: mean", "spike", "noise", "noise of 10 s")
	for _, k := range kubelets {
		rows := k.servers(syncPeriod)
		if k.housekeeping > 0 { // no rate can be served sooner
			atOnce := schedule{interval: time.Second, kubelet: k.kubelet}
			rows = append(rows, ruleRow{"the last two samples, at once", windowOf(0), atOnce})
		}
		for _, r := range rows {
			var seeds []reactions
			for seed := range uint64(ruleSeeds) {
				seeds = append(seeds, r.reactions(seed))
			}
			spread := func(unit string, of func(reactions) float64) string {
				var list []float64
				for _, one := range seeds {
					list = append(list, of(one))
				}
				return fmt.Sprintf("%.1f%s (%.1f–%.1f)", percentile(list, 50), unit, slices.Min(list), slices.Max(list))
			}
			cells := []string{
				k.name, r.name,
				spread(" s", func(one reactions) float64 { return percentile(one.right, 50) }),
				spread(" s", func(one reactions) float64 { return percentile(one.right, 95) }),
				spread(" s", func(one reactions) float64 { return mean(one.ramp) }),
			}
			for i := range calm[:3] {
				cells = append(cells, spread("", func(one reactions) float64 { return one.changes[i] }))
			}
			t.row(cells...)
		}
	}
	t.print()
}
