package decode

import (
	"encoding/json"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	podP = `{"name":"p","namespace":"n"}`
	podQ = `{"name":"q","namespace":"n"}`
	cpu1 = `"cpu":{"usageCoreNanoSeconds":1000000000}`
)

// podsOf returns a summary with pods.
func podsOf(pods ...string) string { return `{"pods":[` + strings.Join(pods, ",") + `]}` }

func podOf(ref string, containers ...string) string {
	return `{"podRef":` + ref + `,"containers":[` + strings.Join(containers, ",") + `]}`
}

// named returns a container that has used a core-second.
func named(name string) string { return `{"name":"` + name + `",` + cpu1 + `}` }

// TestSummary decodes summaries with and without faults.
func TestSummary(t *testing.T) {
	podA := podOf(podP, named("a"))
	withCPU := func(names ...string) (d decoded) {
		for _, name := range names {
			d.containers = append(d.containers, sample{name, cpuSample(1, scrapedAt)})
		}
		return d
	}
	onlyA := withCPU("n/p/a")
	skipped := func(pods ...string) string { return podsOf(append(pods, podA)...) }
	long := strings.Repeat("x", 254)
	for _, tt := range []struct {
		text string
		want decoded
	}{
		{`{"node":{"nodeName":"node1","startTime":"` + second + `","cpu":{"time":"` + second +
			`","usageCoreNanoSeconds":1500000000,"usageNanoCores":2},"memory":{"workingSetBytes":3},` +
			`"swap":{"swapUsageBytes":4}}}`, decoded{node: usage.Sample{
			At: secondAt, CPUSeconds: 1.5, Rate: 2, Memory: 3, Swap: 4,
			Has: usage.HasCPU | usage.HasRate | usage.HasMemory | usage.HasSwap,
		}}},
		{podsOf(podOf(podP, named("b"), named("a")), podOf(podQ, named("b"))), withCPU("n/p/b", "n/p/a", "n/q/b")},
		{`{"node":null,"pods":[{"containers":[` + named("a") + `],"cpu":5,"podRef":` + podP + `}]}`, onlyA},
		{"\r\n\t { \"pods\" : [ " + podOf(podP, named("a")+" \n") + " ] } \n\n", onlyA},
		{podsOf(podOf(`{"n\u0061me":"\u0070","\u006eamespace":"n"}`,
			named(`\u00fc\u20AC\ud83d\ude00ü€😀\"\\`))),
			withCPU("n/p/ü€😀ü€😀\"\\")},
		{podsOf(podOf(podP, named(long[:253]))), withCPU("n/p/" + long[:253])},

		{`{"node":{"nodeName":"node1","cpu":5},"pods":[` + podA + `]}`, onlyA.asPartial().skipping(usage.Malformed)},

		// Null and nothing.
		{skipped("null", "{}", `{"containers":null}`, podOf("{}"), `{"containers":[],"podRef":null}`), onlyA},
		{skipped(podOf(podQ, `{"name":null}`, named("b"))), onlyA.asPartial().skipping(usage.NoIdentity)},
		{skipped(podOf(podQ, "null", named("b"))), onlyA.asPartial().skipping(usage.NoIdentity)},

		// Pods that cannot be decoded, or have no valid names.
		{skipped("5", `"x"`, "[]", "true"), onlyA.asPartial().
			skipping(usage.Malformed, usage.Malformed, usage.Malformed, usage.Malformed)},
		{skipped(podOf(podQ, named("b"), `{"name":5,"x":[[{}]]}`)), onlyA.asPartial().skipping(usage.Malformed)},
		{skipped(podOf(podQ, named("b"), `[[{"name":"c"}]]`)), onlyA.asPartial().skipping(usage.Malformed)},
		{skipped(`{"podRef":` + podQ + `,"containers":{"b":[1]}}`), onlyA.asPartial().skipping(usage.Malformed)},
		{skipped(podOf(`{"name":[],"namespace":"n"}`, named("b"))), onlyA.asPartial().skipping(usage.Malformed)},
		{skipped(podOf(`"n/p"`, named("b"))), onlyA.asPartial().skipping(usage.Malformed)},
		{skipped(podOf(podQ, `{"name":""}`, named("b"))), onlyA.asPartial().skipping(usage.NoIdentity)},
		{skipped(podOf(`{"namespace":"n"}`, named("b"))), onlyA.asPartial().skipping(usage.NoIdentity)},
		{skipped(podOf("null", named("b"))), onlyA.asPartial().skipping(usage.NoIdentity)},
		{skipped(podOf(podQ, named("b"), named(`c\u001b[2J`))), onlyA.asPartial().skipping(usage.Malformed)},
		{skipped(podOf(podQ, named("b"), named(long))), onlyA.asPartial().skipping(usage.OverLimit)},
		{skipped(podOf(`{"name":"`+long+`","namespace":"n"}`, named("b"))), onlyA.asPartial().skipping(usage.OverLimit)},
		{skipped(`{"podRef":` + podQ + `,"containers":[` + strings.Repeat("{},", maxPodContainers) + "{}]}"),
			onlyA.asPartial().skipping(usage.OverLimit)},
		{skipped(strings.Repeat(`{"x":[`, 4000) + strings.Repeat("]}", 4000)), onlyA},

		// Duplicates.
		{podsOf(`{"podRef":{"name":"x","name":"p"},"podRef":{"namespace":"n"},"containers":[` + named("b") +
			`],"containers":[` + named("a") + `]}`), onlyA},
		{`{"pods":[` + podA + `],"pods":[` + podOf(podP, named("b")) + `]}`, withCPU("n/p/a", "n/p/b")},
		{podsOf(podOf(podP, named("a"), named("a"), named("b")), podOf(podP, named("b"), named("c"))),
			withCPU("n/p/a", "n/p/b", "n/p/c").skipping(usage.Duplicate, usage.Duplicate)},
		{podsOf(podOf(podQ, named("b")), podA, podOf(podQ, `{"name":""}`)), onlyA.asPartial().skipping(usage.NoIdentity)},
	} {
		got, err := decodeString(t, summaryDecoder(enough), tt.text)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%.1000s: error %v\n got %+v\nwant %+v", tt.text, err, got, tt.want)
		}
	}
}

