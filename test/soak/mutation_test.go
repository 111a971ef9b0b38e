package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// A mutation makes correct metrics of a pod wrong, as a server with a bug would. It reports whether it
// could.
type mutation struct {
	name   string
	mutate func(w *mutationWorld, m *metricsv1beta1.PodMetrics) bool
}

// mutationWorld is what mutations need: the pod, its node, and other responses.
type mutationWorld struct {
	oracle *oracle
	pod    *pod
	now    time.Time
	others []metricsv1beta1.PodMetrics // of the same response
	before []metricsv1beta1.PodMetrics // earlier responses of the same pod, oldest first
	sent   []time.Time                 // when these were requested
}

// apply applies a mutation to the metrics of a pod, unless their usage is not checked anyway.
func (w *mutationWorld) apply(m mutation, name string, metrics *metricsv1beta1.PodMetrics) (isApplied bool) {
	w.oracle.update(func() {
		w.pod = w.oracle.pods[name]
		w.pod.node.readings.mu.Lock()
		defer w.pod.node.readings.mu.Unlock()
		isKnown := !w.now.Before(w.pod.unjudgeable) && !w.now.Before(w.pod.node.unjudgeable)
		isApplied = isKnown && m.mutate(w, metrics)
	})
	return isApplied
}

// container returns the readings of the first container.
func (w *mutationWorld) container(m *metricsv1beta1.PodMetrics) series {
	return w.pod.node.readings.series[seriesKey{m.Namespace, m.Name, m.Containers[0].Name}]
}

// isSettled reports whether nothing has happened for so long that the newest metrics must be served.
func (w *mutationWorld) isSettled() bool {
	n := w.pod.node
	last := later(later(w.pod.undisturbed, w.pod.restarted), n.undisturbed)
	return n.failing.IsZero() && w.now.Sub(last) > w.oracle.settle+minContainerAge &&
		w.now.Sub(n.clock.last().at) > time.Minute
}

// replay replaces metrics by the newest ones that are at least so old.
func (w *mutationWorld) replay(m *metricsv1beta1.PodMetrics, age time.Duration) bool {
	for i, sent := range slices.Backward(w.sent) {
		if w.now.Sub(sent) >= age {
			*m = *w.before[i].DeepCopy()
			return true
		}
	}
	return false
}

// serve replaces the metrics of all containers by a rate, which ends with a reading.
func serve(m *metricsv1beta1.PodMetrics, end *reading, window time.Duration, cores float64) {
	m.Timestamp, m.Window.Duration = metav1.NewTime(end.Stamp.Truncate(timestampUnit)), window
	setCPU(m, cores)
}

func setCPU(m *metricsv1beta1.PodMetrics, cores float64) {
	m.Containers[0].Usage["cpu"] = *resource.NewScaledQuantity(int64(cores*1e9), resource.Nano)
}

func scaleCPU(factor float64) func(*mutationWorld, *metricsv1beta1.PodMetrics) bool {
	return func(_ *mutationWorld, m *metricsv1beta1.PodMetrics) bool {
		cores := m.Containers[0].Usage.Cpu().AsApproximateFloat64()
		setCPU(m, cores*factor)
		return cores > 0
	}
}

func addToWindow(d time.Duration) func(*mutationWorld, *metricsv1beta1.PodMetrics) bool {
	return func(_ *mutationWorld, m *metricsv1beta1.PodMetrics) bool {
		m.Window.Duration += d
		return m.Window.Duration > 0
	}
}

