package store

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestSequences plays random sequences of what can happen to a cluster, to the store and to its
// model, and compares what they serve after each step, with each other and with the true load. Its
// seeds are always the same; FuzzSequences looks for others.
func TestSequences(t *testing.T) {
	const sequences, steps = 1000, 100
	for seed := range uint64(sequences) {
		random := rand.New(rand.NewPCG(seed, 0))
		script := make([]byte, 2*(1+random.IntN(steps)))
		for i := range script {
			script[i] = byte(random.Uint32())
		}
		if err := play(script, nil); err != nil {
			script = shrink(script)
			t.Fatalf("seed %d: %v\nThe smallest script that fails is []byte(%q):", seed, play(script, t.Logf), script)
		}
	}
}

// FuzzSequences has the fuzzer write the scripts: two bytes are a step.
func FuzzSequences(f *testing.F) {
	f.Fuzz(func(t *testing.T, script []byte) {
		const most = 200 // the model's time grows with the square of the steps
		if len(script) > 2*most {
			t.Skip()
		}
		if play(script, nil) != nil {
			t.Fatal(play(script, t.Logf))
		}
	})
}

// shrink leaves out what is not needed for a script to fail, and sets the steps to the numbers that
// they have in the list.
func shrink(script []byte) []byte {
	for i := 0; i < len(script); i += 2 {
		script[i] %= byte(len(steps))
	}
	for size := len(script) / 2; size > 0; {
		shorter := false
		for i := 0; i+2*size <= len(script); i += 2 {
			if less := slices.Delete(slices.Clone(script), i, i+2*size); play(less, nil) != nil {
				script, shorter = less, true
			}
		}
		if !shorter {
			size /= 2
		}
	}
	return script
}

// play carries out a script, step by step, and returns the first thing that is wrong.
func play(script []byte, logf func(string, ...any)) error {
	p := newPlay(logf)
	for i := 0; i+1 < len(script) && p.err == nil; i += 2 {
		step := steps[int(script[i])%len(steps)]
		p.logf("%v: %s", p.now.Sub(t0), step.name)
		step.do(p, int(script[i+1]))
	}
	if err := p.unchanged(); err != nil {
		p.fail("%w", err)
	}
	return p.err
}

// The cast: names are few, so that they meet.
var (
	nodeNames      = []string{"n1", "n2", "n3"}
	podKeys        = []podKey{{"n", "p"}, {"n", "q"}, {"m", "p"}}
	containerNames = []string{"a", "b", "c"}
)

