package store

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestSequences plays random sequences of what can happen to a cluster, to the store and to its model, and compares what
// they serve after each step. Its seeds are always the same; FuzzSequences looks for others.
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

// shrink leaves out what is not needed for a script to fail, and gives the steps the numbers that they have in the list.
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

// play carries out a script, step by step, and gives the first thing that is wrong.
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

// steps are what can happen. The argument is a byte that says to whom, and how much; pick takes a part of it. New steps come
// last, so that the scripts in testdata keep their meaning.
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
	{"answers from before", func(p *playing, arg int) {
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
				p.run(to, c.key, pick(&arg, []usage.Time{to.clock(p.now), c.startedAt}))
			}
		}
	}},
	{"a container ends", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		if c := k.container(&arg); c != nil {
			k.containers = slices.DeleteFunc(k.containers, func(other *counter) bool { return other == c })
		}
	}},
	{"a pod ends", func(p *playing, arg int) {
		k, key := p.kubelet(&arg), pick(&arg, podKeys)
		k.containers = slices.DeleteFunc(k.containers, func(c *counter) bool { return c.key.podKey == key })
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
		}
	}},
	{"a clock is set", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		k.ahead = min(k.ahead+pick(&arg, clockSteps), time.Hour) // more is for the decoder to skip
	}},
	{"a kubelet begins or ends to repeat itself", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		k.frozen = !k.frozen
	}},
	{"a reading is left out, or there again", func(p *playing, arg int) {
		if c := p.kubelet(&arg).any(&arg); c != nil {
			c.has ^= pick(&arg, []usage.Has{usage.HasCPU, usage.HasMemory, usage.HasSwap, usage.HasCPU | usage.HasMemory})
		}
	}},
	{"a start time is known, or not", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		if c := k.container(&arg); c != nil {
			c.startedAt = pick(&arg, []usage.Time{0, k.clock(p.now).Add(-20 * time.Second), k.clock(p.now).Add(-time.Hour), p.now.Add(time.Hour)})
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
			c.memory, c.swap = math.MaxInt64-1, math.MaxInt64-1
		}
	}},
	{"containers are listed in another order", func(p *playing, arg int) {
		k := p.kubelet(&arg)
		if n := len(k.containers); n > 0 {
			i := arg % n
			k.containers = append(slices.Clone(k.containers[i:]), k.containers[:i]...)
		}
	}},
	{"a pod is bound, or not known to be", func(p *playing, arg int) {
		key := pick(&arg, podKeys)
		p.bound[key] = pick(&arg, append(slices.Clone(nodeNames), "", "elsewhere"))
		p.check(binding, "")
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
}

func (c *counter) advance(now usage.Time) {
	c.coreSeconds = min(c.coreSeconds+c.cores*now.Sub(c.counted).Seconds(), math.MaxFloat64)
	c.counted = now
}

func (c *counter) restart(clock, now usage.Time) {
	c.coreSeconds, c.counted = 0, now
	if c.startedAt != 0 {
		c.startedAt = clock
	}
}

// sample is what a kubelet whose clock shows a time says of the counter.
func (c *counter) sample(clock, now usage.Time, frozen bool) usage.Sample {
	c.advance(now)
	if frozen && c.said.Has != 0 {
		return c.said
	}
	s := usage.Sample{StartedAt: c.startedAt, Has: c.has}
	if has(s, usage.HasCPU) {
		s.At, s.CPUSeconds = clock.Add(-c.late), c.coreSeconds
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
	ahead      time.Duration // of our clock
	frozen     bool          // whether it repeats what it said
	self       *counter
	containers []*counter // in the order in which it lists them
}

func (k *kubelet) clock(now usage.Time) usage.Time { return now.Add(k.ahead) }

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
	bound    map[podKey]string // where pods are bound to, as far as it is known

	store *Store
	model *model
	witness
	logf func(string, ...any)
	err  error
}

func newPlay(logf func(string, ...any)) *playing {
	p := &playing{now: t0, bound: map[podKey]string{}, logf: logf, witness: newWitness()}
	if logf == nil {
		p.logf = func(string, ...any) {}
	}
	nodeOf := func(namespace, pod string) string { return p.bound[podKey{namespace, pod}] }
	p.store = New(Config{MaxSampleAge: maxAge, MaxContainers: 100, NodeOf: nodeOf})
	p.model = newModel(maxAge, nodeOf)
	for _, name := range nodeNames {
		self := &counter{coreSeconds: 1000, counted: t0, cores: 1, has: usage.HasCPU | usage.HasMemory}
		p.kubelets = append(p.kubelets, &kubelet{name: name, self: self})
	}
	return p
}

func (p *playing) kubelet(arg *int) *kubelet { return pick(arg, p.kubelets) }

func (p *playing) pass(d time.Duration) {
	p.now = p.now.Add(d)
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

// firstRound has the kubelets tell their own rates, too, soon after something happened.
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
		then.containers = append(then.containers, new(*c))
	}
	p.scrape(&then, 0)
}

