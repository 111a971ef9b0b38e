package decode

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestTextLine(t *testing.T) {
	const (
		cpu   = `container_cpu_usage_seconds_total`
		mem   = `container_memory_working_set_bytes`
		swap  = `container_swap_usage_bytes`
		start = `container_start_time_seconds`
		c     = `{container="c",namespace="n",pod="p"}`
	)
	named := func(name string, s usage.Sample) decoded { return decoded{containers: []sample{{name, s}}} }
	one := func(s usage.Sample) decoded { return named("n/p/c", s) }
	name := func(name string) decoded { return named(name, cpuSample(1, scrapedAt)) }
	node := func(s usage.Sample) decoded { return decoded{node: s} }
	bad := func(r usage.SkipReason) decoded { return one(usage.Sample{}).skipping(r) } // a container without the value
	partial := func(r usage.SkipReason) decoded { return decoded{partial: true}.skipping(r) }
	nothing := decoded{}

	tests := []struct {
		line string
		want decoded
	}{
		// Valid.
		{cpu + c + ` 25.080507606 1795205767486`, one(cpuSample(25.080507606, sampledAt))},
		{cpu + c + ` 0`, one(cpuSample(0, scrapedAt))},
		{mem + c + ` 1.65888e+06 1795205767486`,
			one(usage.Sample{Memory: 1658880, Has: usage.HasMemory})},
		{mem + c + ` 0`, one(usage.Sample{Has: usage.HasMemory})},
		{swap + c + ` 4096 1795205767486`, one(usage.Sample{Swap: 4096, Has: usage.HasSwap})},
		{swap + c + ` 0 1795205767486`, one(usage.Sample{Has: usage.HasSwap})},
		{start + c + ` 1.79520550515e+09`, one(usage.Sample{StartedAt: 1795205505150 * 1e6})},
		{start + c + ` 1795205505.25`, one(usage.Sample{StartedAt: 1795205505250 * 1e6})},
		{start + c + ` 35.2`, one(usage.Sample{})}, // kwok: not a date, and not an error
		{start + c + ` 0`, one(usage.Sample{})},
		{start + c + ` 1795209367`, one(usage.Sample{StartedAt: 1795209367 * 1e9})}, // within the hour
		{start + c + ` 1795209368`, bad(usage.BadTime)},
		{start + c + ` +Inf`, bad(usage.BadValue)},
		{`node_cpu_usage_seconds_total 2586.123634182 1795205767486`, node(cpuSample(2586.123634182, sampledAt))},
		{`node_cpu_usage_seconds_total{} 1`, node(cpuSample(1, scrapedAt))},
		{`node_cpu_usage_seconds_total{x="y"} 1`, node(cpuSample(1, scrapedAt))},
		{`node_cpu_usage_seconds_total{x="y} 1`, decoded{}.skipping(usage.Malformed)},
		{`node_memory_working_set_bytes 5`, node(usage.Sample{Memory: 5, Has: usage.HasMemory})},
		{`node_swap_usage_bytes 0`, node(usage.Sample{Has: usage.HasSwap})},

		// Ignored.
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
		{`resource_scrape_error zero`, partial(usage.Malformed)},
		{`resource_scrape_error{ 0`, partial(usage.Malformed)},

		// Labels.
		{cpu + `{pod="p",namespace="n",container="c"} 1`, name("n/p/c")},
		{cpu + `{a="b",pod="p",id="/x{,}",namespace="n",container="c",z=""} 1`, name("n/p/c")},
		{cpu + `{container="c",namespace="n",pod="p",} 1`, name("n/p/c")},
		{cpu + "\t{ container\t= \"c\" , namespace=\"n\", pod=\"p\" }1", name("n/p/c")},
		{"  " + cpu + c + "\t 1 \t", name("n/p/c")},
		{cpu + c + " 1\r", name("n/p/c")},
		{cpu + `{container="a,b}{=\"\\\n",namespace="n",pod="p"} 1`, name("n/p/a,b}{=\"\\\n")},
		{cpu + `{container="\\\\",namespace="\"",pod="p\\"} 1`, name(`"/p\/\\`)},
		{cpu + `{container="ü",namespace="n",pod="p"} 1`, name("n/p/ü")},
		{cpu + ` 1`, partial(usage.NoIdentity)},
		{cpu, partial(usage.NoIdentity)},
		{cpu + `{} 1`, partial(usage.NoIdentity)},
		{cpu + `{container="c",namespace="n"} 1`, partial(usage.NoIdentity)},
		{cpu + `{container="",namespace="n",pod="p"} 1`, partial(usage.NoIdentity)},
		{cpu + `{container="c",namespace="n",pod="p"`, partial(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="p`, partial(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="p\`, partial(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="\x"} 1`, partial(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="p\"} 1`, partial(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="\"\`, partial(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod=p} 1`, partial(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod} 1`, partial(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod`, partial(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod=`, partial(usage.Malformed)},
		{cpu + `{container="c" namespace="n",pod="p"} 1`, partial(usage.Malformed)},
		{cpu + `{container="c",,namespace="n",pod="p"} 1`, partial(usage.Malformed)},
		{cpu + `{,container="c",namespace="n",pod="p"} 1`, partial(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="p",1="x"} 1`, partial(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="p",pod="p"} 1`, partial(usage.Malformed)},
		{cpu + "{container=\"\xff\",namespace=\"n\",pod=\"p\"} 1", partial(usage.Malformed)},
		{cpu + `{`, partial(usage.Malformed)},
		{cpu + `{container="c",namespace="n",pod="` + strings.Repeat("p", 253) + `"} 1`,
			name("n/" + strings.Repeat("p", 253) + "/c")},
		{cpu + `{container="c",namespace="n",pod="` + strings.Repeat("p", 254) + `"} 1`, partial(usage.OverLimit)},
		{`<html>`, partial(usage.Malformed)},
		{`{"container_cpu_usage_seconds_total",container="c",namespace="n",pod="p"} 1`, partial(usage.Malformed)},

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
		{cpu + c + ` infinity`, bad(usage.BadValue)},
		{cpu + c + ` nan`, bad(usage.BadValue)},
		{cpu + c + ` 1e999`, bad(usage.BadValue)},
		{cpu + c, bad(usage.Malformed)},
		{cpu + c + ` `, bad(usage.Malformed)},
		{cpu + c + ` x`, bad(usage.Malformed)},
		{cpu + c + ` 1,5`, bad(usage.Malformed)},
		{cpu + c + ` 0x10p1`, bad(usage.Malformed)},
		{cpu + c + ` 0x1p4`, bad(usage.Malformed)},
		{cpu + c + ` 0X1P4`, bad(usage.Malformed)},
		{cpu + c + ` 1_000`, bad(usage.Malformed)},
		{cpu + c + ` infinit`, bad(usage.Malformed)},
		{cpu + c + ` 1e`, bad(usage.Malformed)},
		{cpu + c + ` 1e+`, bad(usage.Malformed)},
		{cpu + c + ` .`, bad(usage.Malformed)},
		{mem + c + ` 9223372036854774784`,
			one(usage.Sample{Memory: 9223372036854774784, Has: usage.HasMemory})},
		{mem + c + ` 9223372036854775807`, bad(usage.BadValue)}, // as a float: 2⁶³
		{mem + c + ` 1e30`, bad(usage.BadValue)},
		{mem + c + ` -1`, bad(usage.BadValue)},
		{swap + c + ` 1e30`, bad(usage.BadValue)},

		// Times.
		{cpu + c + ` 1 1795209367500`, one(cpuSample(1, 1795209367500*1e6))}, // ahead by an hour
		{cpu + c + ` 1 1795209367501`, bad(usage.BadTime)},
		{cpu + c + ` 1 1`, one(cpuSample(1, 1e6))},
		{cpu + c + ` 1 +5`, one(cpuSample(1, 5e6))},
		{cpu + c + ` 1 0001`, one(cpuSample(1, 1e6))},
		{cpu + c + ` 1 0`, bad(usage.BadTime)},
		{cpu + c + ` 1 1e3`, bad(usage.BadTime)},
		{cpu + c + ` 1 1_000`, bad(usage.BadTime)},
		{cpu + c + ` 1 -5`, bad(usage.BadTime)},
		{cpu + c + ` 1 1795205767.486`, bad(usage.BadTime)},
		{cpu + c + ` 1 9223372036854775808`, bad(usage.BadTime)},
		{cpu + c + ` 1 99999999999999999999999`, bad(usage.BadTime)},
		{cpu + c + ` 1 x`, bad(usage.BadTime)},
		{cpu + c + ` 1 1795205767486 x`, bad(usage.Malformed)},
		{cpu + c + ` 1 1795205767486 # {trace_id="x"} 0.5`, bad(usage.Malformed)}, // OpenMetrics: an exemplar
	}
	decode := textDecoder(0)
	for _, tt := range tests {
		// Another sample of the node keeps the response from being empty, and must not be affected.
		got, err := decodeString(t, decode, tt.line+"\nnode_swap_usage_bytes 7\n")
		if err != nil {
			t.Errorf("%q: %v", tt.line, err)
			continue
		}
		if strings.HasPrefix(tt.line, "node_swap") {
			got.skipped = nil
		} else if got.node.Swap != 7 {
			t.Errorf("%q: the next line was not decoded", tt.line)
		} else {
			got.node.Swap, got.node.Has = 0, got.node.Has&^usage.HasSwap
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%q\n got %+v\nwant %+v", tt.line, got, tt.want)
		}
	}
}

func TestTextResponse(t *testing.T) {
	line := func(metric, pod, value string) string {
		return metric + `{container="c",namespace="n",pod="` + pod + `"} ` + value + "\n"
	}
	cpu := func(pod, value string) string { return line("container_cpu_usage_seconds_total", pod, value) }
	mem := func(pod, value string) string { return line("container_memory_working_set_bytes", pod, value) }
	both := func(pod string, seconds float64, bytes uint64) sample {
		return sample{"n/" + pod + "/c", usage.Sample{At: scrapedAt, CPUSeconds: seconds,
			Memory: bytes, Has: usage.HasCPU | usage.HasMemory, Untimed: true}}
	}
	cpuOnly := func(pod string, seconds float64) sample {
		return sample{"n/" + pod + "/c", cpuSample(seconds, scrapedAt)}
	}
	memOnly := func(pod string, bytes uint64) sample {
		return sample{"n/" + pod + "/c", usage.Sample{Memory: bytes, Has: usage.HasMemory}}
	}
	containers := func(samples ...sample) decoded { return decoded{containers: samples} }
	partial := func(samples ...sample) decoded {
		return decoded{containers: samples, partial: true}.skipping(usage.Malformed)
	}
	own := sample{"n/a/c", usage.Sample{At: sampledAt, CPUSeconds: 1, Memory: 2,
		Has: usage.HasCPU | usage.HasMemory}}
	duplicates := containers(both("a", 1, 3)).skipping(usage.Duplicate, usage.Duplicate, usage.Duplicate)
	duplicates.node = usage.Sample{Swap: 1, Has: usage.HasSwap}

	tests := []struct {
		name, text string
		want       decoded
	}{
		{"same order in each metric", cpu("a", "1") + cpu("b", "2") + mem("a", "3") + mem("b", "4"),
			containers(both("a", 1, 3), both("b", 2, 4))},
		{"different order", cpu("a", "1") + cpu("b", "2") + cpu("c", "3") + mem("c", "4") + mem("a", "5") + mem("b", "6"),
			containers(both("a", 1, 5), both("b", 2, 6), both("c", 3, 4))},
		{"missing from the second metric", cpu("a", "1") + cpu("b", "2") + cpu("c", "3") + mem("a", "4") + mem("c", "5"),
			containers(both("a", 1, 4), cpuOnly("b", 2), both("c", 3, 5))},
		{"missing from the first metric", cpu("b", "1") + mem("a", "2") + mem("b", "3"),
			containers(both("b", 1, 3), memOnly("a", 2))},
		{"mixed metrics", cpu("a", "1") + mem("a", "2") + cpu("b", "3") + mem("b", "4"),
			containers(both("a", 1, 2), both("b", 3, 4))},
		{"same labels in another form",
			cpu("a", "1") + `container_memory_working_set_bytes { pod="a", namespace="n", x="y", container="c" } 2` + "\n",
			containers(both("a", 1, 2))},
		{"escaped name", cpu(`a\\b`, "1") + mem(`a\\b`, "2"), containers(both(`a\b`, 1, 2))},
		{"escaped name that looks like another when unescaped", cpu(`a\\n`, "1") + mem(`a\nn`, "2"),
			containers(cpuOnly(`a\n`, 1), memOnly("a\nn", 2))},
		{"name with the prefix of another", cpu("a", "1") + mem("aa", "2"), containers(cpuOnly("a", 1), memOnly("aa", 2))},
		{"duplicates: the first counts", cpu("a", "1") + cpu("a", "2") + mem("a", "3") + cpu("a", "4") +
			"node_swap_usage_bytes 1\nnode_swap_usage_bytes 2\n", duplicates},
		{"duplicates: the first is invalid", cpu("a", "NaN") + cpu("a", "2") + mem("a", "3"),
			containers(memOnly("a", 3)).skipping(usage.BadValue, usage.Duplicate)},
		{"duplicate scrape error", cpu("a", "1") + "resource_scrape_error 0\nresource_scrape_error 1\n",
			containers(cpuOnly("a", 1)).skipping(usage.Duplicate)},
		{"different times of CPU and memory", cpu("a", "1 1795205767486") + mem("a", "2 1795205767000"), containers(own)},
		{"truncated", cpu("a", "1") + cpu("b", "2") + strings.TrimSuffix(cpu("c", "2.5"), "5\n"),
			partial(cpuOnly("a", 1), cpuOnly("b", 2))},
		{"truncated in a comment", cpu("a", "1") + "# HE", partial(cpuOnly("a", 1))},
		{"blanks at the end", cpu("a", "1") + "\t ", containers(cpuOnly("a", 1))},
		{"carriage returns", strings.ReplaceAll(cpu("a", "1")+"\n"+mem("a", "2 1795205767500"), "\n", "\r\n"),
			containers(both("a", 1, 2))},
		{"OpenMetrics EOF", cpu("a", "1") + "# EOF\n", containers(cpuOnly("a", 1))},
		{"NUL", cpu("a", "1") + "\x00\n", partial(cpuOnly("a", 1))},
		{"only invalid values", cpu("a", "NaN"), containers(sample{name: "n/a/c"}).skipping(usage.BadValue)},
	}
	decode := textDecoder(0) // reused: nothing may remain from one text to the next
	for _, tt := range tests {
		got, err := decodeString(t, decode, tt.text)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %q: error %v\n got %+v\nwant %+v", tt.name, tt.text, err, got, tt.want)
		}
	}
}

func TestTextErrors(t *testing.T) {
	const sampleLine, tomorrow = "node_cpu_usage_seconds_total 1\n", "1795305768000"
	const container = `container_cpu_usage_seconds_total{container="c",namespace="n",pod="p"} 1`
	tests := []struct {
		text string
		want error
	}{
		{"", errNoSamples},
		{"\n\n", errNoSamples},
		{"<html>\n<body>Forbidden</body>\n</html>\n", errUndecodable},
		{"node_cpu_usage_seconds_total 1", errUndecodable}, // truncated
		{"node_cpu_usage_seconds_total NaN\n", errNoSamples},
		{"container_cpu_usage_seconds_total 1\n", errNoSamples},
		{"pod_cpu_usage_seconds_total{namespace=\"n\",pod=\"p\"} 1\n", errNoSamples},
		{"resource_scrape_error 0\n", errNoSamples},
		{"resource_scrape_error 1\n", errContainersUnread},
		{sampleLine + "resource_scrape_error 1\n", errContainersUnread},
		{sampleLine + "scrape_error 1\nresource_scrape_error 0\n", errContainersUnread},
		{sampleLine + "resource_scrape_error 0\nscrape_error 2 1795205767486\n", errContainersUnread},
		{sampleLine + "resource_scrape_error{} 1\n", errContainersUnread},
		{sampleLine + "resource_scrape_error NaN\n", errContainersUnread},
		{sampleLine + "resource_scrape_error 1 -1\n", errContainersUnread},
		{"node_cpu_usage_seconds_total 1 " + tomorrow + "\n", errBadTime},
		{container + " " + tomorrow + "\n", errBadTime},
		{container + " -1\n", errBadTime},
		{container + " x\n", errBadTime},
		{"node_cpu_usage_seconds_total 1 " + tomorrow + "\nnode_memory_working_set_bytes 1\n", nil},
		{"node_cpu_usage_seconds_total 1 " + tomorrow + "\n" + container + "\n", nil},
	}
	decode := textDecoder(0)
	for _, tt := range tests {
		_, err := decodeString(t, decode, tt.text)
		if !isLike(err, tt.want) {
			t.Errorf("%q: got error %v, want %v", tt.text, err, tt.want)
		}
	}
}

func TestTextDropsPartialPods(t *testing.T) {
	cpu := func(labels string) string { return "container_cpu_usage_seconds_total{" + labels + "} 1\n" }
	mem := func(labels string) string { return "container_memory_working_set_bytes{" + labels + "} 1\n" }
	both := func(labels string) string { return cpu(labels) + mem(labels) }
	const p = `namespace="n",pod="p"`
	const c, ok = `container="c",` + p, `container="c",namespace="n",pod="ok"`
	for name, tt := range map[string]struct {
		labels string // of the second container of the pod n/p
		limit  int
	}{
		"container limit":  {`container="d",` + p, 2},
		"long name":        {`container="` + strings.Repeat("x", maxNameBytes+1) + `",` + p, 0},
		"no container":     {p, 0},
		"empty container":  {`container="",` + p, 0},
		"invalid UTF-8":    {"container=\"\xff\"," + p, 0},
		"truncated labels": {p + `,container="d`, 0},
		"duplicate label":  {p + `,container="d",container="e"`, 0},
	} {
		for _, text := range []string{
			both(ok) + both(c) + both(tt.labels),
			both(ok) + both(c) + mem(tt.labels),
			both(ok) + cpu(c) + both(tt.labels) + mem(c),
		} {
			decode := textDecoder(tt.limit)
			got, err := decodeString(t, decode, text)
			if err != nil || len(got.containers) != 1 || got.containers[0].name != "n/ok/c" || !got.partial {
				t.Errorf("%s: %q: got %+v, error %v; want only n/ok/c, partial", name, text, got, err)
			}
			if got, err := decodeString(t, decode, both(c)); err != nil || len(got.containers) != 1 || got.partial {
				t.Errorf("%s: next response: got %+v, error %v; want one container", name, got, err)
			}
		}
	}
}

func TestTextOfKubelet(t *testing.T) {
	got, err := decodeString(t, textDecoder(0), string(readFile(t, resourceFile)))
	if err != nil {
		t.Fatal(err)
	}
	ms := func(ms int64) usage.Time { return usage.Time(ms * int64(time.Millisecond)) }
	const all = usage.HasCPU | usage.HasMemory | usage.HasSwap
	want := decoded{node: usage.Sample{At: ms(1795205765826), CPUSeconds: 2586.123634182,
		Memory: 1349017600, Has: all}}
	for i, c := range []struct {
		name           string
		at             int64
		seconds        float64
		bytes          uint64
		startedSeconds float64
	}{
		{"default/burn-546ccb4d55-87knc/burn", 1795205767486, 25.080507606, 1658880, 1.7952055045228813e+09},
		{"default/burn-546ccb4d55-l8f6l/burn", 1795205767480, 25.12927584, 1662976, 1.7952055047945614e+09},
		{"default/burn-546ccb4d55-87knc/mem", 1795205767481, 0.113232685, 35270656, 1.7952055048842747e+09},
		{"default/burn-546ccb4d55-l8f6l/mem", 1795205767482, 0.13295599, 35459072, 1.795205505156518e+09},
		{"kube-system/ms-metrics-server-6bc4c489c5-l8rsp/metrics-server", 1795205767478, 1.095683029, 20992000,
			1.7952056012897496e+09},
		{"default/sidecar/side", 1795205767484, 5.448537716, 1622016, 1.7952055051652355e+09},
	} {
		started := got.containers[i].StartedAt // as precise as a float64 of seconds
		off := time.Duration(started) - time.Duration(c.startedSeconds*1e6)*time.Microsecond
		if off.Abs() > time.Microsecond {
			t.Errorf("%s: got start time %v, want %v s", c.name, started.Time(), c.startedSeconds)
		}
		want.containers = append(want.containers, sample{c.name, usage.Sample{At: ms(c.at),
			StartedAt: started, CPUSeconds: c.seconds, Memory: c.bytes, Has: all}})
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf(" got %+v\nwant %+v", got, want)
	}
}