// steps are what can happen. The argument is a byte that says to whom, and how much; pick takes a
// part of it. New steps come last, so that the scripts in testdata keep their meaning.
var steps = []struct {
	name string
	do   func(p *playing, arg int)
}{
	{"a regular round", (*playing).round},
	{"a regular round", (*playing).round},
	{"time passes, scrapes fail", func(p *playing, arg int) { p.pass(times[arg%len(times)]) }},
	{"a scrape", func(p *playing, arg int) { p.scrape(p.kubelet(&arg), 0) }},
	{"a scrape that cannot be read in full", func(p *playing, arg int) { p.scrape(p.kubelet(&arg), 1+arg) }},
	{"a round with summaries, as at the start", (*playing).firstRound},
	{"responses from before", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		ago := pick(&arg, []time.Duration{2 * time.Second, 40 * time.Second})
		for range 1 + arg%2 {
			p.answerFrom(k, ago)
		}
	}},
	{"a summary", func(p *playing, arg int) { p.summary(p.kubelet(&arg), arg) }},
	{"a node is deleted", func(p *playing, arg int) { p.forget(p.kubelet(&arg)) }},
	{"a container starts", (*playing).start},
	{"a container starts", (*playing).start},
	{"a pod runs on another node, too", func(p *playing, arg int) {
		from, to, key := p.kubelet(&arg), p.kubelet(&arg), pick(&arg, podKeys)
		for _, c := range from.containers {
			if c.key.podKey == key {
				p.run(to, c.key, true)
			}
		}
	}},
	{"a container ends", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		if ended := k.container(&arg); ended != nil {
			k.end(func(c *counter) bool { return c == ended })
		}
	}},
	{"a pod ends", func(p *playing, arg int) {
		k, key := p.kubelet(&arg), pick(&arg, podKeys)
		k.end(func(c *counter) bool { return c.key.podKey == key })
	}},
	{"a container restarts", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		if c := k.container(&arg); c != nil {
			c.restart(k.clock(p.now), p.now)
		}
	}},
	{"a counter is reset", func(p *playing, arg int) {
		if c := p.kubelet(&arg).any(&arg); c != nil {
			c.coreSeconds *= pick(&arg, []float64{0, 0.5})
			c.isLying = true
		}
	}},
	{"a clock is set", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		k.ahead += pick(&arg, clockSteps)
		k.wasSet = true
		k.confuse()
	}},
	{"a kubelet begins or ends to repeat itself", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		k.frozen = !k.frozen
		k.confuse()
	}},
	{"a sample is left out, or there again", func(p *playing, arg int) {
		if c := p.kubelet(&arg).any(&arg); c != nil {
			c.has ^= pick(&arg, []usage.Has{usage.HasCPU, usage.HasMemory, usage.HasSwap, usage.HasCPU | usage.HasMemory})
		}
	}},
	{"a start time is known, or not", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		if c := k.container(&arg); c != nil {
			c.startedAt = pick(&arg, []usage.Time{0, k.clock(p.now).Add(-20 * time.Second), k.clock(p.now).Add(-time.Hour), p.now.Add(time.Hour)})
			c.isLying = c.isLying || !c.scraped // what is not known yet may be taken for new
		}
	}},
	{"a container uses more or less", func(p *playing, arg int) {
		if c := p.kubelet(&arg).any(&arg); c != nil {
			c.advance(p.now)
			c.cores = pick(&arg, []float64{0, 0.001, 0.1, 2.5, 96})
			c.memory = uint64(c.cores * (1 << 20))
		}
	}},
	{"a counter is absurd", func(p *playing, arg int) {
		if c := p.kubelet(&arg).any(&arg); c != nil {
			c.coreSeconds = pick(&arg, []float64{1e9, 1e12, 1e300, math.MaxFloat64})
			c.memory, c.swap, c.isLying = math.MaxInt64-1, math.MaxInt64-1, true
		}
	}},
	{"containers are listed in another order", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		if n := len(k.containers); n > 0 {
			i := arg % n
			k.containers = append(slices.Clone(k.containers[i:]), k.containers[:i]...)
		}
	}},
	{"a pod is replaced by one of the same name", func(p *playing, arg int) {
		k, key := p.kubelet(&arg), pick(&arg, podKeys)
		k.end(func(c *counter) bool { return c.key.podKey == key })
		p.remove(k, key)
		p.run(k, containerKey{key, pick(&arg, containerNames)}, true)
	}},
	{"start times move with the samples, or not", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		k.startsAgo = pick(&arg, []time.Duration{0, 2 * time.Second, 12 * time.Second, 12 * time.Second})
		for _, c := range k.containers {
			c.isLying = c.isLying || !c.scraped
		}
	}},
	{"the API server knows of a container that it runs, or not", func(p *playing, arg int) {
		key := containerKey{pick(&arg, podKeys), pick(&arg, containerNames)}
		p.stopped[key] = !p.stopped[key]
	}},
	{"a kubelet sends no Date header, or does again", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		k.dateless, k.wasDateless = !k.dateless, true
	}},
	{"responses become slow, or fast again", func(p *playing, arg int) {
		p.kubelet(&arg).latency = pick(&arg, []time.Duration{0, 90 * time.Millisecond, 2 * time.Second})
	}},
	{"a pod is removed while its kubelet reports it", func(p *playing, arg int) {
		k, key := p.kubelet(&arg), pick(&arg, podKeys)
		p.remove(k, key)
	}},
	{"samples have no times, or do again", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		k.untimed = !k.untimed
	}},
	{"a clock is slewed", func(p *playing, arg int) {
		p.kubelet(&arg).slew = pick(&arg, []float64{0, 0.0005, -0.0005, 0.01, -0.01})
	}},
}

// times are on both sides of every bound that there is on a time.
var times = []time.Duration{
	time.Millisecond, 400 * time.Millisecond, time.Second, 1200 * time.Millisecond, 4 * time.Second, 10 * time.Second,
	15 * time.Second, 15 * time.Second, 20 * time.Second, 30 * time.Second, 50 * time.Second, time.Minute,
	time.Minute + time.Millisecond, 5 * time.Minute,
}

