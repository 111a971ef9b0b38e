package decode

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	scrapedAt = usage.Time(1795205767500 * 1e6) // shortly after the samples in testdata were taken
	sampledAt = usage.Time(1795205767486 * 1e6)
)

// decoded is what a decoder made of a text, in a form that reads well in a table.
type decoded struct {
	node       usage.Sample
	containers []sample
	partial    bool
	skipped    map[usage.Reason]int
}

type sample struct {
	name string // namespace/pod/container
	usage.Sample
}

func decodeText(t testing.TB, d *Text, text string) (decoded, error) {
	t.Helper()
	var dst usage.Scrape
	err := d.Decode(&dst, []byte(text), Times{At: scrapedAt})
	if dst.At != scrapedAt {
		t.Errorf("At = %v, want %v", dst.At, scrapedAt)
	}
	return summarize(&dst), err
}

func summarize(s *usage.Scrape) decoded {
	got := decoded{node: s.Node, partial: s.Partial}
	for _, c := range s.Containers {
		got.containers = append(got.containers, sample{fmt.Sprintf("%s/%s/%s", c.Namespace, c.Pod, c.Name), c.Sample})
	}
	for reason, n := range s.Skipped {
		if n > 0 {
			if got.skipped == nil {
				got.skipped = map[usage.Reason]int{}
			}
			got.skipped[usage.Reason(reason)] = n
		}
	}
	return got
}

func cpuSample(seconds float64, at usage.Time) usage.Sample {
	return usage.Sample{CPUSeconds: seconds, At: at, Has: usage.HasCPU, Untimed: at == scrapedAt}
}

