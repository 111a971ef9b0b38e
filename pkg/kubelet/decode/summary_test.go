package decode

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestSummaryContainer(t *testing.T) {
	one := func(s usage.Sample) decoded { return decoded{containers: []sample{{"n/p/c", s}}} }
	bad := func(r usage.SkipReason) decoded { return one(usage.Sample{}).skipping(r) } // a container without the value
	notOfType := func() decoded { return one(usage.Sample{}).asPartial().skipping(usage.Malformed) }

	tests := []struct {
		fields string // of the container, apart from its name
		want   decoded
	}{
		// Valid.
		{`"cpu":{"time":"` + second + `","usageNanoCores":5,"usageCoreNanoSeconds":1500000000}`,
			one(usage.Sample{CPUSeconds: 1.5, Rate: 5, At: secondAt, Has: usage.HasCPU | usage.HasRate})},
		{`"cpu":{"time":"` + second + `","usageNanoCores":0,"usageCoreNanoSeconds":0}`,
			one(usage.Sample{At: secondAt, Has: usage.HasCPU | usage.HasRate})},
		{`"cpu":{"time":"` + second + `","usageCoreNanoSeconds":25080507606}`, one(cpuSample(25.080507606, secondAt))},
		{`"cpu":{"time":"` + second + `"}`, one(usage.Sample{})},
		{`"memory":{"time":"` + second + `","usageBytes":7,"workingSetBytes":4096,"rssBytes":1}`,
			one(usage.Sample{Memory: 4096, Has: usage.HasMemory})},
		{`"swap":{"time":"` + second + `","swapAvailableBytes":7,"swapUsageBytes":0}`, one(usage.Sample{Has: usage.HasSwap})},
		{`"startTime":"` + second + `"`, one(usage.Sample{StartedAt: secondAt})},
		{`"startTime":null`, one(usage.Sample{})},
		{`"startTime":"1999-12-31T23:59:59Z"`, one(usage.Sample{})}, // too early for a container
		{`"startTime":"0001-01-01T00:00:00Z"`, bad(usage.BadTime)},

		// Ignored or missing.
		{``, one(usage.Sample{})},
		{`"cpu":null,"memory":null,"swap":null,"rootfs":null`, one(usage.Sample{})},
		{`"cpu":{},"memory":{},"swap":{}`, one(usage.Sample{})},
		{`"cpu":{"time":null,"usageNanoCores":null,"usageCoreNanoSeconds":null}`, one(usage.Sample{})},
		{`"CPU":{"usageCoreNanoSeconds":1},"Memory":{"workingSetBytes":1},"cpus":1,"":2`, one(usage.Sample{})},
		{`"x":[[],{},[{"cpu":{"usageCoreNanoSeconds":1}}],"]}",-0.5e+3,true,false,null],` +
			`"cpu":{"psi":{"full":{"avg10":1.25}},"usageCoreNanoSeconds":1000000000}`, one(cpuSample(1, scrapedAt))},

		// Order and duplicates.
		{`"cpu":{"usageCoreNanoSeconds":1000000000,"time":"` + second + `"}`, one(cpuSample(1, secondAt))},
		{`"cpu":{"usageCoreNanoSeconds":3,"usageCoreNanoSeconds":1000000000}`, one(cpuSample(1, scrapedAt))},
		{`"cpu":{"usageCoreNanoSeconds":1000000000,"usageCoreNanoSeconds":null}`, one(usage.Sample{})},
		{`"cpu":{"usageCoreNanoSeconds":1000000000},"cpu":{"usageNanoCores":5}`,
			one(usage.Sample{CPUSeconds: 1, Rate: 5, At: scrapedAt, Untimed: true, Has: usage.HasCPU | usage.HasRate})},
		{`"cpu":{"usageCoreNanoSeconds":1000000000},"cpu":null`, one(cpuSample(1, scrapedAt))},

		// Values.
		{`"cpu":{"usageCoreNanoSeconds":18446744073709551615}`, one(cpuSample(math.MaxUint64/1e9, scrapedAt))},
		{`"cpu":{"usageCoreNanoSeconds":18446744073709551616}`, bad(usage.BadValue)},
		{`"cpu":{"usageCoreNanoSeconds":-1}`, bad(usage.BadValue)},
		{`"cpu":{"usageCoreNanoSeconds":1.5}`, bad(usage.BadValue)},
		{`"cpu":{"usageCoreNanoSeconds":1e9}`, bad(usage.BadValue)},
		{`"cpu":{"usageCoreNanoSeconds":` + strings.Repeat("9", 1000) + `}`, bad(usage.BadValue)},
		{`"cpu":{"usageCoreNanoSeconds":"1"}`, notOfType()},
		{`"cpu":{"usageCoreNanoSeconds":true}`, notOfType()},
		{`"cpu":{"usageCoreNanoSeconds":[1]}`, notOfType()},
		{`"cpu":{"usageCoreNanoSeconds":{"value":1}}`, notOfType()},
		{`"cpu":{"usageNanoCores":9223372036854775807}`,
			one(usage.Sample{Rate: math.MaxInt64, At: scrapedAt, Untimed: true, Has: usage.HasRate})},
		{`"cpu":{"usageNanoCores":9223372036854775808}`, bad(usage.BadValue)},
		{`"memory":{"workingSetBytes":9223372036854775807}`,
			one(usage.Sample{Memory: math.MaxInt64, Has: usage.HasMemory})},
		{`"memory":{"workingSetBytes":9223372036854775808}`, bad(usage.BadValue)},
		{`"swap":{"swapUsageBytes":9223372036854775808}`, bad(usage.BadValue)},
		{`"cpu":{"usageNanoCores":-5,"usageCoreNanoSeconds":1000000000}`,
			one(cpuSample(1, scrapedAt)).skipping(usage.BadValue)},
		{`"cpu":5`, notOfType()},
		{`"cpu":"5"`, notOfType()},
		{`"memory":[]`, notOfType()},
		{`"swap":true`, notOfType()},
		{`"cpu":[],"memory":[]`, notOfType().skipping(usage.Malformed)},

		// Times.
		{`"cpu":{"time":"2026-11-20T21:16:07.25+01:00","usageCoreNanoSeconds":1000000000}`, one(cpuSample(1, secondAt+25e7))},
		{`"cpu":{"time":"2026-11-20T21:16:07.5Z","usageCoreNanoSeconds":1000000000}`,
			one(cpuSample(1, secondAt+36005e8))}, // an hour ahead
		{`"cpu":{"time":"2026-11-20T21:16:07.500000001Z","usageCoreNanoSeconds":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":"1970-01-01T00:00:00Z","usageCoreNanoSeconds":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":"0001-01-01T00:00:00Z","usageNanoCores":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":"9999-12-31T23:59:59Z","usageCoreNanoSeconds":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":"2026-02-29T00:00:00Z","usageCoreNanoSeconds":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":"","usageCoreNanoSeconds":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":"yesterday","usageCoreNanoSeconds":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":1795205767,"usageCoreNanoSeconds":1}`, one(usage.Sample{}).asPartial().skipping(usage.BadTime)},
		{`"memory":{"time":"yesterday","workingSetBytes":1}`, bad(usage.BadTime)},
		{`"swap":{"time":"yesterday","swapUsageBytes":1}`, bad(usage.BadTime)},
		{`"startTime":"2026-11-20T21:16:08Z"`, bad(usage.BadTime)},
		{`"startTime":{}`, one(usage.Sample{}).asPartial().skipping(usage.BadTime)},
		{`"memory":{"time":"yesterday","workingSetBytes":1},"cpu":{"usageCoreNanoSeconds":1000000000}`,
			one(cpuSample(1, scrapedAt)).skipping(usage.BadTime)},
	}
	decode := summaryDecoder(0)
	for _, tt := range tests {
		fields := tt.fields
		if fields != "" {
			fields = "," + fields
		}
		// A sample of the node keeps the response from being empty.
		text := `{"node":{"swap":{"swapUsageBytes":0}},"pods":[{"podRef":{"namespace":"n","name":"p"},` +
			`"containers":[{"name":"c"` + fields + `}]}]}`
		tt.want.node.Has = usage.HasSwap
		if got, err := decodeString(t, decode, text); err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: error %v\n got %+v\nwant %+v", tt.fields, err, got, tt.want)
		}
	}
}

