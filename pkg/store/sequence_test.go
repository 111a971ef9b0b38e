package store

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestSequences plays random scripts of events in a cluster, and compares what the store serves
// after each event with its model and with the true load. The seeds are fixed; FuzzSequences finds
// others.
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
			t.Fatalf("seed %d: %v\nThe smallest failing script is []byte(%q)", seed, play(script, t.Logf), script)
		}
	}
}

// FuzzSequences has the fuzzer write the scripts. Two bytes are one step.
func FuzzSequences(f *testing.F) {
	f.Fuzz(func(t *testing.T, script []byte) {
		const maxSteps = 200 // the model's time grows with the square of the steps
		if len(script) > 2*maxSteps {
			t.Skip()
		}
		if play(script, nil) != nil {
			t.Fatal(play(script, t.Logf))
		}
	})
}

// shrink removes the steps that a script does not need to fail, and sets the others to their index
// in the list.
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

// play runs a script, step by step, and returns the first error.
func play(script []byte, logf func(string, ...any)) error {
	p := newPlayer(logf)
	for i := 0; i+1 < len(script) && p.err == nil; i += 2 {
		step := steps[int(script[i])%len(steps)]
		p.logf("%v: %s", p.now.Sub(t0), step.name)
		step.do(p, int(script[i+1]))
	}
	p.checkUnchanged()
	return p.err
}

// There are few names, so that they collide.
var (
	nodeNames      = []string{"n1", "n2", "n3"}
	podKeys        = []podKey{{"n", "p"}, {"n", "q"}, {"m", "p"}}
	containerNames = []string{"a", "b", "c"}
)

