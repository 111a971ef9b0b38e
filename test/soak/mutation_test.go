package main

import (
	"slices"
	"testing"
	"time"
)

// A mutation makes correct metrics of a pod wrong, as a server with a bug would. It reports whether it
// could.
type mutation struct {
	name   string
	mutate func(w *mutationWorld, m *served) bool
}

// mutationWorld is what mutations need: the pod, and other responses.
type mutationWorld struct {
	oracle *oracle
	pod    *object
	now    time.Time
	others []served // of the same response
	before []past   // earlier responses of the same pod, oldest first
}

// past is a response that was requested at that time.
type past struct {
	served
	sent time.Time
}

// apply applies a mutation to the metrics of a pod, unless their usage is not checked anyway.
func (w *mutationWorld) apply(m mutation, metrics *served) (isApplied bool) {
	w.oracle.update(func() {
		w.pod = w.oracle.objects[metrics.name]
		isKnown := !w.now.Before(w.pod.unjudgeable) && !w.now.Before(w.pod.node.unjudgeable)
		isApplied = isKnown && m.mutate(w, metrics)
	})
	return isApplied
}

// replay replaces metrics by the newest ones that are at least so old.
func (w *mutationWorld) replay(m *served, age time.Duration) bool {
	for _, p := range slices.Backward(w.before) {
		if w.now.Sub(p.sent) >= age {
			*m = p.clone()
			return true
		}
	}
	return false
}

func (s served) clone() served {
	s.series, s.values = slices.Clone(s.series), slices.Clone(s.values)
	return s
}

func scaleCPU(factor float64) func(*mutationWorld, *served) bool {
	return func(_ *mutationWorld, m *served) bool {
		m.values[0].cores *= factor
		return m.values[0].cores > 0
	}
}

func addToWindow(d time.Duration) func(*mutationWorld, *served) bool {
	return func(_ *mutationWorld, m *served) bool {
		m.window += d
		return m.window > 0
	}
}

// acrossEvent serves a rate of the first container from the last reading before an event to the newest
// one. cores computes it as the server could that did not notice the event.
func acrossEvent(
	isEvent func(before, after *reading) bool, cores func(start, end *reading) float64,
) func(*mutationWorld, *served) bool {
	return func(w *mutationWorld, m *served) bool {
		s := w.pod.node.readings[m.series[0]]
		for i := len(s) - 2; i >= 0; i-- {
			start, end := &s[i], &s[len(s)-1]
			if !isEvent(start, &s[i+1]) {
				continue
			}
			window := end.Stamp.Sub(start.Stamp)
			if start.certain.IsZero() || s[i+1].certain.IsZero() || window < minWindow || window > w.oracle.maxAge {
				return false
			}
			m.timestamp, m.window = end.Stamp.Truncate(timestampUnit), window
			m.values[0] = value{float64(int64(cores(start, end)*1e9)) / 1e9, int64(end.Memory >> 10)}
			return end.CPU > 0
		}
		return false
	}
}

