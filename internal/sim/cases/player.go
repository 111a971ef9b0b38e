package cases

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// player plays one case.
type player struct {
	Target
	started bool
	setup   Setup
	now     usage.Time

	zero   usage.Time // what the times in the file are relative to
	rules  string
	ahead  time.Duration                // of the node's clock
	states map[key]usage.ContainerState // without a container: of all containers of the pod
	checks int

	file  string
	lines []string
	line  int
	errs  []error

	response *Response // whose lines are being read; nil: none
}

// key names a container, or a pod.
type key struct{ pod, container string }

// Zero is what the times of a case without absolute times are relative to. It is not a whole second.
const Zero = usage.Time(1_795_205_767_123_000_000)

// Play returns what is wrong in a case, or in what is served. Each error begins with FILE:LINE.
func Play(file, text string, to Target) []error {
	c := &player{
		file: file, Target: to, zero: Zero, states: map[key]usage.ContainerState{}, setup: Setup{
			Namespace: "default", RateWindow: 15 * time.Second, MaxSampleAge: time.Minute, Pods: podsOf(text),
		},
	}
	c.setup.State = c.stateOf
	if first := regexp.MustCompile(`(?m)^at +(\S+)`).FindStringSubmatch(text); first != nil {
		if at, err := absoluteTime(first[1]); err == nil {
			c.zero = at
		}
	}
	begin := 0 // the line of the step whose response is being read
	comment := regexp.MustCompile(`(^|\s)#.*`)
	c.lines = strings.Split(strings.TrimRight(text, "\n")+"\nend", "\n")
	for i, line := range c.lines {
		words := strings.Fields(comment.ReplaceAllString(line, ""))
		var err error
		c.line = i + 1
		switch {
		case len(words) == 0:
			continue
		case isOfResponse(words[0]):
			err = c.addLine(line, words)
		default:
			if err = c.put(); err == nil && c.Err() == nil {
				begin, err = c.line, c.play(words)
			} else {
				c.line = begin
			}
		}
		if c.Err() != nil {
			c.fail("%w", c.Err())
		}
		if err != nil {
			c.errs = append(c.errs, fmt.Errorf("%s:%d: %w", file, c.line, err))
		}
		if err != nil || c.Err() != nil { // what follows would also be wrong
			break
		}
	}
	return c.errs
}

// podsOf returns the names of the pods in a case, with those of their containers.
func podsOf(text string) map[string][]string {
	pods := map[string][]string{}
	add := func(pod, container string) {
		if !slices.Contains(pods[pod], container) {
			pods[pod] = append(pods[pod], container)
		}
	}
	ofCase := regexp.MustCompile(`(?m)^(?:\s*|api +)([a-z0-9.-]+)/([a-z0-9.-]+)\s`)
	for _, m := range ofCase.FindAllStringSubmatch(text, -1) {
		add(m[1], m[2])
	}
	for _, m := range regexp.MustCompile(`container="([^"]+)".*pod="([^"]+)"`).FindAllStringSubmatch(text, -1) {
		add(m[2], m[1])
	}
	return pods
}

// fail notes that something else must be served after a line.
func (c *player) fail(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	c.errs = append(c.errs, fmt.Errorf("%s:%d: %w (rule %s in docs/numbers.md)", c.file, c.line, err, c.rules))
}

// isOfResponse reports whether a line with this first word is a part of a response: it is "node", PODS/CONTAINER, or
// the name of a metric, since no name in Kubernetes has an underscore.
func isOfResponse(word string) bool { return word == "node" || strings.ContainsAny(word, "/_") }