// steps are the events that can happen. The argument is a byte that selects objects and amounts;
// pick consumes a part of it. New steps are appended, so that the scripts in testdata keep their
// meaning.
var steps = []struct {
	name string
	do   func(p *player, arg int)
}{
	{"a regular round", (*player).round},
	{"a regular round", (*player).round},
	{"time passes without scrapes", func(p *player, arg int) { p.pass(times[arg%len(times)]) }},
	{"a scrape", func(p *player, arg int) { p.scrape(p.kubelet(&arg), 0) }},
	{"a partial scrape", func(p *player, arg int) { p.scrape(p.kubelet(&arg), 1+arg) }},
	{"a round with summaries, as at start-up", (*player).firstRound},
	{"old responses", func(p *player, arg int) {
		k := p.kubelet(&arg)
		ago := pick(&arg, []time.Duration{2 * time.Second, 40 * time.Second})
		for range 1 + arg%2 {
			p.scrapeAsOf(k, ago)
		}
	}},
	{"a summary", func(p *player, arg int) { p.summary(p.kubelet(&arg), arg) }},
	{"a node is deleted", func(p *player, arg int) { p.forget(p.kubelet(&arg)) }},
	{"a container starts", (*player).startContainer},
	{"a container starts", (*player).startContainer},
	{"a pod also runs on another node", func(p *player, arg int) {
		from, to, key := p.kubelet(&arg), p.kubelet(&arg), pick(&arg, podKeys)
		for _, c := range from.containers {
			if c.key.podKey == key {
				p.run(to, c.key, true)
			}
		}
	}},
	{"a container ends", func(p *player, arg int) {
		k := p.kubelet(&arg)
		if ended := k.container(&arg); ended != nil {
			k.end(func(c *counter) bool { return c == ended })
		}
	}},
	{"a pod ends", func(p *player, arg int) {
		k, key := p.kubelet(&arg), pick(&arg, podKeys)
		k.end(func(c *counter) bool { return c.key.podKey == key })
	}},
	{"a container restarts", func(p *player, arg int) {
		k := p.kubelet(&arg)
		if c := k.container(&arg); c != nil {
			c.restart(k.clock(p.now), p.now)
		}
	}},
	{"a counter is reset", func(p *player, arg int) {
		if c := p.kubelet(&arg).any(&arg); c != nil {
			c.coreSeconds *= pick(&arg, []float64{0, 0.5})
			c.unverifiable = true
		}
	}},
	{"a clock is set", func(p *player, arg int) {
		k := p.kubelet(&arg)
		k.ahead += pick(&arg, clockSteps)
		k.wasSet = true
		k.markUnverifiable()
		k.hideStarts()
	}},
	{"a kubelet starts or stops to repeat its samples", func(p *player, arg int) {
		k := p.kubelet(&arg)
		k.frozen = !k.frozen
		k.markUnverifiable()
	}},
	{"a sample is missing, or present again", func(p *player, arg int) {
		if c := p.kubelet(&arg).any(&arg); c != nil {
			c.has ^= pick(&arg, []usage.Has{usage.HasCPU, usage.HasMemory, usage.HasSwap, usage.HasCPU | usage.HasMemory})
		}
	}},
	{"a start time changes", func(p *player, arg int) {
		k := p.kubelet(&arg)
		if c := k.container(&arg); c != nil {
			now := k.clock(p.now)
			c.startedAt = pick(&arg, []usage.NodeTime{
				0, now.Add(-20 * time.Second), now.Add(-time.Hour), usage.NodeTime(p.now.Add(time.Hour)),
			})
			c.unverifiable = c.unverifiable || !c.scraped // an unknown container may be considered new
			k.hideStarts()
		}
	}},
	{"a container uses more or less", func(p *player, arg int) {
		if c := p.kubelet(&arg).any(&arg); c != nil {
			c.advance(p.now)
			c.cores = pick(&arg, []float64{0, 0.001, 0.1, 2.5, 96})
			c.memory = uint64(c.cores * (1 << 20))
		}
	}},
	{"a counter is absurd", func(p *player, arg int) {
		if c := p.kubelet(&arg).any(&arg); c != nil {
			c.coreSeconds = pick(&arg, []float64{1e9, 1e12, 1e300, math.MaxFloat64})
			c.memory, c.swap, c.unverifiable = math.MaxInt64-1, math.MaxInt64-1, true
		}
	}},
	{"containers are listed in another order", func(p *player, arg int) {
		k := p.kubelet(&arg)
		if n := len(k.containers); n > 0 {
			i := arg % n
			k.containers = append(slices.Clone(k.containers[i:]), k.containers[:i]...)
		}
	}},
	{"a pod is replaced by one of the same name", func(p *player, arg int) {
		k, key := p.kubelet(&arg), pick(&arg, podKeys)
		k.end(func(c *counter) bool { return c.key.podKey == key })
		p.remove(k, key)
		p.run(k, containerKey{key, pick(&arg, containerNames)}, true)
	}},
	{"start times move with the samples, or not", func(p *player, arg int) {
		k := p.kubelet(&arg)
		k.startsAgo = pick(&arg, []time.Duration{0, 2 * time.Second, 12 * time.Second, 12 * time.Second})
		for _, c := range k.containers {
			c.unverifiable = c.unverifiable || !c.scraped
		}
		k.hideStarts()
	}},
	{"a container runs according to the API server, or not", func(p *player, arg int) {
		key := containerKey{pick(&arg, podKeys), pick(&arg, containerNames)}
		p.stopped[key] = !p.stopped[key]
	}},
	{"a kubelet sends no Date header, or sends it again", func(p *player, arg int) {
		k := p.kubelet(&arg)
		k.dateless, k.wasDateless = !k.dateless, true
	}},
	{"responses become slow, or fast again", func(p *player, arg int) {
		p.kubelet(&arg).latency = pick(&arg, []time.Duration{0, 90 * time.Millisecond, 2 * time.Second})
	}},
	{"a pod is removed while its kubelet reports it", func(p *player, arg int) {
		k, key := p.kubelet(&arg), pick(&arg, podKeys)
		p.remove(k, key)
	}},
	{"samples have no times, or have them again", func(p *player, arg int) {
		k := p.kubelet(&arg)
		k.untimed = !k.untimed
	}},
	{"a clock is slewed", func(p *player, arg int) {
		p.kubelet(&arg).slew = pick(&arg, []float64{0, 0.0005, -0.0005, 0.01, -0.01})
	}},
	{"rounds at another interval", (*player).rounds},
	{"rounds at another interval", (*player).rounds},
	{"rounds at another interval", (*player).rounds},
	{"kube-vitals is restarted with another rate window", func(p *player, arg int) {
		p.start(pick(&arg, rateWindows))
		p.check()
	}},
	{"a pod is deleted by force, and runs on beside the next one", (*player).replaceByForce},
	{"a pod is deleted by force, and runs on beside the next one", (*player).replaceByForce},
	{"a kubelet lists two pods of a name in another order", func(p *player, arg int) {
		k := p.kubelet(&arg)
		k.order = uint8(arg * 37)
	}},
	{"the API server shows another start, or none", func(p *player, arg int) {
		k, key := p.kubelet(&arg), pick(&arg, podKeys)
		ago := pick(&arg, []time.Duration{0, 15 * time.Second, time.Hour, -30 * time.Second, -2 * time.Hour})
		state := usage.ContainerState{EarliestStart: cut(k.clock(p.now).Add(-ago)), PodCreatedAt: p.now.Add(-ago)}
		if arg%2 == 1 {
			state.EarliestStart = 0
		}
		p.shown[boundPod{k.name, key}] = state
		k.hideStarts()
	}},
	{"a container waits for its restart according to the API server, or does not", func(p *player, arg int) {
		key := containerKey{pick(&arg, podKeys), pick(&arg, containerNames)}
		if p.waiting[key] = !p.waiting[key]; !p.waiting[key] {
			p.restarted[key] = p.kubelets[0].clock(p.now)
		}
		p.stopped[key] = p.waiting[key]
	}},
	{"a complete response omits containers", func(p *player, arg int) { p.omit(p.kubelet(&arg), arg) }},
	{"a complete response omits containers", func(p *player, arg int) { p.omit(p.kubelet(&arg), arg) }},
	{"a kubelet does not know the usage of a container, or knows it again", func(p *player, arg int) {
		if c := p.kubelet(&arg).any(&arg); c != nil {
			c.unknown ^= pick(&arg, []usage.Has{usage.HasCPU | usage.HasMemory, usage.HasCPU, usage.HasMemory})
		}
	}},
	{"a kubelet does not know the usage of a container, or knows it again", func(p *player, arg int) {
		if c := p.kubelet(&arg).any(&arg); c != nil {
			c.unknown ^= usage.HasCPU | usage.HasMemory
		}
	}},
	{"the status of a node shows another capacity", func(p *player, arg int) {
		p.kubelet(&arg).capacity = pick(&arg, []uint64{nodeCapacity, 500_000_000, 2_000_000_000, 0})
	}},
	{"one of two responses has an absurd counter", func(p *player, arg int) {
		k := p.kubelet(&arg)
		if c := k.container(&arg); c != nil {
			p.scrape(k, 0)
			p.pass(pick(&arg, []time.Duration{400 * time.Millisecond, time.Second, 15 * time.Second}))
			c.advance(p.now)
			real := c.coreSeconds
			c.coreSeconds += 1e9
			c.unverifiable = c.unverifiable || k.capacity == 0 || k.self.unverifiable // the capacity may not reveal it
			p.scrape(k, 0)
			c.coreSeconds, c.lastSample = real, usage.Sample{} // so that no kubelet repeats it
		}
	}},
}

