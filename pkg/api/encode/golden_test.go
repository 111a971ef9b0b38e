package encode

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestGoldenFixtures compares the encoders with the serialized objects in k8s.io/metrics, byte for
// byte. The fixtures set every field, and the usage of a resource named usageKey. Items have only some
// fields of the metadata, and the usage of cpu and memory, so the other fields of the metadata are
// removed from the fixtures, and the usage of usageKey is compared with that of cpu and of memory.
func TestGoldenFixtures(t *testing.T) {
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/metrics").Output()
	if err != nil {
		t.Fatal(err)
	}
	fixtures := filepath.Join(strings.TrimSpace(string(dir)), "pkg", "apis", "testdata", "HEAD")
	created := time.Date(2008, 1, 1, 1, 1, 1, 0, time.UTC)
	sample := usage.Amount{At: usage.At(time.Date(2002, 1, 1, 1, 1, 1, 0, time.UTC)), Window: 1}
	object := &inventory.Object{
		Namespace: "namespaceValue", Name: "nameValue",
		Labels: inventory.NewLabels(map[string]string{"labelsKey": "labelsValue"}),
	}
	for kind, item := range map[Kind]*Item{
		NodeMetrics: encoder.NewItem(NodeMetrics, created, &Item{Object: object, Usage: &Node{Amount: sample}}),
		PodMetrics: encoder.NewItem(PodMetrics, created, &Item{Object: object, Usage: &Pod{
			At: sample.At, Window: sample.Window, Containers: []usage.Container{{Name: "nameValue", Amount: sample}},
		}}),
	} {
		for _, version := range versions {
			name := version.Group + "." + version.Version + "." + string(kind)
			fixture := func(suffix string) []byte {
				text, err := os.ReadFile(filepath.Join(fixtures, name+suffix))
				if err != nil {
					t.Fatal(err)
				}
				return text
			}
			if got, want := encodeAs(t, item, version, runtime.ContentTypeJSON), servedJSON(t, fixture(".json")); got != want {
				t.Errorf("%s.json: got\n%s\nwant\n%s", name, got, want)
			}
			got := encodeAs(t, item, version, runtime.ContentTypeProtobuf)
			if want := servedProtobuf(t, kind, fixture(".pb")); got != want {
				t.Errorf("%s.pb: got\n%q\nwant\n%q", name, got, want)
			}
		}
	}
}

func encodeAs(t *testing.T, item *Item, version schema.GroupVersion, mediaType string) string {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		t.Fatalf("no serializer for %s", mediaType)
	}
	var b bytes.Buffer
	id := codecs.EncoderForVersion(info.Serializer, version).Identifier()
	if err := item.CacheEncode(id, nil, &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// servedJSON returns a fixture as Items encode themselves.
func servedJSON(t *testing.T, fixture []byte) string {
	t.Helper()
	served := regexp.MustCompile(`^ {4}"(name|namespace|creationTimestamp|labels|usageKey)":`)
	var kept []byte
	keep := true
	for line := range bytes.Lines(fixture) {
		switch {
		case bytes.HasPrefix(line, []byte(`    "`)): // a field of the metadata
			keep = served.Match(line)
		case !bytes.HasPrefix(line, []byte("    ")):
			keep = true
		}
		if keep {
			kept = append(kept, line...)
		}
	}
	kept = regexp.MustCompile(`,\s*}`).ReplaceAll(kept, []byte("}")) // what followed the comma was removed
	var compact bytes.Buffer
	if err := json.Compact(&compact, kept); err != nil {
		t.Fatal(err)
	}
	return strings.Replace(compact.String(), `"usageKey":"0"`, `"cpu":"0","memory":"0"`, 1) + "\n"
}

// field is a field of a message in protobuf.
type field struct {
	number int
	bytes  []byte // of a field with a length
	varint uint64 // of another field
}

func fieldsOf(t *testing.T, message []byte) (fields []field) {
	t.Helper()
	number := func() uint64 {
		n, size := binary.Uvarint(message)
		if size <= 0 {
			t.Fatalf("no number in %q", message)
		}
		message = message[size:]
		return n
	}
	for len(message) > 0 {
		tag := number()
		f := field{number: int(tag >> 3), varint: number()}
		switch tag & 7 {
		case 0:
		case 2:
			f.bytes, message = message[:f.varint:f.varint], message[f.varint:]
		default:
			t.Fatalf("a field of type %d", tag&7)
		}
		fields = append(fields, f)
	}
	return fields
}

func encodeFields(fields []field) []byte {
	message := []byte{}
	for _, f := range fields {
		if f.bytes == nil {
			message = binary.AppendUvarint(message, uint64(f.number)<<3)
			message = binary.AppendUvarint(message, f.varint)
			continue
		}
		message = binary.AppendUvarint(message, uint64(f.number)<<3|2)
		message = binary.AppendUvarint(message, uint64(len(f.bytes)))
		message = append(message, f.bytes...)
	}
	return message
}

// servedProtobuf returns a fixture as Items encode themselves. The numbers are those of the fields in
// generated.proto of runtime, meta/v1 and metrics.
func servedProtobuf(t *testing.T, kind Kind, fixture []byte) string {
	t.Helper()
	const (
		magic             = "k8s\x00"
		raw               = 2 // of Unknown
		metadata          = 1
		usageOrContainers = 4
		containerUsage    = 2
		resourceName      = 1 // of an entry of usage

		generateName, selfLink, uid, resourceVersion  = 2, 4, 5, 6
		generation, creationTimestamp, metadataLabels = 7, 8, 11
	)
	change := func(message []byte, number int, f func([]byte) [][]byte) []byte {
		var changed []field
		for _, old := range fieldsOf(t, message) {
			if old.number != number {
				changed = append(changed, old)
				continue
			}
			for _, b := range f(old.bytes) {
				changed = append(changed, field{number: number, bytes: b})
			}
		}
		return encodeFields(changed)
	}
	rename := func(entry []byte) (entries [][]byte) {
		for _, resource := range []string{"cpu", "memory"} {
			entries = append(entries, change(entry, resourceName, func([]byte) [][]byte { return [][]byte{[]byte(resource)} }))
		}
		return entries
	}
	strip := func(meta []byte) [][]byte {
		fields := fieldsOf(t, meta)
		fields = slices.DeleteFunc(fields, func(f field) bool {
			return f.number > generation && f.number != creationTimestamp && f.number != metadataLabels
		})
		for i := range fields {
			switch f := &fields[i]; f.number { // the encoding has empty strings, and the number 0
			case generateName, selfLink, uid, resourceVersion:
				f.bytes = []byte{}
			case generation:
				f.varint = 0
			}
		}
		return [][]byte{encodeFields(fields)}
	}
	envelope, ok := bytes.CutPrefix(fixture, []byte(magic))
	if !ok {
		t.Fatalf("the fixture begins with %q", fixture[:4])
	}
	return magic + string(change(envelope, raw, func(object []byte) [][]byte {
		object = change(object, metadata, strip)
		object = change(object, usageOrContainers, func(b []byte) [][]byte {
			if kind == NodeMetrics {
				return rename(b)
			}
			return [][]byte{change(b, containerUsage, rename)}
		})
		return [][]byte{object}
	}))
}
