package kubelettest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
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

// start is an arbitrary moment with a fraction of a second, at which the clocks of these tests
// begin.
var start = time.Date(2026, 11, 20, 20, 0, 0, 123*int(time.Millisecond), time.UTC)

// clock is a node's clock that a test moves.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func (c *clock) advance(d time.Duration) { c.Time = c.Add(d) }

// get asks a kubelet without a network in between.
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

func resource(t *testing.T, k *Kubelet) string {
	t.Helper()
	w := get(t, k, ResourcePath)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// line finds the value and the timestamp (0: none) of a series; ok is false when there is no such
// series.
func line(t *testing.T, text, series string) (value float64, at time.Time, ok bool) {
	t.Helper()
	for l := range strings.Lines(text) {
		rest, found := strings.CutPrefix(strings.TrimSuffix(l, "\n"), series+" ")
		if !found {
			continue
		}
		v, ts, _ := strings.Cut(rest, " ")
		value, err := strconv.ParseFloat(v, 64)
		if err != nil {
			t.Fatalf("value of %q: %v", l, err)
		}
		if ts != "" {
			ms, err := strconv.ParseInt(ts, 10, 64)
			if err != nil {
				t.Fatalf("timestamp of %q: %v", l, err)
			}
			at = time.UnixMilli(ms)
		}
		return value, at, true
	}
	return 0, time.Time{}, false
}

// TestTextIsTheKubelets puts the readings of a real kubelet's answer into a fake one, which must
// then give the same answer to the byte.
func TestTextIsTheKubelets(t *testing.T) {
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
	got := k.appendResource(nil, k.now())
	gotLines, wantLines := bytes.SplitAfter(got, []byte("\n")), bytes.SplitAfter(want, []byte("\n"))
	for i := range min(len(gotLines), len(wantLines)) {
		if !bytes.Equal(gotLines[i], wantLines[i]) {
			t.Fatalf("line %d:\ngot  %swant %s", i+1, gotLines[i], wantLines[i])
		}
	}
	if len(gotLines) != len(wantLines) {
		t.Errorf("got %d lines, want %d", len(gotLines), len(wantLines))
	}
}

// feed puts one line of a real answer where it came from.
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
	switch family := string(s.family()); {
	case strings.HasSuffix(family, "_cpu_usage_seconds_total"):
		ms, err := strconv.ParseInt(string(s.timestamp), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		at := ms * int64(time.Millisecond)
		to.last.cpu, to.last.at, to.last.stamp = uint64(math.Round(value*1e9)), at, at
	case strings.HasSuffix(family, "_memory_working_set_bytes"):
		to.last.memory = uint64(value)
	case family == "container_start_time_seconds":
		to.started, to.start = int64(value*1e9), int64(value*1e9)
	}
}

// TestSummaryHasTheKubeletsShape compares the fields and their order with those of a real kubelet's
// summary.
func TestSummaryHasTheKubeletsShape(t *testing.T) {
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
	got := get(t, k, SummaryPath+"?only_cpu_and_memory=true").Body.Bytes()
	if !json.Valid(got) {
		t.Fatalf("not JSON: %s", got)
	}
	// A real kubelet tells pods in any order: shapes are compared pod by pod.
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

func TestCountersIntegrateUsage(t *testing.T) {
	const series = `container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"}`
	clock := &clock{start}
	k := New("n", Config{Now: clock.now})
	k.SetContainer("ns", "p", "c", Usage{CPU: 0.25, Memory: 100})
	k.SetNode(Usage{CPU: 2, Memory: 7})
	steps := []struct {
		after    time.Duration
		cpu      float64 // what the container uses from then on
		want     float64 // core-seconds at that moment
		wantNode float64
	}{
		{10 * time.Second, 4, 2.5, 20},
		{time.Millisecond, 0, 2.504, 20.002},
		{time.Hour, 0.000000001, 2.504, 7220.002},
		{1000 * time.Second, 1, 2.504001, 9220.002},
	}
	for _, step := range steps {
		clock.advance(step.after)
		k.SetContainer("ns", "p", "c", Usage{CPU: step.cpu, Memory: 100})
		text := resource(t, k)
		if got, at, _ := line(t, text, series); got != step.want || !at.Equal(clock.Time) {
			t.Errorf("after %s: container has %v at %s, want %v", step.after, got, at, step.want)
		}
		if got, _, _ := line(t, text, "node_cpu_usage_seconds_total"); got != step.wantNode {
			t.Errorf("after %s: node has %v, want %v", step.after, got, step.wantNode)
		}
		if got, _, _ := line(t, text, `pod_cpu_usage_seconds_total{namespace="ns",pod="p"}`); got != step.want {
			t.Errorf("after %s: pod has %v, want %v", step.after, got, step.want)
		}
	}
}

// TestHousekeeping steps through half a minute: timestamps move every 10 s only, and values are
// those of that moment, whatever has been set since.
func TestHousekeeping(t *testing.T) {
	const series = `container_memory_working_set_bytes{container="c",namespace="ns",pod="p"}`
	clock := &clock{start}
	k := New("n", Config{Now: clock.now, Housekeeping: 10 * time.Second})
	k.SetNode(Usage{CPU: 1, Memory: 0})
	k.SetContainer("ns", "p", "c", Usage{CPU: 1, Memory: 0})
	delay := k.containers[0].delay
	for second := 1; second <= 35; second++ {
		clock.advance(time.Second)
		u := Usage{CPU: float64(second), Memory: uint64(second)}
		k.SetNode(u)
		k.SetContainer("ns", "p", "c", u)
		text := resource(t, k)

		tick := second / 10 * 10
		cpu := 0.0 // from second s to s+1, s cores are used (1 in the first second)
		for s := range tick {
			cpu += float64(max(s, 1))
		}
		value, at, _ := line(t, text, "node_cpu_usage_seconds_total")
		if want := start.Add(time.Duration(tick) * time.Second); value != cpu || !at.Equal(want) {
			t.Errorf("at %d s, the node has %v core-seconds at %s, want %v at %s", second, value, at, cpu, want)
		}
		// The container's samples are taken a moment later: after what is set in the whole second
		// that they are due in.
		want, wantMemory := start, 0.0
		if tick := (second*1000 - int(delay.Milliseconds())) / 10000 * 10; tick > 0 {
			want, wantMemory = start.Add(time.Duration(tick)*time.Second+delay), float64(tick)
			if delay == 0 {
				wantMemory--
			}
		}
		if value, at, _ = line(t, text, series); value != wantMemory || !at.Equal(want) {
			t.Errorf("at %d s, the container has %v bytes at %s, want %v at %s", second, value, at, wantMemory, want)
		}
	}
}

func TestContainersOnDemand(t *testing.T) {
	clock := &clock{start}
	k := New("n", Config{Now: clock.now, Housekeeping: 10 * time.Second, ContainersOnDemand: true})
	k.SetContainer("ns", "p", "c", Usage{CPU: 1})
	clock.advance(13 * time.Second)
	text := resource(t, k)
	_, node, _ := line(t, text, "node_cpu_usage_seconds_total")
	_, container, _ := line(t, text, `container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"}`)
	if age := clock.Sub(node); age != 3*time.Second {
		t.Errorf("the node's sample is %s old, want 3s", age)
	}
	if age := clock.Sub(container); age < 0 || age > 16*time.Millisecond {
		t.Errorf("the container's sample is %s old, want some milliseconds", age)
	}
}

func TestSummaryRates(t *testing.T) {
	type figures struct {
		UsageNanoCores, UsageCoreNanoSeconds uint64
	}
	type summary struct {
		Node struct{ CPU figures }
		Pods []struct {
			CPU        figures
			Containers []struct{ CPU figures }
		}
	}
	read := func(t *testing.T, k *Kubelet) (s summary) {
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
			if s := read(t, k); s.Node.CPU != (figures{}) || s.Pods[0].CPU != (figures{}) {
				t.Errorf("after the first sample: %+v, want zeros", s)
			}
			clock.advance(30 * time.Second)
			s := read(t, k)
			if want := (figures{1.5e9, 45e9}); s.Node.CPU != want {
				t.Errorf("node: %+v, want %+v", s.Node.CPU, want)
			}
			if got := s.Pods[0].CPU.UsageNanoCores; got != 0.3e9 {
				t.Errorf("pod: %d nanocores, want 0.3e9", got)
			}
			want := uint64(0.3e9)
			if onDemand {
				want = 0
			}
			if got := s.Pods[0].Containers[0].CPU; got.UsageNanoCores != want || got.UsageCoreNanoSeconds < 9e9 {
				t.Errorf("container: %+v, want %d nanocores beside 9e9 or more", got, want)
			}
		})
	}
}