func (p *playing) start(arg int) {
	k := p.kubelet(&arg)
	key := containerKey{pick(&arg, podKeys), pick(&arg, containerNames)}
	p.run(k, key, pick(&arg, []usage.Time{k.clock(p.now), t0.Add(-time.Hour), 0}))
}

// run starts a container, unless it runs.
func (p *playing) run(k *kubelet, key containerKey, startedAt usage.Time) {
	if slices.ContainsFunc(k.containers, func(c *counter) bool { return c.key == key }) {
		return
	}
	k.containers = append(k.containers, &counter{
		key:       key,
		startedAt: startedAt,
		late:      time.Duration(len(k.containers)%4) * 130 * time.Millisecond,
		counted:   p.now,
		cores:     0.25,
		memory:    1 << 20,
		has:       usage.HasCPU | usage.HasMemory,
	})
}

// scrape has a kubelet answer. The bits of lost say which of its containers cannot be told from the answer; any of them
// makes it partial.
func (p *playing) scrape(k *kubelet, lost int) {
	s := usage.Scrape{At: p.now, Node: k.self.sample(k.clock(p.now), p.now, k.frozen), Partial: lost != 0}
	for i, c := range k.containers {
		sample := c.sample(k.clock(p.now), p.now, k.frozen)
		if lost&(1<<i) == 0 {
			s.Containers = append(s.Containers, sampleOf(c.key, sample))
		}
	}
	p.hear(k, &s, false, func() { p.store.Put(k.name, &s) })
}

// summary has a kubelet tell its own rates, with times that are cut to whole seconds.
func (p *playing) summary(k *kubelet, arg int) {
	placeholders := pick(&arg, []bool{false, true})
	untold := pick(&arg, []usage.Has{0, 0, usage.HasMemory, usage.HasRate})
	tell := func(c *counter) usage.Sample {
		s := c.sample(k.clock(p.now), p.now, k.frozen)
		s.At, s.MemoryAt, s.StartedAt = cut(s.At), cut(s.MemoryAt), cut(s.StartedAt)
		if !placeholders {
			s.Rate = uint64(c.cores * 1e9)
		}
		s.Has = (s.Has | usage.HasRate) &^ untold
		return s
	}
	s := usage.Scrape{At: p.now, Node: tell(k.self)}
	for i, c := range k.containers {
		if arg&(1<<i) == 0 {
			s.Containers = append(s.Containers, sampleOf(c.key, tell(c)))
		}
	}
	p.hear(k, &s, true, func() { p.store.Lend(k.name, &s) })
}

func cut(t usage.Time) usage.Time { return t - t%usage.Time(time.Second) }

// hear tells the model and the witness what the store is told.
func (p *playing) hear(k *kubelet, s *usage.Scrape, summary bool, store func()) {
	word := said{at: s.At, summary: summary, partial: s.Partial, node: s.Node}
	for _, c := range s.Containers {
		word.containers = append(word.containers, saidOf{containerKey{podKey{string(c.Namespace), string(c.Pod)}, string(c.Name)}, c.Sample})
	}
	p.logf("  %s says %s", k.name, word)
	p.model.hear(k.name, word)
	p.told[k.name] = append(p.told[k.name], word)
	store()
	for i := range s.Containers { // the scrape is ours again
		c := &s.Containers[i]
		clear(c.Namespace)
		clear(c.Pod)
		clear(c.Name)
		*c = usage.ContainerSample{}
	}
	p.check(hearing, k.name)
}

func (p *playing) forget(k *kubelet) {
	p.logf("  %s", k.name)
	p.model.forget(k.name)
	delete(p.told, k.name)
	p.store.Forget(k.name)
	p.check(forgetting, k.name)
}

func sampleOf(key containerKey, s usage.Sample) usage.ContainerSample {
	return usage.ContainerSample{Namespace: []byte(key.namespace), Pod: []byte(key.name), Name: []byte(key.container), Sample: s}
}

// event is what the store was told last.
type event int

const (
	hearing event = iota
	forgetting
	binding
	passing // nothing at all: time passed
)

func (p *playing) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%v after the start, %w", p.now.Sub(t0), fmt.Errorf(format, args...))
	}
}