func TestDecodeLine(t *testing.T) {
	const (
		cpu   = `container_cpu_usage_seconds_total`
		mem   = `container_memory_working_set_bytes`
		swap  = `container_swap_usage_bytes`
		start = `container_start_time_seconds`
		c     = `{container="c",namespace="n",pod="p"}`
	)
	one := func(s usage.Sample) decoded { return decoded{containers: []sample{{"n/p/c", s}}} }
	named := func(name string) decoded { return decoded{containers: []sample{{name, cpuSample(1, scrapedAt)}}} }
	bad := func(r usage.Reason) decoded { // the container is there, its reading is not
		return decoded{containers: []sample{{"n/p/c", usage.Sample{}}}, skipped: map[usage.Reason]int{r: 1}}
	}
	lost := func(r usage.Reason) decoded {
		return decoded{partial: true, skipped: map[usage.Reason]int{r: 1}}
	}
	nothing := decoded{}

	tests := []struct {
		line string
		want decoded
	}{
		// What kubelets write.
		{cpu + c + ` 25.080507606 1795205767486`, one(cpuSample(25.080507606, sampledAt))},
		{cpu + c + ` 0`, one(cpuSample(0, scrapedAt))},
		{mem + c + ` 1.65888e+06 1795205767486`,
			one(usage.Sample{Memory: 1658880, MemoryAt: sampledAt, Has: usage.HasMemory})},
		{mem + c + ` 0`, one(usage.Sample{MemoryAt: scrapedAt, Has: usage.HasMemory})},
		{swap + c + ` 4096 1795205767486`, one(usage.Sample{Swap: 4096, Has: usage.HasSwap})},
		{swap + c + ` 0 1795205767486`, one(usage.Sample{Has: usage.HasSwap})},
		{start + c + ` 1.79520550515e+09`, one(usage.Sample{StartedAt: 1795205505150 * 1e6})},
		{start + c + ` 1795205505.25`, one(usage.Sample{StartedAt: 1795205505250 * 1e6})},
		{start + c + ` 35.2`, one(usage.Sample{})}, // kwok: no date, but no mistake either
		{start + c + ` 0`, one(usage.Sample{})},
		{start + c + ` 1795209367`, one(usage.Sample{StartedAt: 1795209367 * 1e9})}, // within the hour
		{start + c + ` 1795209368`, bad(usage.BadTime)},
		{start + c + ` +Inf`, bad(usage.BadValue)},
		{`node_cpu_usage_seconds_total 2586.123634182 1795205767486`, decoded{node: cpuSample(2586.123634182, sampledAt)}},
		{`node_cpu_usage_seconds_total{} 1`, decoded{node: cpuSample(1, scrapedAt)}},
		{`node_cpu_usage_seconds_total{x="y"} 1`, decoded{node: cpuSample(1, scrapedAt)}},
		{`node_cpu_usage_seconds_total{x="y} 1`, decoded{skipped: map[usage.Reason]int{usage.Malformed: 1}}},
		{`node_memory_working_set_bytes 5`, decoded{node: usage.Sample{Memory: 5, MemoryAt: scrapedAt, Has: usage.HasMemory}}},
		{`node_swap_usage_bytes 0`, decoded{node: usage.Sample{Has: usage.HasSwap}}},

		// What is passed over.
		{``, nothing},
		{" \t", nothing},
		{`# HELP container_cpu_usage_seconds_total x`, nothing},
		{`#`, nothing},
		{`pod_cpu_usage_seconds_total{namespace="n",pod="p"} 1`, nothing},
		{`container_swap_limit_bytes{container="c",namespace="n",pod="p"} 1`, nothing},
		{`container_cpu_usage_seconds_total_x{container="c",namespace="n",pod="p"} 1`, nothing},
		{`container_cpu_usage_seconds_tota{container="c",namespace="n",pod="p"} 1`, nothing},
		{`other:metric_1{} spurious`, nothing},
		{`resource_scrape_error 0`, nothing},
		{`scrape_error 0`, nothing},
		{`resource_scrape_error zero`, decoded{partial: true, skipped: map[usage.Reason]int{usage.Malformed: 1}}},
		{`resource_scrape_error{ 0`, decoded{partial: true, skipped: map[usage.Reason]int{usage.Malformed: 1}}},

		// Labels.
		{cpu + `{pod="p",namespace="n",container="c"} 1`, named("n/p/c")},
		{cpu + `{a="b",pod="p",id="/x{,}",namespace="n",container="c",z=""} 1`, named("n/p/c")},
		{cpu + `{container="c",namespace="n",pod="p",} 1`, named("n/p/c")},
		{cpu + "\t{ container\t= \"c\" , namespace=\"n\", pod=\"p\" }1", named("n/p/c")},
		{"  " + cpu + c + "\t 1 \t", named("n/p/c")},
		{cpu + c + " 1\r", named("n/p/c")},
		{cpu + `{container="a,b}{=\"\\\n",namespace="n",pod="p"} 1`, named("n/p/a,b}{=\"\\\n")},
		{cpu + `{container="\\\\",namespace="\"",pod="p\\"} 1`, named(`"/p\/\\`)},
		{cpu + `{container="ü",namespace="n",pod="p"} 1`, named("n/p/ü")},
		{cpu + ` 1`, lost(usage.NoIdentity)},
		{cpu, lost(usage.NoIdentity)},
		{cpu + `{} 1`, lost(usage.NoIdentity)},
		{cpu + `{container="c",namespace="n"} 1`, lost(usage.NoIdentity)},
		{cpu + `{container="",namespace="n",pod="p"} 1`, lost(usage.NoIdentity)},
		{cpu + `{container="c",namespace="n",pod="p"`, lost(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="p`, lost(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="p\`, lost(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="\x"} 1`, lost(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="p\"} 1`, lost(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="\"\`, lost(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod=p} 1`, lost(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod} 1`, lost(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod`, lost(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod=`, lost(usage.Malformed)},
		{cpu + `{container="c" namespace="n",pod="p"} 1`, lost(usage.Malformed)},
		{cpu + `{container="c",,namespace="n",pod="p"} 1`, lost(usage.Malformed)},
		{cpu + `{,container="c",namespace="n",pod="p"} 1`, lost(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="p",1="x"} 1`, lost(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="p",pod="p"} 1`, lost(usage.Malformed)},
		{cpu + "{container=\"\xff\",namespace=\"n\",pod=\"p\"} 1", lost(usage.Malformed)},
		{cpu + `{`, lost(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="` + strings.Repeat("p", 253) + `"} 1`,
			named("n/" + strings.Repeat("p", 253) + "/c")},
		{cpu + `{container="c",namespace="n",pod="` + strings.Repeat("p", 254) + `"} 1`, lost(usage.OverLimit)},
		{`<html>`, lost(usage.Malformed)},
		{`{"container_cpu_usage_seconds_total",container="c",namespace="n",pod="p"} 1`, lost(usage.Malformed)},

		// Values.
		{cpu + c + ` 1e3`, one(cpuSample(1000, scrapedAt))},
		{cpu + c + ` 1E3`, one(cpuSample(1000, scrapedAt))},
		{cpu + c + ` +1.5`, one(cpuSample(1.5, scrapedAt))},
		{cpu + c + ` .5`, one(cpuSample(.5, scrapedAt))},
		{cpu + c + ` 5.`, one(cpuSample(5, scrapedAt))},
		{cpu + c + ` 1e-320`, one(cpuSample(1e-320, scrapedAt))},
		{cpu + c + ` -1`, bad(usage.BadValue)},
		{cpu + c + ` NaN`, bad(usage.BadValue)},
		{cpu + c + ` +Inf`, bad(usage.BadValue)},
		{cpu + c + ` -Inf`, bad(usage.BadValue)},
		{cpu + c + ` 1e999`, bad(usage.BadValue)},
		{cpu + c, bad(usage.Malformed)},
		{cpu + c + ` `, bad(usage.Malformed)},
		{cpu + c + ` x`, bad(usage.Malformed)},
		{cpu + c + ` 1,5`, bad(usage.Malformed)},
		{cpu + c + ` 0x10p1`, bad(usage.Malformed)},
		{cpu + c + ` 1_000`, bad(usage.Malformed)},
		{cpu + c + ` 1e`, bad(usage.Malformed)},
		{cpu + c + ` 1e+`, bad(usage.Malformed)},
		{cpu + c + ` .`, bad(usage.Malformed)},
		{mem + c + ` 9223372036854774784`,
			one(usage.Sample{Memory: 9223372036854774784, MemoryAt: scrapedAt, Has: usage.HasMemory})},
		{mem + c + ` 9223372036854775807`, bad(usage.BadValue)}, // as a float: 2⁶³
		{mem + c + ` 1e30`, bad(usage.BadValue)},
		{mem + c + ` -1`, bad(usage.BadValue)},
		{swap + c + ` 1e30`, bad(usage.BadValue)},

		// Times.
		{cpu + c + ` 1 1795209367500`, one(cpuSample(1, 1795209367500*1e6))}, // ahead by an hour
		{cpu + c + ` 1 1795209367501`, bad(usage.BadTime)},
		{cpu + c + ` 1 1`, one(cpuSample(1, 1e6))},
		{cpu + c + ` 1 0`, bad(usage.BadTime)},
		{cpu + c + ` 1 -5`, bad(usage.BadTime)},
		{cpu + c + ` 1 1795205767.486`, bad(usage.BadTime)},
		{cpu + c + ` 1 9223372036854775808`, bad(usage.BadTime)},
		{cpu + c + ` 1 99999999999999999999999`, bad(usage.BadTime)},
		{cpu + c + ` 1 x`, bad(usage.BadTime)},
		{cpu + c + ` 1 1795205767486 x`, bad(usage.Malformed)},
		{cpu + c + ` 1 1795205767486 # {trace_id="x"} 0.5`, bad(usage.Malformed)}, // OpenMetrics: an exemplar
	}
	var d Text
	for _, tt := range tests {
		// Another node reading keeps the answer from being empty, and must come through untouched.
		got, err := decodeText(t, &d, tt.line+"\nnode_swap_usage_bytes 7\n")
		if err != nil {
			t.Errorf("Decode(%q): %v", tt.line, err)
			continue
		}
		if strings.HasPrefix(tt.line, "node_swap") {
			got.skipped = nil
		} else if got.node.Swap != 7 {
			t.Errorf("Decode(%q) lost the line after it", tt.line)
		} else {
			got.node.Swap, got.node.Has = 0, got.node.Has&^usage.HasSwap
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("Decode(%q)\n got %+v\nwant %+v", tt.line, got, tt.want)
		}
	}
}

func TestDecodeText(t *testing.T) {
	line := func(family, pod, value string) string {
		return family + `{container="c",namespace="n",pod="` + pod + `"} ` + value + "\n"
	}
	cpu := func(pod, value string) string { return line("container_cpu_usage_seconds_total", pod, value) }
	mem := func(pod, value string) string { return line("container_memory_working_set_bytes", pod, value) }
	both := func(pod string, seconds float64, bytes uint64) sample {
		return sample{"n/" + pod + "/c", usage.Sample{At: scrapedAt, MemoryAt: scrapedAt, CPUSeconds: seconds,
			Memory: bytes, Has: usage.HasCPU | usage.HasMemory, Untimed: true}}
	}
	cpuOnly := func(pod string, seconds float64) sample {
		return sample{"n/" + pod + "/c", cpuSample(seconds, scrapedAt)}
	}
	memOnly := func(pod string, bytes uint64) sample {
		return sample{"n/" + pod + "/c", usage.Sample{MemoryAt: scrapedAt, Memory: bytes, Has: usage.HasMemory}}
	}

	tests := []struct {
		name, text string
		want       decoded
	}{
		{"same order in each family", cpu("a", "1") + cpu("b", "2") + mem("a", "3") + mem("b", "4"),
			decoded{containers: []sample{both("a", 1, 3), both("b", 2, 4)}}},
		{"another order", cpu("a", "1") + cpu("b", "2") + cpu("c", "3") + mem("c", "4") + mem("a", "5") + mem("b", "6"),
			decoded{containers: []sample{both("a", 1, 5), both("b", 2, 6), both("c", 3, 4)}}},
		{"one left out of the second family", cpu("a", "1") + cpu("b", "2") + cpu("c", "3") + mem("a", "4") + mem("c", "5"),
			decoded{containers: []sample{both("a", 1, 4), cpuOnly("b", 2), both("c", 3, 5)}}},
		{"one left out of the first family", cpu("b", "1") + mem("a", "2") + mem("b", "3"),
			decoded{containers: []sample{both("b", 1, 3), memOnly("a", 2)}}},
		{"families mixed", cpu("a", "1") + mem("a", "2") + cpu("b", "3") + mem("b", "4"),
			decoded{containers: []sample{both("a", 1, 2), both("b", 3, 4)}}},
		{"the same labels in another form",
			cpu("a", "1") + `container_memory_working_set_bytes { pod="a", namespace="n", x="y", container="c" } 2` + "\n",
			decoded{containers: []sample{both("a", 1, 2)}}},
		{"an escaped name, twice", cpu(`a\\b`, "1") + mem(`a\\b`, "2"), decoded{containers: []sample{both(`a\b`, 1, 2)}}},
		{"an escaped name is not what it looks like once unescaped",
			cpu(`a\\n`, "1") + mem(`a\nn`, "2"), decoded{containers: []sample{cpuOnly(`a\n`, 1), memOnly("a\nn", 2)}}},
		{"a name that begins as another", cpu("a", "1") + mem("aa", "2"),
			decoded{containers: []sample{cpuOnly("a", 1), memOnly("aa", 2)}}},
		{"duplicates: the first wins", cpu("a", "1") + cpu("a", "2") + mem("a", "3") + cpu("a", "4") +
			"node_swap_usage_bytes 1\nnode_swap_usage_bytes 2\n",
			decoded{node: usage.Sample{Swap: 1, Has: usage.HasSwap}, containers: []sample{both("a", 1, 3)},
				skipped: map[usage.Reason]int{usage.Duplicate: 3}}},
		{"duplicates: even when the first is bad", cpu("a", "NaN") + cpu("a", "2") + mem("a", "3"),
			decoded{containers: []sample{memOnly("a", 3)},
				skipped: map[usage.Reason]int{usage.BadValue: 1, usage.Duplicate: 1}}},
		{"CPU and memory keep their own times", cpu("a", "1 1795205767486") + mem("a", "2 1795205767000"),
			decoded{containers: []sample{{"n/a/c", usage.Sample{At: sampledAt, MemoryAt: 1795205767000 * 1e6,
				CPUSeconds: 1, Memory: 2, Has: usage.HasCPU | usage.HasMemory}}}}},
		{"the first outcome wins, too", cpu("a", "1") + "resource_scrape_error 0\nresource_scrape_error 1\n",
			decoded{containers: []sample{cpuOnly("a", 1)}, skipped: map[usage.Reason]int{usage.Duplicate: 1}}},
		{"cut off", cpu("a", "1") + cpu("b", "2") + strings.TrimSuffix(cpu("c", "2.5"), "5\n"),
			decoded{containers: []sample{cpuOnly("a", 1), cpuOnly("b", 2)}, partial: true,
				skipped: map[usage.Reason]int{usage.Malformed: 1}}},
		{"cut off in a comment", cpu("a", "1") + "# HE",
			decoded{containers: []sample{cpuOnly("a", 1)}, partial: true, skipped: map[usage.Reason]int{usage.Malformed: 1}}},
		{"blanks at the end", cpu("a", "1") + "\t ", decoded{containers: []sample{cpuOnly("a", 1)}}},
		{"carriage returns", strings.ReplaceAll(cpu("a", "1")+"\n"+mem("a", "2 1795205767500"), "\n", "\r\n"),
			decoded{containers: []sample{both("a", 1, 2)}}},
		{"OpenMetrics' end", cpu("a", "1") + "# EOF\n", decoded{containers: []sample{cpuOnly("a", 1)}}},
		{"a NUL", cpu("a", "1") + "\x00\n", decoded{containers: []sample{cpuOnly("a", 1)}, partial: true,
			skipped: map[usage.Reason]int{usage.Malformed: 1}}},
		{"bad readings only", cpu("a", "NaN"), decoded{containers: []sample{{"n/a/c", usage.Sample{}}},
			skipped: map[usage.Reason]int{usage.BadValue: 1}}},
	}
	var d Text // reused on purpose: nothing may stay from one text to the next
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decodeText(t, &d, tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("Decode(%q)\n got %+v\nwant %+v", tt.text, got, tt.want)
			}
		})
	}
}

func TestDecodeFails(t *testing.T) {
	const sampleLine = "node_cpu_usage_seconds_total 1\n"
	tests := []struct {
		text string
		want error
	}{
		{"", ErrNoSamples},
		{"\n\n", ErrNoSamples},
		{"<html>\n<body>Forbidden</body>\n</html>\n", ErrNoSamples},
		{"node_cpu_usage_seconds_total 1", ErrNoSamples}, // cut off
		{"node_cpu_usage_seconds_total NaN\n", ErrNoSamples},
		{"container_cpu_usage_seconds_total 1\n", ErrNoSamples},
		{"pod_cpu_usage_seconds_total{namespace=\"n\",pod=\"p\"} 1\n", ErrNoSamples},
		{"resource_scrape_error 0\n", ErrNoSamples},
		{"resource_scrape_error 1\n", ErrContainersUnread},
		{sampleLine + "resource_scrape_error 1\n", ErrContainersUnread},
		{sampleLine + "scrape_error 1\nresource_scrape_error 0\n", ErrContainersUnread},
		{sampleLine + "resource_scrape_error 0\nscrape_error 2 1795205767486\n", ErrContainersUnread},
		{sampleLine + "resource_scrape_error{} 1\n", ErrContainersUnread},
		{sampleLine + "resource_scrape_error NaN\n", ErrContainersUnread},
		{sampleLine + "resource_scrape_error 1 -1\n", ErrContainersUnread},
	}
	var d Text
	for _, tt := range tests {
		if _, err := decodeText(t, &d, tt.text); !errors.Is(err, tt.want) {
			t.Errorf("Decode(%q) = %v, want %v", tt.text, err, tt.want)
		}
	}
}

// TestSomeBadTimes: a response of which some samples have possible times is of use.
func TestSomeBadTimes(t *testing.T) {
	const tomorrow, container = "1795305768000", `container_cpu_usage_seconds_total{container="c",namespace="n",pod="p"} 1`
	var d Text
	for text, fails := range map[string]bool{
		"node_cpu_usage_seconds_total 1 " + tomorrow + "\n":                                  true,
		"node_cpu_usage_seconds_total 1 " + tomorrow + "\nnode_memory_working_set_bytes 1\n": false,
		"node_cpu_usage_seconds_total 1 " + tomorrow + "\n" + container + "\n":               false,
		container + " " + tomorrow + "\n":                                                    true,
		container + " -1\n":                                                                  true,
		container + " x\n":                                                                   true,
	} {
		var badTime *BadTimeError
		if _, err := decodeText(t, &d, text); errors.As(err, &badTime) != fails || (err != nil) != fails {
			t.Errorf("Decode(%q) = %v, want a BadTimeError: %v", text, err, fails)
		}
	}
}

func TestDecodeLimits(t *testing.T) {
	var text strings.Builder
	for _, family := range []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes"} {
		for i := range 1000 {
			fmt.Fprintf(&text, "%s{container=\"c\",namespace=\"n\",pod=\"p%d\"} 1\n", family, i)
		}
	}
	d := Text{Limits: Limits{MaxContainers: 700}}
	got, err := decodeText(t, &d, text.String())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(got.containers); n != 700 {
		t.Errorf("%d containers, want 700", n)
	}
	if want := (map[usage.Reason]int{usage.OverLimit: 600}); !reflect.DeepEqual(got.skipped, want) || !got.partial {
		t.Errorf("skipped %v, partial %v; want %v, true", got.skipped, got.partial, want)
	}
	for _, c := range got.containers {
		if c.Has != usage.HasCPU|usage.HasMemory {
			t.Fatalf("%s has %b", c.name, c.Has)
		}
	}
}