// TestRateSinceLastAsk checks that the rate of a container is over the time between two requests of
// any kind.
func TestRateSinceLastAsk(t *testing.T) {
	clock := &clock{start}
	k := New("n", Config{Now: clock.now, Housekeeping: 10 * time.Second, ContainersOnDemand: true, RateSinceLastAsk: true})
	k.SetContainer("ns", "p", "c", Usage{CPU: 0.1})
	containers := regexp.MustCompile(`(?s)"containers": .*?"usageNanoCores": (\d+)`)
	check := func(when string, least, most float64) {
		t.Helper()
		found := containers.FindSubmatch(get(t, k, SummaryPath).Body.Bytes())
		if found == nil {
			t.Fatalf("%s: there is no rate", when)
		}
		if rate, err := strconv.ParseFloat(string(found[1]), 64); err != nil || rate < least*1e9 || rate > most*1e9 {
			t.Errorf("%s: the rate is %s nanocores, want %v to %v cores", when, found[1], least, most)
		}
	}
	clock.advance(time.Minute)
	check("at first", 0, 0)
	clock.advance(10 * time.Second)
	resource(t, k)
	k.SetContainer("ns", "p", "c", Usage{CPU: 4})
	clock.advance(100 * time.Millisecond)
	check("100 ms after a request for the resource metrics", 3, 4) // a sample is up to 15 ms older than the answer
	k.SetContainer("ns", "p", "c", Usage{CPU: 0.1})
	clock.advance(10 * time.Second)
	check("10 s later", 0.1, 0.11)
}

