package store

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// requested is when the reports of these tests are requested. They expire a minute later.
const requested = usage.Time(1000 * time.Second)

func gpu(pod, container string, value uint64) usage.ContainerResource {
	resource := usage.Resource{Name: "example.com/gpu", Value: value, Unit: usage.Milli}
	return usage.ContainerResource{Namespace: "default", Pod: pod, Container: container, Resource: resource}
}

func disk(pod, container string, value uint64) usage.ContainerResource {
	resource := usage.Resource{Name: "ephemeral-storage", Value: value}
	return usage.ContainerResource{Namespace: "default", Pod: pod, Container: container, Resource: resource}
}

func reportOf(containers ...usage.ContainerResource) usage.ResourceReport {
	return usage.ResourceReport{At: requested, MaxAge: time.Minute, Containers: containers}
}

// withResources returns a Store of further resources.
func withResources() *Store {
	s := New(Config{})
	s.Resources = NewResources()
	return s
}

func podOf(name string, containers ...string) *usage.Pod {
	pod := &usage.Pod{Namespace: "default", Name: name}
	for _, c := range containers {
		pod.Containers = append(pod.Containers, usage.Container{Name: c})
	}
	return pod
}

// showResources returns the values of each container: "name=value ...".
func showResources(further [][]usage.Resource) []string {
	var lines []string
	for _, resources := range further {
		line := ""
		for _, r := range resources {
			line += fmt.Sprintf("%s=%d ", r.Name, r.Value)
		}
		lines = append(lines, line)
	}
	return lines
}

func TestResourcesOfPod(t *testing.T) {
	whole := func(r usage.ResourceReport) usage.ResourceReport { r.Whole = true; return r }
	for _, tc := range []struct {
		name    string
		reports []usage.ResourceReport
		pod     *usage.Pod
		want    []string
	}{
		{"no report", nil, podOf("web", "a"), nil},
		{"another pod", []usage.ResourceReport{reportOf(gpu("db", "a", 5))}, podOf("web", "a"), nil},
		{"a container that the pod does not have", []usage.ResourceReport{reportOf(gpu("web", "old", 5))},
			podOf("web", "a"), nil},
		{"what the pod uses itself",
			[]usage.ResourceReport{whole(reportOf(disk("web", "", 7), disk("web", "b", 5), disk("web", "a", 1)))},
			podOf("web", "a", "b"), []string{"ephemeral-storage=8 ", "ephemeral-storage=5 "}},
		{"what the pod uses itself alone", []usage.ResourceReport{reportOf(disk("web", "", 7))}, podOf("web", "a"), nil},
		{"a container without a value has 0", []usage.ResourceReport{reportOf(gpu("web", "b", 5))},
			podOf("web", "a", "b", "c"), []string{"example.com/gpu=0 ", "example.com/gpu=5 ", "example.com/gpu=0 "}},
		{"several values of a container are added",
			[]usage.ResourceReport{reportOf(gpu("web", "a", 5), gpu("db", "a", 1), gpu("web", "a", 7))},
			podOf("web", "a"), []string{"example.com/gpu=12 "}},
		{"several sources are added", []usage.ResourceReport{reportOf(gpu("web", "a", 5)), reportOf(gpu("web", "b", 7))},
			podOf("web", "a", "b"), []string{"example.com/gpu=5 ", "example.com/gpu=7 "}},
		{"resources are sorted", []usage.ResourceReport{reportOf(gpu("web", "a", 5)), reportOf(disk("web", "a", 9))},
			podOf("web", "a"), []string{"ephemeral-storage=9 example.com/gpu=5 "}},
		{"a whole pod", []usage.ResourceReport{whole(reportOf(disk("web", "a", 5), disk("web", "b", 6)))},
			podOf("web", "a", "b"), []string{"ephemeral-storage=5 ", "ephemeral-storage=6 "}},
		{"part of a whole pod", []usage.ResourceReport{whole(reportOf(disk("web", "a", 5), disk("web", "b", 6)))},
			podOf("web", "a", "b", "c"), nil},
		{"a container of a whole pod without metrics yet",
			[]usage.ResourceReport{whole(reportOf(disk("web", "", 7), disk("web", "a", 5), disk("web", "new", 30),
				disk("web", "b", 6)))},
			podOf("web", "a", "b"), []string{"ephemeral-storage=42 ", "ephemeral-storage=6 "}},
		{"no overflow", []usage.ResourceReport{reportOf(gpu("web", "a", math.MaxUint64), gpu("web", "a", math.MaxUint64))},
			podOf("web", "a"), []string{fmt.Sprintf("example.com/gpu=%d ", uint64(math.MaxInt64))}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := NewResources()
			for i, r := range tc.reports {
				e.Put("n1", fmt.Sprint("source", i), r)
			}
			if got := showResources(e.Pod("n1", tc.pod, requested)); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if got := e.Pod("n2", tc.pod, requested); got != nil {
				t.Errorf("another node has %q", showResources(got))
			}
		})
	}
}

