package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestReplacedPod has a pod that was replaced by one of the same name on the same node, before
// kube-vitals started or while its container was not yet shown as running. No rate spans both pods.
func TestReplacedPod(t *testing.T) {
	for _, tc := range []struct {
		name      string
		ahead     float64 // seconds of the node's clock
		byScrape  bool
		startedAt float64 // seconds, by the node's clock
		rounds    [][]float64
		want      []string
	}{
		{"started after the replacement", 0, false, -30,
			[][]float64{{-65, 1, -50, 4, -5, 12}, {-65, 1, -50, 4, -5, 12, 10, 18}}, []string{"", "app 400 15s"}},
		{"the node's clock is ahead", 60, false, 35,
			[][]float64{{10, 1, 25, 4, 55, 12}, {10, 1, 25, 4, 55, 12, 70, 18}}, []string{"", "app 400 15s"}},
		{"only samples of the other pod", 0, false, -10, [][]float64{{-65, 1, -50, 4, -35, 7}}, []string{""}},
		{"two samples since the start", 0, false, -30, [][]float64{{-50, 4, -20, 9, -5, 12}}, []string{"app 200 15s"}},
		{"a sample in the second of the start", 0, false, -20, [][]float64{{-20, 4, -5, 12}}, []string{""}},
		{"times of scrapes", 0, true, -50, [][]float64{{-95, 0, -65, 3, -35, 9, -5, 18}, {-65, 3, -35, 9, -5, 18, 25, 24}},
			[]string{"", "app 200 30s"}},
		{"times of scrapes, the node's clock is behind", -60, true, -110,
			[][]float64{{-95, 0, -65, 3, -35, 9, -5, 18}}, []string{""}},
		{"times of scrapes, a start by a clock that was ahead", 4000, true, 3600,
			[][]float64{{-95, 0, -65, 6, -35, 12, -5, 18}, {-65, 6, -35, 12, -5, 18, 25, 24}},
			[]string{"app 200 1m0s", "app 200 1m0s"}},
		{"a start that shows nothing, because the clock was set back", 0, false, 3600, [][]float64{{-20, 100, -5, 103}},
			[]string{"app 200 15s"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, "")
			f.state.StartedAt = usage.NodeAt(f.at(tc.startedAt).Time().Truncate(time.Second))
			f.state.PodCreatedAt = usage.Time(f.at(tc.startedAt - tc.ahead))
			for i, samples := range tc.rounds {
				f.put("app", "", samples...)
				if tc.byScrape {
					f.putTogether(3, samples...)
				}
				f.mustRefresh()
				f.wantPod(tc.want[i])
			}
		})
	}
}

// TestPodIsReplacedWhileItIsKnown replaces a pod between two refreshes, after the first one was stored.
func TestPodIsReplacedWhileItIsKnown(t *testing.T) {
	f := newFixture(t, "")
	f.state.StartedAt = f.start.Add(-time.Hour)
	f.put("app", "", 25, 1, 40, 4) // the node's clock is ahead
	f.mustRefresh()
	f.wantPod("app 200 15s")
	f.store.RemovePod("n1", "ns", "web", f.clock.At(time.Now().Add(-time.Second)))
	f.state.StartedAt = f.start.Add(45 * time.Second)
	f.put("app", "", 25, 1, 40, 4, 55, 9)
	f.put("side", "", 40, 4, 55, 9) // needs a base
	f.mustRefresh()
	f.wantPod("")
	f.put("app", "", 40, 4, 55, 9, 70, 12)
	f.put("side", "", 55, 9, 70, 12)
	f.mustRefresh()
	f.wantPod("app 200 15s, side 200 15s")
}