var clockSteps = []time.Duration{
	-500 * time.Millisecond, 500 * time.Millisecond, -3 * time.Second, 3 * time.Second, -20 * time.Second, 20 * time.Second,
	-100 * time.Second, 100 * time.Second, -time.Hour, time.Hour,
}

// pick takes an element, and what is left of the argument.
func pick[T any](arg *int, from []T) T {
	i := *arg % len(from)
	*arg /= len(from)
	return from[i]
}

// counter is a container, or a node, that uses something.
type counter struct {
	key         containerKey
	startedAt   usage.Time // by its node's clock; 0: not known
	late        time.Duration
	coreSeconds float64    // at the moment counted
	counted     usage.Time // by our clock
	cores       float64    // it uses
	memory      uint64
	swap        uint64
	has         usage.Has

	said usage.Sample // last

	truth   []truth // oldest first
	scraped bool    // whether a scrape mentioned it
	isLying bool    // the kubelet reported what was not so, and nothing could show it
}

// truth is what a counter had really used at some time, whatever its kubelet reports.
type truth struct {
	at          usage.Time // by our clock
	coreSeconds float64
	sampledAt   usage.Time // what the kubelet reported as the time, if it took a sample; 0: it did not
}

func (c *counter) advance(now usage.Time) {
	used := c.cores * now.Sub(c.counted).Seconds()
	c.coreSeconds = min(c.coreSeconds+used, math.MaxFloat64)
	c.counted = now
	total := used
	if n := len(c.truth); n > 0 {
		total += c.truth[n-1].coreSeconds
	}
	c.truth = append(c.truth, truth{at: now, coreSeconds: total})
}

// used returns the core-seconds that were really used up to a time.
func (c *counter) used(at usage.Time) float64 {
	i, found := slices.BinarySearchFunc(c.truth, at, func(t truth, at usage.Time) int { return cmp.Compare(t.at, at) })
	switch {
	case found:
		return c.truth[i].coreSeconds
	case i == 0:
		return 0
	case i == len(c.truth):
		return c.truth[i-1].coreSeconds
	}
	before, after := c.truth[i-1], c.truth[i]
	share := float64(at.Sub(before.at)) / float64(after.at.Sub(before.at))
	return before.coreSeconds + share*(after.coreSeconds-before.coreSeconds)
}

func (c *counter) restart(clock, now usage.Time) {
	c.advance(now)
	c.coreSeconds, c.isLying = 0, true // the next sample may be higher than the last: then nothing shows the restart
	if c.startedAt != 0 {
		c.startedAt = clock
	}
}

// sample is what a kubelet reports of the counter.
func (c *counter) sample(k *kubelet, now usage.Time) usage.Sample {
	c.advance(now)
	if k.frozen && c.said.Has != 0 {
		return c.said
	}
	s := usage.Sample{StartedAt: c.startedAt, Has: c.has}
	clock := k.clock(now)
	if has(s, usage.HasCPU) {
		s.At, s.CPUSeconds = clock.Add(-c.late), c.coreSeconds
		if s.Untimed = k.untimed; s.Untimed {
			s.At = now
		}
		c.truth[len(c.truth)-1].sampledAt = s.At
	}
	if k.startsAgo != 0 && c.startedAt != 0 {
		s.StartedAt = s.At.Add(-k.startsAgo)
	}
	if has(s, usage.HasMemory) {
		s.MemoryAt, s.Memory = clock, c.memory
	}
	if has(s, usage.HasSwap) {
		s.Swap = c.swap
	}
	c.said = s
	return s
}

// kubelet is a node with what runs on it.
type kubelet struct {
	name       string
	ahead      time.Duration // of our clock, by being set
	slew       float64       // how fast its clock runs, compared to ours, less 1
	slewed     time.Duration // ahead of our clock, by slewing
	frozen     bool          // whether it repeats what it reported
	untimed    bool          // whether its samples have no times
	startsAgo  time.Duration // if not 0: how long before its samples all containers seem to have started
	latency    time.Duration // of its responses
	dateless   bool          // whether it sends no Date header
	self       *counter
	containers []*counter // in the order in which it lists them

	wasSet      bool                  // whether its clock ever was
	wasDateless bool                  // so that clock steps may have gone unnoticed
	ended       map[containerKey]bool // containers that no complete scrape has missed yet
}

