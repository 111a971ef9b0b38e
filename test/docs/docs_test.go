// Package docs tests that the documents match what they describe: docs/configuration.md lists the
// flags of the program, docs/metrics.md its metrics, links between documents and from the source to
// documents resolve, and what documents name exists: tests, flags, files and others.
//
//	go test ./docs -update    # writes the flags
package docs

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

var update = flag.Bool("update", false, "write docs/configuration.md")

// inChart returns the chart value that sets a flag. All other flags are set by `args`.
func inChart() map[string]string {
	return map[string]string{
		"max-sample-age":                  "maxSampleAge",
		"rate-window":                     "rateWindow",
		"active-resolution":               "activeResolution",
		"active-budget":                   "activeBudget",
		"ephemeral-storage-interval":      "ephemeralStorage.enabled",
		"kubelet-certificate-authority":   "kubelet.certificateAuthority",
		"kubelet-insecure-tls":            "kubelet.insecureTLS",
		"kubelet-service-account":         "kubelet.serviceAccount.create",
		"kubelet-pins":                    "kubelet.tls",
		"deployment":                      "events.enabled",
		"tls-secret":                      "tls.type",
		"tls-names":                       "tls.type",
		"tls-ca-configmap":                "tls.type",
		"service":                         "service.port",
		"metric-resolution":               "defaultArgs",
		"kubelet-preferred-address-types": "defaultArgs",
		"kubelet-use-node-status-port":    "defaultArgs",
		"source":                          "source.type",
		"prometheus-url":                  "source.prometheus.url",
		"prometheus-config":               "source.prometheus.config",
		"device-config":                   "devices.exporters",
	}
}

// A section is a group of flags in --help.
type section struct {
	title string
	flags []entry
}

func (s section) has(name string) bool {
	return slices.ContainsFunc(s.flags, func(e entry) bool { return e.name == name })
}

type entry struct{ name, short, kind, initial, usage string }

var (
	sectionLine = regexp.MustCompile(`^(\S.*) flags:$`)
	flagLine    = regexp.MustCompile(`^ {2,6}(?:-(\w), )?--([\w-]+)(?: (\S+))?\s*$`)
	initialTail = regexp.MustCompile(`\s*\(default[:=]? ([^()]+)\)$|\s*\[default=(\S+)\]$`)
)

// parseHelp parses the output of --help: sections, flags, and their descriptions on indented lines.
func parseHelp(help string) []section {
	var sections []section
	for line := range strings.Lines(help) {
		line = strings.TrimRight(line, " \n")
		if m := sectionLine.FindStringSubmatch(line); m != nil {
			sections = append(sections, section{title: m[1]})
			continue
		}
		if len(sections) == 0 {
			continue
		}
		s := &sections[len(sections)-1]
		if m := flagLine.FindStringSubmatch(line); m != nil {
			s.flags = append(s.flags, entry{short: m[1], name: m[2], kind: m[3]})
		} else if n := len(s.flags); n > 0 && line != "" {
			s.flags[n-1].usage += " " + strings.TrimSpace(line)
		}
	}
	for _, s := range sections {
		for i := range s.flags {
			s.flags[i].splitDefault()
		}
	}
	return sections
}

// splitDefault moves the default from the end of the description to initial.
func (e *entry) splitDefault() {
	e.usage = strings.TrimSpace(e.usage)
	if tail := initialTail.FindStringSubmatch(e.usage); tail != nil {
		e.initial, e.usage = tail[1]+tail[2], strings.TrimSuffix(e.usage, tail[0])
	}
}

// firstOfLibrary is the first section of flags of the API server library, which only --help lists.
const firstOfLibrary = "Generic"

// markdown returns tables of kube-vitals' own flags, each with the first sentence of its description.
func markdown(sections []section) string {
	var b strings.Builder
	for _, s := range sections {
		if s.title == firstOfLibrary {
			break
		}
		fmt.Fprintf(&b, "\n### %s\n\n| Flag | Default | In the chart | Meaning |\n|---|---|---|---|\n", s.title)
		for _, e := range s.flags {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", e.flag(), code(e.initial), code(inChart()[e.name]), cell(first(e.usage)))
		}
	}
	return b.String()
}

func (e *entry) flag() string {
	text := "`--" + e.name + "`"
	if e.short != "" {
		text += ", `-" + e.short + "`"
	}
	if e.kind != "" {
		text += " " + e.kind
	}
	return text
}

// first returns the first sentence of a description, without its full stop.
func first(usage string) string {
	sentence, _, _ := strings.Cut(usage, ". ")
	return strings.TrimSuffix(sentence, ".")
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// cell escapes text for a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(text)
}