func TestSummaryResponse(t *testing.T) {
	c := func(name, seconds string) string {
		return `{"name":"` + name + `","cpu":{"usageCoreNanoSeconds":` + seconds + `000000000}}`
	}
	pod := func(ref string, containers ...string) string {
		return `{"podRef":` + ref + `,"containers":[` + strings.Join(containers, ",") + `]}`
	}
	pods := func(pods ...string) string { return `{"pods":[` + strings.Join(pods, ",") + `]}` }
	const p, q = `{"name":"p","namespace":"n"}`, `{"name":"q","namespace":"n"}`
	const cpu1 = `"cpu":{"usageCoreNanoSeconds":1000000000}`
	podA := pod(p, c("a", "1"))
	x253, x254 := strings.Repeat("x", 253), strings.Repeat("x", 254)
	named := func(names ...string) (d decoded) { // containers with 1, 2, … core-seconds
		for i, name := range names {
			d.containers = append(d.containers, sample{name, cpuSample(float64(i+1), scrapedAt)})
		}
		return d
	}
	partial := func(n int, r usage.SkipReason) decoded { // only podA is left
		return named("n/p/a").asPartial().skipping(slices.Repeat([]usage.SkipReason{r}, n)...)
	}
	node := decoded{node: usage.Sample{At: secondAt, CPUSeconds: 1, Rate: 2, Memory: 3, Swap: 4,
		Has: usage.HasCPU | usage.HasRate | usage.HasMemory | usage.HasSwap}}
	const nodeFields = `"cpu":{"time":"` + second + `","usageCoreNanoSeconds":1000000000,"usageNanoCores":2},
		"memory":{"workingSetBytes":3},"swap":{"swapUsageBytes":4}`

	tests := []struct {
		name, text string
		want       decoded
	}{
		{"node", `{"node":{"nodeName":"node1","startTime":"` + second + `",` + nodeFields + `}}`, node},
		{"node without a name, null pods", `{"node":{` + nodeFields + `},"pods":null}`, node},
		{"no pods", `{"pods":[],"node":{"nodeName":"",` + nodeFields + `}}`, node},
		{"system containers", `{"node":{"systemContainers":[{"name":"kubelet","cpu":{"usageCoreNanoSeconds":9}}],` +
			nodeFields + `}}`, node},
		{"usage of a pod", pods(`{"cpu":{"usageCoreNanoSeconds":9},"podRef":` + p + `,"containers":[` + c("a", "1") +
			`],"memory":5}`), named("n/p/a")},
		{"order", pods(pod(p, c("b", "1"), c("a", "2")), pod(`{"name":"o","namespace":"n"}`, c("b", "3"))),
			named("n/p/b", "n/p/a", "n/o/b")},
		{"name of the pod last", pods(`{"containers":[` + c("a", "1") + `,` + c("b", "2") + `],"podRef":` + p + `}`),
			named("n/p/a", "n/p/b")},
		{"name of the container last", pods(pod(p, `{`+cpu1+`,"name":"a"}`)), named("n/p/a")},
		{"blanks", "\r\n\t { \"pods\" : [ " + pod(p, c("a", "1")+" \n") + " ,\n" + pod(p, c("b", "2")) + " ] } \n\n",
			named("n/p/a", "n/p/b")},
		{"escapes", pods(pod(`{"n\u0061me":"\u0070","\u006eamespace":"\"\\\/\b\f\n\r\t"}`,
			c(`\u00fc\u20AC\ud83d\ude00\u0000`, "1"))), named(`"\"\\/\b\f\n\r\t"/"p"/"ü€😀\x00"`)},
		{"half a surrogate pair", pods(pod(p, c(`\ud83d`, "1"), c(`\ude00x`, "2"), c(`\ud83d\u0041`, "3"),
			c(`\ud83d\n`, "4"))), named("n/p/\ufffd", "n/p/\ufffdx", "n/p/\ufffdA", "n/p/\ufffd\n")},
		{"unescaped characters", pods(pod(p, c("ü€😀\x7f", "1"))), named("n/p/ü€😀\x7f")},
		{"duplicate fields", pods(`{"podRef":{"name":"x","name":"p"},"podRef":{"namespace":"n"},"containers":[` +
			c("a", "1") + `],"containers":[` + c("b", "2") + `]}`), named("n/p/a", "n/p/b")},
		{"duplicate pods", `{"pods":[` + podA + `],"pods":[` + pod(p, c("b", "2")) + `]}`, named("n/p/a", "n/p/b")},
		{"duplicate container", pods(pod(p, c("a", "1"), c("a", "2"), c("b", "2")), pod(p, c("b", "3"), c("c", "3"))),
			named("n/p/a", "n/p/b", "n/p/c").skipping(usage.Duplicate, usage.Duplicate)},
		{"null elements", pods("null", pod(p, "null", c("a", "1"), "null")), named("n/p/a")},
		{"unnamed pod without containers", pods(`{}`, `{"containers":null}`, `{"podRef":{},"containers":[]}`, podA),
			named("n/p/a")},
		{"deep nesting", pods(podA + "," + strings.Repeat(`{"x":[`, 4000) + strings.Repeat("]}", 4000)), named("n/p/a")},

		{"unnamed containers", pods(podA, pod(q, `{"cpu":{}}`, `{"name":""}`, `{"name":null}`, c("b", "2"))),
			partial(3, usage.NoIdentity)},
		{"unnamed pods", pods(podA, pod(`{"namespace":"n"}`, c("b", "2")), pod(`{"name":"p"}`, c("c", "3")),
			pod("null", c("d", "4"))), partial(3, usage.NoIdentity)},
		{"long name", pods(pod(p, c(x253, "1")), pod(q, c("b", "2"), c(x254, "2"))),
			named("n/p/" + x253).asPartial().skipping(usage.OverLimit)},
		{"long name of a pod", pods(podA, pod(`{"name":"`+x254+`","namespace":"n"}`, c("b", "1"))),
			partial(1, usage.OverLimit)},
		{"invalid UTF-8", pods(podA, pod(q, c("\xff", "2"), c("b", "2"), c("\\n\xff", "2"))), partial(2, usage.Malformed)},
		{"pods of the wrong type", pods("5", `"x"`, "[]", "true", podA), partial(4, usage.Malformed)},
		{"containers of the wrong type", pods(podA, pod(q, "5", `"x"`, c("b", "2"), "[]", "false")),
			partial(4, usage.Malformed)},
		{"pod list of the wrong type", `{"node":{` + nodeFields + `},"pods":{}}`, node.asPartial().skipping(usage.Malformed)},
		{"container list of the wrong type", pods(podA, `{"containers":[`+c("b", "2")+`],"podRef":`+q+
			`,"containers":{"b":1}}`), partial(1, usage.Malformed)},
		{"skipped container in a duplicate pod", pods(pod(q, c("b", "2")), podA, pod(q, `{"name":""}`)),
			partial(1, usage.NoIdentity)},
		{"node of the wrong type", `{"node":"node1","pods":[` + podA + `]}`, partial(1, usage.Malformed)},
		{"names of the wrong type", pods(podA, pod(q, c("b", "2"), `{"name":5}`), pod(`{"name":[],"namespace":"n"}`),
			pod(`"n/p"`)), partial(3, usage.Malformed).skipping(usage.NoIdentity)},
	}
	decode := summaryDecoder(0) // reused: nothing may remain from one text to the next
	for _, tt := range tests {
		got, err := decodeString(t, decode, tt.text)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %.1000s: error %v\n got %+v\nwant %+v", tt.name, tt.text, err, got, tt.want)
		}
	}
}

