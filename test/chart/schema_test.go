package main

import (
	"strings"
	"testing"
)

func TestDescribe(t *testing.T) {
	const values = `# The file.

# A section.
a:
  # -- (int) One
  # line.
  b:
  # -- With "quotes" and <angles>.
  c: {}
`
	const schema = `{
  "type": "object",
  "properties": {
    "z": {
      "description": "Only here.",
      "type": "null"
    },
    "a": {
      "properties": {
        "b": {
          "description": "Outdated.",
          "minimum": 1.5
        },
        "c": {
          "enum": [
            null,
            "",
            true
          ],
          "additionalProperties": {}
        }
      }
    }
  }
}
`
	want := strings.NewReplacer(
		`"a": {`, `"a": {
      "description": "A section.",`,
		"Outdated.", "One line.",
		`"c": {`, `"c": {
          "description": "With \"quotes\" and <angles>.",`,
	).Replace(schema)
	got, err := describe([]byte(schema), []byte(values))
	must(t, err)
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	// A property without a description is an error.
	_, err = describe([]byte(strings.Replace(schema, `"description": "Only here.",`, "", 1)), []byte(values))
	if err == nil || !strings.Contains(err.Error(), "value z has no comment in values.yaml") {
		t.Errorf("got error %v, want one that names z", err)
	}
}
