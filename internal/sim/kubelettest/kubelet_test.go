package kubelettest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// start is when the clocks of these tests start: an arbitrary time with a fraction of a second.
var start = time.Date(2026, 11, 20, 20, 0, 0, 123*int(time.Millisecond), time.UTC)

// clock is a clock that a test moves.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func (c *clock) advance(d time.Duration) { c.Time = c.Add(d) }

// shortSummary is the summary without filesystems.
const shortSummary = SummaryPath + "?only_cpu_and_memory=true"

// get sends a request to a kubelet without a network.
func get(t *testing.T, k *Kubelet, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	k.ServeHTTP(w, r)
	return w
}

// getResource returns the text of /metrics/resource.
func getResource(t *testing.T, k *Kubelet) string {
	t.Helper()
	w := get(t, k, ResourcePath)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// line returns the value and the timestamp of a series. The timestamp is zero if there is none, and
// ok is false if the series does not exist.
func line(t *testing.T, text, series string) (value float64, at time.Time, ok bool) {
	t.Helper()
	for l := range strings.Lines(text) {
		if !strings.HasPrefix(l, series+" ") {
			continue
		}
		s := parseSample([]byte(strings.TrimSuffix(l, "\n")))
		value, err := strconv.ParseFloat(string(s.value), 64)
		if err != nil {
			t.Fatalf("value of %q: %v", l, err)
		}
		if at, ok = s.time(); !ok {
			at = time.Time{}
		}
		return value, at, true
	}
	return 0, time.Time{}, false
}

// TestTextMatchesRealKubelet sets the readings to those of a real kubelet. The response must be
// equal byte for byte.
func TestTextMatchesRealKubelet(t *testing.T) {
	want, err := os.ReadFile("testdata/resource.txt")
	if err != nil {
		t.Fatal(err)
	}
	k := New("node1", Config{Now: func() time.Time { return time.UnixMilli(1795205767491) }, Boot: start})
	for l := range bytes.Lines(want) {
		if l[0] != '#' {
			feed(t, k, parseSample(bytes.TrimSuffix(l, []byte("\n"))))
		}
	}
	if got := k.appendResource(nil, k.now()); !bytes.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// feed sets a reading to a sample of a real kubelet.
func feed(t *testing.T, k *Kubelet, s sample) {
	t.Helper()
	value, err := strconv.ParseFloat(string(s.value), 64)
	if err != nil {
		t.Fatal(err)
	}
	label := func(name string) string {
		if m := regexp.MustCompile(name + `="([^"]*)"`).FindSubmatch(s.series); m != nil {
			return string(m[1])
		}
		return ""
	}
	namespace, podName, name := label("namespace"), label("pod"), label("container")
	to := &k.node
	switch {
	case name != "":
		if k.container(namespace, podName, name) == nil {
			k.SetContainer(namespace, podName, name, Usage{})
		}
		to = &k.container(namespace, podName, name).series
	case podName != "":
		i, ok := k.findPod(namespace, podName)
		if !ok {
			t.Fatalf("pod %s/%s has no container", namespace, podName)
		}
		to = &k.pods[i].series
	}
	switch family, _ := s.split(); {
	case strings.HasSuffix(family, "_cpu_usage_seconds_total"):
		at, ok := s.time()
		if !ok {
			t.Fatalf("%s has no timestamp", s.series)
		}
		to.last = reading{cpu: uint64(math.Round(value * 1e9)), at: at.UnixNano(), stamp: at.UnixNano()}
	case strings.HasSuffix(family, "_memory_working_set_bytes"):
		to.last.memory = uint64(value)
	case family == "container_start_time_seconds":
		to.started, to.start = int64(value*1e9), int64(value*1e9)
	}
}

// TestSummaryMatchesRealKubelet compares the fields and their order, but not the values.
func TestSummaryMatchesRealKubelet(t *testing.T) {
	want, err := os.ReadFile("testdata/summary.json")
	if err != nil {
		t.Fatal(err)
	}
	clock := &clock{start}
	k := New("node1", Config{Now: clock.now, Housekeeping: 10 * time.Second, ContainersOnDemand: true})
	k.SetContainer("kube-system", "ms-metrics-server-6bc4c489c5-l8rsp", "metrics-server", Usage{})
	for _, pod := range []string{"burn-546ccb4d55-l8f6l", "burn-546ccb4d55-87knc"} {
		k.SetContainer("default", pod, "burn", Usage{})
		k.SetContainer("default", pod, "mem", Usage{})
	}
	k.SetContainer("default", "sidecar", "side", Usage{})
	clock.advance(time.Minute)
	got := get(t, k, shortSummary).Body.Bytes()
	if !json.Valid(got) {
		t.Fatalf("invalid JSON: %s", got)
	}
	// A real kubelet reports pods in any order.
	shapes := func(summary []byte) []string {
		values := regexp.MustCompile(`": ("[^"]*"|\d+)`)
		parts := strings.Split(string(summary), "  {\n   \"podRef\"")
		for i := range parts {
			parts[i] = strings.TrimRight(values.ReplaceAllString(parts[i], `": x`), ",]}\n ")
		}
		slices.Sort(parts[1:])
		return parts
	}
	gotShapes, wantShapes := shapes(got), shapes(want)
	if !slices.Equal(gotShapes, wantShapes) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(gotShapes, "\n---\n"), strings.Join(wantShapes, "\n---\n"))
	}
}