// confuse notes that old samples with times of another clock may look as if they were new.
func (k *kubelet) confuse() {
	if k.frozen && k.wasSet {
		for _, c := range append(slices.Clone(k.containers), k.self) {
			c.isLying = true
		}
	}
}

func (k *kubelet) end(which func(*counter) bool) {
	k.containers = slices.DeleteFunc(k.containers, func(c *counter) bool {
		if which(c) {
			k.ended[c.key] = true
		}
		return which(c)
	})
}

func (k *kubelet) clock(now usage.Time) usage.Time { return now.Add(k.ahead + k.slewed) }

// container picks one, if there is any.
func (k *kubelet) container(arg *int) *counter {
	if len(k.containers) == 0 {
		return nil
	}
	return pick(arg, k.containers)
}

// any picks a container or the node itself.
func (k *kubelet) any(arg *int) *counter {
	return pick(arg, append(slices.Clone(k.containers), k.self))
}

// playing is a script that is being played.
type playing struct {
	now      usage.Time
	kubelets []*kubelet
	stopped  map[containerKey]bool // what the API server does not have as running

	store *Store
	model *model
	witness
	logf func(string, ...any)
	err  error
}

func newPlay(logf func(string, ...any)) *playing {
	p := &playing{now: t0, stopped: map[containerKey]bool{}, logf: logf, witness: newWitness()}
	if logf == nil {
		p.logf = func(string, ...any) {}
	}
	isRunning := func(key containerKey) bool { return !p.stopped[key] }
	p.store = New(Config{MaxSampleAge: maxAge, MaxContainers: 100, IsRunning: func(namespace, pod, container string) bool {
		return isRunning(containerKey{podKey{namespace, pod}, container})
	}})
	p.model = newModel(maxAge, isRunning)
	for _, name := range nodeNames {
		self := &counter{coreSeconds: 1000, counted: t0, cores: 1, has: usage.HasCPU | usage.HasMemory}
		p.kubelets = append(p.kubelets, &kubelet{name: name, self: self, ended: map[containerKey]bool{}})
	}
	return p
}

func (p *playing) kubelet(arg *int) *kubelet { return pick(arg, p.kubelets) }

func (p *playing) pass(d time.Duration) {
	p.now = p.now.Add(d)
	for _, k := range p.kubelets {
		k.slewed += time.Duration(k.slew * float64(d))
	}
	p.check(passing, "")
}

// round is what happens most of the time: it makes deep sequences from few bytes.
func (p *playing) round(arg int) {
	p.pass(15 * time.Second)
	for i, k := range p.kubelets {
		if arg&(1<<i) == 0 { // some kubelets do not answer
			p.scrape(k, 0)
		}
	}
}

// firstRound has the kubelets send summaries, too, soon after something happened.
func (p *playing) firstRound(arg int) {
	p.pass(pick(&arg, []time.Duration{0, 4 * time.Second, 12 * time.Second}))
	scraped := pick(&arg, []bool{true, true, false})
	for _, k := range p.kubelets {
		if scraped {
			p.scrape(k, 0)
		}
		p.summary(k, arg)
	}
}

// answerFrom has a kubelet answer, for once, as it would have some time ago.
func (p *playing) answerFrom(k *kubelet, ago time.Duration) {
	then := *k
	then.ahead -= ago
	then.self, then.containers = new(*k.self), nil
	for _, c := range k.containers {
		c.isLying = true
		then.containers = append(then.containers, new(*c))
	}
	k.self.isLying = true
	p.scrape(&then, 0)
}

func (p *playing) start(arg int) {
	k := p.kubelet(&arg)
	key := containerKey{pick(&arg, podKeys), pick(&arg, containerNames)}
	p.run(k, key, pick(&arg, []bool{true, false}))
}