func TestLifeOfContainers(t *testing.T) {
	const series = `container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"}`
	const podSeries = `pod_cpu_usage_seconds_total{namespace="ns",pod="p"}`
	const started = `container_start_time_seconds{container="c",namespace="ns",pod="p"}`
	clock := &clock{start}
	k := New("n", Config{Now: clock.now})
	k.Run("ns", "p", "c", Usage{CPU: 1}, start.Add(-time.Hour))
	k.SetContainer("ns", "p", "d", Usage{CPU: 1})

	text := resource(t, k)
	if got, at, _ := line(t, text, series); got != 3600-clock.Sub(at).Seconds() {
		t.Errorf("the container that has run for an hour has %v core-seconds at %s, want 3600 now", got, at)
	}
	if got, at, _ := line(t, text, started); math.Abs(got-float64(start.Add(-time.Hour).UnixMilli())/1e3) > 1e-6 || !at.IsZero() {
		t.Errorf("its start is %f with timestamp %s, want an hour ago without one", got, at)
	}

	clock.advance(10 * time.Second)
	k.Restart("ns", "p", "c")
	k.Restart("ns", "p", "nobody")
	clock.advance(5 * time.Second)
	text = resource(t, k)
	if got, at, _ := line(t, text, series); got != 5-clock.Sub(at).Seconds() {
		t.Errorf("5 s after its restart it has %v core-seconds at %s, want 5 now", got, at)
	}
	if got, at, _ := line(t, text, podSeries); got != 3630-2*clock.Sub(at).Seconds() {
		t.Errorf("its pod has %v core-seconds at %s, want 3630 now: a pod's counter outlives its containers", got, at)
	}

	k.RemoveContainer("ns", "p", "c")
	text = resource(t, k)
	if strings.Contains(text, `container="c"`) || !strings.Contains(text, `container="d"`) {
		t.Errorf("after the removal of c, d remains alone; got\n%s", text)
	}
	clock.advance(time.Second)
	if got, at, _ := line(t, resource(t, k), podSeries); got != 3631-clock.Sub(at).Seconds() {
		t.Errorf("the pod has %v core-seconds at %s, want 3631 now", got, at)
	}
	k.RemovePod("ns", "p")
	if text = resource(t, k); strings.Contains(text, "pod") {
		t.Errorf("after the removal of the pod it is still there:\n%s", text)
	}
	if !strings.HasSuffix(text, "resource_scrape_error 0\n") || !strings.Contains(text, "node_cpu_usage_seconds_total 0 ") {
		t.Errorf("a node without pods says\n%s", text)
	}
}