// TestDecodeDropsWholePods: a pod of which one container cannot be kept is dropped, and the scrape
// is partial.
func TestDecodeDropsWholePods(t *testing.T) {
	line := func(metric, labels string) string { return metric + "{" + labels + "} 1\n" }
	both := func(labels string) string {
		return line("container_cpu_usage_seconds_total", labels) + line("container_memory_working_set_bytes", labels)
	}
	const p = `namespace="n",pod="p"`
	const ok = `container="c",namespace="n",pod="ok"`
	long := strings.Repeat("x", DefaultMaxLabelBytes+1)
	for name, tt := range map[string]struct {
		labels string // of the second container of the pod n/p
		limit  int
	}{
		"container limit":       {`container="d",` + p, 2},
		"long name":             {`container="` + long + `",` + p, 0},
		"no container":          {p, 0},
		"empty container":       {`container="",` + p, 0},
		"no UTF-8":              {"container=\"\xff\"," + p, 0},
		"labels that break off": {p + `,container="d`, 0},
		"a name twice":          {p + `,container="d",container="e"`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := `container="c",` + p
			for _, text := range []string{
				both(ok) + both(c) + both(tt.labels),
				both(ok) + both(c) + line("container_memory_working_set_bytes", tt.labels),
				both(ok) + line("container_cpu_usage_seconds_total", c) + both(tt.labels) + line("container_memory_working_set_bytes", c),
			} {
				d := Text{Limits: Limits{MaxContainers: tt.limit}}
				got, err := decodeText(t, &d, text)
				if err != nil {
					t.Fatal(err)
				}
				if len(got.containers) != 1 || got.containers[0].name != "n/ok/c" || !got.partial {
					t.Errorf("%q is decoded as %+v, want the container n/ok/c only, partial", text, got)
				}
				if got, err := decodeText(t, &d, both(c)); err != nil || len(got.containers) != 1 || got.partial {
					t.Errorf("the pod's next response is decoded as %+v, error %v", got, err)
				}
			}
		})
	}
}

