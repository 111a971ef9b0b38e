package decode

import (
	"bytes"
	"cmp"
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
	"unicode"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	scrapedAt = usage.NodeTime(1795205767500 * 1e6) // shortly after the samples in testdata were taken
	sampledAt = usage.NodeTime(1795205767486 * 1e6)
	second    = "2026-11-20T20:16:07Z" // the time of the samples in summaries
	secondAt  = usage.NodeTime(1795205767 * 1e9)
)

// The responses of one kubelet at the same time. The short summary is that with
// only_cpu_and_memory.
const (
	resourceFile = "kubelet-1.36-resource.txt"
	shortSummary = "kubelet-1.36-summary-cpu-memory.json"
	fullSummary  = "kubelet-1.36-summary.json"
)

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The paths of responses. The short summary has no filesystems.
const (
	resourcePath     = kubelettest.ResourcePath
	summaryPath      = kubelettest.SummaryPath
	shortSummaryPath = summaryPath + "?only_cpu_and_memory=true"
)

// largeResponse returns a response of a kubelet with many pods.
func largeResponse(path string, pods, containersPerPod int) []byte {
	k := kubelettest.New("node1", kubelettest.Config{Now: scrapedAt.Time, Boot: scrapedAt.Add(-time.Hour).Time()})
	k.SetNode(kubelettest.Usage{CPU: 1.5, Memory: 1 << 30})
	k.SetStorage("", "", "", 50<<30)
	for p := range pods {
		for c := range containersPerPod {
			started := scrapedAt.Add(-time.Minute - time.Duration(p)*1234567).Time()
			namespace, pod := fmt.Sprintf("namespace-%d", p%3), fmt.Sprintf("deployment-546ccb4d55-%05d", p)
			k.Run(namespace, pod, fmt.Sprintf("app-%d", c), kubelettest.Usage{CPU: 0.123456789, Memory: 1_658_880}, started)
			k.SetStorage(namespace, pod, fmt.Sprintf("app-%d", c), 40_960)
			k.SetStorage(namespace, pod, "", uint64(p)<<20)
		}
	}
	w := httptest.NewRecorder()
	k.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Body.Bytes()
}

// enough is more containers than the responses of tests have.
const enough = 4 << 20 / MinContainerBytes

// decodeFunc decodes a response that arrived at scrapedAt, with a decoder that is reused.
type decodeFunc func(dst *usage.Scrape, text []byte) error

func textDecoder(maxContainers int) decodeFunc {
	d := &Text{MaxContainers: maxContainers}
	return func(dst *usage.Scrape, text []byte) error {
		dst.At = usage.Time(scrapedAt)
		return d.Decode(dst, text)
	}
}

func summaryDecoder(maxContainers int) decodeFunc {
	d := &Summary{MaxContainers: maxContainers}
	return func(dst *usage.Scrape, text []byte) error {
		dst.At = usage.Time(scrapedAt)
		return d.Decode(dst, text, "node1")
	}
}

func storageDecoder(maxContainers int) decodeFunc {
	d := &Summary{MaxContainers: maxContainers}
	return func(dst *usage.Scrape, text []byte) error {
		dst.At = usage.Time(scrapedAt)
		return d.DecodeStorage(dst, text, "node1")
	}
}

// decoders are all decoders, with responses that they decode.
var decoders = map[string]struct {
	new       func(maxContainers int) decodeFunc
	file      string // of a real kubelet
	largePath string
}{
	"Text":    {textDecoder, resourceFile, resourcePath},
	"Summary": {summaryDecoder, shortSummary, shortSummaryPath},
	"Storage": {storageDecoder, fullSummary, summaryPath},
}

// decoded is a usage.Scrape in a form that is easy to read in a table.
type decoded struct {
	node       usage.Sample
	containers []sample
	partial    bool
	skipped    map[usage.SkipReason]int
}

type sample struct {
	name string // namespace/pod/container
	usage.Sample
}

