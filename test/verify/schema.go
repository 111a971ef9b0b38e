package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// describe returns the schema of a chart's values with the comments in values.yaml as descriptions
// of its properties. Properties without a comment keep the descriptions that they have.
func describe(schema, values []byte) ([]byte, error) {
	var s, v yaml.Node // JSON is YAML; nodes keep the order of keys
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
	var text bytes.Buffer
	if err := writeJSON(&text, s.Content[0], ""); err != nil {
		return nil, fmt.Errorf("write values.schema.json: %w", err)
	}
	text.WriteByte('\n')
	return text.Bytes(), nil
}

// describeProperties sets the descriptions of an object's properties, and of theirs. It returns an
// error that names all properties without one.
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
	schema.Content = slices.Insert(schema.Content, 0, scalar("description"), scalar(text))
}

func scalar(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
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

// typeMark is what helm-docs reads as the type of a value, at the beginning of a comment.
var typeMark = regexp.MustCompile(`^-- (\([^)]*\) )?`)

// description returns the last paragraph of a comment without what marks it as a comment for
// helm-docs.
func description(comment string) string {
	paragraphs := strings.Split(comment, "\n\n")
	var words []string
	for line := range strings.Lines(paragraphs[len(paragraphs)-1]) {
		words = append(words, strings.TrimSpace(strings.TrimPrefix(line, "#")))
	}
	return typeMark.ReplaceAllString(strings.Join(words, " "), "")
}

// writeJSON writes a node as JSON, with one line for each key and element.
func writeJSON(w *bytes.Buffer, node *yaml.Node, indent string) error {
	switch node.Kind {
	case yaml.MappingNode:
		return writeList(w, "{}", len(node.Content)/2, indent, func(i int, deeper string) error {
			if err := writeString(w, node.Content[2*i].Value); err != nil {
				return err
			}
			w.WriteString(": ")
			return writeJSON(w, node.Content[2*i+1], deeper)
		})
	case yaml.SequenceNode:
		return writeList(w, "[]", len(node.Content), indent, func(i int, deeper string) error {
			return writeJSON(w, node.Content[i], deeper)
		})
	default:
		if node.Tag == "!!str" {
			return writeString(w, node.Value)
		}
		w.WriteString(node.Value) // a number, true, false or null
		return nil
	}
}

// writeList writes n elements between a pair of brackets.
func writeList(w *bytes.Buffer, brackets string, n int, indent string, element func(i int, indent string) error) error {
	if n == 0 {
		w.WriteString(brackets)
		return nil
	}
	deeper := indent + "  "
	w.WriteByte(brackets[0])
	for i := range n {
		if i > 0 {
			w.WriteByte(',')
		}
		w.WriteString("\n" + deeper)
		if err := element(i, deeper); err != nil {
			return err
		}
	}
	w.WriteString("\n" + indent + brackets[1:])
	return nil
}

func writeString(w *bytes.Buffer, text string) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(text); err != nil {
		return err
	}
	w.Truncate(w.Len() - 1) // the newline that Encode adds
	return nil
}