// run starts a container, unless it runs. Its start time may be known.
func (p *playing) run(k *kubelet, key containerKey, dated bool) {
	if slices.ContainsFunc(k.containers, func(c *counter) bool { return c.key == key }) {
		return
	}
	c := &counter{
		key:     key,
		late:    time.Duration(len(k.containers)%4) * 130 * time.Millisecond,
		counted: p.now,
		cores:   0.25,
		memory:  1 << 20,
		has:     usage.HasCPU | usage.HasMemory,
		isLying: k.startsAgo != 0 || k.ended[key], // a wrong start time of a new container, or a restart that nothing shows
	}
	if dated {
		c.startedAt = k.clock(p.now)
	}
	c.advance(p.now)
	k.containers = append(k.containers, c)
}

// scrape has a kubelet answer. The bits of lost say which of its containers cannot be read from the
// response; any of them makes it partial.
func (p *playing) scrape(k *kubelet, lost int) {
	s := p.response(k)
	s.Node, s.Partial = k.self.sample(k, p.now), lost != 0
	for i, c := range k.containers {
		sample := c.sample(k, p.now)
		if lost&(1<<i) == 0 {
			s.Containers = append(s.Containers, sampleOf(c.key, sample))
			c.scraped = true
		}
	}
	if lost == 0 {
		clear(k.ended)
	}
	p.put(k, s, false, func() { p.store.Put(k.name, s) })
}

// response is an empty one that arrives now.
func (p *playing) response(k *kubelet) *usage.Scrape {
	s := &usage.Scrape{At: p.now, Sent: p.now.Add(-k.latency), Capacity: nodeCapacity}
	if !k.dateless {
		s.Date = cut(k.clock(p.now))
	}
	return s
}

// nodeCapacity is that of every node, in nanocores.
const nodeCapacity = 128_000_000_000

// summary has a kubelet send its own rates, with times that are cut to whole seconds.
func (p *playing) summary(k *kubelet, arg int) {
	placeholders := pick(&arg, []bool{false, true})
	without := pick(&arg, []usage.Has{0, 0, usage.HasMemory, usage.HasRate})
	summarize := func(c *counter) usage.Sample {
		s := c.sample(k, p.now)
		s.At, s.MemoryAt, s.StartedAt = cut(s.At), cut(s.MemoryAt), cut(s.StartedAt)
		if !placeholders {
			s.Rate = uint64(c.cores * 1e9)
		}
		s.Has = (s.Has | usage.HasRate) &^ without
		return s
	}
	s := p.response(k)
	s.Node = summarize(k.self)
	for i, c := range k.containers {
		if arg&(1<<i) == 0 {
			s.Containers = append(s.Containers, sampleOf(c.key, summarize(c)))
		}
	}
	p.put(k, s, true, func() { p.store.PutSummary(k.name, s) })
}

func cut(t usage.Time) usage.Time { return t - t%usage.Time(time.Second) }

// put shows the model and the witness what is put into the store.
func (p *playing) put(k *kubelet, s *usage.Scrape, summary bool, store func()) {
	r := report{sent: s.Sent, at: s.At, date: s.Date, capacity: s.Capacity, summary: summary, partial: s.Partial, node: s.Node}
	for _, c := range s.Containers {
		r.containers = append(r.containers, reported{containerKey{podKey{string(c.Namespace), string(c.Pod)}, string(c.Name)}, c.Sample})
	}
	p.logf("  %s reports%s", k.name, r)
	p.model.put(k.name, r)
	p.reports[k.name] = append(p.reports[k.name], r)
	store()
	for i := range s.Containers { // the scrape is ours again
		c := &s.Containers[i]
		clear(c.Namespace)
		clear(c.Pod)
		clear(c.Name)
		*c = usage.ContainerSample{}
	}
	p.check(reporting, k.name)
}

func (p *playing) forget(k *kubelet) {
	p.logf("  %s", k.name)
	p.model.forget(k.name)
	delete(p.reports, k.name)
	p.store.Forget(k.name)
	p.check(forgetting, k.name)
}

func (p *playing) remove(k *kubelet, key podKey) {
	p.logf("  %v on %s", key, k.name)
	p.model.remove(k.name, key, p.now)
	p.store.RemovePod(k.name, key.namespace, key.name, p.now)
	maps.DeleteFunc(k.ended, func(ended containerKey, _ bool) bool { return ended.podKey == key })
	p.check(removing, k.name)
	if p.err == nil && p.store.Pod(k.name, key.namespace, key.name, p.now) != nil {
		p.fail("pod %v is served after its removal (rule 9)", key)
	}
}