func TestDecodeSample(t *testing.T) {
	var d Text
	got, err := decodeText(t, &d, string(realSample(t)))
	if err != nil {
		t.Fatal(err)
	}
	ms := func(ms int64) usage.Time { return usage.Time(ms * int64(time.Millisecond)) }
	const all = usage.HasCPU | usage.HasMemory | usage.HasSwap
	container := func(name string, at int64, seconds float64, bytes uint64, started usage.Time) sample {
		return sample{name, usage.Sample{At: ms(at), MemoryAt: ms(at), StartedAt: started, CPUSeconds: seconds, Memory: bytes, Has: all}}
	}
	want := decoded{
		node: usage.Sample{At: ms(1795205765826), MemoryAt: ms(1795205765826), CPUSeconds: 2586.123634182, Memory: 1349017600, Has: all},
		containers: []sample{
			container("default/burn-546ccb4d55-87knc/burn", 1795205767486, 25.080507606, 1658880, 0),
			container("default/burn-546ccb4d55-l8f6l/burn", 1795205767480, 25.12927584, 1662976, 0),
			container("default/burn-546ccb4d55-87knc/mem", 1795205767481, 0.113232685, 35270656, 0),
			container("default/burn-546ccb4d55-l8f6l/mem", 1795205767482, 0.13295599, 35459072, 0),
			container("kube-system/ms-metrics-server-6bc4c489c5-l8rsp/metrics-server", 1795205767478, 1.095683029, 20992000, 0),
			container("default/sidecar/side", 1795205767484, 5.448537716, 1622016, 0),
		},
	}
	starts := []float64{1.7952055045228813e+09, 1.7952055047945614e+09, 1.7952055048842747e+09, 1.795205505156518e+09,
		1.7952056012897496e+09, 1.7952055051652355e+09}
	for i, seconds := range starts { // as exact as a float64 of seconds is
		started := got.containers[i].StartedAt
		if off := time.Duration(started) - time.Duration(seconds*1e6)*time.Microsecond; off < -time.Microsecond || off > time.Microsecond {
			t.Errorf("%s started at %v, want %v s", got.containers[i].name, started.Time(), seconds)
		}
		want.containers[i].StartedAt = started
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf(" got %+v\nwant %+v", got, want)
	}
}

