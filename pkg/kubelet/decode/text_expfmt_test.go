package decode

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// reference is what an answer means, found the slow and obvious way.
type reference struct {
	node       usage.Sample
	containers map[string]usage.Sample // by namespace, pod and container, with a NUL between them
	dropped    map[string]bool         // pods, by the same with an empty container
	partial    bool
	skipped    [usage.NumReasons]int
	failed     bool
}

// plainLine is a line without names in quotes, which expfmt reads (and some versions panic on) and
// kubelets do not write.
var plainLine = regexp.MustCompile(`^[ \t]*(#.*|[\w:]+[ \t]*(\{([ \t]*\w+[ \t]*=[ \t]*"(\\.|[^"\\])*"[ \t]*,?)*[ \t]*\})?[^"{]*)?$`)

// parseReference reads text with expfmt. It is not ok when expfmt refuses it, or reads something
// into it that a kubelet does not write: names in quotes, histograms and summaries.
func parseReference(text []byte, at usage.Time, limits Limits) (ref reference, ok bool) {
	for line := range bytes.Lines(text) {
		if !plainLine.Match(bytes.TrimSuffix(line, []byte("\n"))) {
			return ref, false
		}
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return ref, false
	}
	ref.containers, ref.dropped = map[string]usage.Sample{}, map[string]bool{}
	seen := map[string]bool{}
	for name, mf := range families {
		f := metricByName([]byte(name))
		if f.subject != subjectScrapeError && f.subject != subjectNode && f.subject != subjectContainer {
			continue
		}
		for _, m := range mf.Metric {
			var value float64
			switch {
			case m.Counter != nil:
				value = m.Counter.GetValue()
			case m.Gauge != nil:
				value = m.Gauge.GetValue()
			case m.Untyped != nil:
				value = m.Untyped.GetValue()
			default:
				return ref, false
			}
			ref.line(f, m, value, at, seen, limits)
		}
	}
	maps.DeleteFunc(ref.containers, func(id string, _ usage.Sample) bool {
		return ref.dropped[id[:strings.LastIndexByte(id, 0)+1]]
	})
	ref.dropped = nil
	return ref, true
}

// drop counts a line whose container cannot be kept, and drops its pod.
func (ref *reference) drop(r usage.Reason, namespace, pod string) {
	ref.skipped[r]++
	ref.partial = true
	if namespace != "" && pod != "" {
		ref.dropped[namespace+"\x00"+pod+"\x00"] = true
	}
}

func (ref *reference) line(f metric, m *dto.Metric, value float64, at usage.Time, seen map[string]bool, limits Limits) {
	var id string
	var s usage.Sample
	switch f.subject {
	case subjectNode:
		s = ref.node
	case subjectContainer:
		labels := map[string]string{}
		for _, l := range m.Label {
			labels[l.GetName()] = l.GetValue()
		}
		parts := []string{labels["namespace"], labels["pod"], labels["container"]}
		id = strings.Join(parts, "\x00")
		for _, part := range parts {
			if part == "" {
				ref.drop(usage.NoIdentity, parts[0], parts[1])
				return
			}
			if len(part) > limits.MaxLabelBytes {
				ref.drop(usage.OverLimit, parts[0], parts[1])
				return
			}
		}
		s = ref.containers[id]
		ref.containers[id] = s
	}
	series := fmt.Sprint(f, id)
	if seen[series] {
		ref.skipped[usage.Duplicate]++
		return
	}
	seen[series] = true
	if f.subject == subjectScrapeError && value != 0 {
		ref.failed = true
	}
	untimed := m.TimestampMs == nil
	if !untimed {
		if ms := m.GetTimestampMs(); ms <= 0 || ms > int64(at.Add(maxAhead))/1e6 {
			ref.skip(f, usage.BadTime)
			return
		}
		at = usage.Time(m.GetTimestampMs() * 1e6)
	}
	if math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
		ref.skip(f, usage.BadValue)
		return
	}
	s, bad := withReading(s, f.field, value, at, untimed)
	if bad >= 0 {
		ref.skipped[bad]++
	}
	switch f.subject {
	case subjectNode:
		ref.node = s
	case subjectContainer:
		ref.containers[id] = s
	}
}