// check compares the store with the model, and looks for what must never be, whatever the model says.
func (p *playing) check(e event, node string) {
	for _, key := range podKeys {
		got := p.store.Pod(key.namespace, key.name, p.now)
		want, asOf := p.model.pod(key, p.now)
		if !reflect.DeepEqual(got, want) {
			p.fail("pod %v:\n got %s\nwant %s", key, show(got), show(want))
			return
		}
		if err := p.seePod(e, node, key, got, p.now); err != nil {
			p.fail("pod %v: %w\n%s", key, err, show(got))
			return
		}
		if got == nil {
			continue
		}
		end := asOf.Add(maxAge) // 8: just so long
		if p.store.Pod(key.namespace, key.name, end) != got || p.store.Pod(key.namespace, key.name, end+1) != nil {
			p.fail("pod %v is not served until %v and no longer", key, end.Sub(t0))
		}
	}
	for _, k := range p.kubelets {
		got := p.store.Node(k.name, p.now)
		want, asOf := p.model.node(k.name, p.now)
		if !reflect.DeepEqual(got, want) {
			p.fail("node %s:\n got %+v\nwant %+v", k.name, got, want)
			return
		}
		if err := p.seeNode(e, node, k.name, got, p.now); err != nil {
			p.fail("node %s: %w\n%+v", k.name, err, got)
			return
		}
		if end := asOf.Add(maxAge); got != nil && (p.store.Node(k.name, end) != got || p.store.Node(k.name, end+1) != nil) {
			p.fail("node %s is not served until %v and no longer", k.name, end.Sub(t0))
		}
	}
	if got, want := p.store.Stats(p.now), p.model.stats(p.now); got != want {
		p.fail("statistics:\n got %+v\nwant %+v", got, want)
	}
	got := p.store.Counts()
	got.ContestedClaims = 0 // how often one gives way is no rule
	if want := p.model.counts; got != want {
		p.fail("counts:\n got %+v\nwant %+v", got, want)
	}
}

// witness has heard all that was told and has seen all that was served. It knows less of the rules than the model, but it
// does not share the model's mistakes.
type witness struct {
	told  map[string][]said // by each node, since it is known
	last  map[podKey]*usage.Pod
	pods  map[*usage.Pod]servedPod
	nodes map[*usage.Node]usage.Node // what was served, and how it looked then
}

// servedPod is how a pod looked when it was served first, and whose word brought it.
type servedPod struct {
	usage.Pod
	node string
}

func newWitness() witness {
	return witness{
		told:  map[string][]said{},
		last:  map[podKey]*usage.Pod{},
		pods:  map[*usage.Pod]servedPod{},
		nodes: map[*usage.Node]usage.Node{},
	}
}

// seePod looks at what is served for a pod after an event.
func (w *witness) seePod(e event, node string, key podKey, p *usage.Pod, now usage.Time) error {
	before := w.last[key]
	w.last[key] = p
	if p == nil {
		if owner := w.pods[before].node; before != nil && (e == hearing || e == forgetting) && owner != node {
			return fmt.Errorf("%s took away what comes from %s (rule 10)", node, owner)
		}
		return nil
	}
	if _, known := w.pods[p]; !known {
		if e != hearing {
			return errors.New("new figures, but nobody said anything")
		}
		w.pods[p] = servedPod{clone(*p), node}
		if err := believable(key, p, w.told[node]); err != nil {
			return err
		}
	}
	owner := w.pods[p].node
	switch {
	case p != before && e == passing:
		return errors.New("time alone brought other figures")
	case p != before && e == hearing && owner != node:
		return fmt.Errorf("%s brought the figures of %s", node, owner)
	case e == forgetting && owner == node:
		return errors.New("it outlives its node (rule 9)")
	case e == hearing && owner == node && !mayHave(w.told[node], key):
		return errors.New("its node has it no more (rule 9)")
	case now.Sub(p.At) > maxAge:
		return errors.New("it is too old (rule 8)")
	}
	return nil
}

// mayHave says whether a node may have a pod after all that it said.
func mayHave(told []said, key podKey) bool {
	for _, s := range slices.Backward(told) {
		switch {
		case len(s.names(key)) > 0:
			return true
		case !s.summary && !s.partial:
			return false
		}
	}
	return false
}

// names are those of a pod's containers that are mentioned.
func (s said) names(key podKey) []string {
	var names []string
	for _, c := range s.containers {
		if c.key.podKey == key {
			names = append(names, c.key.container)
		}
	}
	return names
}

// believable says what is wrong with a pod, given all that its node said.
func believable(key podKey, p *usage.Pod, told []said) error {
	if len(p.Containers) == 0 {
		return errors.New("it is empty (rule 6)")
	}
	if (podKey{p.Namespace, p.Name}) != key {
		return fmt.Errorf("its name is %s/%s", p.Namespace, p.Name)
	}
	if !slices.IsSortedFunc(p.Containers, func(a, b usage.Container) int { return strings.Compare(a.Name, b.Name) }) {
		return errors.New("its containers are not sorted")
	}
	oldest := slices.MinFunc(p.Containers, func(a, b usage.Container) int { return cmp.Compare(a.At, b.At) })
	if p.At != oldest.At || p.Window != oldest.Window {
		return errors.New("its time and window are not those of its oldest container (rule 7)")
	}
	err := follows(p, key, told)
	for words := len(told) - 1; words > 0 && err != nil; words-- {
		if follows(p, key, told[:words]) == nil {
			return nil
		}
	}
	return err
}