func TestSummaryRates(t *testing.T) {
	type cpu struct {
		UsageNanoCores, UsageCoreNanoSeconds uint64
	}
	type response struct {
		Node struct{ CPU cpu }
		Pods []struct {
			CPU        cpu
			Containers []struct{ CPU cpu }
		}
	}
	read := func(t *testing.T, k *Kubelet) (s response) {
		t.Helper()
		if err := json.Unmarshal(get(t, k, SummaryPath).Body.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, onDemand := range []bool{false, true} {
		t.Run(fmt.Sprintf("on demand %t", onDemand), func(t *testing.T) {
			clock := &clock{start}
			k := New("n", Config{Now: clock.now, Housekeeping: 10 * time.Second, ContainersOnDemand: onDemand})
			k.SetNode(Usage{CPU: 1.5})
			k.SetContainer("ns", "p", "c", Usage{CPU: 0.3})
			clock.advance(5 * time.Second)
			if s := read(t, k); s.Node.CPU != (cpu{}) || s.Pods[0].CPU != (cpu{}) {
				t.Errorf("got %+v after the first sample, want zeros", s)
			}
			clock.advance(30 * time.Second)
			k.SetContainer("ns", "p", "c", Usage{CPU: 9}) // changes no earlier sample
			s := read(t, k)
			if want := (cpu{1.5e9, 45e9}); s.Node.CPU != want {
				t.Errorf("got %+v of the node, want %+v", s.Node.CPU, want)
			}
			if got := s.Pods[0].CPU.UsageNanoCores; got != 0.3e9 {
				t.Errorf("got %d nanocores of the pod, want 0.3e9", got)
			}
			want := uint64(0.3e9)
			if onDemand {
				want = 0
			}
			if got := s.Pods[0].Containers[0].CPU; got.UsageNanoCores != want || got.UsageCoreNanoSeconds < 9e9 {
				t.Errorf("got %+v of the container, want %d nanocores and at least 9e9 core-nanoseconds", got, want)
			}
		})
	}
}

// TestContainerLifecycle runs, restarts and removes containers of a pod.
func TestContainerLifecycle(t *testing.T) {
	const series = `container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"}`
	const podSeries = `pod_cpu_usage_seconds_total{namespace="ns",pod="p"}`
	const started = `container_start_time_seconds{container="c",namespace="ns",pod="p"}`
	clock := &clock{start}
	k := New("n", Config{Now: clock.now})
	check := func(text, series string, cores, want float64) { // samples on demand are up to 15 ms old
		t.Helper()
		if got, at, _ := line(t, text, series); got != want-cores*clock.Sub(at).Seconds() {
			t.Errorf("got %v of %s at %s, want %v at %s", got, series, at, want, clock)
		}
	}
	k.Run("ns", "p", "c", Usage{CPU: 1}, start.Add(-time.Hour))
	k.SetContainer("ns", "p", "d", Usage{CPU: 1})
	text := getResource(t, k)
	check(text, series, 1, 3600)
	want := float64(start.Add(-time.Hour).UnixMilli()) / 1e3
	if got, at, _ := line(t, text, started); math.Abs(got-want) > 1e-6 || !at.IsZero() {
		t.Errorf("got start time %f with timestamp %s, want %f without a timestamp", got, at, want)
	}

	clock.advance(10 * time.Second)
	k.Restart("ns", "p", "c")
	k.Restart("ns", "p", "missing")
	clock.advance(5 * time.Second)
	text = getResource(t, k)
	check(text, series, 1, 5)
	check(text, podSeries, 2, 3630) // the counter of a pod survives the restart of its containers

	k.RemoveContainer("ns", "p", "c")
	text = getResource(t, k)
	if strings.Contains(text, `container="c"`) || !strings.Contains(text, `container="d"`) {
		t.Errorf("got containers other than d after the removal of c:\n%s", text)
	}
	clock.advance(time.Second)
	check(getResource(t, k), podSeries, 1, 3631)
	k.RemovePod("ns", "p")
	text = getResource(t, k)
	if strings.Contains(text, "pod") || !strings.HasSuffix(text, "resource_scrape_error 0\n") ||
		!strings.Contains(text, "node_cpu_usage_seconds_total 0 ") {
		t.Errorf("got a pod after its removal, or no node:\n%s", text)
	}
}

// TestFaultsChangeResponses checks that each fault changes the response of its endpoint, and that
// clearing it restores the response.
func TestFaultsChangeResponses(t *testing.T) {
	for path, faults := range map[string][]NamedFault{ResourcePath: Faults(), SummaryPath: SummaryFaults()} {
		t.Run(path, func(t *testing.T) {
			otherPath := map[string]string{ResourcePath: SummaryPath, SummaryPath: ResourcePath}[path]
			clock := &clock{start}
			k := New("n", Config{Now: clock.now})
			k.SetContainer("ns", "p", "c", Usage{CPU: 1, Memory: 1})
			clock.advance(time.Minute)
			correct, otherCorrect := describe(k, path), describe(k, otherPath)
			names := make(map[string]bool)
			for _, f := range faults {
				if names[f.Name] {
					t.Errorf("got two faults %q", f.Name)
				}
				names[f.Name] = true
				k.SetFaults(f.Fault)
				if got := describe(k, path); got == correct {
					t.Errorf("%s: got the response without a fault", f.Name)
				}
				if got := describe(k, otherPath); path == SummaryPath && got != otherCorrect {
					t.Errorf("%s: got another response of %s", f.Name, otherPath)
				}
			}
			k.SetFaults()
			if got := describe(k, path); got != correct {
				t.Errorf("got %s after the faults were cleared, want %s", got, correct)
			}
		})
	}
}

// describe returns a description of the response that would be sent.
func describe(k *Kubelet, path string) string {
	r := k.respond(httptest.NewRequest(http.MethodGet, path, nil), make(http.Header))
	header, body := slices.Sorted(maps.Keys(r.Header)), r.Body
	r.Request, r.Body = nil, nil
	return fmt.Sprintf("%+v %q %s", r, header, body)
}

// TestReadings checks the readings of a response after the node's clock has stepped, although a fault
// hides them. Earlier readings and start times stay.
func TestReadings(t *testing.T) {
	clock := &clock{start}
	k := New("n", Config{Now: clock.now, Housekeeping: 10 * time.Second, ContainersOnDemand: true, Readings: true})
	k.SetNode(Usage{CPU: 2, Memory: 8 << 30})
	k.SetContainer("ns", "p", "old", Usage{CPU: 0.5})
	clock.advance(15 * time.Second)
	k.SetClockOffset(-time.Hour)
	k.SetContainer("ns", "p", "new", Usage{Memory: 5})
	var got []Reading
	k.SetFaults(func(r *Response) { got = r.Readings }, HTML)
	clock.advance(2 * time.Second)
	get(t, k, shortSummary)
	if at := start.Add(10 * time.Second); len(got) != 3 || !got[0].At.Equal(at) || !got[0].Stamp.Equal(at) {
		t.Fatalf("got %+v, want 3 readings, that of the node from before the step", got)
	}
	clock.advance(8 * time.Second)
	k.SetNode(Usage{CPU: 9}) // changes no earlier sample
	if date := get(t, k, ResourcePath).Header().Get("Date"); date != clock.Add(-time.Hour).Format(http.TimeFormat) {
		t.Errorf("got Date header %s at %s", date, clock)
	}
	at, atOld := got[1].At.UTC(), got[2].At.UTC() // on demand: up to 15 ms ago
	if age := clock.Sub(atOld); age < 0 || age >= 16*time.Millisecond {
		t.Errorf("got a reading of a container at an age of %s", age)
	}
	sampled, created := start.Add(20*time.Second), start.Add(15*time.Second)
	for i, want := range []Reading{
		{At: sampled, Stamp: sampled.Add(-time.Hour), Started: start, StartStamp: start, CPU: 40, Memory: 8 << 30, Rate: 2e9,
			HasRate: true},
		{Namespace: "ns", Pod: "p", Container: "new", At: at, Stamp: at.Add(-time.Hour), Started: created,
			StartStamp: created.Add(-time.Hour), Memory: 5, HasRate: true}, // 0 may stand for an idle container
		{Namespace: "ns", Pod: "p", Container: "old", At: atOld, Stamp: atOld.Add(-time.Hour), Started: start,
			StartStamp: start, CPU: atOld.Sub(start).Seconds() / 2, Rate: 5e8},
	} {
		r := got[i]
		for _, at := range []*time.Time{&r.At, &r.Stamp, &r.Started, &r.StartStamp} {
			*at = at.UTC()
		}
		if r != want {
			t.Errorf("got %+v, want %+v", r, want)
		}
	}
}
