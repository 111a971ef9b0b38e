package decode

import (
	"reflect"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// The names of metrics, and the start of lines of the container n/p/c.
const (
	cpuName   = "container_cpu_usage_seconds_total"
	memName   = "container_memory_working_set_bytes"
	startName = "container_start_time_seconds"
	labelsC   = `{container="c",namespace="n",pod="p"}`
	cpu       = cpuName + labelsC
	mem       = memName + labelsC
	swap      = "container_swap_usage_bytes" + labelsC
	start     = startName + labelsC
)

// lines returns a line for each end of it.
func lines(prefix string, ends ...string) (all []string) {
	for _, end := range ends {
		all = append(all, prefix+end)
	}
	return all
}

// TestTextLines decodes lines which expfmt rejects or reads in another way, and a few others. expfmt is the
// reference for the rest: see TestTextLikeExpfmt.
func TestTextLines(t *testing.T) {
	one := func(s usage.Sample) decoded { return decoded{containers: []sample{{"n/p/c", s}}} }
	bad := func(r usage.SkipReason, l usage.Loss) decoded { return one(usage.Sample{Loss: l}).skipping(r) }
	partial := func(r usage.SkipReason) decoded { return decoded{partial: true}.skipping(r) }
	for _, tt := range []struct {
		want  decoded
		lines []string
	}{
		{one(cpuSample(25.080507606, sampledAt)), lines(cpu, " 25.080507606 1795205767486")},
		{one(cpuSample(1, scrapedAt)), lines(cpu, " 1\r", "1", "\t 1 \t")},
		{one(usage.Sample{StartedAt: 1795205505150 * 1e6}), lines(start, " 1.79520550515e+09")},
		{one(usage.Sample{StartedAt: usage.OldestStart * 1e9}), lines(start, " 946684800")},
		{one(usage.Sample{}), lines(start, " 1795209368")}, // an hour ahead
		{one(usage.Sample{}), lines(start, " 35.2", " 0")}, // kwok: not a date, and not an error
		{decoded{}, []string{
			"", " \t", "#", "# HELP container_cpu_usage_seconds_total x", "other:metric_1{} spurious", "pod_x{pod=\"p\"} 1",
		}},
		{partial(usage.NoIdentity), lines(cpuName, "", "{} 1", `{container="",namespace="n",pod="p"}`)},

		{decoded{}.skipping(usage.Malformed), []string{`node_cpu_usage_seconds_total{x="y} 1`}},
		{partial(usage.Malformed), []string{
			"resource_scrape_error zero", "resource_scrape_error{ 0", "<html>", `{"` + cpuName + `",container="c"} 1`,
		}},
		{partial(usage.Malformed), lines(cpuName+`{container="c",namespace="n",pod`,
			"", "=", "} 1", "=p} 1", `="p`, `="p"`, `="p\`, `="\x"} 1`, `="p\"} 1`, `="\"\`, `="}\"`, `="}\`, `="p",1="x"} 1`,
			`="p",pod="p"} 1`)},
		{partial(usage.Malformed), lines(cpuName, "{", `{container="c" namespace="n",pod="p"} 1`,
			`{container="c",,namespace="n",pod="p"} 1`, `{,container="c",namespace="n",pod="p"} 1`,
			"{container=\"\xff\",namespace=\"n\",pod=\"p\"} 1")},
		{bad(usage.Malformed, usage.LostValue), lines(cpu, "", " ", " x", " 1,5", " 0x10p1", " 0x1p4", " 0X1P4",
			" 1_000", " infinit", " 1e", " 1e+", " .", " 1 1795205767486 x",
			` 1 1795205767486 # {trace_id="x"} 0.5`)}, // OpenMetrics: an exemplar
		{bad(usage.BadValue, usage.LostValue), lines(cpu, " 1e999")},
		{bad(usage.BadTime, usage.LostTime), lines(cpu, " 1 1e3", " 1 1_000", " 1 1795205767.486",
			" 1 9223372036854775808", " 1 x")},
	} {
		for _, line := range tt.lines {
			// Another sample of the node keeps the response from being empty, and must not be affected.
			tt.want.node = usage.Sample{Swap: 7, Has: usage.HasSwap}
			got, err := decodeString(t, textDecoder(enough), line+"\nnode_swap_usage_bytes 7\n")
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%q: error %v\n got %+v\nwant %+v", line, err, got, tt.want)
			}
		}
	}
}

// TestTextEnds decodes texts whose last line is not complete, or not a line.
func TestTextEnds(t *testing.T) {
	p := decoded{containers: []sample{{"n/p/c", cpuSample(1, scrapedAt)}}}
	for text, want := range map[string]decoded{
		cpu + " 1\n" + mem + " 2":   p.asPartial().skipping(usage.Malformed), // digits may be missing
		cpu + " 1\n# HE":            p.asPartial().skipping(usage.Malformed),
		cpu + " 1\n\x00\n":          p.asPartial().skipping(usage.Malformed),
		cpu + " 1\n\t ":             p,
		cpu + " 1\r\n\r\n# EOF\r\n": p,
	} {
		got, err := decodeString(t, textDecoder(enough), text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: error %v\n got %+v\nwant %+v", text, err, got, want)
		}
	}
}

func TestTextErrors(t *testing.T) {
	const node, tomorrow = "node_cpu_usage_seconds_total 1", " 1795305768000\n"
	decode := textDecoder(enough)
	for want, texts := range map[reason.Reason][]string{
		"": {
			node + tomorrow + "node_memory_working_set_bytes 1\n", node + tomorrow + cpu + " 1\n",
			"node_cpu_usage_seconds_total 0\nnode_memory_working_set_bytes 0\n", // not known, and no containers
		},
		reason.NoSamples: {
			"", "\n\n", "node_cpu_usage_seconds_total NaN\n", cpuName + " 1\n",
			"pod_cpu_usage_seconds_total{namespace=\"n\",pod=\"p\"} 1\n", "resource_scrape_error 0\n",
		},
		reason.Undecodable: {"<html>\n<body>Forbidden</body>\n</html>\n", node}, // the line is truncated
		reason.RuntimeNoStats: append(lines(node+"\n", "scrape_error 1\nresource_scrape_error 0\n",
			"resource_scrape_error 0\nscrape_error 2 1795205767486\n", "resource_scrape_error{} 1\n",
			"resource_scrape_error NaN\n", "resource_scrape_error 1 -1\n"), "resource_scrape_error 1\n"),
		reason.ClockSkew: {node + tomorrow, cpu + " 1" + tomorrow, cpu + " 1 -1\n", cpu + " 1 x\n"},
	} {
		for _, text := range texts {
			if _, err := decodeString(t, decode, text); reason.Of(err) != want {
				t.Errorf("%q: got error %v, want reason %q", text, err, want)
			}
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
		"long name":        {`container="` + strings.Repeat("x", usage.MaxNameBytes+1) + `",` + p, enough},
		"no container":     {p, enough},
		"empty container":  {`container="",` + p, enough},
		"invalid UTF-8":    {"container=\"\xff\"," + p, enough},
		"truncated labels": {p + `,container="d`, enough},
		"duplicate label":  {p + `,container="d",container="e"`, enough},
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
