package decode

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Real answers of one kubelet at one moment: with the parameter only_cpu_and_memory, and with all
// that it tells without it.
const (
	shortSummary = "testdata/kubelet-1.36-summary-cpu-memory.json"
	fullSummary  = "testdata/kubelet-1.36-summary.json"
)

const (
	second   = "2026-11-20T20:16:07Z" // when the figures of the tables are from
	secondAt = usage.Time(1795205767 * 1e9)
)

func readSummary(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// largeSummary is what a kubelet with that many pods answers.
func largeSummary(pods, containersPerPod int) []byte {
	k := kubelettest.New("node1", kubelettest.Config{Now: scrapedAt.Time, Boot: scrapedAt.Add(-time.Hour).Time()})
	k.SetNode(kubelettest.Usage{CPU: 1.5, Memory: 1 << 30})
	for p := range pods {
		for c := range containersPerPod {
			k.Run(fmt.Sprintf("namespace-%d", p%3), fmt.Sprintf("deployment-546ccb4d55-%05d", p), fmt.Sprintf("app-%d", c),
				kubelettest.Usage{CPU: 0.125, Memory: 1 << 20}, scrapedAt.Add(-time.Minute).Time())
		}
	}
	w := httptest.NewRecorder()
	k.ServeHTTP(w, httptest.NewRequest(http.MethodGet, kubelettest.SummaryPath+"?only_cpu_and_memory=true", nil))
	return w.Body.Bytes()
}

func decodeSummary(t testing.TB, d *Summary, text string) (decoded, error) {
	t.Helper()
	var dst usage.Scrape
	err := d.Decode(&dst, []byte(text), "node1", Times{At: scrapedAt})
	if dst.At != scrapedAt {
		t.Errorf("At = %v, want %v", dst.At, scrapedAt)
	}
	return summarize(&dst), err
}

func TestSummaryOfAKubelet(t *testing.T) {
	at := func(clock string) usage.Time {
		date, err := time.Parse(time.RFC3339, "2026-11-20T"+clock+"Z")
		if err != nil {
			t.Fatal(err)
		}
		return usage.At(date)
	}
	const all = usage.HasCPU | usage.HasMemory | usage.HasSwap | usage.HasRate
	container := func(name string, seconds float64, bytes uint64, started string) sample {
		return sample{name, usage.Sample{At: secondAt, MemoryAt: secondAt, StartedAt: at(started), CPUSeconds: seconds, Memory: bytes, Has: all}}
	}
	want := decoded{
		node: usage.Sample{At: at("20:16:05"), MemoryAt: at("20:16:05"), CPUSeconds: 2586.123634182, Rate: 324418260,
			Memory: 1349017600, Has: all},
		containers: []sample{
			container("kube-system/ms-metrics-server-6bc4c489c5-l8rsp/metrics-server", 1.095683029, 20992000, "20:13:21"),
			container("default/burn-546ccb4d55-l8f6l/burn", 25.12927584, 1662976, "20:11:44"),
			container("default/burn-546ccb4d55-l8f6l/mem", 0.13295599, 35459072, "20:11:45"),
			container("default/sidecar/side", 5.448537716, 1622016, "20:11:45"),
			container("default/burn-546ccb4d55-87knc/burn", 25.080507606, 1658880, "20:11:44"),
			container("default/burn-546ccb4d55-87knc/mem", 0.113232685, 35270656, "20:11:44"),
		},
	}
	var d Summary
	got, err := decodeSummary(t, &d, string(readSummary(t, shortSummary)))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("error %v\n got %+v\nwant %+v", err, got, want)
	}

	// The other one was taken a moment later. It has the same containers in another order, and
	// other figures that are whole.
	got, err = decodeSummary(t, &d, string(readSummary(t, fullSummary)))
	if err != nil || got.skipped != nil || got.partial || got.node.Has != all || len(got.containers) != len(want.containers) {
		t.Fatalf("all that a kubelet tells is read as %+v, error %v", got, err)
	}
	for _, c := range got.containers {
		same := func(w sample) bool {
			return w.name == c.name && w.StartedAt == c.StartedAt && w.CPUSeconds <= c.CPUSeconds
		}
		if c.Has != all || !slices.ContainsFunc(want.containers, same) {
			t.Errorf("%+v is none of %+v", c, want.containers)
		}
	}
}

