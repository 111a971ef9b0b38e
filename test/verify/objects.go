package main

import (
	"errors"
	"fmt"
	"regexp"

	"sigs.k8s.io/yaml"
)

// objects holds what was rendered, each object as decoded YAML, by identity ("Deployment
// kube-system/kube-vitals").
type objects map[string]map[string]any

var separator = regexp.MustCompile(`(?m)^---\s*$`)

// parse reads a stream of YAML documents and takes out what only helm adds.
func parse(text []byte) (objects, error) {
	objs := objects{}
	for _, document := range separator.Split(string(text), -1) {
		var obj map[string]any
		if err := yaml.UnmarshalStrict([]byte(document), &obj); err != nil {
			return nil, fmt.Errorf("not YAML: %w\n%s", err, document)
		}
		if obj == nil { // comments only
			continue
		}
		id := identity(obj)
		if _, twice := objs[id]; twice {
			return nil, fmt.Errorf("%s is there twice", id)
		}
		dropHelmLabels(obj)
		objs[id] = obj
	}
	if len(objs) == 0 {
		return nil, errors.New("no objects")
	}
	return objs, nil
}

func identity(obj map[string]any) string {
	metadata, _ := obj["metadata"].(map[string]any)
	name := fmt.Sprint(metadata["name"])
	if namespace, ok := metadata["namespace"]; ok {
		name = fmt.Sprint(namespace, "/", name)
	}
	return fmt.Sprint(obj["kind"], " ", name)
}

func dropHelmLabels(obj map[string]any) {
	metadata, _ := obj["metadata"].(map[string]any)
	labels, _ := metadata["labels"].(map[string]any)
	delete(labels, "helm.sh/chart")
	delete(labels, "app.kubernetes.io/managed-by")
}
