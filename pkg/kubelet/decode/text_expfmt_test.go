package decode

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// plainLine matches a line without quoted metric or label names, which expfmt reads (and some
// versions panic on) and kubelets do not write.
var plainLine = regexp.MustCompile(`^[ \t]*(#.*|[\w:]+[ \t]*` +
	`(\{([ \t]*\w+[ \t]*=[ \t]*"(\\.|[^"\\])*"[ \t]*,?)*[ \t]*\})?[^"{]*)?$`)

// parseWithExpfmt decodes text with expfmt. It is not ok if expfmt rejects the text, or finds what
// a kubelet does not write: quoted names, histograms and summaries.
func parseWithExpfmt(text []byte) (r *textReference, ok bool) {
	for line := range bytes.Lines(text) {
		if !plainLine.Match(bytes.TrimSuffix(line, []byte("\n"))) {
			return nil, false
		}
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, false
	}
	r = &textReference{newReference(), map[string]bool{}, false}
	for name, family := range families {
		kind := metrics[name]
		if kind.subject < subjectScrapeError {
			continue
		}
		for _, sample := range family.Metric {
			var value float64
			switch {
			case sample.Counter != nil:
				value = sample.Counter.GetValue()
			case sample.Gauge != nil:
				value = sample.Gauge.GetValue()
			case sample.Untyped != nil:
				value = sample.Untyped.GetValue()
			default:
				return nil, false
			}
			r.line(kind, sample, value)
		}
	}
	return r, true
}

type textReference struct {
	*reference
	seen   map[string]bool // the series so far
	failed bool            // the kubelet reports a scrape error
}

func (r *textReference) line(kind metric, line *dto.Metric, value float64) {
	s := new(usage.Sample)
	labels := map[string]string{}
	switch kind.subject {
	case subjectNode:
		s = &r.node
	case subjectContainer:
		for _, l := range line.Label {
			labels[l.GetName()] = l.GetValue()
		}
		namespace, pod, container := labels["namespace"], labels["pod"], labels["container"]
		if reason, bad := badName(namespace, pod, container); bad {
			r.skipContainer(reason)
			r.dropped[[2]string{namespace, pod}] = true
			return
		}
		s, _ = r.container(namespace, pod, container)
	}
	series := fmt.Sprintf("%v %q %q %q", kind, labels["namespace"], labels["pod"], labels["container"])
	if r.seen[series] {
		r.skip(usage.Duplicate)
		if kind == (metric{subjectContainer, fieldCPU}) && s.Has&usage.HasCPU != 0 &&
			value >= 0 && value != s.CPUSeconds { // of another pod of the name
			s.Has, s.Loss = s.Has&^usage.HasCPU, usage.LostOwner
		}
		return
	}
	r.seen[series] = true
	reason, ok := r.set(s, kind.field, line, value)
	if !ok {
		r.skip(reason)
		if (kind.field == fieldCPU || kind.field == fieldMemory) && s.Loss != usage.LostOwner {
			s.Loss = map[usage.SkipReason]usage.Loss{
				usage.BadTime: usage.LostTime, usage.BadValue: usage.LostValue,
			}[reason]
		}
	}
	if kind.subject == subjectScrapeError {
		r.failed = r.failed || value != 0
		r.partial = r.partial || !ok
	}
}

// set sets a field of s, or returns why the line is skipped.
func (r *textReference) set(
	s *usage.Sample, field fieldSet, m *dto.Metric, value float64,
) (_ usage.SkipReason, ok bool) {
	at, untimed := scrapedAt, m.TimestampMs == nil
	if !untimed {
		if ms := m.GetTimestampMs(); ms <= 0 || ms > int64(scrapedAt.Add(maxAhead))/1e6 {
			return usage.BadTime, false
		}
		at = usage.NodeTime(m.GetTimestampMs() * 1e6)
	}
	isBytes := field == fieldMemory || field == fieldSwap
	if math.IsNaN(value) || math.IsInf(value, 0) || value < 0 || value >= 1<<63 && isBytes {
		return usage.BadValue, false
	}
	switch field {
	case fieldCPU:
		s.CPUSeconds, s.At, s.Untimed, s.Has = value, at, untimed, s.Has|usage.HasCPU
	case fieldMemory:
		s.Memory, s.Has = uint64(value), s.Has|usage.HasMemory
	case fieldSwap:
		s.Swap, s.Has = uint64(value), s.Has|usage.HasSwap
	case fieldStart:
		if value >= usage.OldestStart && value <= float64(scrapedAt.Add(maxAhead))/1e9 {
			s.StartedAt = usage.NodeTime(math.Round(value*1e6)) * 1e3
		}
	}
	return 0, true
}

