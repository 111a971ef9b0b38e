package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReliabilityNamesTests: each test that docs/reliability.md calls a proof is there.
func TestReliabilityNamesTests(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs", "reliability.md"))
	if err != nil {
		t.Fatal(err)
	}
	var sources strings.Builder
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		sources.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*(?:/\w+)?`).FindAllString(string(page), -1)
	if len(named) < 20 {
		t.Fatalf("only %d tests are named", len(named))
	}
	for _, name := range named {
		test, part, _ := strings.Cut(name, "/")
		if !strings.Contains(sources.String(), "func "+test+"(") || part != "" && !strings.Contains(sources.String(), `t.Run("`+part+`"`) {
			t.Errorf("there is no %s", name)
		}
	}
}
