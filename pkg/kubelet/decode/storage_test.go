package decode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// storageSummary is the response of a kubelet with a pod that has written 64 MiB into an emptyDir.
const storageSummary = "kubelet-1.36-summary-storage.json"

func storageDecoder(maxContainers int) decodeFunc {
	d := &Summary{MaxContainers: maxContainers}
	return func(dst *usage.Scrape, text []byte) error {
		dst.At = scrapedAt
		return d.DecodeStorage(dst, text, "node1")
	}
}

// storageOf returns samples as "namespace/pod/container=bytes", with the UID and the time of pods.
func storageOf(s *usage.Scrape) (all []string) {
	for _, v := range s.Storage {
		text := fmt.Sprintf("%s/%s/%s=%d", v.Namespace, v.Pod, v.Container, v.Bytes)
		if len(v.Container) == 0 {
			text += fmt.Sprintf(" %s@%d", v.UID, max(0, v.At-secondAt)/1e9)
		}
		all = append(all, text)
	}
	return all
}

func TestStorageOfRealKubelet(t *testing.T) {
	text := readFile(t, storageSummary)
	const now = usage.Time(1795350645 * 1e9)
	dst := usage.Scrape{At: now, Date: now}
	if err := new(Summary).DecodeStorage(&dst, text, "node1"); err != nil {
		t.Fatal(err)
	}
	if len(dst.Containers) != 0 || dst.Partial || dst.Skipped != [usage.NumSkipReasons]int{} {
		t.Errorf("got %d containers, partial %v, skipped %v; want nothing", len(dst.Containers), dst.Partial, dst.Skipped)
	}
	got := map[string]uint64{}
	for _, s := range dst.Storage {
		got[fmt.Sprintf("%s/%s", s.Pod, s.Container)] = s.Bytes
		if age := now.Sub(s.At); age < 0 || age > time.Minute {
			t.Errorf("%s was measured %v before the response", s.Pod, age)
		}
	}
	// The emptyDir has 64 MiB and a folder, /etc/hosts a block of 4 KiB.
	for name, want := range map[string]uint64{
		"filler/app": 45056, "filler/helper": 40960, "filler/": 64<<20 + 4096 + 4096, "/": 59566510080,
	} {
		if got[name] != want {
			t.Errorf("%s: got %d bytes, want %d", name, got[name], want)
		}
	}
}