// TestSummaryAgreesWithResource checks that a kubelet's two answers are read as the same readings,
// but for the times, which the summary has in whole seconds.
func TestSummaryAgreesWithResource(t *testing.T) {
	resource, err := decodeText(t, new(Text), string(realSample(t)))
	if err != nil {
		t.Fatal(err)
	}
	summary, err := decodeSummary(t, new(Summary), string(readSummary(t, shortSummary)))
	if err != nil {
		t.Fatal(err)
	}
	cut := func(s usage.Sample) usage.Sample {
		for _, at := range []*usage.Time{&s.At, &s.MemoryAt, &s.StartedAt} {
			*at -= *at % usage.Time(time.Second)
		}
		s.Rate, s.Has = 0, s.Has&^usage.HasRate
		return s
	}
	byName := map[string]usage.Sample{}
	for _, c := range resource.containers {
		byName[c.name] = cut(c.Sample)
	}
	if cut(summary.node) != cut(resource.node) {
		t.Errorf("the node's summary is %+v, its resource metrics %+v", summary.node, resource.node)
	}
	if len(summary.containers) != len(byName) {
		t.Errorf("%d containers in the summary, %d in the resource metrics", len(summary.containers), len(byName))
	}
	for _, c := range summary.containers {
		if cut(c.Sample) != byName[c.name] {
			t.Errorf("%s: the summary is %+v, the resource metrics %+v", c.name, c.Sample, byName[c.name])
		}
	}
}