var rateWindows = []time.Duration{
	15 * time.Second, 0, time.Second, 5 * time.Second, 7 * time.Second, 30 * time.Second, maxAge,
}

// intervals are on both sides of every limit that derives from the rate window.
var intervals = []time.Duration{
	time.Second, 1200 * time.Millisecond, 2500 * time.Millisecond, 3700 * time.Millisecond, 3800 * time.Millisecond,
	5 * time.Second, 7500 * time.Millisecond, 8900 * time.Millisecond, 9 * time.Second, 10 * time.Second,
	15 * time.Second, 20 * time.Second, maxAge,
}

// times are on both sides of every limit of a time.
var times = []time.Duration{
	time.Millisecond, 400 * time.Millisecond, time.Second, 1200 * time.Millisecond, 4 * time.Second, 10 * time.Second,
	15 * time.Second, 15 * time.Second, 20 * time.Second, 30 * time.Second, 50 * time.Second, time.Minute,
	time.Minute + time.Millisecond, 5 * time.Minute,
}

var clockSteps = []time.Duration{
	-500 * time.Millisecond, 500 * time.Millisecond, -3 * time.Second, 3 * time.Second, -20 * time.Second,
	20 * time.Second, -100 * time.Second, 100 * time.Second, -time.Hour, time.Hour,
}

// pick selects an element, and divides the argument by their number.
func pick[T any](arg *int, from []T) T {
	i := *arg % len(from)
	*arg /= len(from)
	return from[i]
}

// counter is a container or a node that uses CPU and memory.
type counter struct {
	key         containerKey
	startedAt   usage.NodeTime // 0: not known
	late        time.Duration
	coreSeconds float64 // at the time counted
	counted     usage.Time
	cores       float64 // the load
	memory      uint64
	swap        uint64
	has         usage.Has

	other *counter // that of a deleted pod of the same name, which still runs; nil: none

	lastSample   usage.Sample
	truth        []truth // oldest first
	scraped      bool    // whether a scrape mentioned it
	unverifiable bool    // whether the kubelet reported something wrong that nothing reveals

	unknown usage.Has // the values that the kubelet does not know, and reports as 0
}