func TestStorage(t *testing.T) {
	const p, q = `"podRef":{"name":"p","namespace":"n","uid":"u"}`, `"podRef":{"name":"q","namespace":"n"}`
	fs := func(key, fields string) string { return `"` + key + `":{"time":"` + second + `",` + fields + `}` }
	total := fs("ephemeral-storage", `"usedBytes":100`)
	pod := func(fields ...string) string { return "{" + strings.Join(fields, ",") + "}" }
	containers := func(list ...string) string { return `"containers":[` + strings.Join(list, ",") + "]" }
	a := `{"name":"a","rootfs":{"usedBytes":10},"logs":{"usedBytes":5}}`
	good := pod(`"podRef":{"name":"good","namespace":"n"}`, containers(`{"name":"x"}`), total)
	one := func(r usage.SkipReason) map[usage.SkipReason]int { return map[usage.SkipReason]int{r: 1} }
	const kept = "n/good/x=0 n/good/=100 @0"
	for _, tt := range []struct {
		name, pods string
		want       string // of the pods
		skipped    map[usage.SkipReason]int
	}{
		{"pod", pod(p, containers(a), total), "n/p/a=15 n/p/=85 u@0", nil},
		{"names last", pod(total, containers(`{"logs":{"usedBytes":5},"name":"a"}`), p), "n/p/a=5 n/p/=95 u@0", nil},
		{"two containers", pod(p, containers(a, `{"name":"b","logs":{"usedBytes":7}}`), total),
			"n/p/a=15 n/p/b=7 n/p/=78 u@0", nil},
		{"no parts", pod(p, containers(`{"name":"a"}`, `{"name":"b","rootfs":null,"logs":{}}`), total),
			"n/p/a=0 n/p/b=0 n/p/=100 u@0", nil},
		{"containerd has not measured yet", pod(p, containers(
			`{"name":"a","rootfs":{"time":"1970-01-01T00:00:00Z","usedBytes":0}}`), total), "n/p/a=0 n/p/=100 u@0", nil},
		{"parts exceed the total", pod(p, containers(`{"name":"b","rootfs":{"usedBytes":9223372036854775807}}`, a), total),
			"n/p/b=9223372036854775807 n/p/a=15 n/p/=0 u@0", nil},
		{"huge", pod(p, containers(
			`{"name":"a","rootfs":{"usedBytes":9223372036854775807},"logs":{"usedBytes":9223372036854775807}}`),
			fs("ephemeral-storage", `"usedBytes":9223372036854775807`)), "n/p/a=9223372036854775807 n/p/=0 u@0", nil},
		{"no time", pod(p, containers(a), `"ephemeral-storage":{"usedBytes":100}`), "n/p/a=15 n/p/=85 u@0", nil},
		{"last of two totals", pod(p, containers(a), total, `"ephemeral-storage":{"usedBytes":20}`),
			"n/p/a=15 n/p/=5 u@0", nil},

		{"no total", pod(p, containers(a)), "", nil},
		{"null total", pod(p, containers(a), `"ephemeral-storage":null`), "", nil},
		{"total without bytes", pod(p, containers(a), `"ephemeral-storage":{"usedBytes":null}`), "", nil},
		{"no containers", pod(p, total), "", nil},
		{"null", "null", "", nil},
		{"empty", "{}", "", nil},

		{"negative total", pod(p, containers(a), fs("ephemeral-storage", `"usedBytes":-1`)), "", one(usage.BadValue)},
		{"too large", pod(p, containers(a), fs("ephemeral-storage", `"usedBytes":9223372036854775808`)), "",
			one(usage.BadValue)},
		{"fraction", pod(p, containers(a), fs("ephemeral-storage", `"usedBytes":1.5`)), "", one(usage.BadValue)},
		{"text", pod(p, containers(a), fs("ephemeral-storage", `"usedBytes":"100"`)), "", one(usage.Malformed)},
		{"list", pod(p, containers(a), `"ephemeral-storage":[]`), "", one(usage.Malformed)},
		{"future", pod(p, containers(a), `"ephemeral-storage":{"time":"2027-01-01T00:00:00Z","usedBytes":100}`), "",
			one(usage.BadTime)},
		{"before 1970", pod(p, containers(a), `"ephemeral-storage":{"time":"0001-01-01T00:00:00Z","usedBytes":100}`), "",
			one(usage.BadTime)},
		{"negative part", pod(p, containers(a, `{"name":"b","logs":{"usedBytes":-5}}`), total), "",
			one(usage.BadValue)},
		{"part of another type", pod(p, containers(a, `{"name":"b","rootfs":5}`), total), "", one(usage.Malformed)},
		{"unnamed container", pod(p, containers(a, `{"rootfs":{}}`), total), "", one(usage.NoIdentity)},
		{"container of another type", pod(p, containers(a, `"b"`), total), "", one(usage.Malformed)},
		{"unnamed pod", pod(containers(a), total), "", one(usage.NoIdentity)},
		{"long name", pod(`"podRef":{"namespace":"n","name":"`+strings.Repeat("x", 254)+`"}`, containers(a), total), "",
			one(usage.OverLimit)},
		{"long UID", pod(`"podRef":{"namespace":"n","name":"p","uid":"`+strings.Repeat("x", 254)+`"}`, containers(a), total),
			"", one(usage.OverLimit)},
		{"duplicate container", pod(p, containers(a, a), total), "", one(usage.Duplicate)},
		{"duplicate pod", strings.Join([]string{
			pod(p, containers(a), total), pod(p, containers(a), total), pod(q, containers(a), total)}, ","),
			"n/q/a=15 n/q/=85 @0", one(usage.Duplicate)},
		{"duplicate of an invalid pod", pod(p, containers(a), total) + "," + pod(p, containers(a), `"ephemeral-storage":1`),
			"", one(usage.Malformed)},
	} {
		want := kept
		if tt.want != "" {
			want += " " + tt.want
		}
		var dst usage.Scrape
		text := `{"node":{"nodeName":"node1","cpu":{"time":"tomorrow"}},"pods":[` + good + "," + tt.pods + `]}`
		if err := storageDecoder(0)(&dst, []byte(text)); err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got := strings.Join(storageOf(&dst), " ")
		skipped := newDecoded(&dst).skipped
		if got != want || !reflect.DeepEqual(skipped, tt.skipped) {
			t.Errorf("%s:\n got %s, skipped %v\nwant %s, skipped %v", tt.name, got, skipped, want, tt.skipped)
		}
	}
}

func TestStorageOfNode(t *testing.T) {
	const fs = `"fs":{"time":"` + second + `","usedBytes":7}`
	for _, tt := range []struct {
		text string
		want string
		err  error
	}{
		{`{"node":{` + fs + `}}`, "[//=7 @0]", nil},
		{`{"node":{"fs":{"usedBytes":1},` + fs + `},"node":{}}`, "[//=7 @0]", nil},
		{`{"node":{"fs":{"usedBytes":0}}}`, "[//=0 @0]", nil},
		{`{"node":{` + fs + `,"fs":{"usedBytes":-1}}}`, "[]", errNoSamples},
		{`{"node":{"fs":5}}`, "[]", errUndecodable},
		{`{"node":{"fs":{"time":"2027-01-01T00:00:00Z","usedBytes":7}}}`, "[]", errBadTime},
		{`{"node":{"nodeName":"node2",` + fs + `}}`, "", errOtherNode},
		{`{"node":{}}`, "[]", errNoSamples},
		{`{}`, "[]", errNoSamples},
		{`[]`, "[]", errUndecodable},
		{`{"node":{` + fs + `}`, "[]", errNotJSON},
		{``, "[]", errNotJSON},
	} {
		var dst usage.Scrape
		err := storageDecoder(0)(&dst, []byte(tt.text))
		if !isLike(err, tt.err) {
			t.Errorf("%s: got error %v, want %v", tt.text, err, tt.err)
		}
		if got := fmt.Sprint(storageOf(&dst)); tt.want != "" && got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.text, got, tt.want)
		}
	}
}