// compareWithExpfmt compares the result with that of expfmt, and reports whether there was one.
func compareWithExpfmt(t *testing.T, decode decodeFunc, text []byte) bool {
	t.Helper()
	want, ok := parseWithExpfmt(text)
	if !ok {
		return false
	}
	var dst usage.Scrape
	err := decode(&dst, bytes.Clone(text))
	if want.failed {
		if err == nil {
			t.Fatalf("got no error, want one for the scrape error\n%s", text)
		}
		return true
	}
	compare(t, text, &dst, err, want.reference)
	return true
}

// TestTextLikeExpfmt compares with expfmt on texts for each rule, and on responses of kubelets that are
// changed but stay valid.
func TestTextLikeExpfmt(t *testing.T) {
	line := func(name, pod, value string) string {
		return name + `{container="c",namespace="n",pod="` + pod + `"} ` + value + "\n"
	}
	inCPU := func(pod, value string) string { return line(cpuName, pod, value) }
	inMem := func(pod, value string) string { return line(memName, pod, value) }
	texts := slices.Concat(
		lines(cpu, " 0", " 1e3", " 1E3", " +1.5", " .5", " 5.", " 1e-320", " -1", " NaN", " nan", " +Inf", " -Inf",
			" infinity", " 1 1795209367500", " 1 1795209367501", " 1 1", " 1 +5", " 1 0001", " 1 0", " 1 -5"),
		lines(mem, " 0", " 1.65888e+06 1795205767486", " 9223372036854774784", " 9223372036854775807", " 1e30", " -1"),
		lines(swap, " 0 1795205767486", " 4096", " 1e30"),
		lines(start, " 1.79520550515e+09", " 1795205505.25", " 35.2", " 1795209367", " 1795209368", " +Inf"),
		lines("node_", "cpu_usage_seconds_total 2586.123634182 1795205767486", "cpu_usage_seconds_total{} 1",
			`cpu_usage_seconds_total{x="y"} 1`, "memory_working_set_bytes 5", "swap_usage_bytes 0"),
		lines(cpuName, " 1", `{container="c",namespace="n"} 1`, `_x{container="c",namespace="n",pod="p"} 1`,
			`{pod="p",namespace="n",container="c"} 1`, `{a="b",pod="p",id="/x{,}",namespace="n",container="c",z=""} 1`,
			`{container="c",namespace="n",pod="p",} 1`, "\t{ container\t= \"c\" , namespace=\"n\", pod=\"p\" }1",
			`{container="a,b}{=\"\\\n",namespace="n",pod="p"} 1`, `{container="\\\\",namespace="\"",pod="p\\"} 1`,
			`{container="ü",namespace="n",pod="p"} 1`),
		lines("", inCPU(strings.Repeat("p", 253), "1"), inCPU(strings.Repeat("p", 254), "1"),
			"  "+cpu+" 1", "resource_scrape_error 0", "scrape_error 0"),
		[]string{
			// Orders.
			inCPU("a", "1") + inCPU("b", "2") + inMem("a", "3") + inMem("b", "4"),
			inCPU("a", "1") + inCPU("b", "2") + inCPU("c", "3") + inMem("c", "4") + inMem("a", "5") + inMem("b", "6"),
			inCPU("a", "1") + inCPU("b", "2") + inCPU("c", "3") + inMem("a", "4") + inMem("c", "5"),
			inCPU("b", "1") + inMem("a", "2") + inMem("b", "3"),
			inCPU("a", "1") + inMem("a", "2") + inCPU("b", "3") + inMem("b", "4"),
			// The same labels in another form, and others that look the same.
			inCPU("a", "1") + memName + ` { pod="a", namespace="n", x="y", container="c" } 2`,
			inCPU(`a\\b`, "1") + inMem(`a\\b`, "2"), inCPU(`a\\n`, "1") + inMem(`a\nn`, "2"), inCPU("a", "1") + inMem("aa", "2"),
			// Of duplicates, the first one counts, even if it is invalid. Two counters of a container count as none.
			inCPU("a", "1") + inCPU("a", "2") + inMem("a", "3") + inCPU("a", "4"),
			inCPU("a", "NaN") + inCPU("a", "2") + inMem("a", "3"),
			inCPU("a", "1") + inCPU("a", "1") + inMem("a", "3") + inMem("a", "4"),
			inCPU("a", "1") + inCPU("a", "NaN") + inCPU("a", "-1") + inMem("a", "3"),
			inCPU("a", "1") + "resource_scrape_error 0\nresource_scrape_error 1",
			inCPU("a", "1 1795205767486") + inMem("a", "2 1795205767000"),
		},
	)
	decode := textDecoder(enough)
	for _, text := range texts {
		if !compareWithExpfmt(t, decode, []byte(text+"\nnode_swap_usage_bytes 7\n")) {
			t.Errorf("expfmt rejects %q", text)
		}
	}
	originals := [][]byte{readFile(t, resourceFile), largeResponse(resourcePath, 5, 2)}
	r := rand.New(rand.NewPCG(3, 4))
	const rounds = 200
	compared := 0
	for i := range rounds {
		if compareWithExpfmt(t, decode, mutate(r, originals[i%len(originals)])) {
			compared++
		}
	}
	if compared < rounds*9/10 {
		t.Errorf("expfmt accepts %d of %d texts, want 90 %%", compared, rounds)
	}
}