func newSample[S ~string | ~[]byte](namespace, pod, container S, s usage.Sample) sample {
	name := fmt.Sprintf("%s/%s/%s", namespace, pod, container)
	if strings.Count(name, "/") > 2 {
		name = fmt.Sprintf("%q/%q/%q", namespace, pod, container)
	}
	return sample{name, s}
}

func newDecoded(s *usage.Scrape) decoded {
	got := decoded{node: s.Node, partial: s.Partial}
	for _, c := range s.Containers {
		got.containers = append(got.containers, newSample(c.Namespace, c.Pod, c.Name, c.Sample))
	}
	for reason, n := range s.Skipped {
		if n > 0 {
			got.count(usage.SkipReason(reason), n)
		}
	}
	return got
}

func (d *decoded) count(r usage.SkipReason, n int) {
	if d.skipped == nil {
		d.skipped = map[usage.SkipReason]int{}
	}
	d.skipped[r] += n
}

func decodeString(t testing.TB, decode decodeFunc, text string) (decoded, error) {
	t.Helper()
	var dst usage.Scrape
	err := decode(&dst, []byte(text))
	if dst.At != usage.Time(scrapedAt) {
		t.Errorf("At = %v, want %v", dst.At, scrapedAt)
	}
	return newDecoded(&dst), err
}

// skipping adds skipped lines or values.
func (d decoded) skipping(reasons ...usage.SkipReason) decoded {
	for _, r := range reasons {
		d.count(r, 1)
	}
	return d
}

func (d decoded) asPartial() decoded { d.partial = true; return d }

func cpuSample(seconds float64, at usage.NodeTime) usage.Sample {
	return usage.Sample{CPUSeconds: seconds, At: at, Has: usage.HasCPU, Untimed: at == scrapedAt}
}

// TestReuse checks that a reused Text allocates nothing, and that nothing remains from one response to
// the next.
func TestReuse(t *testing.T) {
	for name, tt := range decoders {
		decode := tt.new(enough)
		var dst usage.Scrape
		for _, text := range [][]byte{
			largeResponse(tt.largePath, 300, 2), []byte("<html>\n"), readFile(t, tt.file), largeResponse(tt.largePath, 30, 2),
		} {
			var want usage.Scrape
			wantErr := tt.new(enough)(&want, text)
			n := testing.AllocsPerRun(3, func() {
				if err := decode(&dst, text); (err == nil) != (wantErr == nil) {
					t.Errorf("%s: got error %v, want %v", name, err, wantErr)
				}
			})
			if wantErr != nil && len(dst.Containers) != 0 {
				t.Errorf("%s: got %d containers of another response", name, len(dst.Containers))
			}
			if wantErr == nil && (n > 0 && name == "Text" || !reflect.DeepEqual(newDecoded(&dst), newDecoded(&want)) ||
				!slices.Equal(storageOf(&dst), storageOf(&want))) {
				t.Errorf("%s: %d bytes: %v allocations\n got %+v\nwant %+v", name, len(text), n, dst, want)
			}
		}
	}
}

// TestReuseReleasesMemory checks that decoders keep no reference to their arguments, and no map
// that a hostile response has made large.
func TestReuseReleasesMemory(t *testing.T) {
	var large []byte
	for i := range maxReusedIndex + 1 {
		large = fmt.Appendf(large, "%s{container=\"c\",namespace=\"n\",pod=\"%d\"} 1\n", cpuName, i)
	}
	text, summary := Text{MaxContainers: enough}, Summary{MaxContainers: enough}
	dst := usage.Scrape{At: usage.Time(scrapedAt)}
	if err := text.Decode(&dst, large); err != nil || len(dst.Containers) != maxReusedIndex+1 {
		t.Fatalf("got %d containers, error %v", len(dst.Containers), err)
	}
	if err := summary.Decode(&dst, readFile(t, shortSummary), "node1"); err != nil {
		t.Fatal(err)
	}
	used := func(s containerLines) bool { return s.labels != nil }
	switch {
	case text.index != nil || len(summary.index) > 0:
		t.Errorf("got indexes of %d and %d containers, want none", len(text.index), len(summary.index))
	case text.dst != nil || text.dropped != nil || summary.dst != nil || summary.dropped != nil:
		t.Error("a decoder refers to the scrape")
	case text.name != nil || slices.ContainsFunc(text.containers[:cap(text.containers)], used):
		t.Error("a decoder refers to the text")
	}
}