// truth is the true usage at some time, whatever the kubelet reports.
type truth struct {
	at          usage.Time
	coreSeconds float64
	sampledAt   usage.NodeTime // the time of the sample as the kubelet reports it; 0: there was none
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

// used returns the core-seconds that were truly used up to a time.
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

func (c *counter) restart(clock usage.NodeTime, now usage.Time) {
	c.advance(now)
	c.coreSeconds, c.unverifiable = 0, true // if the next sample is higher than the last, nothing reveals the restart
	if c.startedAt != 0 {
		c.startedAt = clock
	}
}

// sample returns what a kubelet reports of the counter.
func (c *counter) sample(k *kubelet, now usage.Time) usage.Sample {
	c.advance(now)
	if k.frozen && c.lastSample.Has != 0 {
		return c.lastSample
	}
	s := usage.Sample{StartedAt: c.startedAt, Has: c.has}
	clock := k.clock(now)
	if has(s, usage.HasCPU) {
		s.At, s.CPUSeconds = clock.Add(-c.late), c.coreSeconds
		if s.Untimed = k.untimed; s.Untimed {
			s.At = usage.NodeTime(now)
		}
		c.truth[len(c.truth)-1].sampledAt = s.At
	}
	if k.startsAgo != 0 && c.startedAt != 0 {
		s.StartedAt = s.At.Add(-k.startsAgo)
	}
	if has(s, usage.HasMemory) {
		s.Memory = c.memory
	}
	if has(s, usage.HasSwap) {
		s.Swap = c.swap
	}
	if c.unknown&usage.HasCPU != 0 {
		s.CPUSeconds = 0
		// Nothing reveals that if it has memory, and neither a start nor a value before.
		c.unverifiable = c.unverifiable || c.unknown&usage.HasMemory == 0 && c.memory > 0
	}
	if c.unknown&usage.HasMemory != 0 {
		s.Memory = 0
	}
	c.lastSample = s
	return s
}

// reported returns the sample of the counter or of the other of the same name. In one of four cases
// it has the start time of the one and the usage of the other.
func (c *counter) reported(k *kubelet, now usage.Time) usage.Sample {
	own := c.sample(k, now)
	if c.other == nil || k.order&1 == 0 {
		return own
	}
	s := c.other.sample(k, now)
	if k.order&6 == 6 {
		s.StartedAt, c.unverifiable = own.StartedAt, true // only a counter above the capacity reveals it
	}
	return s
}

// kubelet is a node with its containers.
type kubelet struct {
	name       string
	ahead      time.Duration // of our clock, by being set
	slew       float64       // the speed of its clock relative to ours, less 1
	slewed     time.Duration // ahead of our clock, by slewing
	frozen     bool          // whether it repeats its samples
	untimed    bool          // whether its samples have no times
	startsAgo  time.Duration // if not 0: the age of all containers at each sample
	latency    time.Duration // of its responses
	capacity   uint64        // in the status of the node, in nanocores
	dateless   bool          // whether it sends no Date header
	self       *counter
	containers []*counter // in the order of its reports
	order      uint8      // its bits, from the lowest: whether the next responses have the others of the containers

	wasSet      bool                  // whether its clock was ever set
	wasDateless bool                  // so that steps of its clock may have gone unnoticed
	ended       map[containerKey]bool // containers that ended, maybe unknown to the store
}

// markUnverifiable notes that repeated samples by another clock may seem to be new.
func (k *kubelet) markUnverifiable() {
	if k.frozen && k.wasSet {
		for _, c := range append(slices.Clone(k.containers), k.self) {
			c.unverifiable = true
		}
	}
}

// hideStarts notes that start times may no longer tell the containers of two pods of one name
// apart.
func (k *kubelet) hideStarts() {
	for _, c := range k.containers {
		c.unverifiable = c.unverifiable || c.other != nil
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

func (k *kubelet) clock(now usage.Time) usage.NodeTime {
	return usage.NodeTime(now.Add(k.ahead + k.slewed))
}

// container picks a container, or returns nil if there is none.
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

// boundPod is a pod on a node.
type boundPod struct {
	node string
	podKey
}

// player runs a script.
type player struct {
	now      usage.Time
	kubelets []*kubelet
	stopped  map[containerKey]bool             // the containers that do not run according to the API server
	waiting  map[containerKey]bool             // those that it shows as waiting for a restart if they do not run
	shown    map[boundPod]usage.ContainerState // the starts of pods that it shows
	// The starts of containers that it shows once they have waited for their restart, by the clock of the first node.
	restarted map[containerKey]usage.NodeTime

	state  func(node string, key containerKey) usage.ContainerState // according to the API server
	maxAge time.Duration
	keys   []podKey // of the pods that it compares

	store *Store
	model *model
	logf  func(string, ...any)
	err   error

	pods  map[*usage.Pod]usage.Pod
	nodes map[*usage.Node]usage.Node // copies of all snapshots, as they were when they were published
}

func newPlayer(logf func(string, ...any)) *player {
	p := &player{
		now: t0, stopped: map[containerKey]bool{}, waiting: map[containerKey]bool{},
		shown: map[boundPod]usage.ContainerState{}, restarted: map[containerKey]usage.NodeTime{}, maxAge: maxAge,
		keys: podKeys, logf: logf,
		pods: map[*usage.Pod]usage.Pod{}, nodes: map[*usage.Node]usage.Node{},
	}
	if logf == nil {
		p.logf = func(string, ...any) {}
	}
	p.state = p.shownState
	p.start(rateWindow)
	for _, name := range nodeNames {
		self := &counter{coreSeconds: 1000, counted: t0, cores: 1, has: usage.HasCPU | usage.HasMemory}
		p.kubelets = append(p.kubelets, &kubelet{
			name: name, capacity: nodeCapacity, self: self, ended: map[containerKey]bool{},
		})
	}
	return p
}

// shownState returns what the API server shows of a container in a script.
func (p *player) shownState(node string, key containerKey) usage.ContainerState {
	shown := p.shown[boundPod{node, key.podKey}]
	if shown.Running = !p.stopped[key]; shown.Running {
		shown.StartedAt = cut(p.restarted[key])
	}
	shown.Alive = shown.Running || p.waiting[key]
	return shown
}

// start starts kube-vitals, which knows nothing of what it knew before.
func (p *player) start(rateWindow time.Duration) {
	config := Config{MaxSampleAge: p.maxAge, RateWindow: rateWindow, MaxContainers: 100}
	config.State = func(node, namespace, pod, container string) usage.ContainerState {
		return p.state(node, containerKey{podKey{namespace, pod}, container})
	}
	p.store, p.model = New(config), newModel(p.maxAge, rateWindow, p.state)
	for _, k := range p.kubelets {
		for _, c := range k.containers {
			c.scraped = false
		}
	}
}

func (p *player) kubelet(arg *int) *kubelet { return pick(arg, p.kubelets) }

func (p *player) pass(d time.Duration) {
	p.now = p.now.Add(d)
	for _, k := range p.kubelets {
		k.slewed += time.Duration(k.slew * float64(d))
	}
	p.check()
}

// round scrapes most nodes, as happens most of the time: few bytes make a long sequence.
func (p *player) round(arg int) {
	p.pass(15 * time.Second)
	for i, k := range p.kubelets {
		if arg&(1<<i) == 0 { // the scrapes of the others fail
			p.scrape(k, 0)
		}
	}
}

// rounds scrapes all nodes several times. Some of the scrapes are partial, and miss a container.
func (p *player) rounds(arg int) {
	interval := pick(&arg, intervals)
	partial := pick(&arg, []int{0, 1, 2})
	for i := range 2 + arg%4 {
		p.pass(interval)
		for _, k := range p.kubelets {
			lost := 0
			if i == 1 {
				lost = partial
			}
			p.scrape(k, lost)
		}
	}
}

// firstRound also fetches summaries, soon after the last event.
func (p *player) firstRound(arg int) {
	p.pass(pick(&arg, []time.Duration{0, 4 * time.Second, 12 * time.Second}))
	scraped := pick(&arg, []bool{true, true, false})
	for _, k := range p.kubelets {
		if scraped {
			p.scrape(k, 0)
		}
		p.summary(k, arg)
	}
}

// scrapeAsOf has a kubelet respond once as it would have responded some time ago.
func (p *player) scrapeAsOf(k *kubelet, ago time.Duration) {
	then := *k
	then.ahead -= ago
	then.self, then.containers = new(*k.self), nil
	for _, c := range k.containers {
		c.unverifiable = true
		then.containers = append(then.containers, new(*c))
	}
	k.self.unverifiable, k.wasSet = true, true // its clock seems to be
	p.scrape(&then, 0)
}

func (p *player) startContainer(arg int) {
	k := p.kubelet(&arg)
	key := containerKey{pick(&arg, podKeys), pick(&arg, containerNames)}
	p.run(k, key, pick(&arg, []bool{true, false}))
}

// run starts a container, unless it already runs. dated is set if its start time is known.
func (p *player) run(k *kubelet, key containerKey, dated bool) {
	if slices.ContainsFunc(k.containers, func(c *counter) bool { return c.key == key }) {
		return
	}
	c := &counter{
		key:          key,
		late:         time.Duration(len(k.containers)%4) * 130 * time.Millisecond,
		counted:      p.now,
		cores:        0.25,
		memory:       1 << 20,
		has:          usage.HasCPU | usage.HasMemory,
		unverifiable: k.startsAgo != 0 || k.ended[key], // a wrong start time, or a restart that nothing reveals
	}
	if dated {
		c.startedAt = k.clock(p.now)
	}
	if !slices.ContainsFunc(k.containers, func(other *counter) bool { return other.key.podKey == key.podKey }) {
		p.shown[boundPod{k.name, key.podKey}] = usage.ContainerState{EarliestStart: cut(k.clock(p.now)), PodCreatedAt: p.now}
	}
	c.advance(p.now)
	k.containers = append(k.containers, c)
}

// replaceByForce replaces a pod by one of the same name that starts at once, while the old one runs
// on.
func (p *player) replaceByForce(arg int) {
	k, key := p.kubelet(&arg), pick(&arg, podKeys)
	var old []*counter
	k.end(func(c *counter) bool {
		if c.key.podKey == key {
			old = append(old, c)
		}
		return c.key.podKey == key
	})
	p.remove(k, key)
	for _, c := range old {
		p.run(k, c.key, true)
		next := k.containers[len(k.containers)-1]
		next.other, next.cores = c, 0.1
		isLater := c.startedAt != 0 && next.startedAt.Sub(c.startedAt) > 12*time.Second
		next.unverifiable = next.unverifiable || k.wasSet || k.slewed != 0 || !isLater
	}
	k.order = uint8(arg * 37)
}

// scrape scrapes a kubelet. The bits of lost select the containers that cannot be read from the
// response; any of them makes it partial.
func (p *player) scrape(k *kubelet, lost int) {
	p.respond(k, lost, lost != 0)
}

// omit scrapes a kubelet whose complete response does not mention some containers. The bits of omitted
// select them.
func (p *player) omit(k *kubelet, omitted int) {
	for i, c := range k.containers {
		if omitted&(1<<i) != 0 && !c.scraped {
			c.unverifiable = true // it will seem to be new, whatever its start time is
		}
	}
	p.respond(k, omitted, false)
}

func (p *player) respond(k *kubelet, lost int, partial bool) {
	s := p.response(k)
	s.Node, s.Partial = k.self.sample(k, p.now), partial
	for i, c := range k.containers {
		sample := c.reported(k, p.now)
		if lost&(1<<i) == 0 {
			s.Containers = append(s.Containers, sampleOf(c.key, sample))
			c.scraped = c.unknown == 0 || !p.stopped[c.key] // else it counts as ended, and as new afterwards
		}
	}
	k.order = k.order>>1 | k.order<<7
	if lost == 0 { // the others may still run, by the API server
		maps.DeleteFunc(k.ended, func(key containerKey, _ bool) bool { return p.stopped[key] && !p.waiting[key] })
	}
	p.put(k, s, false)
}

// response returns an empty response that arrives now.
func (p *player) response(k *kubelet) *usage.Scrape {
	s := &usage.Scrape{At: p.now, Sent: p.now.Add(-k.latency), Capacity: k.capacity}
	if !k.dateless {
		s.Date = cut(k.clock(p.now))
	}
	return s
}

// nodeCapacity is the capacity of every node, in nanocores.
const nodeCapacity = 128_000_000_000

// summary fetches a kubelet's summary, whose times are truncated to whole seconds.
func (p *player) summary(k *kubelet, arg int) {
	placeholders := pick(&arg, []bool{false, true})
	without := pick(&arg, []usage.Has{0, 0, usage.HasMemory, usage.HasRate})
	summarize := func(c *counter) usage.Sample {
		s := c.sample(k, p.now)
		s.At, s.StartedAt = cut(s.At), cut(s.StartedAt)
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
	p.put(k, s, true)
}

// cut truncates a time to whole seconds.
func cut[T usage.Time | usage.NodeTime](t T) T { return t - t%T(time.Second) }

// put puts a response into the store and into the model.
func (p *player) put(k *kubelet, s *usage.Scrape, summary bool) {
	s.DropUnknown()
	r := report{
		sent: s.Sent, at: s.At, date: s.Date, capacity: s.Capacity, summary: summary, partial: s.Partial, node: s.Node,
	}
	for _, c := range s.Containers {
		r.containers = append(r.containers, reported{keyOf(&c), c.Sample})
	}
	p.logf("  %s reports%s", k.name, r)
	got, want := usage.Report{}, p.model.put(k.name, r)
	if summary {
		got.Missing = p.store.PutSummary(k.name, s)
	} else {
		got = p.store.Put(k.name, s)
	}
	for _, missing := range [][]usage.Missing{got.Missing, want.Missing} { // in any order
		slices.SortFunc(missing, func(a, b usage.Missing) int {
			if a.KubeletRate != b.KubeletRate {
				return map[bool]int{false: -1, true: 1}[a.KubeletRate]
			}
			return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.SampledAt, b.SampledAt),
				cmp.Compare(a.StartedAt, b.StartedAt))
		})
	}
	if !reflect.DeepEqual(got, want) {
		p.fail("report of %s:\n got %s\nwant %s", k.name, showReport(got), showReport(want))
	}
	for i := range s.Containers { // the store must not have retained them
		c := &s.Containers[i]
		clear(c.Namespace)
		clear(c.Pod)
		clear(c.Name)
		*c = usage.ContainerSample{}
	}
	p.checkFacts(k)
	p.check()
}

// showReport returns a report as text, with times since t0.
func showReport(r usage.Report) string {
	missing := r.Missing
	r.Missing = nil
	s := fmt.Sprintf("%+v", r)
	for _, m := range missing {
		s += fmt.Sprintf(" missing since %s, sampled %s, started %s, kubelet rate %v;",
			sinceT0(m.Since), sinceT0(m.SampledAt), sinceT0(m.StartedAt), m.KubeletRate)
	}
	return s
}

// sinceT0 returns a time as text, relative to t0.
func sinceT0[T usage.Time | usage.NodeTime](t T) string {
	if t == 0 {
		return "never"
	}
	return usage.Time(t).Sub(t0).String()
}

func (p *player) forget(k *kubelet) {
	p.logf("  %s", k.name)
	for _, c := range k.containers {
		c.scraped = false
	}
	p.model.forget(k.name)
	p.store.Forget(k.name)
	p.checkFacts(k)
	p.check()
}

func (p *player) remove(k *kubelet, key podKey) {
	p.logf("  %v on %s", key, k.name)
	p.model.remove(k.name, key, p.now)
	p.store.RemovePod(k.name, key.namespace, key.name, p.now)
	maps.DeleteFunc(k.ended, func(ended containerKey, _ bool) bool { return ended.podKey == key })
	p.checkFacts(k)
	p.check()
	if p.err == nil && p.store.Pod(k.name, key.namespace, key.name, p.now) != nil {
		p.fail("pod %v is served after its removal (rule 9)", key)
	}
}

func sampleOf(key containerKey, s usage.Sample) usage.ContainerSample {
	return usage.ContainerSample{
		Namespace: []byte(key.namespace), Pod: []byte(key.name), Name: []byte(key.container), Sample: s,
	}
}

func (p *player) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%v after the start, %w", p.now.Sub(t0), fmt.Errorf(format, args...))
	}
}

