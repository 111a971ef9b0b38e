package store

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestCases plays each file of testdata/cases against the store and the model: what a kubelet reports, and
// what must be served then. docs/dev/change-a-rule.md describes the format.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/cases/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("got no files, %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, err := range playCase(file, string(text)) {
				t.Error(err)
			}
		})
	}
}

// casePlayer plays one case: a node with the pods of one namespace.
type casePlayer struct {
	*player // with a store and a model from the first step on

	zero       usage.Time // what the times in the file are relative to
	rules      string
	rateWindow time.Duration
	namespace  string
	ahead      time.Duration                   // of the node's clock
	states     map[containerKey]ContainerState // without a container: of all containers of the pod
	checks     int

	file string
	line int
	errs []error

	response  *usage.Scrape // whose lines are being read; nil: none
	isSummary bool
	text      string // the lines of /metrics/resource in it
}

// playCase returns what is wrong in a case, or in what is served. Each error begins with FILE:LINE.
func playCase(file, text string) []error {
	c := &casePlayer{
		file: file, player: newPlayer(nil), zero: t0, rateWindow: rateWindow, namespace: "default",
		states: map[containerKey]ContainerState{},
	}
	c.kubelets, c.keys = []*kubelet{{name: "node", self: &counter{unverifiable: true}}}, nil
	c.store, c.state = nil, c.stateOf
	if first := regexp.MustCompile(`(?m)^at +(\S+)`).FindStringSubmatch(text); first != nil {
		if at, err := absoluteTime(first[1]); err == nil {
			c.zero = at
		}
	}
	begin := 0 // the line of the step whose response is being read
	comment := regexp.MustCompile(`(^|\s)#.*`)
	for i, line := range strings.Split(strings.TrimRight(text, "\n")+"\nend", "\n") {
		words := strings.Fields(comment.ReplaceAllString(line, ""))
		var err error
		c.line = i + 1
		switch {
		case len(words) == 0:
			continue
		case isOfResponse(words[0]):
			err = c.addLine(line, words)
		default:
			if err = c.put(); err == nil && c.err == nil {
				begin, err = c.line, c.play(words)
			} else {
				c.line = begin
			}
		}
		if c.err != nil {
			c.fail("the store differs from the model: %w", c.err)
		}
		if err != nil {
			c.errs = append(c.errs, fmt.Errorf("%s:%d: %w", file, c.line, err))
		}
		if err != nil || c.err != nil { // what follows would also be wrong
			break
		}
	}
	return c.errs
}

// fail notes that something else must be served after a line.
func (c *casePlayer) fail(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	c.errs = append(c.errs, fmt.Errorf("%s:%d: %w (rule %s in docs/numbers.md)", c.file, c.line, err, c.rules))
}

// isOfResponse reports whether a line with this first word is a part of a response: it is "node", PODS/CONTAINER, or
// the name of a metric, since no name in Kubernetes has an underscore.
func isOfResponse(word string) bool { return word == "node" || strings.ContainsAny(word, "/_") }

// play plays a line that is not a part of a response.
func (c *casePlayer) play(words []string) (err error) {
	what, values := words[0], words[1:]
	flag, value, _ := strings.Cut(what, "=")
	isSetup := c.store == nil
	switch {
	case what == "end":
		if c.rules == "" || c.checks == 0 {
			err = errors.New(`a case needs a line "rule NUMBER…", and at least one "want" or "lost"`)
		}
	case what == "rule" && isSetup && len(values) > 0:
		c.rules = strings.Join(values, ", ")
	case what == "namespace" && isSetup && len(values) == 1:
		c.namespace = values[0]
	case flag == "--max-sample-age" && isSetup:
		c.maxAge, err = time.ParseDuration(value)
	case flag == "--rate-window" && isSetup:
		c.rateWindow, err = time.ParseDuration(value)
	case what == "capacity" && len(values) == 1:
		c.kubelets[0].capacity, err = nanocores(values[0])
	case what == "clock" && len(values) == 1:
		c.ahead, err = time.ParseDuration(values[0])
	case what == "api" && len(values) > 1:
		err = c.setState(values[0], values[1], values[2:])
	case what == "at" && len(values) > 0:
		err = c.step(values[0], append(values[1:], ""))
	case what == "want" && !isSetup && len(values) > 1:
		c.want(values[0], strings.Join(values[1:], " "))
	case what == "lost" && !isSetup && len(values) == 2:
		err = c.lost(values[0], values[1])
	default:
		err = fmt.Errorf("%q cannot be here: see docs/dev/change-a-rule.md", strings.Join(words, " "))
	}
	return err
}