func TestLimits(t *testing.T) {
	for _, tt := range []struct {
		decoder             string
		pods, perPod, limit int
		kept, skipped       int
	}{
		{"Text", 1000, 1, 700, 700, 4 * 300}, // in 4 lines each
		{"Summary", 40, 2, 51, 50, 15},       // each further pod
		{"Summary", 1, 80, 51, 0, 1},
		{"Storage", 40, 2, 60, 20*3 + 1, 20}, // with the rest of each pod, and the node
		{"Storage", 40, 2, 1, 1, 40},
	} {
		d := decoders[tt.decoder]
		var got usage.Scrape
		err := d.new(tt.limit)(&got, largeResponse(d.largePath, tt.pods, tt.perPod))
		kept, skipped := len(got.Containers)+len(got.Storage), got.Skipped[usage.OverLimit]
		if err != nil || kept != tt.kept || skipped != tt.skipped || !got.Partial {
			t.Errorf("%+v: got %d, skipped %d, partial %v, error %v", tt, kept, skipped, got.Partial, err)
		}
		for _, c := range got.Containers {
			if c.Has&(usage.HasCPU|usage.HasMemory) != usage.HasCPU|usage.HasMemory {
				t.Fatalf("%+v: %s has %b", tt, c.Pod, c.Has)
			}
		}
	}
}

func TestLatestTime(t *testing.T) {
	const date = scrapedAt + usage.NodeTime(5*time.Hour)
	for _, tt := range []struct {
		dst usage.Scrape
		at  usage.NodeTime
		ok  bool
	}{
		{usage.Scrape{At: usage.Time(scrapedAt)}, scrapedAt.Add(maxAhead), true},
		{usage.Scrape{At: usage.Time(scrapedAt)}, scrapedAt.Add(maxAhead + time.Second), false},
		{usage.Scrape{At: usage.Time(scrapedAt), Date: date}, date.Add(time.Second + maxAheadOfNode), true},
		{usage.Scrape{At: usage.Time(scrapedAt), Date: date}, date.Add(2*time.Second + maxAheadOfNode), false},
	} {
		for name, err := range map[string]error{
			"Text": (&Text{MaxContainers: enough}).Decode(&tt.dst,
				fmt.Appendf(nil, "node_cpu_usage_seconds_total 1 %d\n", tt.at/usage.NodeTime(time.Millisecond))),
			"Summary": (&Summary{MaxContainers: enough}).Decode(&tt.dst,
				fmt.Appendf(nil, `{"node":{"cpu":{"time":%q,"usageCoreNanoSeconds":1}}}`,
					tt.at.Time().Format(time.RFC3339Nano)), ""),
		} {
			if (err == nil) != tt.ok || (reason.Of(err) == reason.ClockSkew) == tt.ok {
				t.Errorf("%s at %v, %+v: got error %v, want one: %v", name, tt.at, tt.dst, err, !tt.ok)
			}
		}
	}
}

func TestBadTimes(t *testing.T) {
	for _, tt := range []struct {
		time string
		date usage.NodeTime
		want string
	}{
		{"0001-01-01T00:00:00Z", 0, "its timestamps are not valid"},
		{"9999-12-31T23:59:59Z", 0, "its timestamps are not valid"},
		{"2026-11-22T00:00:00Z", 0,
			"a sample is from 2026-11-22T00:00:00Z, which is in the future, and the response has no Date header"},
		{"2026-11-22T00:00:00Z", secondAt, "a sample is from 2026-11-22T00:00:00Z, and the node's clock shows " + second},
	} {
		text := `{"node":{"cpu":{"time":"` + tt.time + `","usageCoreNanoSeconds":1}}}`
		dst := &usage.Scrape{At: usage.Time(scrapedAt), Date: tt.date}
		err := (&Summary{MaxContainers: enough}).Decode(dst, []byte(text), "")
		if fmt.Sprint(err) != tt.want {
			t.Errorf("%s: got error %q, want %q", text, err, tt.want)
		}
	}
}