func (ref *reference) skip(f metric, r usage.Reason) {
	ref.skipped[r]++
	ref.partial = ref.partial || f.subject == subjectScrapeError
}

// useless reports whether there is no sample, or none with a possible time.
func (ref *reference) useless() bool {
	if ref.node.Has != 0 {
		return false
	}
	for _, s := range ref.containers {
		if s.Has != 0 || ref.skipped[usage.BadTime] == 0 {
			return false
		}
	}
	return true
}

func withReading(s usage.Sample, what fields, value float64, at usage.Time, untimed bool) (_ usage.Sample, bad int) {
	switch what {
	case fieldCPU:
		s.CPUSeconds, s.At, s.Untimed, s.Has = value, at, untimed, s.Has|usage.HasCPU
	case fieldMemory:
		if value >= 1<<63 {
			return s, int(usage.BadValue)
		}
		s.Memory, s.MemoryAt, s.Has = uint64(value), at, s.Has|usage.HasMemory
	case fieldSwap:
		if value >= 1<<63 {
			return s, int(usage.BadValue)
		}
		s.Swap, s.Has = uint64(value), s.Has|usage.HasSwap
	case fieldStart:
		if value > float64(scrapedAt.Add(maxAhead))/1e9 {
			return s, int(usage.BadTime)
		}
		if value >= oldestStart {
			s.StartedAt = usage.Time(math.Round(value*1e6)) * 1e3
		}
	}
	return s, -1
}

// checkAgainstExpfmt decodes text and compares; it says whether there was something to compare
// with.
func checkAgainstExpfmt(t *testing.T, d *Text, text []byte) bool {
	t.Helper()
	limits := Limits{MaxLabelBytes: DefaultMaxLabelBytes}
	ref, ok := parseReference(text, scrapedAt, limits)
	if !ok {
		return false
	}
	var dst usage.Scrape
	err := d.Decode(&dst, bytes.Clone(text), Times{At: scrapedAt})
	empty := ref.useless()
	if (err != nil) != (ref.failed || empty) {
		t.Fatalf("error %v, want one: %v\n%s", err, ref.failed || empty, text)
	}
	got := reference{node: dst.Node, containers: map[string]usage.Sample{}, partial: dst.Partial, skipped: dst.Skipped,
		failed: ref.failed}
	for _, c := range dst.Containers {
		got.containers[fmt.Sprintf("%s\x00%s\x00%s", c.Namespace, c.Pod, c.Name)] = c.Sample
	}
	if len(got.containers) != len(dst.Containers) {
		t.Errorf("a container is there twice")
	}
	if !reflect.DeepEqual(got, ref) {
		maps.DeleteFunc(got.containers, func(name string, s usage.Sample) bool { // leave what differs
			want, there := ref.containers[name]
			if same := there && s == want; !same {
				return false
			}
			delete(ref.containers, name)
			return true
		})
		t.Fatalf("\n got %+v\nwant %+v\n%.2000q", got, ref, text)
	}
	return true
}

