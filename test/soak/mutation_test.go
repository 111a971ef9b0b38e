package main

import (
	"slices"
	"testing"
	"time"
)

// world is what mutations need: the pod that they make wrong, and other responses.
type world struct {
	oracle *oracle
	exchange
	pod    *object
	all    []served // the response
	before []past   // earlier responses of the same pod, oldest first
	prefix string   // of the objects that the wrong response must have all of
}

// past is a response that was requested at that time.
type past struct {
	served
	sent time.Time
}

func (s served) clone() served {
	s.usages = slices.Clone(s.usages)
	return s
}

// mutation returns a response that is wrong, as that of a server with a bug would be, or nil if it cannot. It gets
// the correct metrics of a pod.
type mutation func(w *world, m served) []served

// alter returns a mutation of the metrics of one pod, unless their usage is not checked anyway.
func alter(change func(w *world, m *served) bool) mutation {
	return func(w *world, m served) (wrong []served) {
		m = m.clone()
		w.oracle.update(func() {
			isKnown := !w.sent.Before(w.pod.unjudgeable) && !w.sent.Before(w.pod.node.unjudgeable)
			if isKnown && change(w, &m) {
				wrong = []served{m}
			}
		})
		return wrong
	}
}

func scaleCPU(factor float64) mutation {
	return alter(func(_ *world, m *served) bool {
		m.usages[0].cores *= factor
		return m.usages[0].cores > 0
	})
}

func addToWindow(d time.Duration) mutation {
	return alter(func(w *world, m *served) bool {
		m.window += d
		// No CPU is used over any window, and where start times move, kubelet-reported rates may have any.
		isIdle := func(u containerUsage) bool { return u.cores == 0 }
		return m.window > 0 && !slices.ContainsFunc(m.usages, isIdle) && !w.pod.node.startsMove
	})
}

// replay replaces metrics by the newest ones that are at least so old.
func (w *world) replay(m *served, age time.Duration) bool {
	for _, p := range slices.Backward(w.before) {
		if w.sent.Sub(p.sent) >= age {
			*m = p.clone()
			return true
		}
	}
	return false
}

// acrossEvent serves a rate of the first container from the last reading before an event to the newest
// one. cores computes it as the server could that did not notice the event.
func acrossEvent(isEvent func(before, after *reading) bool, cores func(start, end *reading) float64) mutation {
	return alter(func(w *world, m *served) bool {
		s := w.pod.node.readings[seriesKey(m.name, m.usages[0].container)]
		for i := len(s) - 2; i >= 0; i-- {
			start, end := &s[i], &s[len(s)-1]
			if !isEvent(start, &s[i+1]) {
				continue
			}
			m.window = end.Stamp.Sub(start.Stamp)
			if start.certain.IsZero() || s[i+1].certain.IsZero() || m.window < minWindow || m.window > w.oracle.maxAge {
				return false
			}
			m.timestamp = end.Stamp.Truncate(timestampUnit)
			m.usages[0].cores, m.usages[0].memory = float64(int64(cores(start, end)*1e9))/1e9, int64(end.Memory>>10)
			return end.CPU > 0
		}
		return false
	})
}

func isReset(before, after *reading) bool { return after.CPU < before.CPU }

type namedMutation struct {
	name string
	mutation
}

// isBusy reports whether every reading has a higher counter than the one before.
func (s series) isBusy() bool {
	for i := 1; i < len(s); i++ {
		if s[i].CPU <= s[i-1].CPU {
			return false
		}
	}
	return true
}

// at returns the newest reading with a timestamp.
func (s series) at(timestamp time.Time) *reading {
	for i := range slices.Backward(s) {
		if s[i].Stamp.Unix() == timestamp.Unix() {
			return &s[i]
		}
	}
	return nil
}

// eventMutations are possible only for a while after something has happened.
var eventMutations = []namedMutation{
	{"a counter reset taken for usage since 0", acrossEvent(isReset, func(start, end *reading) float64 {
		return end.CPU / end.Stamp.Sub(start.Stamp).Seconds()
	})},
	{"a counter reset taken for no usage", acrossEvent(isReset, func(*reading, *reading) float64 { return 0 })},
	{"a rate across a jump of the clock", acrossEvent(
		func(before, after *reading) bool { return (after.offset() - before.offset()).Abs() >= 2*time.Second },
		func(start, end *reading) float64 { return (end.CPU - start.CPU) / end.Stamp.Sub(start.Stamp).Seconds() },
	)},
}