func TestReportExpires(t *testing.T) {
	s := withResources()
	e := s.Resources
	e.Put("n1", "a", usage.ResourceReport{At: requested, MaxAge: time.Minute,
		Node:       []usage.Resource{{Name: "z", Value: 1}, {Name: "b", Value: 2}},
		Containers: []usage.ContainerResource{gpu("web", "a", 5)}})
	e.Put("n1", "b", usage.ResourceReport{At: requested, MaxAge: 2 * time.Minute,
		Node: []usage.Resource{{Name: "z", Value: 3}}})
	pod := podOf("web", "a")
	for _, tc := range []struct {
		after     time.Duration
		pod, node []string
	}{
		{time.Minute, []string{"example.com/gpu=5 "}, []string{"b=2 z=4 "}},
		{time.Minute + 1, nil, []string{"z=3 "}},
		{2*time.Minute + 1, nil, []string{""}},
	} {
		now := requested.Add(tc.after)
		if got := showResources(e.Pod("n1", pod, now)); !reflect.DeepEqual(got, tc.pod) {
			t.Errorf("after %v: got %q, want %q", tc.after, got, tc.pod)
		}
		if got := showResources([][]usage.Resource{e.Node("n1", now)}); !reflect.DeepEqual(got, tc.node) {
			t.Errorf("after %v: got %q of the node, want %q", tc.after, got, tc.node)
		}
	}
	e.Remove("n1", "a")
	e.Remove("n1", "b")
	if len(e.nodes) != 0 {
		t.Errorf("got %d nodes after all were removed", len(e.nodes))
	}
	e.Put("n1", "a", reportOf(gpu("web", "a", 5)))
	e.Put("n2", "a", reportOf(gpu("db", "a", 5)))
	s.Forget("n1")
	if len(e.nodes) != 1 || e.Pod("n2", podOf("db", "a"), requested) == nil {
		t.Errorf("got %v after one of two nodes was forgotten", e.nodes)
	}
}

// TestResourcesOfRemovedPod checks that a pod does not inherit the values of an earlier pod of the name, also from
// reports that were requested before the removal and are served for longer than it is remembered.
func TestResourcesOfRemovedPod(t *testing.T) {
	s := withResources()
	e := s.Resources
	put := func(node string, after time.Duration) {
		r := reportOf(gpu("web", "a", 5), gpu("db", "a", 6))
		r.At, r.MaxAge = requested.Add(after), time.Hour
		e.Put(node, "gpus", r)
	}
	check := func(when, node, pod string, want bool) {
		t.Helper()
		if got := e.Pod(node, podOf(pod, "a"), requested.Add(10*time.Second)); (got != nil) != want {
			t.Errorf("%s: got %q of %s on %s", when, showResources(got), pod, node)
		}
	}
	remove := func(pod string, after time.Duration) { s.RemovePod("n1", "default", pod, requested.Add(after)) }

	remove("web", time.Second)
	put("n1", time.Second)
	put("n2", 0)
	check("the first report", "n1", "web", false)
	check("the first report", "n1", "db", true)
	check("the first report", "n2", "web", true)
	put("n1", 2*time.Second)
	check("a report after the removal", "n1", "web", true)
	remove("web", 3*time.Second)
	check("after the removal", "n1", "web", false)
	check("after the removal", "n1", "db", true)
	check("after the removal", "n2", "web", true)
	put("n1", 3*time.Second)
	check("a report that was requested before the removal", "n1", "web", false)

	const later = 3*time.Second + 2*rememberFor + 2
	e.Put("n1", "disks", usage.ResourceReport{At: requested.Add(later), MaxAge: time.Hour})
	remove("x", 3*time.Second+rememberFor+1)
	remove("x", later)
	check("after the pod was forgotten", "n1", "web", false)
	e.Remove("n1", "gpus")
	e.Remove("n1", "disks")
	remove("web", later)
	put("n1", later)
	check("the first report after all were dropped", "n1", "web", false)
}

// TestForgetsResourcesOfRemovedPods checks that the memory of removed pods is freed.
func TestForgetsResourcesOfRemovedPods(t *testing.T) {
	s := withResources()
	const perInterval = 100
	for i := range 10 * perInterval {
		s.RemovePod(fmt.Sprint("n", i), "default", "web", requested.Add(time.Duration(i)*rememberFor/perInterval))
		s.RemovePod("", "default", fmt.Sprint("unbound", i), requested)
		if n := len(s.Resources.removed); n < min(i, perInterval) || n > 2*perInterval+2 {
			t.Fatalf("got %d remembered pods after %d, want those of 2 to 4 minutes", n, i+1)
		}
	}
}