// check compares what the store serves with the model and with the true load.
func (p *player) check() {
	for _, k := range p.kubelets {
		for _, key := range p.keys {
			p.checkPod(k, key)
		}
		p.checkNode(k)
	}
	if got, want := p.store.Stats(p.now), p.model.stats(p.now); got != want {
		p.fail("statistics:\n got %+v\nwant %+v", got, want)
	}
	if got, want := p.store.Counts(), p.model.counts; got != want {
		p.fail("counts:\n got %+v\nwant %+v", got, want)
	}
}

func (p *player) checkPod(k *kubelet, key podKey) {
	got := p.store.Pod(k.name, key.namespace, key.name, p.now)
	want, asOf := p.model.pod(k.name, key, p.now)
	if !reflect.DeepEqual(got, want) {
		p.fail("pod %v on %s:\n got %s %+v\nwant %s %+v", key, k.name, show(got), got, show(want), want)
		return
	}
	if got == nil {
		return
	}
	if _, known := p.pods[got]; !known {
		p.pods[got] = clone(*got)
	}
	end := asOf.Add(p.maxAge) // rule 8: the last moment
	at := func(now usage.Time) *usage.Pod { return p.store.Pod(k.name, key.namespace, key.name, now) }
	if at(end) != got || at(end+1) != nil {
		p.fail("pod %v on %s does not expire after %v", key, k.name, end.Sub(t0))
	}
	for _, container := range got.Containers {
		for _, c := range k.containers {
			if c.key == (containerKey{key, container.Name}) {
				p.compareWithTruth(k, c, container.Amount)
			}
		}
	}
}