// TestForcedReplacement has a pod that was deleted by force and runs on beside the next one of its name, which uses 0.1
// cores. The kubelet reports both under the same labels, so the engine may store the samples of both in one series. The
// start time is that of the new pod.
func TestForcedReplacement(t *testing.T) { // rule 9
	const pod, container = 2, 5 // seconds of their starts
	for _, tc := range []struct {
		name   string
		rounds [][]float64
		want   []string
	}{
		{"both in each scrape", [][]float64{
			{-11, 90, 4, 105, 12, 0.7, 19, 120}, {-11, 90, 4, 105, 12, 0.7, 19, 120, 27, 2.2, 34, 135},
			{-11, 90, 4, 105, 12, 0.7, 19, 120, 27, 2.2, 34, 135, 42, 3.7},
		}, []string{"", "", "app 100 15s"}},
		{"one in each scrape", [][]float64{
			{-26, 75, -11, 90, 12, 0.7}, {-26, 75, -11, 90, 12, 0.7, 27, 128}, {-11, 90, 12, 0.7, 27, 128, 42, 3.7},
			{-11, 90, 12, 0.7, 27, 128, 42, 3.7, 57, 158}, {-11, 90, 12, 0.7, 27, 128, 42, 3.7, 57, 158, 72, 6.7},
		}, []string{"", "", "app 100 30s", "app 100 30s", "app 100 30s"}},
		{"only those of the earlier pod", [][]float64{{-11, 90, 4, 105, 12, 113, 27, 128}}, []string{""}},
		{"only those of the next pod", [][]float64{{-26, 90, -11, 90, 12, 0.7, 27, 2.2}}, []string{"app 100 15s"}},
		{"the earlier one has used less", [][]float64{
			{-11, 1, 12, 0.7, 27, 2.2}, {-11, 1, 12, 0.7, 27, 2.2, 102, 9.7}, {102, 9.7, 117, 11.2},
		}, []string{"", "app 100 1m15s", "app 100 15s"}},
		{"the earlier one has used nothing", [][]float64{{-11, 0, 12, 0.7, 27, 2.2}}, []string{"app 100 15s"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, "")
			f.state = usage.ContainerState{
				StartedAt: f.at(container), EarliestStart: f.at(pod), PodCreatedAt: usage.Time(f.at(pod - 1)),
			}
			f.putStart("app", container)
			for i, samples := range tc.rounds {
				f.put("app", "", samples...)
				f.mustRefresh()
				f.wantPod(tc.want[i])
			}
		})
	}
}

// TestSamplesBeforeStart has samples of a pod's name from before its start, by the kubelet's clock.
func TestSamplesBeforeStart(t *testing.T) {
	for _, tc := range []struct {
		name             string
		others           float64 // the newest sample of the node before the pod is known
		created, started float64
		samples          []float64
		want             string
	}{
		{"its own, the clock was set back after the start", -31, -52, -20, []float64{-45, 0.5, -30, 2, -15, 3.5, 0, 5},
			"app 100 15s"},
		{"of an earlier pod, the clock is ahead", 59, -2, 60, []float64{45, 90, 75, 120, 90, 135}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, "")
			for i := range 3 { // of different times, so they are not those of scrapes
				newest := tc.others - float64(i)
				f.putSeries("container_cpu_usage_seconds_total"+containerLabels(fmt.Sprint("other/c", i), ""),
					f.samples(newest-15, 1, newest, 2)...)
			}
			f.mustRefresh()
			f.state = usage.ContainerState{
				StartedAt: f.at(tc.started), EarliestStart: f.at(tc.started), PodCreatedAt: usage.Time(f.at(tc.created)),
			}
			f.put("app", "", tc.samples...)
			f.mustRefresh()
			f.wantPod(tc.want)
		})
	}
}

// TestSampleOfTheFuture has one sample that is 4 minutes ahead of all others of its node.
func TestSampleOfTheFuture(t *testing.T) {
	for containers := range 3 {
		t.Run(fmt.Sprint(containers, " other containers"), func(t *testing.T) {
			f := newFixture(t, "")
			refresh := func(second float64, future float64) {
				f.put("app", "", second-15, 97+second/5, second, 100+second/5)
				for i := range containers {
					f.putSeries("container_cpu_usage_seconds_total"+containerLabels(fmt.Sprint("other/c", i), ""),
						f.samples(second-16-float64(i), 1, second-1-float64(i), 2)...)
				}
				f.putCPU("container", containerLabels("future/future", ""), f.samples(second-15, 100, future, 103)...)
				f.mustRefresh()
				f.wantPod("app 200 15s")
				if p := f.podUsage(); p == nil || p.At != f.at(second) {
					t.Errorf("got %+v, want the sample at %v s", p, second)
				}
			}
			refresh(-20, -20)
			for second := -5.0; second < 40; second += 15 {
				refresh(second, 240)
			}
			if counts := f.store.Counts(); counts.ClockJumps != 0 {
				t.Errorf("got %+v, want no jumps", counts)
			}
		})
	}
}
