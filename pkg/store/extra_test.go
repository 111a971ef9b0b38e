package store

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// extraAt is when the reports of these tests are requested. They expire a minute later.
const extraAt = usage.Time(1000 * time.Second)

func gpu(pod, container string, value uint64) ContainerResource {
	resource := usage.Resource{Name: "example.com/gpu", Value: value, Unit: usage.Milli}
	return ContainerResource{"default", pod, container, resource}
}

func disk(pod, container string, value uint64) ContainerResource {
	return ContainerResource{"default", pod, container, usage.Resource{Name: "ephemeral-storage", Value: value}}
}

func reportOf(containers ...ContainerResource) ExtraReport {
	return ExtraReport{At: extraAt, Expires: extraAt.Add(time.Minute), Containers: containers}
}

func extraPod(name string, containers ...string) *usage.Pod {
	pod := &usage.Pod{Namespace: "default", Name: name}
	for _, c := range containers {
		pod.Containers = append(pod.Containers, usage.Container{Name: c})
	}
	return pod
}

// showExtra returns the values of each container: "name=value ...".
func showExtra(extra [][]usage.Resource) []string {
	var lines []string
	for _, resources := range extra {
		line := ""
		for _, r := range resources {
			line += fmt.Sprintf("%s=%d ", r.Name, r.Value)
		}
		lines = append(lines, line)
	}
	return lines
}

func TestExtraPod(t *testing.T) {
	whole := func(r ExtraReport) ExtraReport { r.Whole = true; return r }
	for _, tc := range []struct {
		name    string
		reports []ExtraReport
		pod     *usage.Pod
		want    []string
	}{
		{"no report", nil, extraPod("web", "a"), nil},
		{"another pod", []ExtraReport{reportOf(gpu("db", "a", 5))}, extraPod("web", "a"), nil},
		{"a container that the pod does not have", []ExtraReport{reportOf(gpu("web", "old", 5))}, extraPod("web", "a"), nil},
		{"what the pod uses itself",
			[]ExtraReport{whole(reportOf(disk("web", "", 7), disk("web", "b", 5), disk("web", "a", 1)))},
			extraPod("web", "a", "b"), []string{"ephemeral-storage=8 ", "ephemeral-storage=5 "}},
		{"what the pod uses itself alone", []ExtraReport{reportOf(disk("web", "", 7))}, extraPod("web", "a"), nil},
		{"a container without a value has 0", []ExtraReport{reportOf(gpu("web", "b", 5))}, extraPod("web", "a", "b", "c"),
			[]string{"example.com/gpu=0 ", "example.com/gpu=5 ", "example.com/gpu=0 "}},
		{"several values of a container are added",
			[]ExtraReport{reportOf(gpu("web", "a", 5), gpu("db", "a", 1), gpu("web", "a", 7))},
			extraPod("web", "a"), []string{"example.com/gpu=12 "}},
		{"several sources are added", []ExtraReport{reportOf(gpu("web", "a", 5)), reportOf(gpu("web", "b", 7))},
			extraPod("web", "a", "b"), []string{"example.com/gpu=5 ", "example.com/gpu=7 "}},
		{"resources are sorted", []ExtraReport{reportOf(gpu("web", "a", 5)), reportOf(disk("web", "a", 9))},
			extraPod("web", "a"), []string{"ephemeral-storage=9 example.com/gpu=5 "}},
		{"a whole pod", []ExtraReport{whole(reportOf(disk("web", "a", 5), disk("web", "b", 6)))}, extraPod("web", "a", "b"),
			[]string{"ephemeral-storage=5 ", "ephemeral-storage=6 "}},
		{"part of a whole pod", []ExtraReport{whole(reportOf(disk("web", "a", 5), disk("web", "b", 6)))},
			extraPod("web", "a", "b", "c"), nil},
		{"no overflow", []ExtraReport{reportOf(gpu("web", "a", math.MaxUint64), gpu("web", "a", math.MaxUint64))},
			extraPod("web", "a"), []string{fmt.Sprintf("example.com/gpu=%d ", uint64(math.MaxInt64))}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := NewExtra(newStore())
			for i, r := range tc.reports {
				e.Put("n1", fmt.Sprint("source", i), r)
			}
			if got := showExtra(e.Pod("n1", tc.pod, extraAt)); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if got := e.Pod("n2", tc.pod, extraAt); got != nil {
				t.Errorf("another node has %q", showExtra(got))
			}
		})
	}
}