// TestDecodeAsExpfmt compares with expfmt on real answers that were changed in all the ways that
// leave them well-formed.
func TestDecodeAsExpfmt(t *testing.T) {
	originals := [][]byte{realSample(t), largeAnswer(12, 2)}
	r := rand.New(rand.NewPCG(3, 4))
	var d Text
	const rounds = 200
	compared := 0
	for i := range rounds {
		if text := mutate(r, originals[i%len(originals)]); checkAgainstExpfmt(t, &d, text) {
			compared++
		}
	}
	if compared < rounds*9/10 {
		t.Errorf("expfmt took only %d of %d texts: the mutations are too wild to prove anything", compared, rounds)
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
			case 0: // gone
				continue
			case 1: // there twice
				out.WriteString(line + "\n")
			case 2: // an earlier line again
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
			value = pick("0", "NaN", "+Inf", "-Inf", "-1", "1e30", "1.5e+300", "9.223372036854775807e18", "1e-7", "12345678901234567890",
				"0.1", "1E3", ".5", "5.", "-0", "1795205505.1234567", "9007199254740993", "1e22", "1e23")
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
	f.Add(realSample(f))
	f.Add(largeAnswer(2, 2))
	for _, line := range []string{
		"", "\n", "{", "}", "# HELP", "a", "a{", `a{b`, `a{b="`, `a{b="\`, "\xff\n", "node_cpu_usage_seconds_total", "resource_scrape_error 1\n",
		"container_cpu_usage_seconds_total 1\n", "node_cpu_usage_seconds_total 1 2 3\n", "node_cpu_usage_seconds_total-5\n",
		"container_cpu_usage_seconds_total{container=\"c\\\\n\",namespace=\"n\",pod=\"\\\"\"}1e5 1\r\n",
		"container_swap_usage_bytes{ pod = \"p\",,container=\"c\",namespace=\"n\",pod=\"p\" , } -0\n",
		"container_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 1e300\n# EOF\n",
		"container_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=\"p\"} 9.3e18 # {a=\"b\"} 1\n",
	} {
		f.Add([]byte(line))
	}
	var reused Text
	if err := reused.Decode(&usage.Scrape{}, largeAnswer(20, 2), Times{At: scrapedAt}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		checkScrape(t, &reused, text)
		checkAgainstExpfmt(t, &reused, text)
	})
}

// checkScrape decodes text and checks what must hold of any answer.
func checkScrape(t *testing.T, d *Text, text []byte) {
	var dst, fresh usage.Scrape
	err := d.Decode(&dst, bytes.Clone(text), Times{At: scrapedAt})
	freshErr := new(Text).Decode(&fresh, bytes.Clone(text), Times{At: scrapedAt})
	if !reflect.DeepEqual(dst, fresh) || fmt.Sprint(err) != fmt.Sprint(freshErr) {
		t.Fatalf("a reused decoder gives %+v, %v; a new one %+v, %v", dst, err, fresh, freshErr)
	}
	checkContainers(t, &dst, bytes.Count(text, []byte("\n"))+1)
}

// checkContainers checks what must hold of any answer that has at most so many lines or values.
func checkContainers(t *testing.T, s *usage.Scrape, values int) {
	skipped := 0
	for _, n := range s.Skipped {
		skipped += n
	}
	if skipped > values || len(s.Containers) > min(values, DefaultMaxContainers) {
		t.Fatalf("%d containers, %d skipped of %d", len(s.Containers), skipped, values)
	}
	checkSample(t, s.Node)
	names := map[[3]string]bool{}
	for _, c := range s.Containers {
		checkSample(t, c.Sample)
		name := [3]string{string(c.Namespace), string(c.Pod), string(c.Name)}
		for _, part := range name {
			if part == "" || len(part) > DefaultMaxLabelBytes || strings.ToValidUTF8(part, "") != part {
				t.Fatalf("a container is called %q", name)
			}
		}
		if names[name] {
			t.Fatalf("container %q is there twice", name)
		}
		names[name] = true
	}
}

func checkSample(t *testing.T, s usage.Sample) {
	latest := scrapedAt.Add(maxAhead)
	if !(s.CPUSeconds >= 0) || math.IsInf(s.CPUSeconds, 0) || s.Memory > math.MaxInt64 || s.Swap > math.MaxInt64 ||
		s.Rate > math.MaxInt64 {
		t.Fatalf("impossible figures: %+v", s)
	}
	if s.At < 0 || s.At > latest || s.MemoryAt < 0 || s.MemoryAt > latest || s.StartedAt < 0 || s.StartedAt > latest {
		t.Fatalf("impossible times: %+v", s)
	}
	if s.Has&(usage.HasCPU|usage.HasRate) != 0 && s.At == 0 || s.Has&usage.HasMemory != 0 && s.MemoryAt == 0 {
		t.Fatalf("a reading without a time: %+v", s)
	}
}

func BenchmarkText(b *testing.B) {
	text := largeAnswer(30, 2)
	b.Run("decoder=ours", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		var d Text
		var dst usage.Scrape
		for b.Loop() {
			if err := d.Decode(&dst, text, Times{At: scrapedAt}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decoder=expfmt", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			parser := expfmt.NewTextParser(model.LegacyValidation)
			if _, err := parser.TextToMetricFamilies(bytes.NewReader(text)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