func sampleOf(key containerKey, s usage.Sample) usage.ContainerSample {
	return usage.ContainerSample{Namespace: []byte(key.namespace), Pod: []byte(key.name), Name: []byte(key.container), Sample: s}
}

// event is what happened to the store last.
type event int

const (
	reporting event = iota
	forgetting
	removing
	passing // nothing: time passed
)

func (p *playing) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%v after the start, %w", p.now.Sub(t0), fmt.Errorf(format, args...))
	}
}

// check compares the store with the model, and looks for what must never be, whatever the model
// says.
func (p *playing) check(e event, node string) {
	for _, k := range p.kubelets {
		for _, key := range podKeys {
			p.checkPod(e, node, k, key)
		}
		p.checkNode(e, node, k)
	}
	if got, want := p.store.Stats(p.now), p.model.stats(p.now); got != want {
		p.fail("statistics:\n got %+v\nwant %+v", got, want)
	}
	if got, want := p.store.Counts(), p.model.counts; got != want {
		p.fail("counts:\n got %+v\nwant %+v", got, want)
	}
}

func (p *playing) checkPod(e event, node string, k *kubelet, key podKey) {
	got := p.store.Pod(k.name, key.namespace, key.name, p.now)
	want, asOf := p.model.pod(k.name, key, p.now)
	if !reflect.DeepEqual(withoutClockShown(got), want) {
		p.fail("pod %v on %s:\n got %s\nwant %s", key, k.name, show(got), show(want))
		return
	}
	if err := p.seePod(e, node, k, key, got); err != nil {
		p.fail("pod %v on %s: %w\n%s", key, k.name, err, show(got))
		return
	}
	if got == nil {
		return
	}
	end := asOf.Add(maxAge) // 8: just so long
	if p.store.Pod(k.name, key.namespace, key.name, end) != got || p.store.Pod(k.name, key.namespace, key.name, end+1) != nil {
		p.fail("pod %v on %s is not served until %v and no longer", key, k.name, end.Sub(t0))
	}
	for _, container := range got.Containers {
		for _, c := range k.containers {
			if c.key == (containerKey{key, container.Name}) {
				p.compareWithTruth(k, c, container.Amount)
			}
		}
	}
}

func (p *playing) checkNode(e event, node string, k *kubelet) {
	got := p.store.Node(k.name, p.now)
	want, asOf := p.model.node(k.name, p.now)
	if !reflect.DeepEqual(got, want) {
		p.fail("node %s:\n got %+v\nwant %+v", k.name, got, want)
		return
	}
	if err := p.seeNode(e, node, k.name, got); err != nil {
		p.fail("node %s: %w\n%+v", k.name, err, got)
		return
	}
	if got == nil {
		return
	}
	if end := asOf.Add(maxAge); p.store.Node(k.name, end) != got || p.store.Node(k.name, end+1) != nil {
		p.fail("node %s is not served until %v and no longer", k.name, end.Sub(t0))
	}
	p.compareWithTruth(k, k.self, got.Amount)
}

// maxStep is the largest step of a clock that may go unnoticed, with the latency of a response.
func (k *kubelet) maxStep() time.Duration { return 1400*time.Millisecond + 2*2*time.Second }

// compareWithTruth compares an Amount with what was really used, as far as the kubelet's reports
// can show it: rates are off by no more than an unnoticed step of the clock makes them, and no
// Amount outlives its age by more.
func (p *playing) compareWithTruth(k *kubelet, c *counter, a usage.Amount) {
	if c.isLying || k.wasDateless || p.err != nil {
		return
	}
	var ends []truth
	for _, t := range c.truth {
		if t.sampledAt == a.At || cut(t.sampledAt) == a.At {
			ends = append(ends, t)
		}
	}
	if len(ends) == 0 {
		return // of a container that ran before under this name
	}
	coreSeconds := float64(a.CPUNanocores) / 1e9 * a.Window.Seconds()
	step := k.maxStep()
	for _, end := range ends {
		if p.now.Sub(end.at) > maxAge+step {
			continue
		}
		least := end.coreSeconds - c.used(end.at.Add(-max(0, a.Window-step)))
		most := end.coreSeconds - c.used(end.at.Add(-a.Window-step))
		if slack := 0.001 + 1e-6*end.coreSeconds; least-slack <= coreSeconds && coreSeconds <= most+slack {
			return
		}
		if slices.Contains([]float64{0, 0.001, 0.1, 0.25, 1, 2.5, 96}, float64(a.CPUNanocores)/1e9) && a.Window <= usage.KubeletRateWindow {
			return // kubelet-reported, which is right by definition
		}
	}
	p.fail("%s on %s: %d nanocores over %v at %v is not what was used, or it is too old", c.key, k.name, a.CPUNanocores, a.Window, a.At.Sub(t0))
}