func TestSummaryContainer(t *testing.T) {
	one := func(s usage.Sample) decoded { return decoded{containers: []sample{{"n/p/c", s}}} }
	cpu := func(seconds float64, at usage.Time) usage.Sample { return cpuSample(seconds, at) }
	without := func(partial bool, reasons ...usage.Reason) decoded { // the container is there, its reading is not
		d := one(usage.Sample{})
		d.partial, d.skipped = partial, map[usage.Reason]int{}
		for _, r := range reasons {
			d.skipped[r]++
		}
		return d
	}
	with := func(d decoded, s usage.Sample) decoded {
		d.containers = one(s).containers
		return d
	}
	bad := func(r usage.Reason) decoded { return without(false, r) }
	odd := without(true, usage.Malformed)

	tests := []struct {
		fields string // of the container, besides its name
		want   decoded
	}{
		// What kubelets write.
		{`"cpu":{"time":"` + second + `","usageNanoCores":5,"usageCoreNanoSeconds":1500000000}`,
			one(usage.Sample{CPUSeconds: 1.5, Rate: 5, At: secondAt, Has: usage.HasCPU | usage.HasRate})},
		{`"cpu":{"time":"` + second + `","usageNanoCores":0,"usageCoreNanoSeconds":0}`,
			one(usage.Sample{At: secondAt, Has: usage.HasCPU | usage.HasRate})},
		{`"cpu":{"time":"` + second + `","usageCoreNanoSeconds":25080507606}`, one(cpu(25.080507606, secondAt))},
		{`"cpu":{"time":"` + second + `"}`, one(usage.Sample{})},
		{`"memory":{"time":"` + second + `","usageBytes":7,"workingSetBytes":4096,"rssBytes":1}`,
			one(usage.Sample{Memory: 4096, MemoryAt: secondAt, Has: usage.HasMemory})},
		{`"swap":{"time":"` + second + `","swapAvailableBytes":7,"swapUsageBytes":0}`, one(usage.Sample{Has: usage.HasSwap})},
		{`"startTime":"` + second + `"`, one(usage.Sample{StartedAt: secondAt})},
		{`"startTime":null`, one(usage.Sample{})},
		{`"startTime":"1999-12-31T23:59:59Z"`, one(usage.Sample{})}, // no date of a container
		{`"startTime":"0001-01-01T00:00:00Z"`, bad(usage.BadTime)},

		// What is passed over, and what is as good as not there.
		{``, one(usage.Sample{})},
		{`"cpu":null,"memory":null,"swap":null,"rootfs":null`, one(usage.Sample{})},
		{`"cpu":{},"memory":{},"swap":{}`, one(usage.Sample{})},
		{`"cpu":{"time":null,"usageNanoCores":null,"usageCoreNanoSeconds":null}`, one(usage.Sample{})},
		{`"CPU":{"usageCoreNanoSeconds":1},"Memory":{"workingSetBytes":1},"cpus":1,"":2`, one(usage.Sample{})},
		{`"x":[[],{},[{"cpu":{"usageCoreNanoSeconds":1}}],"]}",-0.5e+3,true,false,null],"cpu":{"psi":{"full":{"avg10":1.25}},"usageCoreNanoSeconds":1000000000}`,
			one(cpu(1, scrapedAt))},

		// Order, and what is there more than once.
		{`"cpu":{"usageCoreNanoSeconds":1000000000,"time":"` + second + `"}`, one(cpu(1, secondAt))},
		{`"cpu":{"usageCoreNanoSeconds":3,"usageCoreNanoSeconds":1000000000}`, one(cpu(1, scrapedAt))},
		{`"cpu":{"usageCoreNanoSeconds":1000000000,"usageCoreNanoSeconds":null}`, one(usage.Sample{})},
		{`"cpu":{"usageCoreNanoSeconds":1000000000},"cpu":{"usageNanoCores":5}`,
			one(usage.Sample{CPUSeconds: 1, Rate: 5, At: scrapedAt, Untimed: true, Has: usage.HasCPU | usage.HasRate})},
		{`"cpu":{"usageCoreNanoSeconds":1000000000},"cpu":null`, one(cpu(1, scrapedAt))},

		// Values.
		{`"cpu":{"usageCoreNanoSeconds":18446744073709551615}`, one(cpu(math.MaxUint64/1e9, scrapedAt))},
		{`"cpu":{"usageCoreNanoSeconds":18446744073709551616}`, bad(usage.BadValue)},
		{`"cpu":{"usageCoreNanoSeconds":-1}`, bad(usage.BadValue)},
		{`"cpu":{"usageCoreNanoSeconds":1.5}`, bad(usage.BadValue)},
		{`"cpu":{"usageCoreNanoSeconds":1e9}`, bad(usage.BadValue)},
		{`"cpu":{"usageCoreNanoSeconds":` + strings.Repeat("9", 1000) + `}`, bad(usage.BadValue)},
		{`"cpu":{"usageCoreNanoSeconds":"1"}`, odd},
		{`"cpu":{"usageCoreNanoSeconds":true}`, odd},
		{`"cpu":{"usageCoreNanoSeconds":[1]}`, odd},
		{`"cpu":{"usageCoreNanoSeconds":{"value":1}}`, odd},
		{`"cpu":{"usageNanoCores":9223372036854775807}`, one(usage.Sample{Rate: math.MaxInt64, At: scrapedAt, Untimed: true, Has: usage.HasRate})},
		{`"cpu":{"usageNanoCores":9223372036854775808}`, bad(usage.BadValue)},
		{`"memory":{"workingSetBytes":9223372036854775807}`,
			one(usage.Sample{Memory: math.MaxInt64, MemoryAt: scrapedAt, Has: usage.HasMemory})},
		{`"memory":{"workingSetBytes":9223372036854775808}`, bad(usage.BadValue)},
		{`"swap":{"swapUsageBytes":9223372036854775808}`, bad(usage.BadValue)},
		{`"cpu":{"usageNanoCores":-5,"usageCoreNanoSeconds":1000000000}`, with(bad(usage.BadValue), cpu(1, scrapedAt))},
		{`"cpu":5`, odd},
		{`"cpu":"5"`, odd},
		{`"memory":[]`, odd},
		{`"swap":true`, odd},
		{`"cpu":[],"memory":[]`, without(true, usage.Malformed, usage.Malformed)},

		// Times.
		{`"cpu":{"time":"2026-11-20T21:16:07.25+01:00","usageCoreNanoSeconds":1000000000}`, one(cpu(1, secondAt+25e7))},
		{`"cpu":{"time":"2026-11-20T21:16:07.5Z","usageCoreNanoSeconds":1000000000}`, one(cpu(1, secondAt+36005e8))}, // ahead by an hour
		{`"cpu":{"time":"2026-11-20T21:16:07.500000001Z","usageCoreNanoSeconds":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":"1970-01-01T00:00:00Z","usageCoreNanoSeconds":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":"0001-01-01T00:00:00Z","usageNanoCores":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":"9999-12-31T23:59:59Z","usageCoreNanoSeconds":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":"2026-02-29T00:00:00Z","usageCoreNanoSeconds":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":"","usageCoreNanoSeconds":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":"yesterday","usageCoreNanoSeconds":1}`, bad(usage.BadTime)},
		{`"cpu":{"time":1795205767,"usageCoreNanoSeconds":1}`, without(true, usage.BadTime)},
		{`"memory":{"time":"yesterday","workingSetBytes":1}`, bad(usage.BadTime)},
		{`"swap":{"time":"yesterday","swapUsageBytes":1}`, bad(usage.BadTime)},
		{`"startTime":"2026-11-20T21:16:08Z"`, bad(usage.BadTime)},
		{`"startTime":{}`, without(true, usage.BadTime)},
		{`"memory":{"time":"yesterday","workingSetBytes":1},"cpu":{"usageCoreNanoSeconds":1000000000}`,
			with(bad(usage.BadTime), cpu(1, scrapedAt))},
	}
	var d Summary
	for _, tt := range tests {
		fields := tt.fields
		if fields != "" {
			fields = "," + fields
		}
		// A reading of the node keeps the summary from being useless.
		text := `{"node":{"swap":{"swapUsageBytes":0}},"pods":[{"podRef":{"namespace":"n","name":"p"},"containers":[{"name":"c"` + fields + `}]}]}`
		tt.want.node.Has = usage.HasSwap
		if got, err := decodeSummary(t, &d, text); err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: error %v\n got %+v\nwant %+v", tt.fields, err, got, tt.want)
		}
	}
}