func TestOrderAndEscapes(t *testing.T) {
	k := New("n", Config{})
	for _, c := range [][3]string{{"z", "a", "b"}, {"a", "z", "b"}, {"a", "a", "c"}, {"q", "q", "a\"\\\n"}} {
		k.SetContainer(c[0], c[1], c[2], Usage{})
	}
	var got []string
	for l := range strings.Lines(resource(t, k)) {
		if labels, ok := strings.CutPrefix(l, "container_memory_working_set_bytes"); ok {
			got = append(got, labels[:strings.LastIndexByte(labels, '}')+1])
		}
	}
	want := []string{
		`{container="a\"\\\n",namespace="q",pod="q"}`,
		`{container="b",namespace="a",pod="z"}`,
		`{container="b",namespace="z",pod="a"}`,
		`{container="c",namespace="a",pod="a"}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNoSwap(t *testing.T) {
	k := New("n", Config{NoSwap: true})
	k.SetContainer("ns", "p", "c", Usage{})
	for _, path := range []string{ResourcePath, SummaryPath} {
		if body := get(t, k, path).Body.String(); strings.Contains(body, "swap") {
			t.Errorf("%s speaks of swap:\n%s", path, body)
		}
	}
}

func TestRequests(t *testing.T) {
	k := New("n", Config{Authorize: BearerToken("secret"), ResourcePath: "/elsewhere"})
	tests := []struct {
		path, authorization string
		want                int
	}{
		{"/elsewhere", "", 401},
		{"/elsewhere", "Basic secret", 401},
		{"/elsewhere", "Bearer guess", 403},
		{"/elsewhere", "Bearer secret", 200},
		{SummaryPath, "Bearer secret", 200},
		{ResourcePath, "Bearer secret", 404},
	}
	for _, test := range tests {
		if got := get(t, k, test.path, "Authorization", test.authorization).Code; got != test.want {
			t.Errorf("%s with %q: status %d, want %d", test.path, test.authorization, got, test.want)
		}
	}
	if got := k.Requests("/elsewhere"); got != 4 {
		t.Errorf("counted %d requests, want 4", got)
	}
}

func TestGzip(t *testing.T) {
	clock := &clock{start}
	k := New("n", Config{Now: clock.now})
	plain := get(t, k, ResourcePath)
	if got := plain.Header().Get("Content-Encoding"); got != "" {
		t.Errorf("unasked, the answer is encoded as %q", got)
	}
	for _, accept := range []string{"gzip", "zstd, gzip;q=0.5"} {
		w := get(t, k, ResourcePath, "Accept-Encoding", accept)
		if got := w.Header().Get("Content-Encoding"); got != "gzip" {
			t.Fatalf("%q: the answer is encoded as %q", accept, got)
		}
		z, err := gzip.NewReader(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != plain.Body.String() {
			t.Errorf("%q: decompressed, the answer is another one", accept)
		}
	}
}

// TestEveryFault checks that each fault changes the answer that it is for, and is over when it is
// cleared.
func TestEveryFault(t *testing.T) {
	for path, faults := range map[string][]NamedFault{ResourcePath: Faults(), SummaryPath: SummaryFaults()} {
		t.Run(path, func(t *testing.T) {
			clock := &clock{start}
			k := New("n", Config{Now: clock.now})
			k.SetContainer("ns", "p", "c", Usage{CPU: 1, Memory: 1})
			clock.advance(time.Minute)
			right := answerOf(k, path)
			other := answerOf(k, otherPath(path))
			names := make(map[string]bool)
			for _, f := range faults {
				if names[f.Name] {
					t.Errorf("two faults are named %q", f.Name)
				}
				names[f.Name] = true
				k.SetFaults(f.Fault)
				if got := answerOf(k, path); got == right {
					t.Errorf("%s: the answer is as if there were no fault", f.Name)
				}
				if got := answerOf(k, otherPath(path)); path == SummaryPath && got != other {
					t.Errorf("%s: the other answer is affected", f.Name)
				}
			}
			k.SetFaults()
			if got := answerOf(k, path); got != right {
				t.Error("without faults, the answer is not what it was")
			}
		})
	}
}

func otherPath(path string) string {
	if path == ResourcePath {
		return SummaryPath
	}
	return ResourcePath
}

// answerOf describes the answer that would be sent.
func answerOf(k *Kubelet, path string) string {
	a := &Answer{
		Request: httptest.NewRequest(http.MethodGet, path, nil),
		Status:  http.StatusOK,
		Header:  make(http.Header),
	}
	for _, fault := range k.fill(a) {
		fault(a)
	}
	a.Request = nil
	header := slices.Sorted(maps.Keys(a.Header))
	body := a.Body
	a.Body = nil
	return fmt.Sprintf("%+v %q %s", a, header, body)
}

func TestSummaryEdits(t *testing.T) {
	const right = `"usageNanoCores": 250000000`
	tests := []struct {
		name      string
		fault     Fault
		want, not string // what the summary has, and has not
		invalid   bool   // it is no JSON any more
	}{
		{"value", SummaryValue("usageNanoCores", "0"), `"usageNanoCores": 0,`, right, false},
		{"text", SummaryValue("nodeName", `"a \"b\""`), `"nodeName": "a \"b\"",`, `"n"`, false},
		{"drop", DropSummaryValue("usageNanoCores"), `"usageCoreNanoSeconds"`, "usageNanoCores", false},
		{"drop the first", DropSummaryValue("time"), right, `"time"`, false},
		{"drop the last", DropSummaryValue("swapUsageBytes"), `"swap"`, "swapUsageBytes", false},
		{"drop the only one", DropSummaryValue("uid"), `"podRef"`, "uid", false},
		{"tomorrow", ShiftSummaryTime(24 * time.Hour), start.Add(24*time.Hour + 20*time.Second).Format(`"time": "2006-01-02T15:04:05Z"`),
			start.Format("2006-01-02"), false},
		{"cut", CutSummary, `"node"`, "podRef", true},
		{"other", OtherSummary, `"pods": {`, "podRef", false},
		{"text only", DuplicateSeries, right, "", false},
		{"elsewhere", OnlyAt(ResourcePath, Empty), right, "", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			clock := &clock{start}
			k := New("n", Config{Now: clock.now, Housekeeping: 10 * time.Second})
			k.SetNode(Usage{CPU: 0.25})
			k.SetContainer("ns", "p", "c", Usage{CPU: 0.25})
			clock.advance(25 * time.Second)
			k.SetFaults(test.fault)
			summary := get(t, k, SummaryPath).Body.Bytes()
			if json.Valid(summary) == test.invalid {
				t.Errorf("it is valid JSON: %v, want %v\n%s", test.invalid, !test.invalid, summary)
			}
			if !bytes.Contains(summary, []byte(test.want)) {
				t.Errorf("%q is not in\n%s", test.want, summary)
			}
			if test.not != "" && bytes.Contains(summary, []byte(test.not)) {
				t.Errorf("%q is in\n%s", test.not, summary)
			}
			k.SetFaults(test.fault, Status(http.StatusForbidden), test.fault)
			if got := get(t, k, SummaryPath); got.Code != http.StatusForbidden {
				t.Errorf("status %d after a refusal that is not to be edited", got.Code)
			}
		})
	}
}

func TestEdits(t *testing.T) {
	const series = `container_memory_working_set_bytes{container="c",namespace="ns",pod="p"}`
	ms := start.UnixMilli()
	plain := fmt.Sprintf("%s 4096 %d\n", series, ms)
	tests := []struct {
		name      string
		fault     Fault
		want, not string // what the text has, and has not
	}{
		{"duplicate", DuplicateSeries, plain + plain, ""},
		{"contradictory", ContradictorySeries, plain + fmt.Sprintf("%s 1234567 %d\n", series, ms), ""},
		{"value", Value("container_memory_working_set_bytes", "NaN"), fmt.Sprintf("%s NaN %d\n", series, ms), plain},
		{"other family", Value("node_memory_working_set_bytes", "NaN"), plain, ""},
		{"drop", DropFamily("container_memory_working_set_bytes"), "container_cpu_usage", series},
		{"tomorrow", ShiftTime(24 * time.Hour), fmt.Sprintf("%s 4096 %d\n", series, ms+86400_000), plain},
		{"no time", NoTime, series + " 4096\n", plain},
		{"no date", NoDate, plain, ""},
		{"CRLF", CRLF, "resource_scrape_error 0\r\n", plain},
		{"no final newline", NoFinalNewline, "resource_scrape_error 0", "resource_scrape_error 0\n"},
		{"scrape error", ScrapeError, "resource_scrape_error 1\n", series},
		{"add", AddText("more\n"), "resource_scrape_error 0\nmore\n", ""},
		{"odd labels", OddLabels, `container="a\"\\\nb",}`, ""},
		{"without labels", LineWithoutLabels, "container_cpu_usage_seconds_total 1\n", ""},
		{"cut", CutText, series[:len(series)/2], "resource_scrape_error"},
		{"elsewhere", OnlyAt(SummaryPath, Empty), plain, ""},
		{"here", OnlyAt(ResourcePath, NoTime), series + " 4096\n", ""},
		{"never", Sometimes(0, 1, Empty), plain, ""},
		{"always", Sometimes(1, 1, NoTime), series + " 4096\n", plain},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			clock := &clock{start}
			k := New("n", Config{Now: clock.now})
			k.SetContainer("ns", "p", "c", Usage{Memory: 4096})
			k.SetFaults(test.fault)
			text := resource(t, k)
			if !strings.Contains(text, test.want) {
				t.Errorf("%q is not in\n%s", test.want, text)
			}
			if test.not != "" && strings.Contains(text, test.not) {
				t.Errorf("%q is in\n%s", test.not, text)
			}
		})
	}
}

// TestClockOffset sets a node's clock. What was sampled or started before keeps its times.
func TestClockOffset(t *testing.T) {
	clock := &clock{start}
	k := New("n", Config{Now: clock.now, Housekeeping: 10 * time.Second, ContainersOnDemand: true})
	k.SetNode(Usage{CPU: 1})
	k.SetContainer("ns", "p", "old", Usage{CPU: 1})
	clock.advance(15 * time.Second)
	k.SetClockOffset(-time.Hour)
	k.SetContainer("ns", "p", "new", Usage{CPU: 1})
	clock.advance(2 * time.Second)

	w := get(t, k, ResourcePath)
	text := w.Body.String()
	now := clock.Add(-time.Hour)
	if got := w.Header().Get("Date"); got != now.Format(http.TimeFormat) {
		t.Errorf("the Date header is %s, want %s", got, now.Format(http.TimeFormat))
	}
	for series, want := range map[string]struct {
		value float64
		at    time.Time
	}{
		"node_cpu_usage_seconds_total":                                              {10, start.Add(10 * time.Second)},
		`container_cpu_usage_seconds_total{container="old",namespace="ns",pod="p"}`: {16.99, now},
		`container_cpu_usage_seconds_total{container="new",namespace="ns",pod="p"}`: {1.99, now},
		`container_start_time_seconds{container="old",namespace="ns",pod="p"}`:      {float64(start.UnixMilli()) / 1e3, time.Time{}},
		`container_start_time_seconds{container="new",namespace="ns",pod="p"}`:      {float64(now.Add(-2*time.Second).UnixMilli()) / 1e3, time.Time{}},
		`container_swap_usage_bytes{container="old",namespace="ns",pod="p"}`:        {0, now},
	} {
		// A sample on demand is up to 15 ms old.
		value, at, ok := line(t, text, series)
		if !ok || math.Abs(value-want.value) > 0.02 || at.Sub(want.at).Abs() > 20*time.Millisecond {
			t.Errorf("%s: %v at %v, want %v at %v", series, value, at, want.value, want.at)
		}
	}
	clock.advance(10 * time.Second)
	if _, at, _ := line(t, resource(t, k), "node_cpu_usage_seconds_total"); !at.Equal(start.Add(20*time.Second - time.Hour)) {
		t.Errorf("the next sample of the node is from %v", at)
	}
	summary := get(t, k, SummaryPath).Body.String()
	for _, want := range []time.Time{start, now.Add(-2 * time.Second)} {
		if want := want.Format(`"startTime": "` + time.RFC3339 + `"`); !strings.Contains(summary, want) {
			t.Errorf("%s is not in\n%s", want, summary)
		}
	}
}

// TestStartTimes moves start times while the counters go on.
func TestStartTimes(t *testing.T) {
	for name, test := range map[string]struct {
		fault Fault
		want  time.Duration // before the sample, which is a minute after the start
	}{
		"moved":                {MoveStarts(20 * time.Second), 40 * time.Second},
		"following the sample": {StartsBefore(12 * time.Second), 12 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			clock := &clock{start}
			k := New("n", Config{Now: clock.now, Housekeeping: time.Minute})
			k.SetContainer("ns", "p", "c", Usage{CPU: 0.5})
			clock.advance(70 * time.Second)
			right, rightSummary := resource(t, k), get(t, k, SummaryPath).Body.String()
			k.SetFaults(test.fault)
			text, summary := resource(t, k), get(t, k, SummaryPath).Body.String()

			const cpu, started = `container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"}`,
				`container_start_time_seconds{container="c",namespace="ns",pod="p"}`
			value, at, _ := line(t, text, cpu)
			if rightValue, rightAt, _ := line(t, right, cpu); value != rightValue || at != rightAt {
				t.Errorf("the sample is %v at %v, want %v at %v", value, at, rightValue, rightAt)
			}
			seconds, _, _ := line(t, text, started)
			if got := at.Sub(time.UnixMicro(int64(seconds * 1e6))); (got - test.want).Abs() > time.Second {
				t.Errorf("the container started %v before its sample, want %v", got, test.want)
			}
			if n, rightN := strings.Count(text, "\n"), strings.Count(right, "\n"); n != rightN {
				t.Errorf("%d lines, want %d", n, rightN)
			}
			want := containerStart.ReplaceAllString(rightSummary, "${1}"+at.Add(-test.want).UTC().Format(time.RFC3339)+"${3}${4}")
			if summary != want || want == rightSummary {
				t.Errorf("the summary is\n%s\nwant\n%s", summary, want)
			}
		})
	}
}