var mutations = []mutation{
	{"10 % too high a rate", scaleCPU(1.1)},
	{"10 % too low a rate", scaleCPU(0.9)},
	{"1 % too high a rate", scaleCPU(1.01)},
	{"2 s too long a window", addToWindow(2 * time.Second)},
	{"2 s too short a window", addToWindow(-2 * time.Second)},
	{"usage of another pod", func(w *mutationWorld, m *served) bool {
		m.values = slices.Clone(w.others[0].values)
		return w.others[0].name != m.name
	}},
	{"memory of the other container", func(_ *mutationWorld, m *served) bool {
		m.values[0].memory = m.values[1].memory
		return true
	}},
	{"one container only", func(_ *mutationWorld, m *served) bool {
		m.series, m.values = m.series[:1], m.values[:1]
		return true
	}},
	{"expired metrics", func(w *mutationWorld, m *served) bool {
		return w.replay(m, w.oracle.maxAge+2*time.Second)
	}},
	{"metrics that do not change any more", func(w *mutationWorld, m *served) bool {
		return w.oracle.isSettled(w.pod, w.now) && w.replay(m, 2*w.oracle.latest)
	}},
	{"a counter reset taken for usage since 0", acrossEvent(
		func(before, after *reading) bool { return after.CPU < before.CPU },
		func(start, end *reading) float64 { return end.CPU / end.Stamp.Sub(start.Stamp).Seconds() },
	)},
	{"a counter reset taken for no usage", acrossEvent(
		func(before, after *reading) bool { return after.CPU < before.CPU },
		func(*reading, *reading) float64 { return 0 },
	)},
	{"a rate across a jump of the clock", acrossEvent(
		func(before, after *reading) bool { return (after.offset() - before.offset()).Abs() >= 2*time.Second },
		func(start, end *reading) float64 { return (end.CPU - start.CPU) / end.Stamp.Sub(start.Stamp).Seconds() },
	)},
}

// listMutations make a list of all pods wrong. They return nil if they cannot.
var listMutations = []struct {
	name   string
	mutate func(s *simulation, pods []served, e exchange) []served
}{
	{"no metrics of a pod that must have some", func(s *simulation, pods []served, e exchange) []served {
		expected := s.oracle.expected(podKind, e.sent)
		i := slices.IndexFunc(pods, func(m served) bool { return expected[m.name] != nil })
		if i < 0 {
			return nil
		}
		return slices.Delete(slices.Clone(pods), i, i+1)
	}},
	{"metrics of a deleted pod", func(s *simulation, pods []served, e exchange) (list []served) {
		s.oracle.update(func() {
			for name, p := range s.oracle.objects {
				if list == nil && !p.isNode() && !p.deleted.IsZero() && e.sent.Sub(p.deleted) > s.oracle.gone {
					m := pods[0].clone()
					m.name = name
					list = append(slices.Clone(pods), m)
				}
			}
		})
		return list
	}},
	{"a pod twice", func(_ *simulation, pods []served, _ exchange) []served {
		return append(slices.Clone(pods), pods[0])
	}},
}

// TestMutations makes correct responses wrong, in simulations with all disturbances. The oracle must
// notice nearly all of that: by chance, other readings may explain a wrong value.
func TestMutations(t *testing.T) {
	const minCaught = 0.98
	applied, caught := map[string]int{}, map[string]int{} // by the name of the mutation
	count := func(name string, isCaught bool) {
		applied[name]++
		if isCaught {
			caught[name]++
		}
	}
	forEachSeed(t, func(t *testing.T, s *simulation) {
		before, turn := map[string][]past{}, 0
		s.run(t, 2*time.Minute, func(e exchange, pods, _ []served) {
			for _, m := range listMutations {
				if len(pods) == 0 {
					break
				}
				if wrong := m.mutate(s, pods, e); wrong != nil {
					count(m.name, len(s.oracle.check(wrong, e, podKind)) > 0)
				}
			}
			for _, correct := range pods {
				w := &mutationWorld{oracle: s.oracle, now: e.sent, others: pods, before: before[correct.name]}
				before[correct.name] = append(w.before, past{correct, e.sent})
				turn++
				m, wrong := mutations[turn%len(mutations)], correct.clone()
				if w.apply(m, &wrong) {
					what, _ := s.oracle.checkObject(wrong, e)
					count(m.name, what != "")
				}
			}
		})
	})
	var names []string
	for _, m := range mutations {
		names = append(names, m.name)
	}
	for _, m := range listMutations {
		names = append(names, m.name)
	}
	for _, name := range names {
		t.Logf("%s: %d of %d were caught", name, caught[name], applied[name])
		if applied[name] == 0 || float64(caught[name]) < minCaught*float64(applied[name]) {
			t.Errorf("%s: only %d of %d were caught", name, caught[name], applied[name])
		}
	}
}
