package encode

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestGoldenFixtures compares the encoders with the serialized objects in k8s.io/metrics, byte for
// byte. The fixtures set every field, and the usage of a resource named usageKey. The library, which
// must encode a decoded fixture as it was, encodes it again without what Items do not have.
func TestGoldenFixtures(t *testing.T) {
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/metrics").Output()
	if err != nil {
		t.Fatal(err)
	}
	fixtures := filepath.Join(strings.TrimSpace(string(dir)), "pkg", "apis", "testdata", "HEAD")
	created := time.Date(2008, 1, 1, 1, 1, 1, 0, time.UTC)
	sample := usage.Amount{At: usage.NodeAt(time.Date(2002, 1, 1, 1, 1, 1, 0, time.UTC)), Window: 1}
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
			for suffix, mediaType := range map[string]string{
				".json": runtime.ContentTypeJSON, ".pb": runtime.ContentTypeProtobuf,
			} {
				name := version.Group + "." + version.Version + "." + string(kind) + suffix
				fixture, err := os.ReadFile(filepath.Join(fixtures, name))
				if err != nil {
					t.Fatal(err)
				}
				typed, err := runtime.Decode(codecs.UniversalDecoder(metrics.SchemeGroupVersion), fixture)
				if err != nil {
					t.Fatal(err)
				}
				if got, want := encodeAs(t, typed, version, mediaType), unindented(t, fixture, suffix); got != want {
					t.Errorf("%s: got from the library\n%q\nwant\n%q", name, got, want)
				}
				strip(typed)
				if got, want := encodeAs(t, item, version, mediaType), encodeAs(t, typed, version, mediaType); got != want {
					t.Errorf("%s: got\n%q\nwant\n%q", name, got, want)
				}
			}
		}
	}
}

func encodeAs(t *testing.T, object runtime.Object, version schema.GroupVersion, mediaType string) string {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		t.Fatalf("no serializer for %s", mediaType)
	}
	text, err := runtime.Encode(codecs.EncoderForVersion(info.Serializer, version), object)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// unindented returns a fixture as the server's encoders write it.
func unindented(t *testing.T, fixture []byte, suffix string) string {
	t.Helper()
	if suffix != ".json" {
		return string(fixture)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, fixture); err != nil {
		t.Fatal(err)
	}
	return compact.String() + "\n"
}

// strip reduces a fixture to what Items have.
func strip(object runtime.Object) {
	usageOf := func(fixture corev1.ResourceList) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: fixture["usageKey"], corev1.ResourceMemory: fixture["usageKey"]}
	}
	var meta *metav1.ObjectMeta
	switch o := object.(type) {
	case *metrics.NodeMetrics:
		meta, o.Usage = &o.ObjectMeta, usageOf(o.Usage)
	case *metrics.PodMetrics:
		meta, o.Containers[0].Usage = &o.ObjectMeta, usageOf(o.Containers[0].Usage)
	}
	*meta = metav1.ObjectMeta{
		Name: meta.Name, Namespace: meta.Namespace, Labels: meta.Labels, CreationTimestamp: meta.CreationTimestamp,
	}
}
