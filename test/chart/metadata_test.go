package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestMetadata checks what Artifact Hub reads of Chart.yaml: lists in annotations are YAML, the image
// is the one that is rendered, and the icon and the linked pages are files of this repository.
func TestMetadata(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var metadata struct {
		Icon, AppVersion string
		Annotations      map[string]string
	}
	if err := yaml.Unmarshal(text, &metadata); err != nil {
		t.Fatal(err)
	}
	lists := map[string][]map[string]any{}
	for _, name := range []string{"images", "links", "changes"} {
		var list []map[string]any
		err := yaml.UnmarshalStrict([]byte(metadata.Annotations["artifacthub.io/"+name]), &list)
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: got %d elements, error %v", name, len(list), err)
		}
		lists[name] = list
	}
	rendered := render(t).value(t, "Deployment kube-system/kube-vitals", "spec.template.spec.containers.0.image")
	if image := lists["images"][0]["image"]; image != rendered {
		t.Errorf("got image %v, want %v, which is rendered", image, rendered)
	}
	for _, change := range lists["changes"] {
		kinds := []any{"added", "changed", "deprecated", "removed", "fixed", "security"}
		if !slices.Contains(kinds, change["kind"]) || change["description"] == nil {
			t.Errorf("got change %v, want a kind of %v and a description", change, kinds)
		}
	}
	urls := []string{metadata.Icon}
	for _, link := range lists["links"] {
		urls = append(urls, link["url"].(string))
	}
	for _, url := range urls {
		_, path, ok := strings.Cut(strings.Replace(url, "/blob/", "/", 1), "/kube-vitals/kube-vitals/main/")
		if _, err := os.Stat(filepath.Join("..", "..", path)); !ok || err != nil {
			t.Errorf("%s is not a file of this repository: %v", url, err)
		}
	}
}