func (p *player) checkNode(k *kubelet) {
	got := p.store.Node(k.name, p.now)
	want, asOf := p.model.node(k.name, p.now)
	if !reflect.DeepEqual(got, want) {
		p.fail("node %s:\n got %+v\nwant %+v", k.name, got, want)
		return
	}
	if got == nil {
		return
	}
	if _, known := p.nodes[got]; !known {
		p.nodes[got] = *got
	}
	if end := asOf.Add(p.maxAge); p.store.Node(k.name, end) != got || p.store.Node(k.name, end+1) != nil {
		p.fail("node %s does not expire after %v", k.name, end.Sub(t0))
	}
	p.compareWithTruth(k, k.self, got.Amount)
}

// checkFacts compares what the store knows of the samples of a node with the model.
func (p *player) checkFacts(k *kubelet) {
	got, known := p.store.NodeFacts(k.name)
	if want, wantKnown := p.model.nodeFacts(k.name); got != want || known != wantKnown {
		p.fail("facts of node %s:\n got %+v, %v\nwant %+v, %v", k.name, got, known, want, wantKnown)
	}
	for _, key := range p.keys {
		got, known := p.store.PodFacts(k.name, key.namespace, key.name)
		for i := range got.Containers {
			got.Containers[i].Omitted = false
		}
		if want, wantKnown := p.model.podFacts(k.name, key); known != wantKnown || !reflect.DeepEqual(got, want) {
			p.fail("facts of pod %v on %s:\n got %+v, %v\nwant %+v, %v", key, k.name, got, known, want, wantKnown)
		}
	}
}

