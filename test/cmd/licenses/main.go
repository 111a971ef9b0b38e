// Command licenses writes THIRD_PARTY_LICENSES: the licenses and notices of all code that the released programs are
// linked with, on every system that they are built for. The image and the archives of a release contain that file.
// `make generate` runs it.
//
//	licenses FOLDER    # of the module
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

const header = `The programs of kube-vitals, whose own license is in LICENSE, are linked with the Go packages
below. The image also has the CA certificates of Mozilla (MPL-2.0, https://mozilla.org/MPL/2.0/), as
Debian's package ca-certificates contains them. Equal texts are listed once. "make generate" writes
this file.
`

var (
	licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)([-.].*)?$`)
	// permitted are phrases of the licenses that are accepted, which all allow to distribute binaries under Apache-2.0:
	// Apache-2.0, MIT, BSD with two or three clauses, ISC and MPL-2.0.
	permitted = regexp.MustCompile(`(?i)Apache License,?\s+Version 2\.0|Permission is hereby granted, free of charge` +
		`|Redistribution and use in source and binary forms|Permission to use, copy, modify,? and(/or)? distribute` +
		`|Mozilla Public License,?\s+Version 2\.0`)
)

func main() {
	program.Main("licenses", func(ctx context.Context, args []string) error {
		if len(args) != 1 {
			return errors.New("usage: licenses FOLDER")
		}
		return run(ctx, args[0])
	})
}

func run(ctx context.Context, folder string) error {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "LICENSE"))
	if err != nil {
		return err
	}
	texts := map[string]*entry{}
	get(texts, text).of = []string{"the standard library of Go"}
	for _, system := range []string{"linux", "darwin", "windows"} {
		packages, err := list(ctx, folder, system)
		if err != nil {
			return err
		}
		for _, p := range packages {
			if p.Module == nil || p.Module.Main { // a nil one is of the standard library
				continue
			}
			if err := add(texts, &p); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(folder, "THIRD_PARTY_LICENSES"), join(texts), 0o644)
}

// entry is a text, and what it applies to: modules, or folders in them.
type entry struct {
	text string
	of   []string
}

// get returns the entry of a text, which it adds. Texts that differ only in white space are equal.
func get(texts map[string]*entry, text []byte) *entry {
	key := strings.Join(strings.Fields(string(text)), " ")
	if texts[key] == nil {
		lines := strings.Split(strings.ReplaceAll(string(text), "\f", ""), "\n")
		for i, line := range lines {
			lines[i] = strings.TrimRight(line, " \t\r")
		}
		texts[key] = &entry{text: strings.Trim(strings.Join(lines, "\n"), "\n")}
	}
	return texts[key]
}

// linked is a package as go list describes it.
type linked struct {
	Dir    string
	Module *struct {
		Path, Dir string
		Main      bool
	}
}

// list returns the packages that the programs are linked with on an operating system. Those of all architectures are
// in the same modules.
func list(ctx context.Context, folder, system string) (packages []linked, err error) {
	command := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Dir,Module", "./cmd/...")
	command.Dir, command.Stderr = folder, os.Stderr
	command.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go list for %s: %w", system, err)
	}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p linked
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages, nil
		case err != nil:
			return nil, fmt.Errorf("go list for %s: %w", system, err)
		}
		packages = append(packages, p)
	}
}

// add adds the texts that apply to a package: those in its folder and in the folders above it, up to the one of its
// module.
func add(texts map[string]*entry, p *linked) error {
	found := false
	for folder := p.Dir; len(folder) >= len(p.Module.Dir); folder = filepath.Dir(folder) {
		files, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, file := range files {
			if file.IsDir() || !licenseFile.MatchString(file.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(folder, file.Name()))
			if err != nil {
				return err
			}
			if isNotice := strings.HasPrefix(strings.ToLower(file.Name()), "notice"); !isNotice {
				if !permitted.Match(text) {
					return fmt.Errorf("module %s: the license in %s is not one of those that are accepted", p.Module.Path, file.Name())
				}
				found = true
			}
			// The folder of a module in the cache has the version, which changes more often than the text.
			of := p.Module.Path + strings.TrimPrefix(filepath.ToSlash(folder), filepath.ToSlash(p.Module.Dir))
			if e := get(texts, text); !slices.Contains(e.of, of) {
				e.of = append(e.of, of)
			}
		}
	}
	if !found {
		return fmt.Errorf("module %s has no license", p.Module.Path)
	}
	return nil
}

// join returns all texts, sorted by what they apply to.
func join(texts map[string]*entry) []byte {
	entries := slices.Collect(maps.Values(texts))
	for _, e := range entries {
		slices.Sort(e.of)
	}
	slices.SortFunc(entries, func(a, b *entry) int {
		return cmp.Or(slices.Compare(a.of, b.of), cmp.Compare(a.text, b.text))
	})
	joined := []byte(header)
	for _, e := range entries {
		joined = fmt.Appendf(joined, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(e.of, "\n"), e.text)
	}
	return joined
}