// options calls the function of the key of each "KEY=VALUE".
func options(words []string, known map[string]func(value string) error) error {
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		set := known[key]
		if set == nil {
			return fmt.Errorf("%q is not known: want %s", word, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if err := set(value); err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
	}
	return nil
}

// absoluteTime parses a time as kubelets (seconds since 1970) or the API server write it.
func absoluteTime(s string) (usage.Time, error) {
	if d, err := time.ParseDuration(s + "s"); err == nil && d > usage.OldestStart*time.Second {
		return usage.Time(d), nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	return usage.At(t), err
}

// parseTime parses a time that is absolute or relative to the first step. "none" is 0.
func (c *casePlayer) parseTime(s string) (usage.Time, error) {
	t, err := absoluteTime(s)
	if err == nil || s == "none" {
		return t, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		err = fmt.Errorf("%q is not a time: want one such as 15s, -1h, 1795205767.486 or 2026-11-20T20:16:07Z", s)
	}
	return c.zero.Add(d), err
}

func setTime[T usage.Time | usage.NodeTime](c *casePlayer, t *T) func(value string) error {
	return func(value string) error {
		parsed, err := c.parseTime(value)
		*t = T(parsed)
		return err
	}
}

func nanocores(s string) (uint64, error) {
	q, err := resource.ParseQuantity(s)
	return uint64(q.ScaledValue(resource.Nano)), err
}

func setBytes(to *uint64) func(string) error {
	return func(value string) error {
		q, err := resource.ParseQuantity(value)
		*to = uint64(q.Value())
		return err
	}
}

// key returns the key of POD or POD/CONTAINER.
func (c *casePlayer) key(path string) containerKey {
	pod, container, _ := strings.Cut(path, "/")
	return containerKey{podKey{c.namespace, pod}, container}
}

// stateOf returns the state of a container in the API server. By default, it has run since an hour before the case.
func (c *casePlayer) stateOf(_ string, key containerKey) ContainerState {
	for _, key := range []containerKey{key, {podKey: key.podKey}} {
		if state, ok := c.states[key]; ok {
			return state
		}
	}
	hourAgo := c.zero.Add(-time.Hour)
	return ContainerState{Running: true, Alive: true, EarliestStart: usage.NodeTime(hourAgo), PodCreatedAt: hourAgo}
}

// setState plays "api POD/CONTAINER STATE start=TIME created=TIME".
func (c *casePlayer) setState(path, name string, words []string) error {
	states := map[string]ContainerState{"running": {Running: true, Alive: true}, "waiting": {Alive: true}, "ended": {}}
	state, known := states[name]
	if !known {
		return fmt.Errorf("%q is not a state: want running, waiting or ended", name)
	}
	err := options(words, map[string]func(string) error{
		"start": setTime(c, &state.EarliestStart), "created": setTime(c, &state.PodCreatedAt),
	})
	key := c.key(path)
	if key.container == "" { // also of the containers that had a state of their own
		maps.DeleteFunc(c.states, func(k containerKey, _ ContainerState) bool { return k.podKey == key.podKey })
	}
	c.states[key] = state
	return err
}

// step plays "at TIME", after which "scrape …", "summary …", "delete POD" or nothing follows.
func (c *casePlayer) step(at string, words []string) error {
	now, err := c.parseTime(at)
	switch {
	case err != nil:
		return err
	case c.store == nil:
		c.start(c.rateWindow)
	case now < c.now:
		return errors.New("the time is before that of the previous step")
	}
	c.now = now
	c.check()
	switch words[0] {
	case "scrape", "summary":
		s := &usage.Scrape{At: now, Sent: now, Date: usage.NodeTime(now.Add(c.ahead)), Capacity: c.kubelets[0].capacity}
		c.response, c.isSummary = s, words[0] == "summary"
		return options(words[1:len(words)-1], map[string]func(string) error{
			"partial": func(string) error { s.Partial = true; return nil },
			"sent":    setTime(c, &s.Sent), "date": setTime(c, &s.Date),
		})
	case "delete":
		c.remove(c.kubelets[0], c.key(words[1]).podKey)
	case "":
	default:
		return fmt.Errorf("%q is not a step: want scrape, summary or delete POD", words[0])
	}
	return nil
}

// addLine adds a line to the response: of /metrics/resource, or
// "POD/CONTAINER cpu=1000s memory=1Mi swap=none start=-1h time=15s rate=100m".
func (c *casePlayer) addLine(line string, words []string) error {
	switch {
	case c.response == nil:
		return errors.New(`what a kubelet reports must follow a line "at TIME scrape" or "at TIME summary"`)
	case strings.Contains(words[0], "_"):
		c.text += strings.TrimSpace(line) + "\n"
		return nil
	}
	s := usage.Sample{At: usage.NodeTime(c.now.Add(c.ahead)), Memory: 1 << 20, Has: usage.HasMemory}
	if words[0] != "node" {
		s.StartedAt = usage.NodeTime(c.zero.Add(-time.Hour))
	}
	hasCPU := false
	value := func(has usage.Has, set func(string) error) func(string) error {
		return func(value string) error {
			hasCPU = hasCPU || has == usage.HasCPU
			if s.Has |= has; value == "none" {
				s.Has &^= has
				return nil
			}
			return set(value)
		}
	}
	err := options(words[1:], map[string]func(string) error{
		"cpu": value(usage.HasCPU, func(value string) (err error) {
			s.CPUSeconds, err = strconv.ParseFloat(strings.TrimSuffix(value, "s"), 64)
			return err
		}),
		"memory": value(usage.HasMemory, setBytes(&s.Memory)),
		"swap":   value(usage.HasSwap, setBytes(&s.Swap)),
		"rate":   value(usage.HasRate, func(value string) (err error) { s.Rate, err = nanocores(value); return err }),
		"start":  setTime(c, &s.StartedAt),
		"time":   setTime(c, &s.At),
	})
	switch {
	case err == nil && !hasCPU:
		err = errors.New("there is no cpu=: write cpu=none if the kubelet does not report it")
	case s.Has&usage.HasCPU == 0:
		s.At = 0
	case s.At == 0:
		s.At, s.Untimed = usage.NodeTime(c.now), true
	}
	if words[0] == "node" {
		c.response.Node = s
	} else {
		c.response.Containers = append(c.response.Containers, sampleOf(c.key(words[0]), s))
	}
	return err
}

// put puts the response whose lines have been read, if there is one.
func (c *casePlayer) put() error {
	s, text := c.response, c.text
	c.response, c.text = nil, ""
	if s == nil {
		return nil
	}
	s.Date = cut(s.Date)
	if text != "" {
		decoded := usage.Scrape{At: s.At, Sent: s.Sent, Date: s.Date}
		if err := new(decode.Text).Decode(&decoded, []byte(text)); err != nil {
			return err
		}
		s.Containers, s.Partial = append(decoded.Containers, s.Containers...), s.Partial || decoded.Partial
		if s.Node.Has == 0 {
			s.Node = decoded.Node
		}
	}
	for i := range s.Containers {
		if key := keyOf(&s.Containers[i]).podKey; !slices.Contains(c.keys, key) {
			c.keys = append(c.keys, key)
		}
	}
	c.player.put(c.kubelets[0], s, c.isSummary)
	return nil
}

// want compares what the store and the model serve of a pod, or of the node, whose container has no name here.
func (c *casePlayer) want(object, want string) {
	c.checks++
	key := c.key(object).podKey
	got := c.store.Pod("node", key.namespace, key.name, c.now)
	model, _ := c.model.pod("node", key, c.now)
	if object == "node" {
		asPod := func(n *usage.Node) *usage.Pod {
			if n == nil {
				return nil
			}
			return &usage.Pod{At: n.At, Window: n.Window, Containers: []usage.Container{{Amount: n.Amount}}}
		}
		got = asPod(c.store.Node("node", c.now))
		node, _ := c.model.node("node", c.now)
		model = asPod(node)
	}
	switch got, model := c.show(got, want), c.show(model, want); {
	case got != model:
		c.fail("the store serves %s, the model %s, want %s", got, model, want)
	case got != want:
		c.fail("the store and the model serve %s, want %s", got, want)
	}
}

// show returns a pod's metrics in the format of the wanted ones. If these are in nanocores, or have memory, so is
// the result. Otherwise, CPU is in thousandths, rounded up as kubectl does.
func (c *casePlayer) show(p *usage.Pod, want string) string {
	if p == nil {
		return "none"
	}
	var s strings.Builder
	for _, container := range p.Containers {
		if container.Name != "" {
			s.WriteString(container.Name + "=")
		}
		if regexp.MustCompile(`\dn[, ]`).MatchString(want) {
			fmt.Fprintf(&s, "%dn", container.CPUNanocores)
		} else {
			fmt.Fprintf(&s, "%dm", (container.CPUNanocores+999_999)/1_000_000)
		}
		if strings.Contains(want, ",") {
			s.WriteString("," + resource.NewQuantity(int64(container.Memory), resource.BinarySI).String())
		}
		s.WriteString(" ")
	}
	fmt.Fprintf(&s, "over %vs until %vs", p.Window.Seconds(), p.At.AheadOf(c.zero).Seconds())
	return s.String()
}

// losses are the names of what pkg/usage calls a Loss.
var losses = []string{"none", "zero", "time", "value", "fall", "excess", "owner"}

// lost compares why the last sample of a container, or of the node, could not be used.
func (c *casePlayer) lost(path, want string) error {
	c.checks++
	if !slices.Contains(losses, want) {
		return fmt.Errorf("%q is not a loss: want %s", want, strings.Join(losses, ", "))
	}
	key := c.key(path)
	facts, _ := c.store.PodFacts("node", key.namespace, key.name)
	if path == "node" {
		node, _ := c.store.NodeFacts("node")
		facts.Lost = node.Lost
	}
	got := losses[facts.Lost]
	if got != want || want != "none" && facts.LostContainer != key.container {
		c.fail("the loss is %s of %q, want %s of %q", got, facts.LostContainer, want, key.container)
	}
	return nil
}

// TestMalformedCases checks that each mistake in a file is reported with its line.
func TestMalformedCases(t *testing.T) {
	const scrape = "rule 1\nat 0s scrape\n"
	for text, want := range map[string]string{
		"rule 1\nat 0s scrape\n p/a cpu=1s":                      `4: a case needs a line "rule NUMBER…", and at least one`,
		"at 0s\nwant p none":                                     `3: a case needs a line "rule NUMBER…", and`,
		"rule 1\nwant p none":                                    `2: "want p none" cannot be here`,
		"rule 1\nwant":                                           `2: "want" cannot be here`,
		"rule 1\nwhen 0s scrape":                                 `2: "when 0s scrape" cannot be here`,
		"rule 1\n--rate-window=15":                               `2: time: missing unit in duration "15"`,
		"rule 1\ncapacity two":                                   `2: quantities must match`,
		"rule 1\napi p/a runs":                                   `2: "runs" is not a state: want running, waiting or ended`,
		"rule 1\napi p/a running since=-1h":                      `2: "since=-1h" is not known: want created, start`,
		"rule 1\np/a cpu=1s":                                     `2: what a kubelet reports must follow a line`,
		"rule 1\nat 15 scrape":                                   `2: "15" is not a time: want one such as 15s`,
		"rule 1\nat 0s scrap":                                    `2: "scrap" is not a step: want scrape, summary`,
		"rule 1\nat 0s scrape full":                              `2: "full" is not known: want date, partial, sent`,
		"rule 1\nat 5s\n\nat 4s\nwant p none":                    `4: the time is before that of the previous step`,
		scrape + "  p/a memory=1Mi\nwant p none":                 `3: there is no cpu=: write cpu=none`,
		scrape + "  p/a cpu=x":                                   `3: cpu=x: strconv.ParseFloat: parsing "x"`,
		scrape + "  p/a cpu=1s mem=1Mi":                          `3: "mem=1Mi" is not known: want cpu, memory`,
		scrape + "  p/a cpu=1s memory=1Q":                        `3: memory=1Q: `,
		scrape + "node_cpu_usage_seconds_total x\n\nwant p none": `2: nothing in it can be decoded`,
		scrape + "p/a cpu=1s # comment\nwant p a=1m\n# more":     `4: the store and the model serve none, want a=1m`,
		scrape + "  p/a cpu=1s\nlost p/a nothing":                `4: "nothing" is not a loss: want none, zero`,
		scrape + "  p/a cpu=0s\nlost p/a none":                   `4: the loss is zero of "a", want none of "a"`,
	} {
		if got := fmt.Sprint(playCase("case", text)); !strings.HasPrefix(got, "[case:"+want) {
			t.Errorf("%s\n got %s\nwant case:%s", text, got, want)
		}
	}
}
