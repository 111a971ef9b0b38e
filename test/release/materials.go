package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// materials is a bill of materials in CycloneDX's JSON, of which it has what Go writes into a
// binary: the modules that are in it, and nothing that is only needed to build or to test it.
type materials struct {
	Schema      string      `json:"$schema"`
	BOMFormat   string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"` // of the bill
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PackageURL string     `json:"purl,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"` // in hexadecimal
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// writeMaterials writes what a binary was built from into a file beside it.
func writeMaterials(binary, version string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("%s does not tell what it was built from: %w", binary, err)
	}
	sum, err := checksum(binary)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(bill(info, filepath.Base(binary), version, sum), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(binary+".cdx.json", append(text, '\n'), 0o644)
}

// bill is the bill of a binary of that name and sum.
func bill(info *debug.BuildInfo, name, version, sum string) materials {
	m := materials{
		Schema:      "http://cyclonedx.org/schema/bom-1.6.schema.json",
		BOMFormat:   "CycloneDX",
		SpecVersion: "1.6",
		Version:     1,
		Metadata: metadata{Component: component{
			Type:       "application",
			Name:       name,
			Version:    version,
			PackageURL: packageURL(info.Main.Path, version),
			Hashes:     []hash{{Algorithm: "SHA-256", Content: sum}},
		}},
		Components: []component{{
			Type: "library", Name: "std", Version: strings.TrimPrefix(info.GoVersion, "go"),
			PackageURL: packageURL("std", strings.TrimPrefix(info.GoVersion, "go")),
		}},
	}
	for _, setting := range info.Settings {
		m.Metadata.Component.Properties = append(m.Metadata.Component.Properties, property{"go:build:" + setting.Key, setting.Value})
	}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		c := component{Type: "library", Name: dep.Path, Version: dep.Version, PackageURL: packageURL(dep.Path, dep.Version)}
		if dep.Sum != "" { // of all the module's files, in a form of Go's own
			c.Properties = []property{{"go:sum", dep.Sum}}
		}
		m.Components = append(m.Components, c)
	}
	slices.SortFunc(m.Components, func(a, b component) int { return cmp.Compare(a.Name, b.Name) })
	return m
}

// packageURL names a Go module as https://github.com/package-url/purl-spec does.
func packageURL(path, version string) string {
	return "pkg:golang/" + strings.ToLower(path) + "@" + strings.ReplaceAll(version, "+", "%2B")
}

// writeChecksums writes the sums of all files in a folder, as sha256sum --check takes them.
func writeChecksums(folder string) error {
	files, err := os.ReadDir(folder) // by name
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, file := range files {
		sum, err := checksum(filepath.Join(folder, file.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s  %s\n", sum, file.Name())
	}
	return os.WriteFile(filepath.Join(folder, "SHA256SUMS"), []byte(list.String()), 0o644)
}

// checksum is the SHA-256 of a file, in hexadecimal.
func checksum(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("there is no checksum: %w", err)
	}
	defer f.Close() //nolint:errcheck // it is only read
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("there is no checksum of %s: %w", file, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
