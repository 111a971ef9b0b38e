package device

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

var sentAt = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// newDecoder returns a decoder for an exporter of the file. All containers are known, except those
// of pods named elsewhere.
func newDecoder(t testing.TB, file string) *decoder {
	t.Helper()
	source := newSource(Config{IsKnown: func(_, _, pod, _ string) bool { return pod != "elsewhere" }})
	return &decoder{group: source.newGroup(&parse(t, file).Exporters[0], nil), sentAt: sentAt}
}

// show returns the values of a response as text, sorted.
func show(r *response) []string {
	var lines []string
	for _, c := range r.containers {
		unit := "m"
		if c.Unit == usage.Bytes {
			unit = ""
		}
		lines = append(lines, fmt.Sprintf("%s/%s/%s %s=%d%s", c.Namespace, c.Pod, c.Container, c.Name, c.Value, unit))
	}
	slices.Sort(lines)
	return lines
}

// TestResponses decodes responses of dcgm-exporter: see testdata/README.md.
func TestResponses(t *testing.T) {
	const preset = "exporters: [{preset: dcgm}]"
	const mib = 1 << 20
	for name, c := range map[string]struct {
		config string
		want   []string
	}{
		"dcgm-exporter.txt": {preset, []string{
			fmt.Sprintf("ml/trainer-0/trainer nvidia.com/gpu-memory=%d", (69982+68726)*mib),
			"ml/trainer-0/trainer nvidia.com/gpu=1850m",
			fmt.Sprintf("serving/llm-6c9f7d5b8-x2vqk/server nvidia.com/gpu-memory=%d", 20901*mib),
			"serving/llm-6c9f7d5b8-x2vqk/server nvidia.com/gpu=370m",
		}},
		"dcgm-exporter-mig.txt": {`exporters:
- preset: dcgm
  resources: [{resource: nvidia.com/gpu, series: DCGM_FI_PROF_GR_ENGINE_ACTIVE, max: 1}]`, []string{
			fmt.Sprintf("ml/trainer-0/trainer nvidia.com/gpu-memory=%d", 31377*mib),
			"ml/trainer-0/trainer nvidia.com/gpu=990m",
			fmt.Sprintf("serving/embed-predictor-00008-57946f6c67-vdtjl/kserve-container nvidia.com/gpu-memory=%d", 6021*mib),
			"serving/embed-predictor-00008-57946f6c67-vdtjl/kserve-container nvidia.com/gpu=713m",
			fmt.Sprintf("serving/tts-predictor-00011-5554f75554-8j8pl/kserve-container nvidia.com/gpu-memory=%d", 2210*mib),
			"serving/tts-predictor-00011-5554f75554-8j8pl/kserve-container nvidia.com/gpu=42m",
		}},
		"dcgm-exporter-timeslicing.txt": {preset, []string{
			fmt.Sprintf("serving/worker-0/main nvidia.com/gpu-memory=%d", 5210*mib), "serving/worker-0/main nvidia.com/gpu=400m",
			"serving/worker-1/main nvidia.com/gpu-memory=0", "serving/worker-1/main nvidia.com/gpu=0m",
			fmt.Sprintf("serving/worker-2/main nvidia.com/gpu-memory=%d", 3742*mib), "serving/worker-2/main nvidia.com/gpu=270m",
			fmt.Sprintf("serving/worker-2/side nvidia.com/gpu-memory=%d", 3742*mib), "serving/worker-2/side nvidia.com/gpu=270m",
		}},
	} {
		body, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		r, err := newDecoder(t, c.config).decode(iotest.HalfReader(bytes.NewReader(body)))
		if err != nil {
			t.Fatal(err)
		}
		if got := show(r); !slices.Equal(got, c.want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
		if len(r.skipped) > 0 || slices.Contains(r.series, 0) {
			t.Errorf("%s: skipped %v, found %v", name, r.skipped, r.series)
		}
	}
}

// testConfig has a resource that is summed, one that is a maximum, and one in bytes of the series of
// the first. Other labels precede the usual ones.
const testConfig = `exporters:
- name: test
  namespace: n
  podSelector: a=b
  port: 1
  labels:
    namespace: [real_namespace, namespace]
    pod: [real_pod, pod]
    container: [real_container, container]
  resources:
  - {resource: x.org/sum, series: u, max: 1000}
  - {resource: x.org/max, series: v, combine: max, unit: bytes}
  - {resource: x.org/bytes, series: u, unit: bytes, scale: 2}`

func TestDecode(t *testing.T) {
	const labels = `namespace="n",pod="p",container="c"`
	const other = `u{namespace="n",pod="q",container="c"} 1` + "\n" // a pod whose devices are valid
	otherSum := []string{"n/q/c x.org/bytes=2", "n/q/c x.org/sum=1000m"}
	at := func(age time.Duration) string { return fmt.Sprint(sentAt.Add(-age).UnixMilli()) }
	u := func(values ...string) string {
		var text strings.Builder
		for i, v := range values {
			fmt.Fprintf(&text, "u{gpu=\"%d\",%s} %s\n", i, labels, v)
		}
		return text.String()
	}
	sum := func(milli, bytes int) []string {
		return []string{fmt.Sprintf("n/p/c x.org/bytes=%d", bytes), fmt.Sprintf("n/p/c x.org/sum=%dm", milli)}
	}
	type skips map[string]int
	for _, c := range []struct {
		name    string
		body    string
		want    []string
		skipped skips
		age     time.Duration
	}{
		{"devices are summed", u("1", "2.5"), sum(3500, 7), nil, 0},
		{"comments, blanks, other series",
			"# HELP u x\n# TYPE u counter\n\n \nuu 1\nu_x{} 7\n{\"u\"} 3\n\t " + u("1"), sum(1000, 2), nil, 0},
		{"a histogram of the same name",
			"# TYPE u histogram\nu_bucket{le=\"1\"} 3\nu_sum 1\nu_count 1\n" + u("1"), sum(1000, 2), nil, 0},
		{"the maximum", "v{gpu=\"0\"," + labels + "} 3\nv{gpu=\"1\"," + labels + "} 7\nv{gpu=\"2\"," + labels + "} 5\n",
			[]string{"n/p/c x.org/max=7"}, nil, 0},
		{"idle devices", "u{gpu=\"0\"} 5\nu 5\nu{container=\"\",namespace=\"\",pod=\"\"} 5\n" +
			"u{namespace=\"n\",pod=\"p\"} 5\n", nil, nil, 0},
		{"the first of several labels", `u{namespace="gpu",pod="exporter",container="e",` +
			`real_namespace="n",real_pod="p",real_container="c"} 1` + "\n", sum(1000, 2), nil, 0},
		{"empty first labels", "u{" + labels + `,real_namespace="",real_pod="",real_container=""} 1` + "\n",
			sum(1000, 2), nil, 0},
		{"labels of the pod that repeat others", `u{gpu="0",UUID="x",gpu="1",UUID="y",` + labels + "} 1\n",
			sum(1000, 2), nil, 0},
		{"an escaped newline in a label", `u{x="a\nu{namespace=\"n\"} 5",` + labels + "} 1\n", sum(1000, 2), nil, 0},
		{"pods of other nodes", `u{namespace="n",pod="elsewhere",container="c"} 9` + "\n" + u("1"), sum(1000, 2),
			skips{unknownPod: 1}, 0},

		{"bad values", other + u("NaN", "+Inf", "-Inf", "-1", "1e300", "4"), otherSum, skips{badValue: 10}, 0},
		{"a bad value of one resource", u("1", "1001", "4"), []string{"n/p/c x.org/bytes=2012"}, skips{badValue: 1}, 0},
		{"a bad value of another container", // which would have 0
			other + u("1") + `u{namespace="n",pod="p",container="d"} NaN` + "\n", otherSum, skips{badValue: 2}, 0},

		{"a line without a valid value", other + u("1", "x", "4"), otherSum, skips{malformed: 1}, 0},
		{"values that are none", other + u("1", "", "1 x", "1 2 3", "0x", "1\r"), otherSum, skips{malformed: 5}, 0},
		{"an invalid line, then the same series", other + u("x") + u("4"), otherSum, skips{malformed: 1}, 0},
		{"an invalid line of the same series", other + u("4") + u("x"), otherSum, skips{malformed: 1}, 0},
		{"an invalid line of another series", // of the same pod
			"v{" + labels + "} x\n" + u("1"), sum(1000, 2), skips{malformed: 1}, 0},
		{"an invalid line of a pod of another node",
			`u{namespace="n",pod="elsewhere",container="c"} x` + "\n" + u("1"), sum(1000, 2), skips{malformed: 1}, 0},
		{"invalid lines of idle devices",
			"u{gpu=\"1\"} x\nu{gpu=\"2\"}\nu{} 1 2 3\n" + u("1"), sum(1000, 2), skips{malformed: 3}, 0},
		{"an overlong line of another series", strings.Repeat("x", 3*maxLine) + "\n" + u("1"), sum(1000, 2), nil, 0},

		{"duplicates", u("1") + u("1"), sum(1000, 2), skips{duplicate: 1}, 0},
		{"duplicates that differ", other + u("2") + u("1"), otherSum, skips{duplicate: 1}, 0},
		{"timestamps", u("1 "+at(5*time.Second), "1 "+at(20*time.Second), "1"), sum(3000, 6), nil, 20 * time.Second},
		{"timestamps in the future", u("1 "+at(-time.Hour), "1 "+fmt.Sprint(math.MaxInt64)), sum(2000, 4), nil, 0},
		{"old timestamps", other + u("1 "+at(21*time.Second), "1 0", "1 -1", "1 "+fmt.Sprint(math.MinInt64), "1"), otherSum,
			skips{stale: 4}, 0},
	} {
		r, err := newDecoder(t, testConfig).decode(strings.NewReader(c.body))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := show(r); !slices.Equal(got, c.want) || !maps.Equal(r.skipped, c.skipped) || r.age != c.age {
			t.Errorf("%s: got %q, skipped %v, age %v, want %q, %v, %v", c.name, got, r.skipped, r.age, c.want, c.skipped,
				c.age)
		}
	}
}

// TestInvalidLinesOfOtherPodsAreNotKept has a line with a name that an exporter could send thousands of.
func TestInvalidLinesOfOtherPodsAreNotKept(t *testing.T) {
	d := newDecoder(t, testConfig)
	const line = `u{namespace="n",pod="elsewhere",container="c"} `
	if r, err := d.decode(strings.NewReader(line + "x\n" + line + "1\n" + line + "2\n")); err != nil || len(d.unread) > 0 {
		t.Errorf("got %+v, %v, and kept %v", r, err, d.unread)
	}
}

func TestFound(t *testing.T) {
	r, err := newDecoder(t, testConfig).decode(strings.NewReader("v 1\n"))
	if err != nil || !slices.Equal(r.series, []int{0, 1, 0}) {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestRejectedResponses(t *testing.T) {
	const labels = `namespace="n",pod="p",container="c"`
	const valid = "u{" + labels + "} 1\n"
	broken, long := errors.New("broken"), strings.Repeat("x", maxLine)
	for name, c := range map[string]struct {
		body string
		want error
	}{
		// A line that any pod may own.
		"no labels":         {"u 1 x\n" + valid, errUnreadable},
		"no end of labels":  {"u{gpu=\"1\" 1\n" + valid, errUnreadable},
		"invalid labels":    {"u{1=2} 1\n" + valid, errUnreadable},
		"invalid UTF-8":     {"u{a=\"b\xff\"} 1\n" + valid, errUnreadable},
		"repeated labels":   {"u{pod=\"p\",pod=\"q\"} 1\n" + valid, errUnreadable},
		"a cut label":       {valid + "u{namespace=\"n\",po\n", errUnreadable},
		"another's label":   {"u{" + labels + ",\"x\nu{a=1} 1\n" + valid, errUnreadable},
		"an overlong line":  {"u{" + labels + ",x=\"" + long + "\"} 1\n" + valid, errUnreadable},
		"a name":            {"u\n" + valid, errUnreadable},
		"cut in a value":    {valid + "u{" + labels + ",gpu=\"1\"} 1", errCut},
		"cut in a label":    {valid + "u{names", errCut},
		"cut in a name":     {valid + "u", errCut},
		"cut in a comment":  {valid + "# HELP", errCut},
		"cut in a long one": {valid + "# " + long, errCut},

		"empty":                 {"", errNoSeries},
		"other series":          {"w 1\nuu 1\n", errNoSeries},
		"the maximum of series": {strings.Repeat("u 1\n", maxSeries), nil},
		"more series than that": {strings.Repeat("u 1\n", maxSeries+1), errTooManySeries},
	} {
		if _, err := newDecoder(t, testConfig).decode(strings.NewReader(c.body)); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	for _, text := range []string{"u 1\n", "u 1\nu{"} {
		body := io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken))
		if _, err := newDecoder(t, testConfig).decode(body); !errors.Is(err, broken) {
			t.Errorf("broken after %q: got %v, want %v", text, err, broken)
		}
	}
}

// FuzzDecode decodes any response. If expfmt accepts it as a whole, the values must be those that
// follow from its result.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{"dcgm-exporter.txt", "dcgm-exporter-mig.txt"} {
		body, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.ReplaceAll(body, []byte("DCGM_FI_DEV_FB_USED"), []byte("u")))
	}
	f.Add([]byte("u{namespace=\"n\",pod=\"p\",container=\"c\"} 1 2\nv{namespace=\"n\",pod=\"p\",container=\"c\"} 3\n"))
	f.Add([]byte("u{namespace=\"n\",pod=\"elsewhere\",container=\"c\"} -1\nu NaN"))
	f.Fuzz(func(t *testing.T, body []byte) {
		d := newDecoder(t, testConfig)
		r, err := d.decode(bytes.NewReader(body))
		if err != nil {
			return
		}
		seen := map[[4]string]bool{}
		for _, c := range r.containers {
			k := [4]string{c.Namespace, c.Pod, c.Container, c.Name}
			isConfigured := slices.ContainsFunc(d.group.Resources, func(r Resource) bool { return r.Resource == c.Name })
			if seen[k] || c.Namespace == "" || c.Pod == "" || c.Pod == "elsewhere" || c.Container == "" || !isConfigured ||
				c.Value > maxSeries*maxValue {
				t.Errorf("got %+v", c)
			}
			seen[k] = true
		}
		want, comparable := parseWhole(d, body)
		if !comparable {
			return
		}
		if got := total(r.containers); !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v of %q", got, want, body)
		}
	})
}