// TestSummaryValues decodes a container with each kind of value.
func TestSummaryValues(t *testing.T) {
	const counter, rate = `"cpu":{"usageCoreNanoSeconds":`, `"cpu":{"usageNanoCores":`
	const largest, tooLarge = "9223372036854775807", "9223372036854775808"
	none := usage.Sample{}
	one := cpuSample(1e-9, scrapedAt)
	started := func(at usage.NodeTime) usage.Sample { return usage.Sample{StartedAt: at} }
	timed := func(at usage.NodeTime) usage.Sample { return cpuSample(1e-9, at) }
	withRate := func(s usage.Sample, rate uint64) usage.Sample {
		s.At, s.Untimed, s.Rate, s.Has = scrapedAt, true, rate, s.Has|usage.HasRate
		return s
	}
	for _, tt := range []struct {
		fields  string
		want    usage.Sample
		skipped []usage.SkipReason
	}{
		{`"cpu":null,"memory":null,"swap":null,"startTime":null,"rootfs":5`, none, nil},
		{`"cpu":{},"memory":{},"swap":{}`, none, nil},
		{`"cpu":{"time":null,"usageNanoCores":null,"usageCoreNanoSeconds":null}`, none, nil},
		{`"cpu":{"time":"` + second + `"}`, none, nil},
		{`"CPU":{"usageCoreNanoSeconds":1},"cpus":1,"":2`, none, nil},
		{`"x":[[],{},[{` + cpu1 + `}],"]}",-0.5e+3,true,false,null],"cpu":{"psi":{"full":1.25},"usageNanoCores":1}`,
			withRate(none, 1), nil},
		{counter + `3,"usageCoreNanoSeconds":1}`, one, nil},
		{counter + `1,"usageCoreNanoSeconds":null}`, none, nil},
		{counter + `1},` + rate + `5}`, withRate(one, 5), nil},
		{cpu1 + `,"cpu":null`, none, nil},

		{counter + `18446744073709551615}`, cpuSample(18446744073709551615/1e9, scrapedAt), nil},
		{counter + `1,"usageNanoCores":` + tooLarge + `}`, one, []usage.SkipReason{usage.BadValue}},
		{rate + `0}`, withRate(none, 0), nil},
		{rate + largest + `}`, withRate(none, math.MaxInt64), nil},
		{rate + tooLarge + `}`, none, []usage.SkipReason{usage.BadValue}},
		{`"memory":{"workingSetBytes":` + largest + `}`, usage.Sample{Memory: math.MaxInt64, Has: usage.HasMemory}, nil},
		{`"memory":{"workingSetBytes":` + tooLarge + `}`, none, []usage.SkipReason{usage.BadValue}},
		{`"swap":{"swapUsageBytes":1}`, usage.Sample{Swap: 1, Has: usage.HasSwap}, nil},
		{`"swap":{"swapUsageBytes":` + tooLarge + `}`, none, []usage.SkipReason{usage.BadValue}},

		{counter + `1,"time":"2026-11-20T21:16:07.25+01:00"}`, timed(secondAt + 250e6), nil},
		{counter + `1,"time":"2026-11-20T21:16:07.5Z"}`, timed(scrapedAt.Add(time.Hour)), nil},
		{counter + `1,"time":"2026-11-20T21:16:07.500000001Z"}`, none, []usage.SkipReason{usage.BadTime}},
		{counter + `1,"time":"1970-01-01T00:00:00Z"}`, none, []usage.SkipReason{usage.BadTime}},
		{counter + `1,"time":"0001-01-01T00:00:00Z"}`, none, []usage.SkipReason{usage.BadTime}},
		{counter + `1,"time":"9999-12-31T23:59:59Z"}`, none, []usage.SkipReason{usage.BadTime}},
		{counter + `1,"time":"2026-02-29T00:00:00Z"}`, none, []usage.SkipReason{usage.BadTime}},
		{counter + `1,"time":""}`, none, []usage.SkipReason{usage.BadTime}},
		{counter + `1},"memory":{"time":"yesterday","workingSetBytes":1}`, one, []usage.SkipReason{usage.BadTime}},
		{`"swap":{"time":"yesterday","swapUsageBytes":1}`, none, []usage.SkipReason{usage.BadTime}},
		{`"startTime":"` + second + `"`, started(secondAt), nil},
		{`"startTime":"2000-01-01T00:00:00Z"`, started(usage.OldestStart * 1e9), nil},
		{`"startTime":"1999-12-31T23:59:59Z"`, none, nil},
		{`"startTime":"0001-01-01T00:00:00Z"`, none, []usage.SkipReason{usage.BadTime}},
		{`"startTime":"2026-11-20T21:16:08Z"`, none, []usage.SkipReason{usage.BadTime}},
	} {
		want := decoded{node: cpuSample(1, scrapedAt), containers: []sample{{"n/p/c", tt.want}}}.skipping(tt.skipped...)
		text := `{"node":{` + cpu1 + `},"pods":[` + podOf(podP, `{"name":"c",`+tt.fields+`}`) + `]}`
		if got, err := decodeString(t, summaryDecoder(enough), text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: error %v\n got %+v\nwant %+v", tt.fields, err, got, want)
		}
	}
	// A value of a wrong type, or that is no integer of 64 bits.
	want := decoded{node: cpuSample(1, scrapedAt)}.asPartial().skipping(usage.Malformed)
	for _, fields := range []string{
		counter + `18446744073709551616}`, counter + `-1}`, counter + `1.5}`, counter + `1e9}`, counter + `"1"}`,
		counter + strings.Repeat("9", 1000) + `}`, counter + `true}`, counter + `[1]}`, counter + `{"value":1}}`,
		rate + `-5}`, `"cpu":5`, `"cpu":"5"`, `"memory":[]`, `"swap":true`, `"cpu":[],"memory":[]`,
		counter + `1,"time":1795205767}`, `"startTime":{}`,
	} {
		text := `{"node":{` + cpu1 + `},"pods":[` + podOf(podP, `{"name":"c",`+fields+`}`) + `]}`
		if got, err := decodeString(t, summaryDecoder(enough), text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%.1000s: error %v\n got %+v\nwant %+v", fields, err, got, want)
		}
	}
}

