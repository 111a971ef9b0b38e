package decode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// storageSummary is the response of a kubelet with a pod that has written 64 MiB into an emptyDir.
const storageSummary = "kubelet-1.36-summary-storage.json"

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

// expectStorage decodes a summary with some pods and a correct one.
func expectStorage(t *testing.T, pods, want string, skipped ...usage.SkipReason) {
	t.Helper()
	var dst usage.Scrape
	const good = `{"podRef":{"name":"good","namespace":"n"},"containers":[{"name":"x"}],` +
		`"ephemeral-storage":{"usedBytes":3}}`
	text := `{"node":{"nodeName":"node1","cpu":{"time":"tomorrow"}},"pods":[` + pods + "," + good + `]}`
	err := storageDecoder(enough)(&dst, []byte(text))
	want = strings.TrimSpace(want + " n/good/x=0 n/good/=3 @0")
	wantSkipped := decoded{}.skipping(skipped...).skipped
	got, gotSkipped := strings.Join(storageOf(&dst), " "), newDecoded(&dst).skipped
	if err != nil || got != want || !maps.Equal(gotSkipped, wantSkipped) {
		t.Errorf("%s:\n got %s, skipped %v, error %v\nwant %s, skipped %v", pods, got, gotSkipped, err, want, wantSkipped)
	}
}

// diskUse returns a field with what a filesystem has used.
func diskUse(key, bytes string) string {
	return `"` + key + `":{"time":"` + second + `","usedBytes":` + bytes + `}`
}

// storagePod returns the pod n/p with the UID u, its containers, and more fields.
func storagePod(containers string, fields ...string) string {
	return `{"podRef":{"name":"p","namespace":"n","uid":"u"},"containers":[` + containers + "]," +
		strings.Join(fields, ",") + "}"
}

func TestStorage(t *testing.T) {
	const largest = "9223372036854775807"
	total := diskUse("ephemeral-storage", "100")
	const a = `{"name":"a","rootfs":{"usedBytes":10},"logs":{"usedBytes":5}}`
	for pod, want := range map[string]string{
		storagePod(a, total): "n/p/a=15 n/p/=85 u@0",
		storagePod(a, `"ephemeral-storage":{"usedBytes":100}`):      "n/p/a=15 n/p/=85 u@0",
		storagePod(a, total, diskUse("ephemeral-storage", "20")):    "n/p/a=15 n/p/=5 u@0",
		storagePod(a+`,{"name":"b","logs":{"usedBytes":7}}`, total): "n/p/a=15 n/p/b=7 n/p/=78 u@0",
		storagePod(`{"name":"a"}`, total):                           "n/p/a=0 n/p/=100 u@0",
		storagePod(`{"name":"a","rootfs":null,"logs":{}}`, total):   "n/p/a=0 n/p/=100 u@0",
		`{` + total + `,"containers":[{"logs":{"usedBytes":5},"name":"a"}],"podRef":{"name":"p","namespace":"n"}}`: "" +
			"n/p/a=5 n/p/=95 @0",
		// containerd has not measured yet.
		storagePod(`{"name":"a","rootfs":{"time":"1970-01-01T00:00:00Z","usedBytes":0}}`, total): "n/p/a=0 n/p/=100 u@0",
		// The parts exceed the total, or the largest number.
		storagePod(`{"name":"b",`+diskUse("rootfs", largest)+`},`+a, total): "n/p/b=" + largest + " n/p/a=15 n/p/=0 u@0",
		storagePod(`{"name":"a",`+diskUse("rootfs", largest)+`,`+diskUse("logs", largest)+`}`,
			diskUse("ephemeral-storage", largest)): "n/p/a=" + largest + " n/p/=0 u@0",
		// The kubelet does not know the total, or there is no container.
		storagePod(a, diskUse("ephemeral-storage", "null")): "",
		storagePod(a, `"ephemeral-storage":null`):           "",
		storagePod("", total):                               "", "null": "", "{}": "",
	} {
		expectStorage(t, pod, want)
	}
}