// acrossEvent serves a rate from the last reading before an event to the newest one. cores computes
// it as the server could that did not notice the event.
func acrossEvent(
	isEvent func(before, after *reading) bool, cores func(start, end *reading) float64,
) func(*mutationWorld, *metricsv1beta1.PodMetrics) bool {
	return func(w *mutationWorld, m *metricsv1beta1.PodMetrics) bool {
		s := w.container(m)
		for i := len(s) - 2; i >= 0; i-- {
			start, end := &s[i], &s[len(s)-1]
			if !isEvent(start, &s[i+1]) {
				continue
			}
			window := end.Stamp.Sub(start.Stamp)
			if start.certain.IsZero() || s[i+1].certain.IsZero() || window < minWindow || window > w.oracle.maxAge {
				return false
			}
			serve(m, end, window, cores(start, end))
			m.Containers[0].Usage["memory"] = *resource.NewQuantity(int64(end.Memory)>>10<<10, resource.BinarySI)
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
	{"usage of another pod", func(w *mutationWorld, m *metricsv1beta1.PodMetrics) bool {
		other := w.others[0]
		if other.Name == m.Name {
			return false
		}
		m.Containers = other.DeepCopy().Containers
		return true
	}},
	{"memory of the other container", func(_ *mutationWorld, m *metricsv1beta1.PodMetrics) bool {
		m.Containers[0].Usage["memory"] = m.Containers[1].Usage["memory"]
		return true
	}},
	{"one container only", func(_ *mutationWorld, m *metricsv1beta1.PodMetrics) bool {
		m.Containers = m.Containers[:1]
		return true
	}},
	{"expired metrics", func(w *mutationWorld, m *metricsv1beta1.PodMetrics) bool {
		return w.replay(m, w.oracle.maxAge+2*time.Second)
	}},
	{"metrics that do not change any more", func(w *mutationWorld, m *metricsv1beta1.PodMetrics) bool {
		return w.isSettled() && w.replay(m, 2*w.oracle.latest)
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

// listMutations make a list of all pods wrong.
var listMutations = []struct {
	name   string
	mutate func(s *simulation, pods []metricsv1beta1.PodMetrics, e exchange) []metricsv1beta1.PodMetrics
}{
	{"no metrics of a pod that must have some", func(
		s *simulation, pods []metricsv1beta1.PodMetrics, e exchange,
	) []metricsv1beta1.PodMetrics {
		expected := s.oracle.expectedPods(e.sent)
		isExpected := func(m metricsv1beta1.PodMetrics) bool { return expected[m.Namespace+"/"+m.Name] != nil }
		i := slices.IndexFunc(pods, isExpected)
		if i < 0 {
			return nil
		}
		return slices.Delete(slices.Clone(pods), i, i+1)
	}},
	{"metrics of a deleted pod", func(
		s *simulation, pods []metricsv1beta1.PodMetrics, e exchange,
	) (list []metricsv1beta1.PodMetrics) {
		s.oracle.update(func() {
			for name, p := range s.oracle.pods {
				if list == nil && !p.deleted.IsZero() && e.sent.Sub(p.deleted) > s.oracle.gone {
					m := pods[0].DeepCopy()
					m.Namespace, m.Name, _ = strings.Cut(name, "/")
					list = append(slices.Clone(pods), *m)
				}
			}
		})
		return list
	}},
	{"a pod twice", func(_ *simulation, pods []metricsv1beta1.PodMetrics, _ exchange) []metricsv1beta1.PodMetrics {
		return append(slices.Clone(pods), pods[0])
	}},
}

// TestMutations makes correct responses wrong, in simulations with all disturbances. The oracle must
// notice nearly all of that: by chance, other readings may explain a wrong value.
func TestMutations(t *testing.T) {
	const minCaught = 0.98
	n := len(mutations) + len(listMutations)
	applied, caught := make([]int, n), make([]int, n)
	forEachSeed(t, func(t *testing.T, s *simulation) {
		before, sent := map[string][]metricsv1beta1.PodMetrics{}, map[string][]time.Time{}
		turn := 0
		s.run(t, 2*time.Minute, func(e exchange, pods []metricsv1beta1.PodMetrics, _ []metricsv1beta1.NodeMetrics) {
			for k, m := range listMutations {
				if len(pods) == 0 {
					break
				}
				if wrong := m.mutate(s, pods, e); wrong != nil {
					applied[len(mutations)+k]++
					if len(s.oracle.checkPods(wrong, e, true)) > 0 {
						caught[len(mutations)+k]++
					}
				}
			}
			for i := range pods {
				name := pods[i].Namespace + "/" + pods[i].Name
				w := &mutationWorld{
					oracle: s.oracle, now: e.sent, others: pods, before: before[name], sent: sent[name],
				}
				before[name], sent[name] = append(before[name], pods[i]), append(sent[name], e.sent)
				turn++
				k := turn % len(mutations)
				m := pods[i].DeepCopy()
				if !w.apply(mutations[k], name, m) {
					continue
				}
				applied[k]++
				if what, _ := s.oracle.checkPod(name, m, e); what != "" {
					caught[k]++
				}
			}
		})
	})
	for k := range n {
		var name string
		if k < len(mutations) {
			name = mutations[k].name
		} else {
			name = listMutations[k-len(mutations)].name
		}
		t.Logf("%s: %d of %d were caught", name, caught[k], applied[k])
		if applied[k] == 0 || float64(caught[k]) < minCaught*float64(applied[k]) {
			t.Errorf("%s: only %d of %d were caught", name, caught[k], applied[k])
		}
	}
}