func TestSummaryErrors(t *testing.T) {
	const good = `{"node":{"cpu":{"usageCoreNanoSeconds":1}}`
	decode := summaryDecoder(enough)
	for want, texts := range map[reason.Reason][]string{
		reason.Undecodable: {
			"", "\x00", "<html>", "\ufeff" + good + "}", good, good + "} {}", good + `,"node":{"nodeName":"a`,
			good + `,"node":{"cpu":nul}}`, strings.Repeat("[", 1<<16),
			strings.Repeat("[", 1<<16) + strings.Repeat("]", 1<<16), "5", `"text"`, "[]",
			good + `,"` + strings.Repeat("x", 1000) + `":[nul]}`, // the name is not in the error
			good + `,"pods":{}}`, good + `,"pods":[}`, good + `,"pods":[{]}`, good + `,"pods":[5,`,
			good + `,"pods":[{"podRef":5,`,
			// Not even a replacement of invalid UTF-8 may be a name.
			good + `,"pods":[` + podOf(podP, named("\xff")) + `]}`, good + `,"pods":[` + podOf(podP, named(`\ud83d`)) + `]}`,
			`{"node":{"cpu":{"usageCoreNanoSeconds":-1}}}`, `{"node":"node1"}`,
			`{"node":{"cpu":5,"nodeName":"node2"},"pods":[` + podOf(podP, named("a")) + `]}`,
		},
		reason.NoSamples: {
			"null", "{}", `{"node":null,"pods":null}`, `{"node":{"nodeName":"node1"},"pods":[]}`,
			podsOf(podOf(podP)), good + `,"node":{}}`,
		},
		reason.BadEndpoint: {
			good + `,"node":{"nodeName":"node2"}}`, good + `,"node":{"nodeName":"Node1"}}`,
			good + `,"node":{"nodeName":"node2"},"node":{"nodeName":"node1"}}`,
			good + `,"node":{"nodeName":"node2","cpu":5}}`,
			good + `,"node":{"nodeName":"` + strings.Repeat("x", 1000) + `"}}`,
		},
	} {
		for _, text := range texts {
			if _, err := decodeString(t, decode, text); reason.Of(err) != want || len(err.Error()) > 300 {
				t.Errorf("%.100q: got error %v, want reason %s", text, err, want)
			}
		}
	}
}