func TestExtraExpires(t *testing.T) {
	e := NewExtra(newStore())
	e.Put("n1", "a", ExtraReport{At: extraAt, Expires: extraAt.Add(time.Minute),
		Node:       []usage.Resource{{Name: "z", Value: 1}, {Name: "b", Value: 2}},
		Containers: []ContainerResource{gpu("web", "a", 5)}})
	e.Put("n1", "b", ExtraReport{At: extraAt, Expires: extraAt.Add(2 * time.Minute),
		Node: []usage.Resource{{Name: "z", Value: 3}}})
	pod := extraPod("web", "a")
	for _, tc := range []struct {
		after     time.Duration
		pod, node []string
	}{
		{time.Minute - 1, []string{"example.com/gpu=5 "}, []string{"b=2 z=4 "}},
		{time.Minute, nil, []string{"z=3 "}},
		{2 * time.Minute, nil, []string{""}},
	} {
		now := extraAt.Add(tc.after)
		if got := showExtra(e.Pod("n1", pod, now)); !reflect.DeepEqual(got, tc.pod) {
			t.Errorf("after %v: got %q, want %q", tc.after, got, tc.pod)
		}
		if got := showExtra([][]usage.Resource{e.Node("n1", now)}); !reflect.DeepEqual(got, tc.node) {
			t.Errorf("after %v: got %q of the node, want %q", tc.after, got, tc.node)
		}
	}
	e.Remove("n1", "a")
	e.Remove("n1", "b")
	if len(e.nodes) != 0 {
		t.Errorf("got %d nodes after all were removed", len(e.nodes))
	}
}

// TestExtraRemovedPod checks that a pod does not inherit the values of an earlier pod of the name.
func TestExtraRemovedPod(t *testing.T) {
	e, pod := NewExtra(newStore()), extraPod("web", "a")
	get := func() []string { return showExtra(e.Pod("n1", pod, extraAt.Add(10*time.Second))) }
	report := func(after time.Duration) ExtraReport {
		r := reportOf(gpu("web", "a", 5), gpu("db", "a", 6))
		r.At = extraAt.Add(after)
		return r
	}
	e.Put("n1", "gpus", report(0))
	e.RemovePod("n1", "default", "web", extraAt.Add(time.Second))
	if got := get(); got != nil {
		t.Errorf("got %q after the removal", got)
	}
	if got := e.Pod("n1", extraPod("db", "a"), extraAt); got == nil {
		t.Error("another pod was removed")
	}
	e.Put("n1", "gpus", report(time.Second))
	if got := get(); got != nil {
		t.Errorf("got %q of a report that was requested before the removal", got)
	}
	e.Put("n1", "gpus", report(2*time.Second))
	if got := get(); got == nil {
		t.Error("got nothing of a report after the removal")
	}
}

// TestExtraRemovedPodOfLateReports stores reports that were requested before a pod was removed: the
// first one of its node, and ones that are served for longer than removed pods are remembered.
func TestExtraRemovedPodOfLateReports(t *testing.T) {
	e, pod := NewExtra(newStore()), extraPod("web", "a")
	report := reportOf(gpu("web", "a", 5), gpu("db", "a", 6))
	report.Expires = extraAt.Add(time.Hour)
	e.RemovePod("n1", "default", "web", extraAt)
	e.Put("n1", "gpus", report)
	e.Put("n2", "gpus", reportOf(gpu("web", "a", 5)))
	check := func(when string, now usage.Time) {
		t.Helper()
		if got := e.Pod("n1", pod, now); got != nil {
			t.Errorf("%s: got %q", when, showExtra(got))
		}
	}
	check("the first report", extraAt)
	if e.Pod("n1", extraPod("db", "a"), extraAt) == nil || e.Pod("n2", pod, extraAt) == nil {
		t.Error("got nothing of another pod or node")
	}
	later := extraAt.Add(2*rememberFor + 2)
	e.Put("n1", "disks", ExtraReport{At: later, Expires: later.Add(time.Hour)})
	e.RemovePod("n1", "default", "x", extraAt.Add(rememberFor+1))
	e.RemovePod("n1", "default", "x", later)
	check("after the pod was forgotten", later)

	e.Remove("n1", "gpus")
	e.Remove("n1", "disks")
	e.RemovePod("n1", "default", "web", later)
	report.At = later
	e.Put("n1", "gpus", report)
	check("the first report after all were dropped", later)
}

// TestExtraForgetsRemovedPods checks that the memory of removed pods is freed.
func TestExtraForgetsRemovedPods(t *testing.T) {
	e := NewExtra(newStore())
	const perInterval = 100
	for i := range 10 * perInterval {
		e.RemovePod(fmt.Sprint("n", i), "default", "web", extraAt.Add(time.Duration(i)*rememberFor/perInterval))
		e.RemovePod("", "default", fmt.Sprint("unbound", i), extraAt)
		if n := len(e.removed) + len(e.removedBefore); n < min(i, perInterval) || n > 2*perInterval+2 {
			t.Fatalf("got %d remembered pods after %d, want those of 2 to 4 minutes", n, i+1)
		}
	}
}