func TestStorageLimits(t *testing.T) {
	text := largeSummaryWithStorage(40, 2)
	for limit, want := range map[int]int{0: 40*3 + 1, 60: 20*3 + 1, 1: 1} {
		var dst usage.Scrape
		if err := storageDecoder(limit)(&dst, text); err != nil {
			t.Fatal(err)
		}
		if len(dst.Storage) != want {
			t.Errorf("limit %d: got %d samples, want %d", limit, len(dst.Storage), want)
		}
	}
	d := new(Summary)
	text = largeSummaryWithStorage(maxReusedIndex, 1)
	if err := d.DecodeStorage(&usage.Scrape{At: scrapedAt}, text, "node1"); err != nil {
		t.Fatal(err)
	}
	if d.index != nil || d.dropped != nil || d.dst != nil || d.text != nil {
		t.Errorf("got an index of %d, %d pods, dst %p, %d bytes; want nil", len(d.index), len(d.dropped), d.dst,
			len(d.text))
	}
}

// TestStorageLikeJSON compares with encoding/json on summaries of kubelets, and checks summaries that
// are changed.
func TestStorageLikeJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	decode := storageDecoder(0)
	for _, original := range [][]byte{readFile(t, fullSummary), largeSummaryWithStorage(12, 2)} {
		var dst usage.Scrape
		if err := decode(&dst, bytes.Clone(original)); err != nil {
			t.Fatal(err)
		}
		got := map[string]uint64{}
		for _, s := range dst.Storage {
			got[string(s.Pod)] += s.Bytes
		}
		if want := totalsOf(t, original); !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		root := parseJSON(t, original)
		for range 200 {
			text := writeJSON(nil, mutateJSON(r, 1+r.IntN(500), root))
			checkStorage(t, decode, text)
			checkStorage(t, decode, text[:r.IntN(len(text))])
		}
	}
}

// totalsOf returns the usage of the node, whose name is "", and of pods.
func totalsOf(t *testing.T, text []byte) map[string]uint64 {
	t.Helper()
	summary, err := unmarshalStorage(text)
	if err != nil {
		t.Fatal(err)
	}
	totals := map[string]uint64{"": *summary.Node.Fs.UsedBytes}
	for _, p := range summary.Pods {
		totals[p.PodRef.Name] = *p.Total.UsedBytes
	}
	return totals
}

// summaryWithStorage has the fields of a summary that Storage reads.
type summaryWithStorage struct {
	Node struct{ Fs filesystem }
	Pods []struct {
		PodRef     struct{ Namespace, Name, UID string }
		Containers []struct {
			Name         string
			Rootfs, Logs filesystem
		}
		Total filesystem `json:"ephemeral-storage"`
	}
}

type filesystem struct {
	Time      time.Time
	UsedBytes *uint64
}

func unmarshalStorage(text []byte) (s summaryWithStorage, err error) {
	return s, json.Unmarshal(text, &s)
}

// BenchmarkStorage decodes the storage of 64 containers.
func BenchmarkStorage(b *testing.B) {
	benchmark(b, largeSummaryWithStorage(32, 2), storageDecoder(0), "encoding/json", func(text []byte) error {
		_, err := unmarshalStorage(text)
		return err
	})
}

func FuzzStorage(f *testing.F) {
	f.Add(readFile(f, storageSummary))
	f.Add(largeSummaryWithStorage(2, 2))
	reused := storageDecoder(0)
	f.Fuzz(func(t *testing.T, text []byte) {
		checkDecoder(t, reused, storageDecoder(0), text, len(text)+1)
		checkStorage(t, reused, text)
	})
}

// checkStorage checks what must be true of any response.
func checkStorage(t *testing.T, decode decodeFunc, text []byte) {
	t.Helper()
	var dst usage.Scrape
	if decode(&dst, bytes.Clone(text)) != nil {
		return
	}
	names := map[[3]string]bool{}
	for i, s := range dst.Storage {
		name := [3]string{string(s.Namespace), string(s.Pod), string(s.Container)}
		isLast := i == len(dst.Storage)-1
		isNode := name == [3]string{}
		switch {
		case names[name]:
			t.Fatalf("%q is a duplicate", name)
		case isNode != (len(s.Pod) == 0) || isNode && !isLast:
			t.Fatalf("%q: only the last sample may be that of the node", name)
		case !isNode && (name[0] == "" || name[1] == ""):
			t.Fatalf("%q has no name", name)
		case !utf8.ValidString(strings.Join(name[:], "")) || !utf8.Valid(s.UID):
			t.Fatalf("%q is not UTF-8", name)
		case s.Bytes > math.MaxInt64 || s.At < 0 || s.At > scrapedAt.Add(maxAhead):
			t.Fatalf("impossible sample %+v", s)
		case name[2] != "" && (isLast || string(dst.Storage[i+1].Pod) != name[1]):
			t.Fatalf("%q is not followed by a sample of its pod", name)
		}
		names[name] = true
	}
}
