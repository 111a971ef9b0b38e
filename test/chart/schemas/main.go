// Command schemas writes JSON schemas for kubeconform into a folder: those of Kubernetes' own objects
// for several minor versions, and those of the custom resources that the chart can render.
//
//	schemas FOLDER
//
// It makes them from the OpenAPI documents and CustomResourceDefinitions in Go modules, which the
// checksum database verifies. The modules are large, so only the schemas are kept. The file of a
// schema is FOLDER/VERSION/GROUP_VERSION_KIND.json; the GROUP of the core API is v1.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// kubernetesVersions returns the versions to check: the oldest that the chart accepts, the one that
// the other tests run, and one between.
func kubernetesVersions() []string { return []string{"v1.29.15", "v1.33.13", "v1.36.3"} }

// customResources returns the modules with CustomResourceDefinitions, and the files in them.
func customResources() map[string]string {
	return map[string]string{
		"github.com/prometheus-operator/prometheus-operator@v0.85.0": "example/prometheus-operator-crd/*.yaml",
		"github.com/cert-manager/cert-manager@v1.21.2":               "deploy/crds/*.yaml",
	}
}

// schemas are JSON schemas by the name of their file.
type schemas map[string]any

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: schemas FOLDER")
		os.Exit(2)
	}
	if err := write(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

// write writes all schemas into a new folder next to the given one, and renames it at the end, so
// that the folder is complete if it exists.
func write(ctx context.Context, folder string) (err error) {
	temporary, err := os.MkdirTemp(filepath.Dir(folder), "schemas-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	custom := schemas{}
	for module, pattern := range customResources() {
		err := withModule(ctx, module, func(dir string) error {
			return custom.addCustomResources(filepath.Join(dir, pattern))
		})
		if err != nil {
			return err
		}
	}
	for _, version := range kubernetesVersions() {
		all := maps.Clone(custom)
		err := withModule(ctx, "k8s.io/kubernetes@"+version, func(dir string) error {
			return all.addOpenAPI(filepath.Join(dir, "api", "openapi-spec", "swagger.json"))
		})
		if err == nil {
			err = all.write(filepath.Join(temporary, version))
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%d schemas for Kubernetes %s\n", len(all), version)
	}
	return os.Rename(temporary, folder)
}

// withModule downloads a Go module, calls f with its folder, and deletes the folder.
func withModule(ctx context.Context, module string, f func(dir string) error) (err error) {
	cache, err := os.MkdirTemp("", "schemas-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(cache)) }()
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir = cache // outside of any module
	cmd.Env = append(os.Environ(), "GOMODCACHE="+cache, "GOFLAGS=-modcacherw", "GOWORK=off")
	out, err := cmd.Output()
	var downloaded struct{ Dir, Error string }
	if parseErr := json.Unmarshal(out, &downloaded); err == nil {
		err = parseErr
	}
	if err != nil {
		return fmt.Errorf("download %s: %w %s", module, err, downloaded.Error)
	}
	return f(downloaded.Dir)
}

func (s schemas) write(folder string) error {
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	for name, schema := range s {
		text, err := json.Marshal(schema)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s schemas) add(group, version, kind string, schema any) {
	if group == "" {
		group = version
	}
	s[strings.ToLower(fmt.Sprintf("%s_%s_%s.json", group, version, kind))] = schema
}

// addOpenAPI adds the kinds of an OpenAPI 2 document. Each schema holds the definitions that it
// refers to.
func (s schemas) addOpenAPI(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var document struct{ Definitions map[string]map[string]any }
	if err := json.Unmarshal(text, &document); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, definition := range document.Definitions {
		makeStrict(definition)
	}
	if quantity := document.Definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"]; quantity != nil {
		quantity["type"] = []any{"string", "number"}
	}
	for name, definition := range document.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 || strings.HasSuffix(name, "List") { // DeleteOptions and others have all groups
			continue
		}
		gvk := kinds[0].(map[string]any)
		used := map[string]any{}
		collect(definition, document.Definitions, used)
		s.add(gvk["group"].(string), gvk["version"].(string), gvk["kind"].(string),
			map[string]any{"allOf": []any{definition}, "definitions": used})
	}
	return nil
}

const reference = "#/definitions/"

// collect adds to used all definitions that a schema refers to, directly or not.
func collect(schema any, definitions map[string]map[string]any, used map[string]any) {
	switch v := schema.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			name := strings.TrimPrefix(ref, reference)
			if used[name] == nil {
				used[name] = definitions[name]
				collect(definitions[name], definitions, used)
			}
		}
		for _, value := range v {
			collect(value, definitions, used)
		}
	case []any:
		for _, value := range v {
			collect(value, definitions, used)
		}
	}
}

// addCustomResources adds the kinds of the CustomResourceDefinitions in files.
func (s schemas) addCustomResources(pattern string) error {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		return errors.Join(err, fmt.Errorf("there are no files %s", pattern))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct{ OpenAPIV3Schema map[string]any }
				}
			}
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, v := range crd.Spec.Versions {
			makeStrict(v.Schema.OpenAPIV3Schema)
			// The API server adds ObjectMeta; a CustomResourceDefinition only has {type: object}.
			s.add(crd.Spec.Group, v.Name, crd.Spec.Names.Kind, v.Schema.OpenAPIV3Schema)
		}
	}
	return nil
}

// makeStrict changes a schema so that objects have no other properties than those it names, as the
// API server checks with strict field validation, and so that what may be a number or a string may
// be both.
func makeStrict(schema any) {
	s, ok := schema.(map[string]any)
	if !ok {
		return
	}
	if s["x-kubernetes-int-or-string"] == true || s["format"] == "int-or-string" {
		clear(s)
		s["type"] = []any{"string", "number"}
		return
	}
	properties, _ := s["properties"].(map[string]any)
	for _, property := range properties {
		makeStrict(property)
	}
	makeStrict(s["items"])
	makeStrict(s["additionalProperties"])
	if properties != nil && s["additionalProperties"] == nil && s["x-kubernetes-preserve-unknown-fields"] != true {
		s["additionalProperties"] = false
	}
}