// TestHostileSummaries checks that memory is bounded whatever fills a response, also garbage.
func TestHostileSummaries(t *testing.T) {
	const size = 1 << 20
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	const pods, pod = `{"node":{` + cpu1 + `},"pods":[`, `{"podRef":` + podP + `,"containers":[`
	for name, parts := range map[string][3]string{
		"pods":                          {pods, "{},", "{}]}"},
		"pods that are numbers":         {pods, "5,", "5]}"},
		"pods with wrong names":         {pods, `{"podRef":5},`, "{}]}"},
		"pods with wrong containers":    {pods, `{"containers":[5]},`, "{}]}"},
		"pods with one name":            {pods, podOf(podP, `{"name":"a"}`) + ",", "{}]}"},
		"pods that are deep":            {pods, `{"containers":[` + deep + `]},`, "{}]}"},
		"nodes":                         {"{", `"node":{` + cpu1 + `},`, `"pods":null}`},
		"containers":                    {pods + pod, "{},", "{}]}]}"},
		"containers with names":         {pods + pod, `{"name":"x"},`, "{}]}]}"},
		"containers that are nothing":   {pods + pod, "null,", "null]}]}"},
		"containers with invalid times": {pods, podOf(podP, `{"startTime":""}`) + ",", "{}]}"},
		"a name":                        {pods + `{"podRef":{"name":"`, "x", `"}}]}`},
		"a name with escapes":           {pods + `{"podRef":{"name":"`, `\n`, `"}}]}`},
		"a number":                      {pods + `{"podRef":`, "1", `}]}`},
		"a field":                       {pods + `{"`, "x", `":1}]}`},
	} {
		text := parts[0] + strings.Repeat(parts[1], size/len(parts[1])) + parts[2]
		for format, decode := range map[string]decodeFunc{
			"Decode": summaryDecoder(enough), "DecodeStorage": storageDecoder(enough),
		} {
			var dst usage.Scrape
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := decode(&dst, []byte(text))
			runtime.ReadMemStats(&after)
			if got := (after.TotalAlloc - before.TotalAlloc) / size; got > 24 || len(dst.Containers) > 1 {
				t.Errorf("%s of %s: allocates %d times the text, %d containers", format, name, got, len(dst.Containers))
			}
			if err != nil && reason.Of(err) != reason.NoSamples && reason.Of(err) != reason.Undecodable {
				t.Errorf("%s of %s: got error %v", format, name, err)
			}
		}
	}
}

// FuzzSummary checks what must be true of any response.
func FuzzSummary(f *testing.F) {
	f.Add(readFile(f, storageSummary))
	f.Add(largeResponse(shortSummaryPath, 2, 2))
	reused, reusedStorage := summaryDecoder(enough), storageDecoder(enough)
	f.Fuzz(func(t *testing.T, text []byte) {
		checkDecoder(t, reused, summaryDecoder(enough), text, len(text)+1) // an empty text counts as a value
		checkDecoder(t, reusedStorage, storageDecoder(enough), text, len(text)+1)
		checkStorage(t, reusedStorage, text)
	})
}

func BenchmarkSummary(b *testing.B) {
	type stats struct {
		Time                                                                  time.Time
		UsageNanoCores, UsageCoreNanoSeconds, WorkingSetBytes, SwapUsageBytes *uint64
	}
	type sample struct {
		Name              string
		StartTime         time.Time
		CPU, Memory, Swap *stats
	}
	benchmark(b, largeResponse(shortSummaryPath, 30, 2), summaryDecoder(enough), "encoding/json", func(text []byte) error {
		var summary struct {
			Node sample
			Pods []struct {
				PodRef     struct{ Namespace, Name string }
				Containers []sample
			}
		}
		return json.Unmarshal(text, &summary)
	})
}
