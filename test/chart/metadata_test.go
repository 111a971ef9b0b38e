package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// metadata is a part of Chart.yaml.
type metadata struct {
	Icon, Version, AppVersion string
	Annotations               map[string]string
}

func readMetadata(t *testing.T) (m metadata) {
	t.Helper()
	must(t, yaml.Unmarshal(mustRead(t, filepath.Join(chart, "Chart.yaml")), &m))
	return m
}

// TestMetadata checks that the chart has the version of the server, and what Artifact Hub reads of
// Chart.yaml: lists in annotations are YAML, the image is the default of this version, and the icon
// and the linked pages are files of this repository.
func TestMetadata(t *testing.T) {
	metadata := readMetadata(t)
	if metadata.Version != metadata.AppVersion {
		t.Errorf("the chart has version %s, the server %s", metadata.Version, metadata.AppVersion)
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
	want := render(t, "image.tag=v"+metadata.AppVersion).value(t, deployment, container+"image")
	if image := lists["images"][0]["image"]; image != want {
		t.Errorf("got image %v, want %v", image, want)
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