// parseWhole returns the values that a whole-response parser finds, unless it rejects the response, or a
// series has a type or occurs twice.
func parseWhole(d *decoder, body []byte) (map[string]uint64, bool) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.MultiReader(bytes.NewReader(body), strings.NewReader("\n")))
	if err != nil || bytes.Contains(body, []byte("TYPE")) || bytes.Contains(body, []byte{'{', '"'}) ||
		bytes.Contains(body, []byte("{ ")) || bytes.Contains(body, []byte("{\t")) {
		return nil, false
	}
	values := map[string]uint64{}
	series := map[string]bool{}
	for _, r := range d.group.Resources {
		var unread []string // prefixes of the names of pods with a device that cannot be read
		for _, m := range families[r.Series].GetMetric() {
			id := r.Resource + fmt.Sprint(m.Label)
			if series[id] {
				return nil, false
			}
			series[id] = true
			k := []string{labelOf(m, d.group.Labels.Namespace), labelOf(m, d.group.Labels.Pod),
				labelOf(m, d.group.Labels.Container)}
			age := d.sentAt.Sub(time.UnixMilli(m.GetTimestampMs()))
			v, ok := r.convert(m.GetUntyped().GetValue())
			if slices.Contains(k, "") || k[1] == "elsewhere" {
				continue
			}
			if !ok || m.TimestampMs != nil && age > 20*time.Second {
				unread = append(unread, fmt.Sprintf("[%q %q ", k[0], k[1]))
			}
			name := fmt.Sprintf("%q %s", k, r.Resource)
			if r.Combine == combineMax {
				values[name] = max(values[name], v)
			} else {
				values[name] += v
			}
		}
		maps.DeleteFunc(values, func(name string, _ uint64) bool {
			return strings.HasSuffix(name, "] "+r.Resource) &&
				slices.ContainsFunc(unread, func(pod string) bool { return strings.HasPrefix(name, pod) })
		})
	}
	return values, true
}

// labelOf returns the value of the first of the labels that the series has with a value.
func labelOf(metric *dto.Metric, names []string) string {
	for _, name := range names {
		for _, label := range metric.Label {
			if label.GetName() == name && label.GetValue() != "" {
				return label.GetValue()
			}
		}
	}
	return ""
}

func total(containers []usage.ContainerResource) map[string]uint64 {
	values := map[string]uint64{}
	for _, c := range containers {
		values[fmt.Sprintf("%q %s", []string{c.Namespace, c.Pod, c.Container}, c.Name)] = c.Value
	}
	return values
}

func BenchmarkDecode(b *testing.B) {
	body, err := os.ReadFile(filepath.Join("testdata", "dcgm-exporter.txt"))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	d := *newDecoder(b, "exporters: [{preset: dcgm}]")
	for b.Loop() {
		once := d
		if r, err := once.decode(bytes.NewReader(body)); err != nil || len(r.containers) != 4 {
			b.Fatal(r, err)
		}
	}
}