// TestStorageSkips has pods that are skipped as a whole because of one value.
func TestStorageSkips(t *testing.T) {
	total := diskUse("ephemeral-storage", "100")
	const a = `{"name":"a","rootfs":{"usedBytes":10}}`
	long := strings.Repeat("x", 254)
	for skipped, pods := range map[usage.SkipReason][]string{
		usage.BadValue: {
			storagePod(a, diskUse("ephemeral-storage", "9223372036854775808")),
			storagePod(a+`,{"name":"b",`+diskUse("logs", "9223372036854775808")+`}`, total),
		},
		usage.Malformed: {
			storagePod(a, diskUse("ephemeral-storage", "-1")), storagePod(a, diskUse("ephemeral-storage", "1.5")),
			storagePod(a+`,{"name":"b",`+diskUse("logs", "-5")+`}`, total),
			storagePod(a, diskUse("ephemeral-storage", `"100"`)), storagePod(a, `"ephemeral-storage":[]`),
			storagePod(a+`,{"name":"b","rootfs":5}`, total), storagePod(a+`,"b"`, total),
			storagePod(a, total) + "," + storagePod(a, `"ephemeral-storage":1`), // a duplicate
		},
		usage.BadTime: {
			storagePod(a, `"ephemeral-storage":{"time":"2027-01-01T00:00:00Z","usedBytes":100}`),
			storagePod(a, `"ephemeral-storage":{"time":"0001-01-01T00:00:00Z","usedBytes":100}`),
		},
		usage.NoIdentity: {storagePod(a+`,{"rootfs":{}}`, total), `{"containers":[` + a + `],` + total + `}`},
		usage.OverLimit: {
			`{"podRef":{"namespace":"n","name":"` + long + `"},"containers":[` + a + `],` + total + `}`,
			`{"podRef":{"namespace":"n","name":"p","uid":"` + long + `"},"containers":[` + a + `],` + total + `}`,
		},
		usage.Duplicate: {storagePod(a+","+a, total), storagePod(a, total) + "," + storagePod(a, total)},
	} {
		for _, pod := range pods {
			expectStorage(t, pod, "", skipped)
		}
	}
}

func TestStorageOfNode(t *testing.T) {
	const fs = `"fs":{"time":"` + second + `","usedBytes":7}`
	for _, tt := range []struct {
		text   string
		want   string
		reason reason.Reason
	}{
		{`{"node":{` + fs + `}}`, "[//=7 @0]", ""},
		{`{"node":{"fs":{"usedBytes":1},` + fs + `},"node":{}}`, "[]", reason.NoSamples},
		{`{"node":{"fs":{"usedBytes":0}}}`, "[//=0 @0]", ""},
		{`{"node":{` + fs + `,"fs":{"usedBytes":-1}}}`, "[]", reason.Undecodable},
		{`{"node":{` + fs + `,"fs":{"usedBytes":9223372036854775808}}}`, "[]", reason.NoSamples},
		{`{"node":{"fs":5}}`, "[]", reason.Undecodable},
		{`{"node":{"fs":{"time":"2027-01-01T00:00:00Z","usedBytes":7}}}`, "[]", reason.ClockSkew},
		{`{"node":{"nodeName":"node2","fs":null}}`, "[]", reason.BadEndpoint},
		{`{}`, "[]", reason.NoSamples},
		{`{"node":{` + fs + `}`, "[]", reason.Undecodable},
	} {
		var dst usage.Scrape
		err := storageDecoder(enough)(&dst, []byte(tt.text))
		if got := fmt.Sprint(storageOf(&dst)); reason.Of(err) != tt.reason || got != tt.want {
			t.Errorf("%s: got %s, error %v, want %s and reason %q", tt.text, got, err, tt.want, tt.reason)
		}
	}
}

// TestStorageLikeJSON compares the totals with encoding/json on summaries of kubelets.
func TestStorageLikeJSON(t *testing.T) {
	decode := storageDecoder(enough)
	for _, original := range [][]byte{
		readFile(t, storageSummary), readFile(t, fullSummary), largeResponse(summaryPath, 5, 2),
	} {
		dst := usage.Scrape{Date: usage.NodeTime(1795350645 * 1e9)} // after all of them
		if err := decode(&dst, bytes.Clone(original)); err != nil || dst.Skipped != [usage.NumSkipReasons]int{} {
			t.Fatalf("got error %v, skipped %v", err, dst.Skipped)
		}
		got := map[string]uint64{}
		for _, s := range dst.Storage {
			got[string(s.Pod)] += s.Bytes
		}
		if want := totalsOf(t, original); !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
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
	Node struct{ Fs usedBytes }
	Pods []struct {
		PodRef     struct{ Namespace, Name, UID string }
		Containers []struct {
			Name         string
			Rootfs, Logs usedBytes
		}
		Total usedBytes `json:"ephemeral-storage"`
	}
}

type usedBytes struct {
	Time      time.Time
	UsedBytes *uint64
}

func unmarshalStorage(text []byte) (s summaryWithStorage, err error) {
	return s, json.Unmarshal(text, &s)
}

// BenchmarkStorage decodes the storage of 64 containers.
func BenchmarkStorage(b *testing.B) {
	benchmark(b, largeResponse(summaryPath, 32, 2), storageDecoder(enough), "encoding/json", func(text []byte) error {
		_, err := unmarshalStorage(text)
		return err
	})
}

// checkStorage checks what must be true of any response. FuzzSummary calls it.
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