func TestSummaryText(t *testing.T) {
	c := func(name, seconds string) string {
		return `{"name":"` + name + `","cpu":{"usageCoreNanoSeconds":` + seconds + `000000000}}`
	}
	pod := func(ref string, containers ...string) string {
		return `{"podRef":` + ref + `,"containers":[` + strings.Join(containers, ",") + `]}`
	}
	pods := func(pods ...string) string { return `{"pods":[` + strings.Join(pods, ",") + `]}` }
	const p, q = `{"name":"p","namespace":"n"}`, `{"name":"q","namespace":"n"}`
	named := func(names ...string) []sample {
		var list []sample
		for i, name := range names {
			list = append(list, sample{name, cpuSample(float64(i+1), scrapedAt)})
		}
		return list
	}
	lost := func(r usage.Reason, n int, names ...string) decoded {
		return decoded{containers: named(names...), partial: true, skipped: map[usage.Reason]int{r: n}}
	}
	node := decoded{node: usage.Sample{At: secondAt, MemoryAt: scrapedAt, CPUSeconds: 1, Rate: 2, Memory: 3, Swap: 4,
		Has: usage.HasCPU | usage.HasRate | usage.HasMemory | usage.HasSwap}}
	const nodeFields = `"cpu":{"time":"` + second + `","usageCoreNanoSeconds":1000000000,"usageNanoCores":2},
		"memory":{"workingSetBytes":3},"swap":{"swapUsageBytes":4}`

	tests := []struct {
		name, text string
		want       decoded
	}{
		{"a node", `{"node":{"nodeName":"node1","startTime":"` + second + `",` + nodeFields + `}}`, node},
		{"a node without its name, and pods that are not there", `{"node":{` + nodeFields + `},"pods":null}`, node},
		{"no pods", `{"pods":[],"node":{"nodeName":"",` + nodeFields + `}}`, node},
		{"the node's parts are not the node", `{"node":{"systemContainers":[{"name":"kubelet","cpu":{"usageCoreNanoSeconds":9}}],` +
			nodeFields + `}}`, node},
		{"a pod's own figures", pods(`{"cpu":{"usageCoreNanoSeconds":9},"podRef":` + p + `,"containers":[` + c("c", "1") + `],"memory":5}`),
			decoded{containers: named("n/p/c")}},
		{"pods and containers in their order", pods(pod(p, c("b", "1"), c("a", "2")), pod(`{"name":"o","namespace":"n"}`, c("b", "3"))),
			decoded{containers: named("n/p/b", "n/p/a", "n/o/b")}},
		{"the name of the pod comes last", pods(`{"containers":[` + c("a", "1") + `,` + c("b", "2") + `],"podRef":` + p + `}`),
			decoded{containers: named("n/p/a", "n/p/b")}},
		{"the name of the container comes last", pods(pod(p, `{"cpu":{"usageCoreNanoSeconds":1000000000},"name":"c"}`)),
			decoded{containers: named("n/p/c")}},
		{"blanks", "\r\n\t { \"pods\" : [ " + pod(p, c("a", "1")+" \n") + " ,\n" + pod(p, c("b", "2")) + " ] } \n\n",
			decoded{containers: named("n/p/a", "n/p/b")}},
		{"escapes", pods(pod(`{"n\u0061me":"\u0070","\u006eamespace":"\"\\\/\b\f\n\r\t"}`, c(`\u00fc\u20AC\ud83d\ude00\u0000`, "1"))),
			decoded{containers: named("\"\\/\b\f\n\r\t/p/ü€😀\x00")}},
		{"half a surrogate pair", pods(pod(p, c(`\ud83d`, "1"), c(`\ude00x`, "2"), c(`\ud83d\u0041`, "3"), c(`\ud83d\n`, "4"))),
			decoded{containers: named("n/p/\ufffd", "n/p/\ufffdx", "n/p/\ufffdA", "n/p/\ufffd\n")}},
		{"characters that need no escape", pods(pod(p, c("ü€😀\x7f/", "1"))), decoded{containers: named("n/p/ü€😀\x7f/")}},
		{"fields twice", pods(`{"podRef":{"name":"x","name":"p"},"podRef":{"namespace":"n"},"containers":[` + c("a", "1") + `],"containers":[` +
			c("b", "2") + `]}`), decoded{containers: named("n/p/a", "n/p/b")}},
		{"pods twice", `{"pods":[` + pod(p, c("a", "1")) + `],"pods":[` + pod(p, c("b", "2")) + `]}`,
			decoded{containers: named("n/p/a", "n/p/b")}},
		{"a container twice", pods(pod(p, c("a", "1"), c("a", "2"), c("b", "2")), pod(p, c("b", "3"), c("c", "3"))),
			decoded{containers: named("n/p/a", "n/p/b", "n/p/c"), skipped: map[usage.Reason]int{usage.Duplicate: 2}}},
		{"null among others", pods("null", pod(p, "null", c("a", "1"), "null")), decoded{containers: named("n/p/a")}},

		{"no name of a container", pods(pod(p, c("a", "1")), pod(q, `{"cpu":{}}`, `{"name":""}`, `{"name":null}`, c("b", "2"))),
			lost(usage.NoIdentity, 3, "n/p/a")},
		{"no name of a pod", pods(pod(p, c("a", "1")), pod(`{"namespace":"n"}`, c("b", "2")), pod(`{"name":"p"}`, c("c", "3")),
			pod("null", c("d", "4"))), lost(usage.NoIdentity, 3, "n/p/a")},
		{"no name of a pod without containers", pods(`{}`, `{"containers":null}`, `{"podRef":{},"containers":[]}`, pod(p, c("a", "1"))),
			decoded{containers: named("n/p/a")}},
		{"a long name", pods(pod(p, c(strings.Repeat("x", 253), "1")), pod(q, c("b", "2"), c(strings.Repeat("x", 254), "2"))),
			lost(usage.OverLimit, 1, "n/p/"+strings.Repeat("x", 253))},
		{"a long name of a pod", pods(pod(p, c("a", "1")), pod(`{"name":"`+strings.Repeat("x", 254)+`","namespace":"n"}`, c("b", "1"))),
			lost(usage.OverLimit, 1, "n/p/a")},
		{"no UTF-8", pods(pod(p, c("a", "1")), pod(q, c("\xff", "2"), c("b", "2"), c("\\n\xff", "2"))), lost(usage.Malformed, 2, "n/p/a")},
		{"pods that are none", pods("5", `"x"`, "[]", "true", pod(p, c("a", "1"))), lost(usage.Malformed, 4, "n/p/a")},
		{"containers that are none", pods(pod(p, c("a", "1")), pod(q, "5", `"x"`, c("b", "2"), "[]", "false")), lost(usage.Malformed, 4, "n/p/a")},
		{"no list", `{"node":{` + nodeFields + `},"pods":{}}`, decoded{node: node.node, partial: true,
			skipped: map[usage.Reason]int{usage.Malformed: 1}}},
		{"no list of containers", pods(pod(p, c("a", "1")), `{"containers":[`+c("b", "2")+`],"podRef":`+q+`,"containers":{"b":1}}`),
			lost(usage.Malformed, 1, "n/p/a")},
		{"a pod of which a part comes later", pods(pod(q, c("b", "2")), pod(p, c("a", "1")), pod(q, `{"name":""}`)), lost(usage.NoIdentity, 1, "n/p/a")},
		{"no node", `{"node":"node1","pods":[` + pod(p, c("a", "1")) + `]}`, lost(usage.Malformed, 1, "n/p/a")},
		{"names that are none", pods(pod(p, c("a", "1")), pod(q, c("b", "2"), `{"name":5}`), pod(`{"name":[],"namespace":"n"}`), pod(`"n/p"`)),
			decoded{containers: named("n/p/a"), partial: true, skipped: map[usage.Reason]int{usage.Malformed: 3, usage.NoIdentity: 1}}},
		{"the deepest nesting", pods(pod(p, c("a", "1")) + "," + strings.Repeat(`{"x":[`, 15) + strings.Repeat("]}", 15)),
			decoded{containers: named("n/p/a")}},
	}
	var d Summary // reused on purpose: nothing may stay from one text to the next
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decodeSummary(t, &d, tt.text)
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s: error %v\n got %+v\nwant %+v", tt.text, err, got, tt.want)
			}
		})
	}
}

