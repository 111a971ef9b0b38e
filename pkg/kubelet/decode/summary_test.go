package decode

import (
	"reflect"
	"strings"
	"testing"

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

// TestSummary decodes summaries. TestSummaryLikeJSON compares many more with encoding/json.
func TestSummary(t *testing.T) {
	podA := podOf(podP, named("a"))
	withCPU := func(names ...string) (d decoded) {
		for _, name := range names {
			d.containers = append(d.containers, sample{name, cpuSample(1, scrapedAt)})
		}
		return d
	}
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
		{podsOf(podOf(podP, `{"name":"a","startTime":"2000-01-01T00:00:00Z"}`,
			`{"name":"b","startTime":"1999-12-31T23:59:59Z"}`)), decoded{containers: []sample{
			{"n/p/a", usage.Sample{StartedAt: usage.OldestStart * 1e9}}, {"n/p/b", usage.Sample{}},
		}}},
		{podsOf(podA, podOf(podQ, `{"name":""}`, named("b"))), withCPU("n/p/a").asPartial().skipping(usage.NoIdentity)},
		// encoding/json replaces invalid UTF-8.
		{podsOf(podA, podOf(podQ, named("\xff"), named("b"), named("\\n\xff"))),
			withCPU("n/p/a").asPartial().skipping(usage.Malformed, usage.Malformed)},
	} {
		got, err := decodeString(t, summaryDecoder(0), tt.text)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: error %v\n got %+v\nwant %+v", tt.text, err, got, tt.want)
		}
	}
}

func TestSummaryErrors(t *testing.T) {
	const good = `{"node":{"cpu":{"usageCoreNanoSeconds":1}}`
	decode := summaryDecoder(0)
	for want, texts := range map[reason.Reason][]string{
		reason.Undecodable: {
			"", "\x00", "<html>", "\ufeff" + good + "}", good, good + "} {}", good + `,"node":{"nodeName":"a`,
			good + `,"node":{"cpu":nul}}`, strings.Repeat("[", 1<<16),
			strings.Repeat("[", 1<<16) + strings.Repeat("]", 1<<16), "5", `"text"`, "[]",
		},
		reason.NoSamples: {
			"null", "{}", `{"node":null,"pods":null}`, `{"node":{"nodeName":"node1"},"pods":[]}`,
			`{"node":{"cpu":{"usageCoreNanoSeconds":-1}}}`, podsOf(podOf(podP)),
		},
		reason.BadEndpoint: {
			good + `,"node":{"nodeName":"node2"}}`, good + `,"node":{"nodeName":"Node1"}}`,
			good + `,"node":{"nodeName":"node2","nodeName":"node1"}}`,
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