// TestDecodeReuse checks that nothing of one answer shows in the next, and that the names lie in
// the text.
func TestDecodeReuse(t *testing.T) {
	large, real := largeAnswer(40, 3), realSample(t)
	var d Text
	var dst usage.Scrape
	var fresh usage.Scrape
	if err := new(Text).Decode(&fresh, real, Times{At: scrapedAt}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := d.Decode(&dst, large, Times{At: scrapedAt}); err != nil || len(dst.Containers) != 120 {
			t.Fatalf("%d containers, error %v; want 120", len(dst.Containers), err)
		}
		if err := d.Decode(&dst, []byte("<html>\n"), Times{At: scrapedAt}); err == nil || len(dst.Containers) != 0 {
			t.Fatalf("%d containers, error %v; want an error", len(dst.Containers), err)
		}
		if err := d.Decode(&dst, real, Times{At: scrapedAt}); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(dst, fresh) {
			t.Fatalf("a reused decoder gives %+v, a new one %+v", dst, fresh)
		}
	}
}

func TestDecodeAllocates(t *testing.T) {
	for name, text := range map[string][]byte{
		"sample":     realSample(t),
		"large":      largeAnswer(30, 2),
		"very large": largeAnswer(500, 2),
	} {
		var d Text
		var dst usage.Scrape
		decode := func() {
			if err := d.Decode(&dst, text, Times{At: scrapedAt}); err != nil {
				t.Fatal(err)
			}
		}
		decode()
		if n := testing.AllocsPerRun(20, decode); n != 0 {
			t.Errorf("decoding a %s answer again allocates %v times, want 0", name, n)
		}
	}
}