func TestFaultsCompose(t *testing.T) {
	clock := &clock{start}
	k := New("n", Config{Now: clock.now})
	k.SetNode(Usage{Memory: 1})
	k.SetFaults(NoTime, DuplicateSeries, CRLF)
	const want = "node_memory_working_set_bytes 1\r\nnode_memory_working_set_bytes 1\r\n"
	if text := resource(t, k); !strings.Contains(text, want) {
		t.Errorf("%q is not in\n%s", want, text)
	}
	k.SetFaults(Status(500), NoTime)
	if w := get(t, k, ResourcePath); w.Code != 500 || w.Body.String() != "Internal Server Error\n" {
		t.Errorf("status %d: %q", w.Code, w.Body)
	}
}

func TestSometimesIsRepeatable(t *testing.T) {
	hits := func(seed uint64) (list []int) {
		hit := false
		fault := Sometimes(0.3, seed, func(*Answer) { hit = true })
		for i := range 1000 {
			hit = false
			if fault(&Answer{}); hit {
				list = append(list, i)
			}
		}
		return list
	}
	first := hits(7)
	if !slices.Equal(first, hits(7)) {
		t.Error("the same seed gives other faults")
	}
	if n := len(first); n < 200 || n > 400 {
		t.Errorf("%d of 1000 answers are hit, want about 300", n)
	}
}

// BenchmarkResource is what an answer of 30 pods with 2 containers costs the fake kubelet.
func BenchmarkResource(b *testing.B) {
	k := New("n", Config{Housekeeping: 10 * time.Second})
	for pod := range 30 {
		for _, name := range []string{"app", "sidecar"} {
			k.Run("namespace-1", fmt.Sprintf("deployment-546ccb4d55-%05d", pod), name,
				Usage{CPU: 0.1234567, Memory: 123456789}, time.Now().Add(-time.Hour))
		}
	}
	text := k.appendResource(nil, k.sample())
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		text = k.appendResource(text[:0], k.sample())
	}
}