var sampleLine = regexp.MustCompile(`^(\w+)\{(.*)\} (\S+)( \d+)?$`)

// mutate changes some lines of a well-formed text so that it stays well-formed.
func mutate(r *rand.Rand, text []byte) []byte {
	lines := strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n")
	every := 1 + r.IntN(40)
	var out strings.Builder
	for i, line := range lines {
		line = strings.TrimSuffix(line, "\n")
		if r.IntN(every) == 0 && !strings.HasPrefix(line, "#") {
			switch r.IntN(4) {
			case 0: // remove it
				continue
			case 1: // duplicate it
				out.WriteString(line + "\n")
			case 2: // duplicate an earlier line
				if other := lines[r.IntN(i+1)]; !strings.HasPrefix(other, "#") {
					out.WriteString(strings.TrimSuffix(other, "\n") + "\n")
				}
			case 3:
				line = mutateLine(r, line)
			}
		}
		out.WriteString(line + "\n")
		if i%17 == 0 && r.IntN(every) == 0 {
			out.WriteString([]string{"\n", "# a comment\n", " \t\n", "#\n"}[r.IntN(4)])
		}
	}
	return []byte(out.String())
}

func mutateLine(r *rand.Rand, line string) string {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	parts := sampleLine.FindStringSubmatch(line)
	if parts == nil {
		return line
	}
	name, labels, value, at := parts[1], strings.Split(parts[2], ","), parts[3], parts[4]
	for range 1 + r.IntN(2) {
		switch i := r.IntN(len(labels)); r.IntN(6) {
		case 0:
			r.Shuffle(len(labels), func(i, j int) { labels[i], labels[j] = labels[j], labels[i] })
		case 1:
			labels[i] = strings.Replace(labels[i], `="`, `="`+pick(`\\`, `\n`, `\"`, `{`, `}`, `ü`, ` `, `=`, `\\\\n`), 1)
		case 2:
			labels = append(labels, fmt.Sprintf(`%s%d="%s"`, pick("a", "_", "pods", "Pod"), len(labels),
				pick("", "x", `\"`, "}", "a=b")))
		case 3:
			value = pick("0", "NaN", "+Inf", "-Inf", "-1", "1e30", "1.5e+300", "9.223372036854775807e18", "1e-7", "0.1", "1E3",
				".5", "5.", "-0", "12345678901234567890", "1795205505.1234567", "9007199254740993", "1e22", "1e23")
		case 4:
			at = pick("", " 0", " -5", " 1", " 1795205767000", " 1795209367500", " 1795209367501", " 9223372036854775807")
		case 5:
			if labels = append(labels[:i:i], labels[i+1:]...); len(labels) == 0 {
				labels = []string{`x="y"`}
			}
		}
	}
	blank := func() string { return pick("", "", " ", "\t", "  ") }
	sep := blank() + "," + blank()
	return blank() + name + blank() + "{" + blank() + strings.Join(labels, sep) + pick("", ",") + blank() + "}" +
		pick("", " ", "\t ") + value + strings.ReplaceAll(at, " ", pick(" ", "\t", "  "))
}

func FuzzText(f *testing.F) {
	f.Add(readFile(f, resourceFile))
	f.Add(largeResponse(resourcePath, 2, 2))
	for _, text := range []string{
		"", "\n", "{", "}", "# HELP", "a", "a{", `a{b`, `a{b="`, `a{b="\`, "\xff\n", "node_cpu_usage_seconds_total",
		"resource_scrape_error 1\n", "container_cpu_usage_seconds_total 1\n", "node_cpu_usage_seconds_total 1 2 3\n",
		"node_cpu_usage_seconds_total-5\n",
		"container_cpu_usage_seconds_total{container=\"c\\\\n\",namespace=\"n\",pod=\"\\\"\"}1e5 1\r\n",
		"container_swap_usage_bytes{ pod = \"p\",,container=\"c\",namespace=\"n\",pod=\"p\" , } -0\n",
		"container_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 1e300\n# EOF\n",
		"container_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=\"p\"} 9.3e18 # {a=\"b\"} 1\n",
	} {
		f.Add([]byte(text))
	}
	reused := textDecoder(enough)
	f.Fuzz(func(t *testing.T, text []byte) {
		checkDecoder(t, reused, textDecoder(enough), text, bytes.Count(text, []byte("\n"))+1)
		compareWithExpfmt(t, reused, text)
	})
}

func BenchmarkText(b *testing.B) {
	benchmark(b, largeResponse(resourcePath, 30, 2), textDecoder(enough), "expfmt", func(text []byte) error {
		parser := expfmt.NewTextParser(model.LegacyValidation)
		_, err := parser.TextToMetricFamilies(bytes.NewReader(text))
		return err
	})
}