func TestSummaryFails(t *testing.T) {
	const good = `{"node":{"cpu":{"usageCoreNanoSeconds":1}}`
	nested := func(levels int) string {
		return good + `,"x":` + strings.Repeat("[", levels) + strings.Repeat("]", levels) + "}"
	}
	tests := []struct {
		text string
		want error
	}{
		{"", ErrNotJSON},
		{" \n", ErrNotJSON},
		{"\x00", ErrNotJSON},
		{"<html>", ErrNotJSON},
		{"\ufeff" + good + "}", ErrNotJSON},
		{good, ErrNotJSON},
		{good + "}}", ErrNotJSON},
		{good + "} x", ErrNotJSON},
		{good + "} {}", ErrNotJSON},
		{good + "}\x00", ErrNotJSON},
		{good + ",}", ErrNotJSON},
		{good + `,"pods":[1,]}`, ErrNotJSON},
		{good + `,"pods":[,1]}`, ErrNotJSON},
		{good + `,"pods":[1 2]}`, ErrNotJSON},
		{good + `,"pods":[1}}`, ErrNotJSON},
		{good + `,"pods"}`, ErrNotJSON},
		{good + `,"pods":}`, ErrNotJSON},
		{good + `,"pods" []}`, ErrNotJSON},
		{good + `,pods:[]}`, ErrNotJSON},
		{good + `,5:[]}`, ErrNotJSON},
		{good + ` "pods":[]}`, ErrNotJSON},
		{good + `,"node":{"nodeName":"a` + "\n" + `"}}`, ErrNotJSON},
		{good + `,"node":{"nodeName":"a\n` + "\n" + `"}}`, ErrNotJSON},
		{good + `,"node":{"nodeName":"\x"}}`, ErrNotJSON},
		{good + `,"node":{"nodeName":"\u12g4"}}`, ErrNotJSON},
		{good + `,"node":{"nodeName":"\u12`, ErrNotJSON},
		{good + `,"node":{"nodeName":"\`, ErrNotJSON},
		{good + `,"node":{"nodeName":"\n`, ErrNotJSON},
		{good + `,"node":{"nodeName":"a`, ErrNotJSON},
		{good + `,"node":{"nodeName":'a'}}`, ErrNotJSON},
		{good + `,"node":{"cpu":{"time":"` + second + `}}}`, ErrNotJSON},
		{good + `,"node":{"cpu":{"usageNanoCores":01}}}`, ErrNotJSON},
		{good + `,"node":{"cpu":{"usageNanoCores":-}}}`, ErrNotJSON},
		{good + `,"node":{"cpu":{"usageNanoCores":+1}}}`, ErrNotJSON},
		{good + `,"node":{"cpu":{"usageNanoCores":1.}}}`, ErrNotJSON},
		{good + `,"node":{"cpu":{"usageNanoCores":.5}}}`, ErrNotJSON},
		{good + `,"node":{"cpu":{"usageNanoCores":1e}}}`, ErrNotJSON},
		{good + `,"node":{"cpu":{"usageNanoCores":1e+}}}`, ErrNotJSON},
		{good + `,"node":{"cpu":{"usageNanoCores":NaN}}}`, ErrNotJSON},
		{good + `,"node":{"cpu":nul}}`, ErrNotJSON},
		{good + `,"node":{"cpu":nullify}}`, ErrNotJSON},
		{good + `,"node":{"cpu":True}}`, ErrNotJSON},
		{good + `,"x":tru`, ErrNotJSON},
		{good + `,"x":/* a comment */1}`, ErrNotJSON},

		{nested(10000), ErrNotJSON},
		{strings.Repeat("[", 1<<16), ErrNotJSON},
		{strings.Repeat(`{"":`, 1<<16), ErrNotJSON},

		{"null", ErrNoSamples},
		{"5", ErrNoSamples},
		{`"text"`, ErrNoSamples},
		{"[]", ErrNoSamples},
		{"{}", ErrNoSamples},
		{`{"node":null,"pods":null}`, ErrNoSamples},
		{`{"node":{"nodeName":"node1"},"pods":[]}`, ErrNoSamples},
		{`{"node":{"cpu":{"usageCoreNanoSeconds":-1}}}`, ErrNoSamples},
		{`{"pods":[{"podRef":{"name":"p","namespace":"n"},"containers":[]}]}`, ErrNoSamples},

		{good + `,"node":{"nodeName":"node2"}}`, ErrOtherNode},
		{good + `,"node":{"nodeName":"Node1"}}`, ErrOtherNode},
		{good + `,"node":{"nodeName":"node2","nodeName":"node1"}}`, ErrOtherNode},
	}
	var d Summary
	for _, tt := range tests {
		_, err := decodeSummary(t, &d, tt.text)
		if !errors.Is(err, tt.want) {
			t.Errorf("decode(%.100q) = %v, want %v", tt.text, err, tt.want)
		}
		if len(err.Error()) > 300 {
			t.Errorf("decode(%.100q) says too much: %v", tt.text, err)
		}
	}
	if got, err := decodeSummary(t, &d, nested(9999)); err != nil || got.node.Has != usage.HasCPU {
		t.Errorf("nesting that is allowed gives %+v, error %v", got, err)
	}
}

func TestSummaryLimits(t *testing.T) {
	node := `{"node":{"cpu":{"usageCoreNanoSeconds":1}}}`
	d := Summary{Limits: Limits{MaxContainers: 51, MaxLabelBytes: 30}}
	for _, tt := range []struct {
		name, text          string
		containers, skipped int
	}{
		{"many pods", string(largeSummary(40, 2)), 50, 15}, // one of two containers of each further pod
		{"many containers", string(largeSummary(1, 80)), 0, 29},
	} {
		got, err := decodeSummary(t, &d, tt.text)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		want := map[usage.Reason]int{usage.OverLimit: tt.skipped}
		if len(got.containers) != tt.containers || !reflect.DeepEqual(got.skipped, want) || !got.partial {
			t.Errorf("%s: %d containers, skipped %v, partial %v; want %d, %v, true", tt.name, len(got.containers), got.skipped, got.partial,
				tt.containers, want)
		}
	}
	d.Limits.MaxLabelBytes = 20
	got, err := decodeSummary(t, &d, string(largeSummary(3, 2))) // the names of pods are longer
	if want := (map[usage.Reason]int{usage.OverLimit: 6}); err != nil || len(got.containers) != 0 || !reflect.DeepEqual(got.skipped, want) {
		t.Errorf("%d containers, skipped %v, error %v; want 0, %v, nil", len(got.containers), got.skipped, err, want)
	}
	if got, err := decodeSummary(t, &d, node); err != nil || got.partial {
		t.Errorf("the next summary is read as %+v, error %v", got, err)
	}
}

// TestSummaryReuse checks that nothing of one summary shows in the next, and that the decoder keeps
// nothing of either.
func TestSummaryReuse(t *testing.T) {
	large, real := largeSummary(40, 3), readSummary(t, shortSummary)
	var d Summary
	var dst, fresh usage.Scrape
	if err := new(Summary).Decode(&fresh, real, "node1", Times{At: scrapedAt}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := d.Decode(&dst, large, "node1", Times{At: scrapedAt}); err != nil || len(dst.Containers) != 120 {
			t.Fatalf("%d containers, error %v; want 120", len(dst.Containers), err)
		}
		if err := d.Decode(&dst, large[:len(large)/2], "node1", Times{At: scrapedAt}); !errors.Is(err, ErrNotJSON) {
			t.Fatalf("half a summary gives %v, want an error", err)
		}
		if err := d.Decode(&dst, real, "node1", Times{At: scrapedAt}); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(dst, fresh) {
			t.Fatalf("a reused decoder gives %+v, a new one %+v", dst, fresh)
		}
		if d.dst != nil || d.json.text != nil {
			t.Fatalf("the decoder keeps what belongs to others: %+v", d)
		}
	}
}

func TestSummaryAllocates(t *testing.T) {
	for name, text := range map[string][]byte{
		"short":      readSummary(t, shortSummary),
		"full":       readSummary(t, fullSummary),
		"large":      largeSummary(30, 2),
		"very large": largeSummary(200, 2),
	} {
		var d Summary
		var dst usage.Scrape
		decode := func() {
			if err := d.Decode(&dst, text, "node1", Times{At: scrapedAt}); err != nil {
				t.Fatal(err)
			}
		}
		decode()
		if n := testing.AllocsPerRun(20, decode); n != 0 {
			t.Errorf("decoding a %s summary again allocates %v times, want 0", name, n)
		}
	}
}