// maxStep is the largest step of a clock that may go unnoticed, with the latency of a response.
func (k *kubelet) maxStep() time.Duration { return 1400*time.Millisecond + 2*2*time.Second }

// compareWithTruth compares an Amount with the true usage, as far as the kubelet's reports can show
// it: rates and ages may be wrong by as much as an unnoticed step of the clock makes them.
func (p *player) compareWithTruth(k *kubelet, c *counter, a usage.Amount) {
	if a.At <= 0 || a.Window <= 0 || a.Window > p.maxAge {
		p.fail("%s on %s: there is no time or window, or it is too long: %+v", c.key, k.name, a)
	}
	if c.unverifiable || k.wasDateless || p.err != nil {
		return
	}
	var ends []truth
	for _, t := range c.truth {
		if t.sampledAt == a.At || cut(t.sampledAt) == a.At {
			ends = append(ends, t)
		}
	}
	if len(ends) == 0 {
		return // of an earlier container with this name
	}
	coreSeconds := float64(a.CPUNanocores) / 1e9 * a.Window.Seconds()
	step := k.maxStep()
	for _, end := range ends {
		if p.now.Sub(end.at) > p.maxAge+step {
			continue
		}
		least := end.coreSeconds - c.used(end.at.Add(-max(0, a.Window-step)))
		most := end.coreSeconds - c.used(end.at.Add(-a.Window-step))
		if slack := 0.001 + 1e-6*end.coreSeconds; least-slack <= coreSeconds && coreSeconds <= most+slack {
			return
		}
		isLoad := slices.Contains([]float64{0, 0.001, 0.1, 0.25, 1, 2.5, 96}, float64(a.CPUNanocores)/1e9)
		if isLoad && a.Window <= kubeletRateWindow {
			return // a kubelet-reported rate, which is right by definition
		}
	}
	p.fail("%s on %s: %d nanocores over %v at %v is not the true usage, or is too old",
		c.key, k.name, a.CPUNanocores, a.Window, a.At.AheadOf(t0))
}

// checkUnchanged checks that no snapshot was modified after it was published.
func (p *player) checkUnchanged() {
	for got, want := range p.pods {
		if !reflect.DeepEqual(*got, want) {
			p.fail("a published pod was modified:\n got %s\nwant %s", show(got), show(&want))
		}
	}
	for got, want := range p.nodes {
		if *got != want {
			p.fail("a published node was modified:\n got %+v\nwant %+v", *got, want)
		}
	}
}

func clone(p usage.Pod) usage.Pod {
	p.Containers = slices.Clone(p.Containers)
	return p
}

// String describes the report in logs.
func (r report) String() string {
	s := fmt.Sprintf(" (summary %v, partial %v, date %v)", r.summary, r.partial, sinceT0(r.date))
	for _, c := range append([]reported{{containerKey{container: "node"}, r.node}}, r.containers...) {
		s += fmt.Sprintf(" %v has %04b: cpu %v at %s, memory %d, started %s, rate %dm;", c.key, c.sample.Has,
			c.sample.CPUSeconds, sinceT0(c.sample.At), c.sample.Memory, sinceT0(c.sample.StartedAt), c.sample.Rate/1e6)
	}
	return s
}
