package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/health/healthtest"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestNodezCountsWhatIsListed checks that the page of nodes counts the pods that LIST and GET serve,
// of a node with a correct clock, and of one whose clock was set back by ten minutes.
func TestNodezCountsWhatIsListed(t *testing.T) {
	const jump, interval = 10 * time.Minute, 15 * time.Second
	last := usage.At(now)
	jumpedAt := last.Add(-2 * interval)
	s := store.New(store.Config{MaxSampleAge: time.Minute, MaxContainers: 1000})
	var pods []*inventory.Object
	isServed, samples := map[string]bool{}, map[string][]usage.ContainerSample{}
	add := func(node, name, container string, o inventory.Object, served bool) {
		o.Namespace, o.Name, o.Node, o.Phase = "team", name+"-on-"+node, node, max(o.Phase, inventory.PodRunning)
		pods, isServed[o.Name] = append(pods, &o), served
		if container != "" {
			samples[node] = append(samples[node], usage.ContainerSample{
				Namespace: []byte(o.Namespace), Pod: []byte(o.Name), Name: []byte(container),
			})
		}
	}
	object := func(created, started usage.Time) inventory.Object {
		main := inventory.ContainerState{Name: "main", Running: true, StartedAt: started}
		return inventory.Object{CreatedAt: created, Containers: []inventory.ContainerState{main}}
	}
	hourAgo := last.Add(-time.Hour)
	failed := object(hourAgo, hourAgo)
	failed.Phase = inventory.PodFailed
	for _, node := range []string{"steady", "set-back"} {
		add(node, "plain", "main", object(hourAgo, hourAgo), true)
		add(node, "without-statuses", "main", inventory.Object{CreatedAt: hourAgo}, true)
		add(node, "not-reported", "", object(hourAgo, hourAgo), false)
		add(node, "init-container-only", "setup", object(hourAgo, hourAgo), false)
		add(node, "replaced", "main", object(last.Add(-time.Second), last.Add(time.Second)), false)
		add(node, "failed", "main", failed, false)
	}
	// By its clock of that time, this pod started half a minute after the last sample.
	add("set-back", "older", "main", object(hourAgo, last.Add(30*time.Second)), true)
	add("steady", "too-new", "main", object(hourAgo, last.Add(30*time.Second)), false)
	pods = append(pods, &inventory.Object{
		Namespace: "team", Name: "elsewhere", Node: "unknown", Phase: inventory.PodRunning,
	})

	for node, containers := range samples {
		for round := range usage.Time(6) {
			received := last.Add(interval * time.Duration(round-5))
			at := received
			if node == "set-back" && received < jumpedAt {
				at = at.Add(jump)
			}
			for i := range containers {
				containers[i].Sample = usage.Sample{
					At: at, CPUSeconds: float64(round), Memory: 1, Has: usage.HasCPU | usage.HasMemory,
				}
			}
			s.Put(node, &usage.Scrape{At: received, Date: at, Containers: containers})
		}
	}
	config := configOf(pods, nil, s)
	page := nodez.Config{
		Source: &healthtest.Source{List: []health.Node{{Name: "set-back"}, {Name: "steady"}}}, MaxSampleAge: time.Minute,
		View: config.View, Clock: config.Clock, Now: config.Now,
	}

	h := serve(t, config)
	const path = v1Path + "/namespaces/team/pods"
	listed := get[list](t, h, path, http.StatusOK).names()
	for name, want := range isServed {
		code := do(h, http.MethodGet, path+"/"+name, jsonType).Code
		if isListed := slices.Contains(listed, "team/"+name); isListed != want || (code == http.StatusOK) != want {
			t.Errorf("%s: listed %t, got with %d, want %t", name, isListed, code, want)
		}
	}
	report := page.Report()
	if report.Totals.PodsWithMetrics != len(listed) || report.Totals.Containers != len(listed) {
		t.Errorf("the page counts %d pods with %d containers, LIST has %d pods of one container",
			report.Totals.PodsWithMetrics, report.Totals.Containers, len(listed))
	}
	for _, n := range report.Nodes {
		want := 0
		for _, name := range listed {
			if strings.HasSuffix(name, "-on-"+n.Name) {
				want++
			}
		}
		if n.Pods != want {
			t.Errorf("node %s: the page counts %d pods, LIST has %d", n.Name, n.Pods, want)
		}
	}
}