func TestSummaryErrors(t *testing.T) {
	const good = `{"node":{"cpu":{"usageCoreNanoSeconds":1}}`
	tests := []struct {
		text string
		want error
	}{
		{"", errNotJSON},
		{"\x00", errNotJSON},
		{"<html>", errNotJSON},
		{"\ufeff" + good + "}", errNotJSON},
		{good, errNotJSON},
		{good + "} {}", errNotJSON},
		{good + `,"node":{"nodeName":"a`, errNotJSON},
		{good + `,"node":{"cpu":nul}}`, errNotJSON},
		{strings.Repeat("[", 1<<16), errNotJSON},
		{strings.Repeat("[", 1<<16) + strings.Repeat("]", 1<<16), errNotJSON},

		{"null", errNoSamples},
		{"5", errUndecodable},
		{`"text"`, errUndecodable},
		{"[]", errUndecodable},
		{"{}", errNoSamples},
		{`{"node":null,"pods":null}`, errNoSamples},
		{`{"node":{"nodeName":"node1"},"pods":[]}`, errNoSamples},
		{`{"node":{"cpu":{"usageCoreNanoSeconds":-1}}}`, errNoSamples},
		{`{"pods":[{"podRef":{"name":"p","namespace":"n"},"containers":[]}]}`, errNoSamples},

		{good + `,"node":{"nodeName":"node2"}}`, errOtherNode},
		{good + `,"node":{"nodeName":"Node1"}}`, errOtherNode},
		{good + `,"node":{"nodeName":"node2","nodeName":"node1"}}`, errOtherNode},
		{good + `,"node":{"nodeName":"` + strings.Repeat("x", 1000) + `"}}`, errOtherNode},
	}
	decode := summaryDecoder(0)
	for _, tt := range tests {
		_, err := decodeString(t, decode, tt.text)
		if !isLike(err, tt.want) || len(err.Error()) > 300 {
			t.Errorf("%.100q: got error %v, want %v", tt.text, err, tt.want)
		}
	}
}

