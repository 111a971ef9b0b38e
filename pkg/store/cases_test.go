package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/internal/sim/cases"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestCases plays each file of testdata/cases against the store and the model. TestCases of pkg/server plays them
// against the whole server.
func TestCases(t *testing.T) {
	cases.Run(t, "testdata/cases", "store", func(t *testing.T, file, text string) {
		for _, err := range cases.Play(file, text, newCaseTarget()) {
			t.Error(err)
		}
	})
}

// caseTarget is a store and the model, with the node and the pods of a case.
type caseTarget struct {
	*player
	namespace string
}

func newCaseTarget() *caseTarget {
	c := &caseTarget{player: newPlayer(nil)}
	c.kubelets, c.keys = []*kubelet{{name: cases.NodeName, self: &counter{unverifiable: true}}}, nil
	return c
}

// Start implements cases.Target.
func (c *caseTarget) Start(s cases.Setup) {
	c.namespace, c.maxAge, c.now = s.Namespace, s.MaxSampleAge, s.Now
	c.state = func(_ string, key containerKey) usage.ContainerState {
		state := s.State(key.name, key.container)
		if state.Running {
			state.StartedAt = cut(state.EarliestStart)
		}
		return state
	}
	c.start(s.RateWindow)
}

// Advance implements cases.Target.
func (c *caseTarget) Advance(now usage.Time, _ string) {
	c.now = now
	c.check()
}

// SetCapacity implements cases.Target.
func (c *caseTarget) SetCapacity(uint64) {}

// SetState implements cases.Target.
func (c *caseTarget) SetState(string) {}

// Put implements cases.Target.
func (c *caseTarget) Put(r *cases.Response) error {
	s := r.Scrape
	if r.Text != "" {
		decoded := usage.Scrape{At: s.At, Sent: s.Sent, Date: s.Date}
		if err := (&decode.Text{MaxContainers: 1000}).Decode(&decoded, []byte(r.Text)); err != nil {
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
	c.put(c.kubelets[0], s, r.IsSummary)
	return nil
}

// Delete implements cases.Target.
func (c *caseTarget) Delete(pod string, _ bool) { c.remove(c.kubelets[0], podKey{c.namespace, pod}) }

// Served implements cases.Target.
func (c *caseTarget) Served(object string) []cases.Served {
	key := podKey{c.namespace, object}
	got := c.store.Pod(cases.NodeName, key.namespace, key.name, c.now)
	model, _ := c.model.pod(cases.NodeName, key, c.now)
	if object == cases.NodeName {
		asPod := func(n *usage.Node) *usage.Pod {
			if n == nil {
				return nil
			}
			return &usage.Pod{At: n.At, Window: n.Window, Containers: []usage.Container{{Amount: n.Amount}}}
		}
		got = asPod(c.store.Node(cases.NodeName, c.now))
		node, _ := c.model.node(cases.NodeName, c.now)
		model = asPod(node)
	}
	return []cases.Served{{By: "the store", Pod: got}, {By: "the model", Pod: model}}
}

// Lost implements cases.Target.
func (c *caseTarget) Lost(object string) (usage.Loss, string, bool) {
	facts, _ := c.store.PodFacts(cases.NodeName, c.namespace, object)
	if object == cases.NodeName {
		node, _ := c.store.NodeFacts(cases.NodeName)
		facts.Lost = node.Lost
	}
	return facts.Lost, facts.LostContainer, true
}

// Err implements cases.Target.
func (c *caseTarget) Err() error {
	if c.err == nil {
		return nil
	}
	return fmt.Errorf("the store differs from the model: %w", c.err)
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
		if got := fmt.Sprint(cases.Play("case", text, newCaseTarget())); !strings.HasPrefix(got, "[case:"+want) {
			t.Errorf("%s\n got %s\nwant case:%s", text, got, want)
		}
	}
}