// follows says why a pod does not follow from what its node had said up to some moment.
func follows(p *usage.Pod, key podKey, told []said) error {
	names := map[string]bool{} // whether it was mentioned since the last scrape that could be read in full, and that one included
	for _, c := range p.Containers {
		names[c.Name] = false
		if err := founded(c.Amount, arrivalsOf(told, containerKey{key, c.Name})); err != nil {
			return fmt.Errorf("container %s: %w", c.Name, err)
		}
	}
	now := told[len(told)-1].at
	for _, s := range slices.Backward(told) {
		if s.summary {
			continue
		}
		for _, name := range s.names(key) {
			if _, ok := names[name]; !ok && now.Sub(s.at) <= maxAge {
				return fmt.Errorf("container %s is missing (rule 6)", name)
			}
			names[name] = true
		}
		if !s.partial {
			break
		}
	}
	for name, mentioned := range names {
		if !mentioned {
			return fmt.Errorf("container %s is gone (rule 6)", name)
		}
	}
	return nil
}

// arrivalsOf are those of a container.
func arrivalsOf(told []said, key containerKey) []arrival {
	var arrivals []arrival
	for _, s := range told {
		for _, c := range s.containers {
			if c.key == key {
				arrivals = append(arrivals, arrival{Sample: c.sample, received: s.at, summary: s.summary})
			}
		}
	}
	return arrivals
}

// founded says what is wrong with an Amount, given all that was said of what it is of.
func founded(a usage.Amount, arrivals []arrival) error {
	if a.At <= 0 || a.Window <= 0 {
		return errors.New("it has no time or no window")
	}
	for _, end := range arrivals {
		if end.At != a.At || end.Memory != a.Memory || has(end.Sample, usage.HasSwap) != a.HasSwap || end.Swap != a.Swap {
			continue
		}
		rate := func(coreSeconds float64) uint64 { return uint64(math.Round(coreSeconds * 1e9 / a.Window.Seconds())) }
		if end.summary && end.Rate == a.CPUNanocores && a.Window <= usage.OwnRateWindow {
			return nil
		}
		if sinceStart := end.StartedAt.Add(a.Window) == end.At; sinceStart && rate(end.CPUSeconds) == a.CPUNanocores &&
			10*time.Second <= a.Window && a.Window <= 60*time.Second {
			return nil
		}
		for _, begin := range arrivals {
			if begin.At.Add(a.Window) == end.At && rate(end.CPUSeconds-begin.CPUSeconds) == a.CPUNanocores && a.Window >= time.Second {
				return nil
			}
		}
	}
	return errors.New("no two samples, no start and no word of the kubelet give its figures (rule 1)")
}

// seeNode looks at what is served for a node after an event.
func (w *witness) seeNode(e event, speaker, name string, n *usage.Node, now usage.Time) error {
	if n == nil {
		return nil
	}
	if _, known := w.nodes[n]; !known {
		if e != hearing || speaker != name {
			return errors.New("new figures, but it said nothing")
		}
		w.nodes[n] = *n
		var arrivals []arrival
		for _, s := range w.told[name] {
			arrivals = append(arrivals, arrival{Sample: s.node, received: s.at, summary: s.summary})
		}
		if err := founded(n.Amount, arrivals); err != nil {
			return err
		}
	}
	switch {
	case n.Name != name:
		return fmt.Errorf("its name is %s", n.Name)
	case e == forgetting && speaker == name:
		return errors.New("it outlives its deletion (rule 9)")
	case now.Sub(n.At) > maxAge:
		return errors.New("it is too old (rule 8)")
	}
	return nil
}

// unchanged checks that nothing of what was ever served has changed since.
func (w *witness) unchanged() error {
	for now, then := range w.pods {
		if !reflect.DeepEqual(*now, then.Pod) {
			return fmt.Errorf("a pod changed after it was served:\n is %s\nwas %s", show(now), show(&then.Pod))
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

// String tells what was said, for those who look for what went wrong.
func (s said) String() string {
	var b strings.Builder
	switch {
	case s.summary:
		b.WriteString("in a summary:")
	case s.partial:
		b.WriteString("in part:")
	}
	tell := func(name string, s usage.Sample) {
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
	tell("node", s.node)
	for _, c := range s.containers {
		tell(c.key.namespace+"/"+c.key.name+"/"+c.key.container, c.sample)
	}
	return b.String()
}
