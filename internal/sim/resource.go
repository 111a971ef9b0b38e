package sim

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// target is what a path leads to: an object, or a collection if the name is empty.
type target struct {
	prefix                    string // /api/v1, or /apis/GROUP/VERSION
	namespace, resource, name string
}

// parse parses a path. It reports false if that leads to something else, such as a subresource.
func parse(path string) (t target, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	n := 2
	if parts[0] == "apis" {
		n = 3
	}
	if len(parts) <= n {
		return t, false
	}
	t.prefix, parts = "/"+strings.Join(parts[:n], "/"), parts[n:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		t.namespace, parts = parts[1], parts[2:]
	}
	t.resource = parts[0]
	if len(parts) > 1 {
		t.name = parts[1]
	}
	return t, len(parts) <= 2
}

// has reports whether an object is in a collection.
func (t target) has(o target) bool {
	return o.name != "" && o.prefix == t.prefix && o.resource == t.resource &&
		(t.namespace == "" || t.namespace == o.namespace)
}

// apiVersion returns the group and version of a target.
func apiVersion(t target) string {
	return strings.TrimPrefix(strings.TrimPrefix(t.prefix, "/apis/"), "/api/")
}

// kindOf returns the kind of the objects of a resource, or "" if neither client-go nor metrics.k8s.io has it.
func kindOf(t target) string {
	if strings.HasPrefix(t.prefix, "/apis/metrics.k8s.io/") {
		return map[string]string{"pods": "PodMetrics", "nodes": "NodeMetrics"}[t.resource]
	}
	version, _ := schema.ParseGroupVersion(apiVersion(t))
	for kind := range scheme.Scheme.KnownTypes(version) {
		if plural, _ := meta.UnsafeGuessKindToResource(version.WithKind(kind)); plural.Resource == t.resource {
			return kind
		}
	}
	return ""
}

// toMap returns a copy of an object as JSON, with its kind and the names in its path. It returns nil for nil.
func toMap(path string, object any) (m map[string]any) {
	switch object := object.(type) {
	case nil:
		return nil
	case map[string]any:
		if object == nil {
			return nil
		}
	}
	if err := json.Unmarshal(encode(object), &m); err != nil {
		panic(err)
	}
	t, ok := parse(path)
	if !ok || t.name == "" {
		return m
	}
	if m["kind"] == nil {
		if kind := kindOf(t); kind != "" {
			m["apiVersion"], m["kind"] = apiVersion(t), kind
		}
	}
	metadata := Meta(m)
	if metadata["name"] == nil {
		metadata["name"] = t.name
	}
	if metadata["namespace"] == nil && t.namespace != "" {
		metadata["namespace"] = t.namespace
	}
	return m
}

// selected returns the objects of a collection that match the selectors of a request, in the order of their paths.
func (a *API) selected(c target, query url.Values) (objects []map[string]any) {
	for _, path := range slices.Sorted(maps.Keys(a.Objects)) {
		if o, ok := parse(path); ok && c.has(o) {
			if object := a.get(path); matches(object, query) {
				objects = append(objects, object)
			}
		}
	}
	return objects
}

// matches reports whether an object matches the selectors of a request, whose fields may be names, spec.nodeName and
// status.phase. It panics if they are invalid.
func matches(object map[string]any, query url.Values) bool {
	byLabel, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		panic(err)
	}
	text := func(section, field string) string {
		s, _ := object[section].(map[string]any)
		value, _ := s[field].(string)
		return value
	}
	set := labels.Set{}
	l, _ := Meta(object)["labels"].(map[string]any)
	for key, value := range l {
		set[key], _ = value.(string)
	}
	return byLabel.Matches(set) && fields.ParseSelectorOrDie(query.Get("fieldSelector")).Matches(fields.Set{
		"metadata.name": text("metadata", "name"), "metadata.namespace": text("metadata", "namespace"),
		"spec.nodeName": text("spec", "nodeName"), "status.phase": text("status", "phase"),
	})
}

// onlyMetadata returns a list with the metadata of its objects only.
func onlyMetadata(list map[string]any) map[string]any {
	all, _ := list["items"].([]any)
	items := []any{}
	for _, object := range all {
		items = append(items, map[string]any{"metadata": object.(map[string]any)["metadata"]})
	}
	return map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
		"metadata": list["metadata"], "items": items}
}

// toJSON returns an object in protobuf as JSON.
func toJSON(binary []byte) ([]byte, error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(binary, nil, nil)
	if err != nil {
		return nil, err
	}
	return encode(object), nil
}

// toProtobuf returns an object in JSON as protobuf.
func toProtobuf(text []byte) ([]byte, error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	var binary bytes.Buffer
	err = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(object, &binary)
	return binary.Bytes(), err
}

// fromMap decodes JSON into a typed object.
func fromMap(m map[string]any, into runtime.Object) {
	if err := json.Unmarshal(encode(m), into); err != nil {
		panic(err)
	}
}

// initialEventsEnd is the bookmark that ends the initial events of a list by a watch.
func initialEventsEnd(c target, version string) map[string]any {
	return map[string]any{"apiVersion": apiVersion(c), "kind": kindOf(c), "metadata": map[string]any{
		"resourceVersion": version, "annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"}}}
}