// play plays a line that is not a part of a response.
func (c *player) play(words []string) (err error) {
	what, values := words[0], words[1:]
	flag, value, _ := strings.Cut(what, "=")
	isSetup := !c.started
	switch {
	case what == "end":
		if c.rules == "" || c.checks == 0 {
			err = errors.New(`a case needs a line "rule NUMBER…", and at least one "want" or "lost"`)
		}
	case what == "rule" && isSetup && len(values) > 0:
		c.rules = strings.Join(values, ", ")
	case what == "namespace" && isSetup && len(values) == 1:
		c.setup.Namespace = values[0]
	case what == "not-in" && isSetup && len(values) > 1: // see Run
	case flag == "--max-sample-age" && isSetup:
		c.setup.MaxSampleAge, err = time.ParseDuration(value)
	case flag == "--rate-window" && isSetup:
		c.setup.RateWindow, err = time.ParseDuration(value)
	case what == "capacity" && len(values) == 1:
		if c.setup.Capacity, err = nanocores(values[0]); c.started {
			c.SetCapacity(c.setup.Capacity)
		}
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
func (c *player) parseTime(s string) (usage.Time, error) {
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

func setTime[T usage.Time | usage.NodeTime](c *player, t *T) func(value string) error {
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

// keyOf returns the key of POD or POD/CONTAINER.
func keyOf(path string) key {
	pod, container, _ := strings.Cut(path, "/")
	return key{pod, container}
}

// stateOf returns the state of a container in the API server. By default, it has run since an hour before the case.
func (c *player) stateOf(pod, container string) usage.ContainerState {
	for _, key := range []key{{pod, container}, {pod: pod}} {
		if state, ok := c.states[key]; ok {
			return state
		}
	}
	hourAgo := c.zero.Add(-time.Hour)
	return usage.ContainerState{Running: true, Alive: true, EarliestStart: hourAgo.ByClock(0), PodCreatedAt: hourAgo}
}

// setState plays "api POD/CONTAINER STATE start=TIME created=TIME".
func (c *player) setState(path, name string, words []string) error {
	states := map[string]usage.ContainerState{
		"running": {Running: true, Alive: true}, "waiting": {Alive: true}, "ended": {},
	}
	state, known := states[name]
	if !known {
		return fmt.Errorf("%q is not a state: want running, waiting or ended", name)
	}
	err := options(words, map[string]func(string) error{
		"start": setTime(c, &state.EarliestStart), "created": setTime(c, &state.PodCreatedAt),
	})
	at := keyOf(path)
	if at.container == "" { // also of the containers that had a state of their own
		maps.DeleteFunc(c.states, func(k key, _ usage.ContainerState) bool { return k.pod == at.pod })
	}
	c.states[at] = state
	if c.started && err == nil {
		c.SetState(at.pod)
	}
	return err
}

// step plays "at TIME", after which "scrape …", "summary …", "delete POD" or nothing follows.
func (c *player) step(at string, words []string) error {
	now, err := c.parseTime(at)
	switch {
	case err != nil:
		return err
	case !c.started:
		c.started, c.setup.Now = true, now
		c.Start(c.setup)
	case now < c.now:
		return errors.New("the time is before that of the previous step")
	}
	c.now = now
	c.Advance(now, words[0])
	switch words[0] {
	case "scrape", "summary":
		s := &usage.Scrape{At: now, Sent: now, Date: now.ByClock(c.ahead), Capacity: c.setup.Capacity}
		c.response = &Response{Scrape: s, IsSummary: words[0] == "summary"}
		return options(words[1:len(words)-1], map[string]func(string) error{
			"partial": func(string) error { s.Partial = true; return nil },
			"sent":    setTime(c, &s.Sent), "date": setTime(c, &s.Date),
		})
	case "delete":
		changes := regexp.MustCompile(`^api +` + regexp.QuoteMeta(words[1]) + `[ /]`)
		c.Delete(words[1], !slices.ContainsFunc(c.lines[c.line:], changes.MatchString))
	case "":
	default:
		return fmt.Errorf("%q is not a step: want scrape, summary or delete POD", words[0])
	}
	return nil
}

// addLine adds a line to the response: of /metrics/resource, or
// "POD/CONTAINER cpu=1000s memory=1Mi swap=none start=-1h time=15s rate=100m".
func (c *player) addLine(line string, words []string) error {
	switch {
	case c.response == nil:
		return errors.New(`what a kubelet reports must follow a line "at TIME scrape" or "at TIME summary"`)
	case strings.Contains(words[0], "_"):
		c.response.Text += strings.TrimSpace(line) + "\n"
		return nil
	}
	s := usage.Sample{At: c.now.ByClock(c.ahead), Memory: 1 << 20, Has: usage.HasMemory}
	if words[0] != "node" {
		s.StartedAt = c.zero.Add(-time.Hour).ByClock(0)
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
		s.At, s.Untimed = c.now.ByClock(0), true
	}
	if words[0] == "node" {
		c.response.Node = s
	} else {
		k := keyOf(words[0])
		c.response.Containers = append(c.response.Containers, usage.ContainerSample{
			Namespace: []byte(c.setup.Namespace), Pod: []byte(k.pod), Name: []byte(k.container), Sample: s,
		})
	}
	return err
}

// put puts the response whose lines have been read, if there is one.
func (c *player) put() error {
	r := c.response
	c.response = nil
	if r == nil {
		return nil
	}
	r.Date -= r.Date % usage.NodeTime(time.Second)
	return c.Put(r)
}

// want compares what is served of a pod, or of the node.
func (c *player) want(object, want string) {
	c.checks++
	all := c.Served(object)
	got := make([]string, len(all))
	isRight := true
	for i, s := range all {
		got[i] = c.show(s.Pod, want)
		isRight = isRight && got[i] == c.rounded(want, s.InSecond)
	}
	switch texts := slices.Compact(slices.Clone(got)); {
	case isRight:
	case len(texts) == 1:
		names := make([]string, len(all))
		for i, s := range all {
			names[i] = s.By
		}
		c.fail("%s serve %s, want %s", strings.Join(names, " and "), got[0], want)
	default:
		for i, s := range all {
			got[i] = s.By + " serves " + got[i]
		}
		c.fail("%s, want %s", strings.Join(got, ", "), want)
	}
}

// rounded returns what is wanted where the API has whole seconds.
func (c *player) rounded(want string, inSecond bool) string {
	before, until, ok := strings.Cut(want, " until ")
	d, err := time.ParseDuration(until)
	if !inSecond || !ok || err != nil {
		return want
	}
	at := c.zero.Add(d)
	at -= at % usage.Time(time.Second)
	return fmt.Sprintf("%s until %vs", before, at.Sub(c.zero).Seconds())
}

// show returns a pod's metrics in the format of the wanted ones. If these are in nanocores, or have memory, so is
// the result. Otherwise, CPU is in thousandths, rounded up as kubectl does.
func (c *player) show(p *usage.Pod, want string) string {
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
func (c *player) lost(path, want string) error {
	c.checks++
	if !slices.Contains(losses, want) {
		return fmt.Errorf("%q is not a loss: want %s", want, strings.Join(losses, ", "))
	}
	lost, container, ok := c.Lost(keyOf(path).pod)
	if !ok {
		return nil
	}
	got, wanted := losses[lost], keyOf(path).container
	if got != want || want != "none" && container != wanted {
		c.fail("the loss is %s of %q, want %s of %q", got, container, want, wanted)
	}
	return nil
}
