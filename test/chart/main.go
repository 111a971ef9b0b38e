// Command chart writes the comments of a chart's values.yaml into its values.schema.json, as the
// descriptions of the values. The tests of this package check the chart itself.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: chart FOLDER")
		os.Exit(2)
	}
	if err := describeFile(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// describeFile updates the values.schema.json of a chart.
func describeFile(chart string) error {
	file := filepath.Join(chart, "values.schema.json")
	schema, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	described, err := describe(schema, values)
	if err != nil {
		return err
	}
	return os.WriteFile(file, described, 0o644)
}

// describe returns the schema with the comments of values.yaml as the descriptions of its
// properties. A property without a comment keeps its description.
func describe(schema, values []byte) ([]byte, error) {
	var s, v yaml.Node // JSON is YAML, and nodes keep the order of the keys
	if err := yaml.Unmarshal(schema, &s); err != nil {
		return nil, fmt.Errorf("parse values.schema.json: %w", err)
	}
	if err := yaml.Unmarshal(values, &v); err != nil {
		return nil, fmt.Errorf("parse values.yaml: %w", err)
	}
	if len(s.Content) == 0 || len(v.Content) == 0 {
		return nil, errors.New("values.yaml or values.schema.json is empty")
	}
	if err := describeProperties(s.Content[0], v.Content[0], ""); err != nil {
		return nil, err
	}
	flow, err := yaml.Marshal(&s) // YAML that was parsed from JSON is written as JSON again
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := json.Indent(&text, flow, "", "  "); err != nil {
		return nil, fmt.Errorf("write values.schema.json: %w", err)
	}
	return text.Bytes(), nil
}

// describeProperties sets the descriptions of the properties of an object, recursively. The error
// names every property that has none.
func describeProperties(schema, values *yaml.Node, path string) error {
	_, properties := lookupKey(schema, "properties")
	if properties == nil {
		return nil
	}
	var errs []error
	for i := 0; i+1 < len(properties.Content); i += 2 {
		name, property := properties.Content[i].Value, properties.Content[i+1]
		key, value := lookupKey(values, name)
		if key != nil {
			if text := description(key.HeadComment); text != "" {
				setDescription(property, text)
			}
			errs = append(errs, describeProperties(property, value, path+name+"."))
		}
		if _, d := lookupKey(property, "description"); d == nil || d.Value == "" {
			errs = append(errs, fmt.Errorf("value %s%s has no comment in values.yaml", path, name))
		}
	}
	return errors.Join(errs...)
}

// setDescription makes the description the first key of a schema.
func setDescription(schema *yaml.Node, text string) {
	if key, _ := lookupKey(schema, "description"); key != nil {
		i := slices.Index(schema.Content, key)
		schema.Content = slices.Delete(schema.Content, i, i+2)
	}
	quoted := func(text string) *yaml.Node {
		return &yaml.Node{Kind: yaml.ScalarNode, Style: yaml.DoubleQuotedStyle, Value: text}
	}
	schema.Content = slices.Insert(schema.Content, 0, quoted("description"), quoted(text))
}

// lookupKey returns the nodes of a key and of its value in a mapping, or nil.
func lookupKey(mapping *yaml.Node, name string) (key, value *yaml.Node) {
	if mapping == nil || mapping.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i], mapping.Content[i+1]
		}
	}
	return nil, nil
}

// typeMark is what helm-docs reads as the type of a value, at the start of a comment.
var typeMark = regexp.MustCompile(`^-- (\([^)]*\) )?`)

// description returns the last paragraph of a comment without the marks of helm-docs.
func description(comment string) string {
	paragraphs := strings.Split(comment, "\n\n")
	var words []string
	for line := range strings.Lines(paragraphs[len(paragraphs)-1]) {
		words = append(words, strings.TrimSpace(strings.TrimPrefix(line, "#")))
	}
	return typeMark.ReplaceAllString(strings.Join(words, " "), "")
}