func realSample(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/kubelet-1.36-resource.txt")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// largeAnswer writes what a kubelet with that many pods answers.
func largeAnswer(pods, containersPerPod int) []byte {
	families := []struct{ name, value string }{
		{"container_cpu_usage_seconds_total", "%d.080507606 1795205767486"},
		{"container_memory_working_set_bytes", "%d.65888e+06 1795205767486"},
		{"container_start_time_seconds", "1.7952055045228%03de+09"},
		{"container_swap_limit_bytes", "%d 1795205767491"},
		{"container_swap_usage_bytes", "%d 1795205767491"},
		{"node_cpu_usage_seconds_total", "%d.123634182 1795205765826"},
		{"node_memory_working_set_bytes", "%d.3490176e+09 1795205765826"},
		{"node_swap_usage_bytes", "%d 1795205765826"},
		{"pod_cpu_usage_seconds_total", "%d.841062813 1795205763675"},
		{"pod_memory_working_set_bytes", "%d.7875712e+07 1795205763675"},
		{"pod_swap_usage_bytes", "%d 1795205763675"},
		{"resource_scrape_error", "%d"},
	}
	var b bytes.Buffer
	for _, f := range families {
		fmt.Fprintf(&b, "# HELP %s [STABLE] What it is\n# TYPE %s gauge\n", f.name, f.name)
		switch {
		case strings.HasPrefix(f.name, "container"):
			for c := range containersPerPod {
				for p := range pods {
					fmt.Fprintf(&b, `%s{container="app-%d",namespace="namespace-%d",pod="deployment-546ccb4d55-%05d"} `+f.value+"\n",
						f.name, c, p%3, p, 1+(p+c)%9)
				}
			}
		case strings.HasPrefix(f.name, "pod"):
			for p := range pods {
				fmt.Fprintf(&b, `%s{namespace="namespace-%d",pod="deployment-546ccb4d55-%05d"} `+f.value+"\n", f.name, p%3, p, 1+p%9)
			}
		default:
			value := 1
			if f.name == "resource_scrape_error" {
				value = 0
			}
			fmt.Fprintf(&b, "%s "+f.value+"\n", f.name, value)
		}
	}
	return b.Bytes()
}