// TestFormatsAgree checks that the two responses of a kubelet are decoded to the same samples,
// apart from the times, which are in whole seconds in the summary.
func TestFormatsAgree(t *testing.T) {
	const all = usage.HasCPU | usage.HasMemory | usage.HasSwap
	second := func(at usage.NodeTime) usage.NodeTime { return at - at%usage.NodeTime(time.Second) }
	text, err := decodeString(t, textDecoder(enough), string(readFile(t, resourceFile)))
	if err != nil {
		t.Fatal(err)
	}
	wantNode := usage.Sample{At: 1795205765826e6, CPUSeconds: 2586.123634182, Memory: 1349017600, Has: all}
	wantFirst := sample{"default/burn-546ccb4d55-87knc/burn", usage.Sample{
		At: sampledAt, StartedAt: 1795205504522881e3, CPUSeconds: 25.080507606, Memory: 1658880, Has: all}}
	if text.node != wantNode || text.containers[0] != wantFirst || len(text.containers) != 6 || text.skipped != nil {
		t.Errorf("got %+v, want %+v, %+v and 5 others", text, wantNode, wantFirst)
	}
	summary, err := decodeString(t, summaryDecoder(enough), string(readFile(t, shortSummary)))
	if err != nil || summary.node.Rate != 324418260 {
		t.Fatalf("got %+v, error %v, want a rate of 324418260", summary, err)
	}
	for _, d := range []*decoded{&text, &summary} {
		d.containers = append(d.containers, sample{"node", d.node})
		d.sort()
	}
	for i := range text.containers {
		got, want := summary.containers[i], text.containers[i]
		got.Rate, want.Rate, want.Has = 0, 0, want.Has|usage.HasRate
		want.At, want.StartedAt = second(want.At), second(want.StartedAt)
		if got != want {
			t.Errorf("\n summary %+v\n    text %+v", got, want)
		}
	}
}

func (d *decoded) sort() {
	slices.SortFunc(d.containers, func(a, b sample) int { return cmp.Compare(a.name, b.name) })
}

// reference is the result of decoding a response in a slow and simple way.
type reference struct {
	decoded
	ids     map[[3]string]int // positions in containers
	dropped map[[2]string]bool
}

func newReference() *reference {
	return &reference{ids: map[[3]string]int{}, dropped: map[[2]string]bool{}}
}

func (r *reference) skip(reason usage.SkipReason) { r.count(reason, 1) }

func (r *reference) skipContainer(reason usage.SkipReason) {
	r.skip(reason)
	r.partial = true
}

// badName returns the first reason why one of some names cannot be kept.
func badName(names ...string) (_ usage.SkipReason, bad bool) {
	for _, name := range names {
		if name == "" {
			return usage.NoIdentity, true
		}
		if len(name) > usage.MaxNameBytes {
			return usage.OverLimit, true
		}
		if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return usage.Malformed, true
		}
	}
	return 0, false
}

// container returns the sample of a container, which it adds if it is new.
func (r *reference) container(namespace, pod, container string) (_ *usage.Sample, isNew bool) {
	id := [3]string{namespace, pod, container}
	i, known := r.ids[id]
	if !known {
		i = len(r.containers)
		r.ids[id] = i
		r.containers = append(r.containers, newSample(namespace, pod, container, usage.Sample{}))
	}
	return &r.containers[i].Sample, !known
}