// TestConfigurationListsTheFlags compares docs/configuration.md with --help and the chart.
func TestConfigurationListsTheFlags(t *testing.T) {
	const begin, end = "<!-- flags: by go test ./docs -update, in test -->\n", "\n<!-- end of flags -->"
	file := filepath.Join(root, "docs", "configuration.md")
	page := readFile(t, file)
	before, rest, begins := strings.Cut(page, begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("%s: the markers around the flags are missing", file)
	}
	sections := parseHelp(help(t))
	readme := read(t, "charts/kube-vitals/README.md")
	for name, value := range inChart() {
		if !strings.Contains(readme, "\n| "+value+" |") {
			t.Errorf("the chart has no value %s, which inChart has for --%s", value, name)
		}
		if !slices.ContainsFunc(sections, func(s section) bool { return s.has(name) }) {
			t.Errorf("--help has no flag --%s, which inChart names", name)
		}
	}
	want := before + begin + markdown(sections) + end + after
	switch {
	case page == want:
	case *update:
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s does not match --help: run go test ./docs -update in test", file)
	}
}

// help builds the program and returns the output of --help.
func help(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "kube-vitals")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, "./cmd/kube-vitals")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0") // as make build, which fills Go's cache
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	text, err := exec.CommandContext(t.Context(), program, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	documentedMetric = regexp.MustCompile("(?m)^\\| `kube_vitals_(\\w+)` \\|")
	// registeredMetric matches the names of metrics in the source, by the suffixes that they have.
	registeredMetric = regexp.MustCompile(
		`"_?([a-z_]+_(?:total|seconds|bytes|info|objects|series|failing|misdirected|verify|pins|pods|containers|nodes)` +
			`|points)"`)
)

// TestMetricsAreDocumented compares docs/metrics.md with the metrics that the server registers.
func TestMetricsAreDocumented(t *testing.T) {
	names := func(expr *regexp.Regexp, files ...string) []string {
		var found []string
		for _, file := range files {
			text := read(t, file)
			for _, m := range expr.FindAllStringSubmatch(text, -1) {
				found = append(found, m[1])
			}
		}
		slices.Sort(found)
		return slices.Compact(found)
	}
	got := names(documentedMetric, "docs/metrics.md")
	want := names(registeredMetric, "pkg/server/instruments.go", "pkg/server/metric.go",
		"pkg/server/engine.go", "pkg/server/pins.go", "pkg/server/storage.go", "pkg/server/devices.go",
		"pkg/server/source.go")
	if !slices.Equal(got, want) {
		t.Errorf("docs/metrics.md has\n%s\nwant\n%s", got, want)
	}

}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	proof   = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*(?:/[\w-]+)?`)
	unnamed = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinksResolve checks the links between documents: files and headings.
func TestLinksResolve(t *testing.T) {
	for _, file := range documents(t) {
		page := readFile(t, file)
		for _, m := range link.FindAllStringSubmatch(page, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which does not exist", file, m[1])
			} else if anchor != "" && !slices.Contains(anchors(t, target), anchor) {
				t.Errorf("%s links to %s, but that page has no such heading", file, m[1])
			}
		}
	}
}

// TestLinksInSourceResolve checks the documents and headings that messages of the program, the chart,
// the alerts and the dashboard refer to.
func TestLinksInSourceResolve(t *testing.T) {
	reference := regexp.MustCompile(`\b(docs/[\w/-]+\.md)(?:#([\w-]+))?`)
	found := 0
	for _, folder := range []string{"cmd", "pkg", "charts", "manifests"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(file, ".md") {
				return err
			}
			text := readFile(t, file)
			for _, m := range reference.FindAllStringSubmatch(text, -1) {
				found++
				target := filepath.Join(root, m[1])
				if _, err := os.Stat(target); err != nil {
					t.Errorf("%s refers to %s, which does not exist", file, m[0])
				} else if m[2] != "" && !slices.Contains(anchors(t, target), m[2]) {
					t.Errorf("%s refers to %s, but that page has no such heading", file, m[0])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found == 0 {
		t.Error("found no references")
	}
}

// TestNamedTestsExist checks that each test that a document names exists. A part of TestCases is the prefix of the
// names of files.
func TestNamedTestsExist(t *testing.T) {
	tests := sources(t)
	for _, file := range documents(t) {
		page := readFile(t, file)
		for _, name := range proof.FindAllString(page, -1) {
			test, part, _ := strings.Cut(name, "/")
			isMissing := func(text string) bool { return !strings.Contains(tests, text) }
			if cases, _ := filepath.Glob(filepath.Join(root, "pkg/store/testdata/cases", part+"*.txt")); test == "TestCases" {
				isMissing = func(string) bool { return len(cases) == 0 }
			}
			// Subtests that run concurrently are in a map, by their names.
			isPartMissing := part != "" && isMissing(`t.Run("`+part+`"`) && isMissing(`"`+part+`": `)
			if isMissing("func "+test+"(") || isPartMissing {
				t.Errorf("%s names %s, which does not exist", file, name)
			}
		}
	}
}

// sources returns the text of all test files.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			all.WriteString(readFile(t, path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "charts/*/README.md", "test/*/README.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, error %v", pattern, len(files), err)
		}
		all = append(all, files...)
	}
	return all
}

// anchors returns the anchors of a page's headings.
func anchors(t *testing.T, file string) []string {
	t.Helper()
	page := readFile(t, file)
	var names []string
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		name := unnamed.ReplaceAllString(strings.ToLower(m[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}