// witness has seen all reports and all that was served. It knows less of the rules than the model,
// but it does not share the model's mistakes.
type witness struct {
	reports map[string][]report // of each node, since it is known
	pods    map[*usage.Pod]usage.Pod
	nodes   map[*usage.Node]usage.Node // what was served, and how it looked then
}

func newWitness() witness {
	return witness{reports: map[string][]report{}, pods: map[*usage.Pod]usage.Pod{}, nodes: map[*usage.Node]usage.Node{}}
}

// seePod looks at what is served for a pod of a node after an event that concerned some node.
func (w *witness) seePod(e event, about string, k *kubelet, key podKey, p *usage.Pod) error {
	if p == nil {
		return nil
	}
	if _, known := w.pods[p]; !known {
		switch {
		case e != reporting:
			return errors.New("new metrics, but nothing was reported")
		case about != k.name:
			return fmt.Errorf("%s brought it (rule 10)", about)
		}
		w.pods[p] = clone(*p)
		if err := believable(key, p, w.reports[k.name]); err != nil {
			return err
		}
	}
	switch {
	case e == forgetting && about == k.name:
		return errors.New("it outlives its node (rule 9)")
	case e == reporting && about == k.name && !mayHave(w.reports[k.name], key):
		return errors.New("its node has it no more (rule 9)")
	}
	return nil
}

// mayHave reports whether a node may have a pod after all its reports.
func mayHave(reports []report, key podKey) bool {
	for _, r := range slices.Backward(reports) {
		switch {
		case len(r.names(key)) > 0:
			return true
		case !r.summary && !r.partial:
			return false
		}
	}
	return false
}

// names are those of a pod's containers that are mentioned.
func (r report) names(key podKey) []string {
	var names []string
	for _, c := range r.containers {
		if c.key.podKey == key {
			names = append(names, c.key.container)
		}
	}
	return names
}

// believable returns what is wrong with a pod, given all that its node reported.
func believable(key podKey, p *usage.Pod, reports []report) error {
	if len(p.Containers) == 0 {
		return errors.New("it is empty (rule 7)")
	}
	if (podKey{p.Namespace, p.Name}) != key {
		return fmt.Errorf("its name is %s/%s", p.Namespace, p.Name)
	}
	if !slices.IsSortedFunc(p.Containers, func(a, b usage.Container) int { return strings.Compare(a.Name, b.Name) }) {
		return errors.New("its containers are not sorted")
	}
	if !slices.ContainsFunc(p.Containers, func(c usage.Container) bool { return c.At == p.At && c.Window == p.Window }) {
		return errors.New("its time and window are not those of a container")
	}
	for _, c := range p.Containers {
		if err := founded(c.Amount, samplesOf(reports, containerKey{key, c.Name})); err != nil {
			return fmt.Errorf("container %s: %w", c.Name, err)
		}
	}
	last := reports[len(reports)-1]
	if last.summary {
		return nil
	}
	names := last.names(key)
	for _, c := range p.Containers {
		if !last.partial && !slices.Contains(names, c.Name) {
			return fmt.Errorf("container %s is gone (rule 7)", c.Name)
		}
	}
	return nil
}

// received is a sample of a node or container as it arrived.
type received struct {
	usage.Sample
	summary bool
}

func samplesOf(reports []report, key containerKey) []received {
	var samples []received
	for _, r := range reports {
		for _, c := range r.containers {
			if c.key == key {
				samples = append(samples, received{c.sample, r.summary})
			}
		}
	}
	return samples
}

