package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	ruleRuns     = 150              // autoscalers for each load
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
	s := store.New(store.Config{RateWindow: ruleWindow, MaxSampleAge: time.Minute, MaxContainers: 1})
	start := usage.Time(1e18)
	last := 0.0
	return func(p point) float64 {
		at := start.Add(time.Duration(p.at * 1e9))
		sample := usage.Sample{
			At: at, StartedAt: start.Add(-time.Hour), CPUSeconds: p.used, Has: usage.HasCPU | usage.HasMemory,
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

// window serves the mean over what choose returns, at most ten samples with the newest one first: the
// number of intervals between samples. widest is the number for a window closest to ruleWindow.
func window(choose func(points []point, rates []float64, widest int) int) rule {
	var points []point
	return func(p point) float64 {
		points = append([]point{p}, points[:min(len(points), 9)]...)
		if len(points) == 1 {
			return 0
		}
		distance := func(i int) float64 { return math.Abs(p.at - points[i].at - ruleWindow.Seconds()) }
		widest, rates := 1, make([]float64, len(points)-1)
		for i := range rates {
			rates[i] = points[i+1].rateTo(points[i])
			if distance(i+1) < distance(widest) {
				widest = i + 1
			}
		}
		return points[choose(points, rates, widest)].rateTo(p)
	}
}

// usual is a mean of the last changes of a rate.
type usual struct{ mean, count float64 }

func (n *usual) add(change float64) {
	n.count = min(n.count+1, 8)
	n.mean += (change - n.mean) / n.count
}

func fixedWindow() rule {
	return window(func(_ []point, _ []float64, widest int) int { return widest })
}

func shortWindow() rule { return window(func([]point, []float64, int) int { return 1 }) }

// pageHinkley starts the window again when the sum of the deviations from the mean so far, in one
// direction and above what is usual, exceeds six times the noise (CUSUM is the same with a fixed mean).
func pageHinkley() rule {
	var n usual
	var up, down, mean, since float64
	return window(func(points []point, rates []float64, widest int) int {
		if len(rates) < 5 {
			mean = rates[0]
			return widest
		}
		n.add(math.Abs(rates[2] - rates[3]))
		slack := 0.5*n.mean + 0.05*mean
		up, down = max(0, up+rates[0]-mean-slack), max(0, down+mean-rates[0]-slack)
		if max(up, down) > 6*n.mean+0.1*mean {
			up, down, mean, since = 0, 0, rates[0], points[0].at
			return 1
		}
		mean += 0.2 * (rates[0] - mean)
		first := slices.IndexFunc(points, func(p point) bool { return p.at < since })
		if first < 0 {
			return widest
		}
		return min(max(first-1, 1), widest)
	})
}

// straightLine serves the longest window in which the counter is a straight line within the noise.
func straightLine() rule {
	var n usual
	return window(func(points []point, rates []float64, widest int) int {
		if len(rates) < 5 {
			return widest
		}
		n.add(math.Abs(rates[2] - 2*rates[3] + rates[4]))
		for k := widest; k > 1; k-- {
			mean, isLine := points[k].rateTo(points[0]), true
			for _, p := range points[1:k] {
				slack := (2*n.mean + 0.03*mean) * (points[0].at - points[1].at)
				isLine = isLine && math.Abs(points[0].used-p.used-mean*(points[0].at-p.at)) <= slack
			}
			if isLine {
				return k
			}
		}
		return 1
	})
}

// agreeing looks for a step: the newest intervals agree, the one before has a part of the step, and the
// two before that agree.
func agreeing() rule {
	agree := func(a, b float64) bool { return math.Abs(a-b) <= 0.2*max(a, b) }
	return window(func(_ []point, r []float64, widest int) int {
		switch {
		case len(r) < 4 || widest < 3:
		case agree(r[0], r[1]) && !agree((r[0]+r[1])/2, r[2]):
			return 2
		case agree(r[2], r[3]) && max(r[0], r[2]) > 2*min(r[0], r[2]) &&
			r[1] > min(r[0], r[2]) && r[1] < max(r[0], r[2]):
			return 1
		}
		return widest
	})
}

// schedule is when samples are taken: every interval from a random time on or, with a lead, so that one
// of them is that long before each read.
type schedule struct {
	interval, lead time.Duration
	atRead         bool          // each read waits for one more sample
	housekeeping   time.Duration // samples are those that the kubelet takes so often; 0: taken on demand
}

var (
	sparse    = schedule{interval: 15 * time.Second}
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

// read calls each with what is served for the loads of pods, every syncPeriod from a random time on, as
// the controller reads.
func (s schedule) read(random *rand.Rand, loads []load, newRule func() rule, each func(at float64, served []float64)) {
	counters, rules, served := make([]counter, len(loads)), make([]rule, len(loads)), make([]float64, len(loads))
	last := make([]float64, len(loads))
	for i := range loads {
		counters[i], rules[i] = newCounter(loads[i]), newRule()
	}
	sample := func(t float64) {
		if grid := s.housekeeping.Seconds(); grid > 0 {
			t = math.Floor(t/grid) * grid
		}
		for i := range loads {
			if t-last[i] >= 1 {
				served[i], last[i] = rules[i](point{t, counters[i].at(t)}), t
			}
		}
	}
	next := random.Float64() * s.interval.Seconds()
	for read := random.Float64() * syncPeriod.Seconds(); read < ruleDuration.Seconds(); read += syncPeriod.Seconds() {
		if s.lead > 0 {
			for t := syncPeriod - s.interval; t >= 0; t -= s.interval {
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

// stepOf is steps of one pod to a multiple of its load, some of them with noise of each second.
type stepOf struct {
	factor, noise float64
}

func (k stepOf) String() string {
	name := fmt.Sprintf("× %.2g", k.factor)
	if k.noise > 0 {
		name += fmt.Sprintf(", noise of %.0f %%", 100*k.noise)
	}
	return name
}

// generate returns the load, and the times of the steps: each lasts for stepDuration.
func (k stepOf) generate(random *rand.Rand) (l load, at []float64) {
	for start := time.Duration(0); start+stepPeriod <= ruleDuration; start += stepPeriod {
		step := start + between(random, stepPeriod-stepDuration-15*time.Second, stepPeriod-stepDuration)
		at = append(at, step.Seconds())
		for _, part := range []struct {
			from, to time.Duration
			cores    float64
		}{
			{start, step, stepLow}, {step, step + stepDuration, stepLow * k.factor},
			{step + stepDuration, start + stepPeriod, stepLow},
		} {
			for t := part.from; t < part.to; t += noisePeriod {
				l = append(l, change{t, logNormal(random, part.cores, k.noise)})
			}
		}
	}
	return l, at
}

// delayOf returns the median time from a step until 90 % of it are served to one who reads every
// syncPeriod, in seconds.
func (k stepOf) delayOf(r ruleRow) float64 {
	random, delays := rand.New(rand.NewPCG(5, 6)), []float64{}
	for range ruleRuns {
		l, steps := k.generate(random)
		r.schedule.read(random, []load{l}, r.newRule, func(at float64, served []float64) {
			if len(steps) == 0 || at < steps[0] {
				return
			}
			if at > steps[0]+stepDuration.Seconds() {
				delays, steps = append(delays, math.Inf(1)), steps[1:]
			} else if (served[0]-stepLow)/(stepLow*k.factor-stepLow) >= 0.9 {
				delays, steps = append(delays, at-steps[0]), steps[1:]
			}
		})
	}
	return percentile(delays, 50)
}

// counter is the CPU counter of a load.
type counter struct {
	load
	used []float64 // at each change, in core-seconds
}

func newCounter(l load) counter {
	used := make([]float64, len(l))
	for i := 1; i < len(l); i++ {
		used[i] = used[i-1] + l[i-1].cores*(l[i].at-l[i-1].at).Seconds()
	}
	return counter{l, used}
}

func (c counter) at(t float64) float64 {
	i := max(0, sort.Search(len(c.load), func(i int) bool { return c.load[i].at.Seconds() > t })-1)
	return c.used[i] + c.load[i].cores*(t-c.load[i].at.Seconds())
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

// ruleRow is a rule with a schedule, and their row in the tables.
type ruleRow struct {
	name     string
	newRule  func() rule
	schedule schedule
}

// reactions returns the cells of the first table: how soon autoscalers react, and how often they do
// without need.
func (r ruleRow) reactions() []string {
	random, result := rand.New(rand.NewPCG(1, 2)), &reactionResult{}
	for range ruleRuns {
		for _, k := range []kind{stepKind, rampKind} {
			loads := k.generate(random, ruleDuration)
			k.add(result, loads[0], r.decide(random, loads), ruleDuration)
		}
	}
	cells := append([]string{r.name}, result.cells()...)
	for _, k := range calm {
		random, changes := rand.New(rand.NewPCG(3, 4)), 0
		for range ruleRuns {
			changes += r.decide(random, k.generate(random, ruleDuration)).changes(ruleDuration)
		}
		cells = append(cells, fmt.Sprintf("%.1f", float64(changes)/ruleRuns/ruleDuration.Hours()))
	}
	return cells
}

// levels are the steps of the second table.
var levels = []stepOf{{1.3, 0}, {2, 0}, {6, 0}, {0.2, 0}, {2, 0.2}, {2, 0.5}}

// delays returns the cells of the second table.
func (r ruleRow) delays() []string {
	cells := []string{r.name}
	for _, k := range levels {
		cells = append(cells, seconds(k.delayOf(r)))
	}
	return cells
}

// simulateRules compares rules for the window of a rate, and schedules with that of the product.
func simulateRules() {
	const every = 5 * time.Second
	columns := append([]string{""}, reactionColumns...)
	for _, k := range calm {
		columns = append(columns, k.name)
	}
	reactions := newTable("Samples every 5 s, before predicted reads, or as the row says", columns...)
	columns = []string{""}
	for _, k := range levels {
		columns = append(columns, k.String())
	}
	delays := newTable("Until 90 % of a step of one pod are served: p50", columns...)
	for i, r := range []ruleRow{
		{"15 s, a sample every 15 s", fixedWindow, sparse},
		{"15 s", fixedWindow, predicted},
		{"5 s", shortWindow, predicted},
		{"agreeing intervals", agreeing, predicted},
		{"Page-Hinkley", pageHinkley, predicted},
		{"straight line", straightLine, predicted},
		{"kube-vitals", stored, predicted},
		{"… with a sample every 15 s", stored, sparse},
		{"… whenever reads are", stored, schedule{interval: every}},
		{"… and at each read", stored, schedule{interval: every, atRead: true}},
		{"… of kubelets that sample every 10 s", stored,
			schedule{interval: every, lead: predicted.lead, housekeeping: 10 * time.Second}},
	} {
		reactions.row(r.reactions()...)
		if i < 7 { // the others are schedules
			delays.row(r.delays()...)
		}
	}
	reactions.print(os.Stdout)
	delays.print(os.Stdout)
	fmt.Printf("\n%d autoscalers of %s for each load; changes of desiredReplicas are per autoscaler and hour.\n",
		ruleRuns, ruleDuration)
}