// result returns the result without dropped pods, and whether that is an error.
func (r *reference) result() (_ decoded, useless bool) {
	d := r.decoded
	d.containers = nil
	for id, i := range r.ids {
		if !r.dropped[[2]string(id[:2])] {
			d.containers = append(d.containers, r.containers[i])
		}
	}
	scrape := usage.Scrape{Node: d.node}
	for _, c := range d.containers {
		scrape.Containers = append(scrape.Containers, usage.ContainerSample{Sample: c.Sample})
	}
	scrape.DropUnknown() // TestDropUnknown checks it
	d.node = scrape.Node
	useful := d.node.Has != 0
	for i, c := range scrape.Containers {
		d.containers[i].Sample = c.Sample
		useful = useful || c.Has != 0 || d.skipped[usage.BadTime] == 0
	}
	d.sort()
	return d, !useful
}

// checkDecoder decodes text with two decoders, where one has decoded other responses before. It checks
// what must be true of any response with at most that many lines or values.
func checkDecoder(t *testing.T, reused, fresh decodeFunc, text []byte, values int) {
	t.Helper()
	var got, want usage.Scrape
	err, wantErr := reused(&got, bytes.Clone(text)), fresh(&want, bytes.Clone(text))
	if !reflect.DeepEqual(got, want) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
		t.Fatalf("reused decoder: got %+v, %v; want %+v, %v", got, err, want, wantErr)
	}
	skipped := 0
	for _, n := range got.Skipped {
		skipped += n
	}
	if skipped > values || len(got.Containers) > min(values, enough) {
		t.Fatalf("got %d containers, %d skipped of %d", len(got.Containers), skipped, values)
	}
	checkSample(t, got.Node)
	names := map[[3]string]bool{}
	for _, c := range got.Containers {
		checkSample(t, c.Sample)
		name := [3]string{string(c.Namespace), string(c.Pod), string(c.Name)}
		_, bad := badName(name[:]...)
		if joined := strings.Join(name[:], ""); bad || strings.ToValidUTF8(joined, "") != joined || names[name] {
			t.Fatalf("container %q is invalid or a duplicate", name)
		}
		names[name] = true
	}
}

func checkSample(t *testing.T, s usage.Sample) {
	t.Helper()
	latest := scrapedAt.Add(maxAhead)
	if !(s.CPUSeconds >= 0) || math.IsInf(s.CPUSeconds, 0) || max(s.Memory, s.Swap, s.Rate) > math.MaxInt64 ||
		min(s.At, s.StartedAt) < 0 || max(s.At, s.StartedAt) > latest ||
		s.Has&(usage.HasCPU|usage.HasRate) != 0 && s.At == 0 {
		t.Fatalf("impossible sample %+v", s)
	}
}

// compare compares what a decoder returned with a reference. It reports only what differs.
func compare(t *testing.T, text []byte, s *usage.Scrape, err error, r *reference) {
	t.Helper()
	want, useless := r.result()
	if (err != nil) != useless {
		t.Fatalf("got error %v, want one: %v\n%.2000q", err, useless, text)
	}
	got := newDecoded(s)
	got.sort()
	if reflect.DeepEqual(got, want) {
		return
	}
	isCommon := func(c sample) bool { return slices.Contains(got.containers, c) && slices.Contains(want.containers, c) }
	onlyGot := slices.DeleteFunc(slices.Clone(got.containers), isCommon)
	want.containers = slices.DeleteFunc(slices.Clone(want.containers), isCommon)
	got.containers = onlyGot
	t.Fatalf("\n got %+v\nwant %+v\n%.2000q", got, want, text)
}

// benchmark measures a decoder and, beside it, the general library.
func benchmark(b *testing.B, text []byte, ours decodeFunc, library string, other func([]byte) error) {
	var dst usage.Scrape
	for name, decode := range map[string]func([]byte) error{
		"ours":  func(text []byte) error { return ours(&dst, text) },
		library: other,
	} {
		b.Run("decoder="+name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if err := decode(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