// founded returns what is wrong with an Amount, given all samples of what it is of.
func founded(a usage.Amount, arrivals []received) error {
	if a.At <= 0 || a.Window <= 0 {
		return errors.New("it has no time or no window")
	}
	for _, end := range arrivals {
		if end.At != a.At || end.Memory != a.Memory || has(end.Sample, usage.HasSwap) != a.HasSwap || end.Swap != a.Swap {
			continue
		}
		rate := func(coreSeconds float64) uint64 { return uint64(math.Round(coreSeconds * 1e9 / a.Window.Seconds())) }
		if end.summary && end.Rate == a.CPUNanocores && a.Window <= usage.KubeletRateWindow {
			return nil
		}
		if sinceStart := end.StartedAt.Add(a.Window) == end.At; sinceStart && rate(end.CPUSeconds) == a.CPUNanocores &&
			10*time.Second <= a.Window && a.Window <= 60*time.Second {
			return nil
		}
		for _, begin := range arrivals {
			if begin.At.Add(a.Window) == end.At && rate(end.CPUSeconds-begin.CPUSeconds) == a.CPUNanocores &&
				time.Second <= a.Window && a.Window <= maxAge {
				return nil
			}
		}
	}
	return errors.New("it follows from no two samples, no start time and no kubelet-reported rate (rules 1, 4, 5)")
}

// seeNode looks at what is served for a node after an event that concerned some node.
func (w *witness) seeNode(e event, about, name string, n *usage.Node) error {
	if n == nil {
		return nil
	}
	if _, known := w.nodes[n]; !known {
		if e != reporting || about != name {
			return errors.New("new metrics, but it reported nothing")
		}
		w.nodes[n] = *n
		var samples []received
		for _, r := range w.reports[name] {
			samples = append(samples, received{r.node, r.summary})
		}
		if err := founded(n.Amount, samples); err != nil {
			return err
		}
	}
	switch {
	case n.Name != name:
		return fmt.Errorf("its name is %s", n.Name)
	case e == forgetting && about == name:
		return errors.New("it outlives its deletion (rule 9)")
	}
	return nil
}

// unchanged checks that nothing of what was ever served has changed since.
func (w *witness) unchanged() error {
	for now, then := range w.pods {
		if !reflect.DeepEqual(*now, then) {
			return fmt.Errorf("a pod changed after it was served:\n is %s\nwas %s", show(now), show(&then))
		}
	}
	for now, then := range w.nodes {
		if *now != then {
			return fmt.Errorf("a node changed after it was served:\n is %+v\nwas %+v", *now, then)
		}
	}
	return nil
}

func clone(p usage.Pod) usage.Pod {
	p.Containers = slices.Clone(p.Containers)
	return p
}

// withoutClockShown returns a pod's metrics alone. What its node's clock has shown is that of the
// last change of the snapshot.
func withoutClockShown(p *usage.Pod) *usage.Pod {
	if p == nil {
		return nil
	}
	metrics := *p
	metrics.ClockShown = 0
	return &metrics
}

// String returns what was reported, for whoever looks for a mistake.
func (r report) String() string {
	var b strings.Builder
	switch {
	case r.summary:
		b.WriteString(" in a summary:")
	case r.partial:
		b.WriteString(" in part:")
	}
	if r.date != 0 {
		fmt.Fprintf(&b, " date %v", r.date.Sub(t0))
	}
	write := func(name string, s usage.Sample) {
		fmt.Fprintf(&b, " %s", name)
		if has(s, usage.HasCPU) {
			fmt.Fprintf(&b, " cpu %v at %v", s.CPUSeconds, s.At.Sub(t0))
		}
		if s.StartedAt != 0 {
			fmt.Fprintf(&b, " since %v", s.StartedAt.Sub(t0))
		}
		if !has(s, usage.HasMemory) {
			b.WriteString(" no memory")
		}
		if has(s, usage.HasRate) {
			fmt.Fprintf(&b, " rate %dm", s.Rate/1e6)
		}
		b.WriteString(";")
	}
	write("node", r.node)
	for _, c := range r.containers {
		write(c.key.namespace+"/"+c.key.name+"/"+c.key.container, c.sample)
	}
	return b.String()
}