var mutations = []namedMutation{
	{"10 % too high a rate", scaleCPU(1.1)},
	{"10 % too low a rate", scaleCPU(0.9)},
	{"1 % too high a rate", scaleCPU(1.01)},
	{"2 s too long a window", addToWindow(2 * time.Second)},
	{"2 s too short a window", addToWindow(-2 * time.Second)},
	{"usage of another pod", alter(func(w *world, m *served) bool {
		m.usages = slices.Clone(w.all[0].usages)
		return w.all[0].name != m.name
	})},
	{"zeros for a container that the kubelet does not know", alter(func(_ *world, m *served) bool {
		wrong := m.usages[0].cores > 0
		m.usages[0].cores, m.usages[0].memory = 0, 0
		return wrong
	})},
	{"a placeholder of 0 cores", alter(func(w *world, m *served) bool {
		all := w.pod.node.readings[seriesKey(m.name, m.usages[0].container)]
		m.usages[0].cores = 0
		return len(all) > 1 && !slices.ContainsFunc(all[1:], func(r reading) bool { return r.Rate == 0 }) && all.isBusy()
	})},
	{"0 bytes", alter(func(_ *world, m *served) bool {
		m.usages[0].memory = 0
		return true
	})},
	{"usage since a counter of 0 that is not true", alter(func(w *world, m *served) bool {
		end := w.pod.node.readings[seriesKey(m.name, m.usages[0].container)].at(m.timestamp)
		if end == nil || end.CPU == 0 || end.Stamp.Sub(end.StartStamp) < minContainerAge+2*minWindow {
			return false
		}
		m.window = 5 * time.Second
		m.usages[0].cores, m.usages[0].memory = end.CPU/m.window.Seconds(), int64(end.Memory>>10)
		return true
	})},
	{"memory of the other container", alter(func(_ *world, m *served) bool {
		wrong := m.usages[0].memory != m.usages[1].memory
		m.usages[0].memory = m.usages[1].memory
		return wrong
	})},
	{"one container only", alter(func(_ *world, m *served) bool {
		m.usages = m.usages[:1]
		return true
	})},
	{"expired metrics", alter(func(w *world, m *served) bool {
		return w.replay(m, w.oracle.maxAge+2*time.Second)
	})},
	{"metrics that do not change any more", alter(func(w *world, m *served) bool {
		return w.oracle.isSettled(w.pod, w.sent) && w.replay(m, w.oracle.settle)
	})},
	{"no metrics of a pod that must have some", func(w *world, m served) (list []served) {
		w.oracle.update(func() {
			if w.oracle.mustServe(w.pod, w.sent) {
				w.prefix = podKind
				list = slices.DeleteFunc(slices.Clone(w.all), func(s served) bool { return s.name == m.name })
			}
		})
		return list
	}},
	{"metrics of a deleted pod", func(w *world, m served) (list []served) {
		w.oracle.update(func() {
			for name, p := range w.oracle.objects {
				if !p.isNode() && !p.deleted.IsZero() && w.sent.Sub(p.deleted) > w.oracle.gone {
					m.name = name
					list = []served{m}
				}
			}
		})
		return list
	}},
	{"a pod twice", func(_ *world, m served) []served { return []served{m, m} }},
}

// TestMutations makes correct responses wrong, in simulations with all disturbances. The oracle must
// notice nearly all of that: by chance, other readings may explain a wrong value.
func TestMutations(t *testing.T) {
	// The order of goroutines changes the share by half a percent.
	const minCaught = 0.97
	applied, caught := map[string]float64{}, map[string]float64{} // by the name of the mutation
	forEachSeed(t, func(t *testing.T, s *simulation) {
		before, turn := map[string][]past{}, 0
		s.run(t, 2*time.Minute, func(e exchange, pods, _ []served) {
			for _, correct := range pods {
				w := &world{oracle: s.oracle, exchange: e, all: pods, before: before[correct.name]}
				s.oracle.update(func() { w.pod = s.oracle.objects[correct.name] })
				before[correct.name] = append(w.before, past{correct, e.sent})
				for _, m := range append(eventMutations, mutations[turn%len(mutations)]) {
					if wrong := m.mutation(w, correct); wrong != nil {
						applied[m.name]++
						if len(s.oracle.check(wrong, e, w.prefix)) > 0 {
							caught[m.name]++
						}
					}
				}
				turn++
			}
		})
	})
	for _, m := range append(eventMutations, mutations...) {
		t.Logf("%s: %.0f of %.0f were caught", m.name, caught[m.name], applied[m.name])
		if applied[m.name] == 0 || caught[m.name] < minCaught*applied[m.name] {
			t.Errorf("%s: only %.0f of %.0f were caught", m.name, caught[m.name], applied[m.name])
		}
	}
}
