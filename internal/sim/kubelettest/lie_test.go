package kubelettest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

// lying returns a kubelet with a node, and a pod with the containers main and side.
func lying(faults ...Fault) (*Kubelet, *clock) {
	c := &clock{start}
	k := New("node", Config{Now: c.now, Boot: start.Add(-time.Hour), Housekeeping: 10 * time.Second})
	k.SetNode(Usage{CPU: 2, Memory: 1 << 30})
	k.SetContainer("ns", "pod", "main", Usage{CPU: 1, Memory: 1 << 20})
	k.SetContainer("ns", "pod", "side", Usage{CPU: 0.5, Memory: 1 << 20})
	c.advance(time.Minute)
	k.SetFaults(faults...)
	return k, c
}

// TestEditSamplesOfNothing checks that an edit without a change leaves the text as it is, and of the summary
// what a client reads.
func TestEditSamplesOfNothing(t *testing.T) {
	k, _ := lying()
	edited, _ := lying(EditSamples(func(*Sample, time.Time) {}))
	if got, want := getResource(t, edited), getResource(t, k); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	decode := func(k *Kubelet) (all summaryJSON) {
		body := get(t, k, SummaryPath).Body.Bytes()
		if err := json.Unmarshal(body, &all); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		for _, raw := range []*json.RawMessage{&all.Node.Swap, &all.Node.FS, &all.Node.SystemContainers} {
			var compact bytes.Buffer
			_ = json.Compact(&compact, *raw)
			*raw = compact.Bytes()
		}
		all.Pods = nil
		return all
	}
	if got, want := decode(edited), decode(k); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestEditSamples zeroes one container and omits another, in both responses.
func TestEditSamples(t *testing.T) {
	k, c := lying(EditSamples(func(s *Sample, now time.Time) {
		switch s.Container {
		case "main":
			s.Zero(now)
		case "side":
			s.Omitted = true
		default:
			s.Memory = 7
		}
	}))
	text := getResource(t, k)
	const labels = `{container="main",namespace="ns",pod="pod"}`
	for _, family := range []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes"} {
		if value, at, ok := line(t, text, family+labels); value != 0 || !at.Equal(c.Time) || !ok {
			t.Errorf("%s: got %g at %s, %t; want 0 at %s", family, value, at, ok, c.Time)
		}
	}
	value, _, _ := line(t, text, "container_start_time_seconds"+labels)
	if !secondsTime(value).Equal(start.Truncate(time.Microsecond)) {
		t.Errorf("got start time %s, want %s", secondsTime(value), start)
	}
	if value, _, _ := line(t, text, "node_memory_working_set_bytes"); value != 7 {
		t.Errorf("got %g bytes of the node, want 7", value)
	}
	response := get(t, k, shortSummary)
	if response.Code != http.StatusOK || strings.Contains(text+response.Body.String(), "side") {
		t.Errorf("status %d; side is still mentioned", response.Code)
	}
	var all summaryJSON
	if err := json.Unmarshal(response.Body.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	main := all.Pods[0].Containers[0]
	if ref := all.Pods[0].PodRef; ref["name"] != "pod" || ref["namespace"] != "ns" {
		t.Errorf("got the pod %v", ref)
	}
	if main.Name != "main" || main.CPU.Total != 0 || main.CPU.Rate != 0 || main.Memory.WorkingSet != 0 ||
		!main.CPU.Time.Equal(c.Truncate(time.Second)) || !main.StartTime.Equal(start.Truncate(time.Second)) {
		t.Errorf("got %+v, want zeros at %s", main, c.Time)
	}
}

// TestStartCPU checks the counter of an idle container, which begins above 0 at each start.
func TestStartCPU(t *testing.T) {
	c := &clock{start}
	k := New("node", Config{Now: c.now, StartCPU: 0.02})
	k.SetContainer("ns", "pod", "main", Usage{Memory: 1 << 20})
	for range 2 {
		c.advance(time.Minute)
		const series = `container_cpu_usage_seconds_total{container="main",namespace="ns",pod="pod"}`
		if value, _, _ := line(t, getResource(t, k), series); value != 0.02 {
			t.Errorf("got %g core-seconds, want 0.02", value)
		}
		k.Restart("ns", "pod", "main")
	}
}