// TestSummaryOfKubelet compares the two summaries of a kubelet. TestFormatsAgree compares the short one
// with the text.
func TestSummaryOfKubelet(t *testing.T) {
	const all = usage.HasCPU | usage.HasMemory | usage.HasSwap | usage.HasRate
	decode := summaryDecoder(0)
	want, err := decodeString(t, decode, string(readFile(t, shortSummary)))
	nodeAt := usage.Time(1795205765 * 1e9) // in whole seconds
	if err != nil || want.skipped != nil || want.partial || want.node.Has != all || want.node.Rate != 324418260 ||
		want.node.At != nodeAt || len(want.containers) != 6 {
		t.Fatalf("short summary: got %+v, error %v", want, err)
	}
	for _, c := range want.containers {
		if c.Has != all || c.At != secondAt || c.StartedAt%usage.Time(time.Second) != 0 {
			t.Errorf("short summary: got %+v", c)
		}
	}

	// The full summary was taken a little later, and lists the containers in another order.
	got, err := decodeString(t, decode, string(readFile(t, fullSummary)))
	if err != nil || got.skipped != nil || got.partial || got.node.Has != all ||
		len(got.containers) != len(want.containers) {
		t.Fatalf("full summary: got %+v, error %v", got, err)
	}
	for _, c := range got.containers {
		same := func(w sample) bool {
			return w.name == c.name && w.StartedAt == c.StartedAt && w.CPUSeconds <= c.CPUSeconds
		}
		if c.Has != all || !slices.ContainsFunc(want.containers, same) {
			t.Errorf("full summary: got %+v, want one of %+v", c, want.containers)
		}
	}
}
