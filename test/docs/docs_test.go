// Package docs holds the documents to what they describe: the flags in docs/configuration.md are
// those that the program prints, links between documents lead somewhere, and tests that are called
// a proof are there.
//
//	go test ./docs -update    # writes the flags
package docs

import (
	"bytes"
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

// inChart says which value of the chart stands for a flag; none for those that have no use there.
// Every other flag is set by `args`.
func inChart() map[string]string {
	return map[string]string{
		"help":                             "",
		"version":                          "",
		"kubeconfig":                       "",
		"secure-port":                      "containerPort",
		"max-sample-age":                   "maxSampleAge",
		"kubelet-certificate-authority":    "kubelet.certificateAuthority",
		"kubelet-insecure-tls":             "kubelet.insecureTLS",
		"kubelet-service-account":          "kubelet.serviceAccount.create",
		"authorization-always-allow-paths": "metrics.enabled",
		"tls-secret":                       "tls.type",
		"tls-names":                        "tls.type",
		"tls-ca-configmap":                 "tls.type",
		"service":                          "service.port",
		"tls-cert-file":                    "tls.type",
		"tls-private-key-file":             "tls.type",
		"metric-resolution":                "defaultArgs",
		"kubelet-preferred-address-types":  "defaultArgs",
		"kubelet-use-node-status-port":     "defaultArgs",
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

// parseHelp reads what the program prints for --help: sections, flags, and their descriptions on
// indented lines.
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

// splitDefault takes the default from the end of the description.
func (e *entry) splitDefault() {
	e.usage = strings.TrimSpace(e.usage)
	if tail := initialTail.FindStringSubmatch(e.usage); tail != nil {
		e.initial, e.usage = tail[1]+tail[2], strings.TrimSuffix(e.usage, tail[0])
	}
}

// tables writes the sections as Markdown.
func tables(sections []section) string {
	var b strings.Builder
	for _, s := range sections {
		fmt.Fprintf(&b, "\n### %s\n\n| Flag | Default | In the chart | Meaning |\n|---|---|---|---|\n", s.title)
		for _, e := range s.flags {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", e.flag(), code(e.initial), code(e.value()), cell(e.usage))
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

func (e *entry) value() string {
	if value, ok := inChart()[e.name]; ok {
		return value
	}
	return "args"
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// cell makes text fit for a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(text)
}

// TestConfigurationListsTheFlags: docs/configuration.md has the flags that the program has.
func TestConfigurationListsTheFlags(t *testing.T) {
	const begin, end = "<!-- flags: by go test ./docs -update, in test -->\n", "\n<!-- end of flags -->"
	file := filepath.Join(root, "docs", "configuration.md")
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(page), begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("%s lacks the lines between which the flags stand", file)
	}
	sections := parseHelp(help(t))
	for name := range inChart() {
		if !slices.ContainsFunc(sections, func(s section) bool { return s.has(name) }) {
			t.Errorf("the program has no flag --%s, or it cannot be found in --help", name)
		}
	}
	want := before + begin + tables(sections) + end + after
	switch {
	case string(page) == want:
	case *update:
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s does not list the flags of the program; in test, run go test ./docs -update", file)
	}
}

// help builds the program and has it print its flags.
func help(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "kube-vitals")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, "./cmd/kube-vitals")
	build.Dir = root
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	text, err := exec.CommandContext(t.Context(), program, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestValuesExist: the values that stand for flags are there.
func TestValuesExist(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "charts", "kube-vitals", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range inChart() {
		if value != "" && !bytes.Contains(readme, []byte("\n| "+value+" |")) {
			t.Errorf("the chart has no value %s, which is to stand for --%s", value, name)
		}
	}
}

// TestParseHelp reads each form that a flag has in --help.
func TestParseHelp(t *testing.T) {
	const text = `About it.

One flags:

  -h, --help
                Print this.
      --port int
                The port. It is
                told here. (default 1)

Two two flags:

      --none strings
                What (if any). [default=false]
      --last
                Ends (so to speak).
      --address ip
                The associated interface(s) must be reachable. If blank or
                unspecified (0.0.0.0 or ::), all are used. (default 0.0.0.0)
      --format string
                Permitted: "json" (gated), "text". (default "text")
      --ca string
                The file. (default: the cluster's CA)
`
	want := []section{
		{"One", []entry{{"help", "h", "", "", "Print this."}, {"port", "", "int", "1", "The port. It is told here."}}},
		{"Two two", []entry{{"none", "", "strings", "false", "What (if any)."}, {"last", "", "", "", "Ends (so to speak)."},
			{"address", "", "ip", "0.0.0.0", "The associated interface(s) must be reachable. If blank or unspecified (0.0.0.0 or ::), all are used."},
			{"format", "", "string", `"text"`, `Permitted: "json" (gated), "text".`},
			{"ca", "", "string", "the cluster's CA", "The file."}}},
	}
	got := parseHelp(text)
	if !slices.EqualFunc(got, want, func(a, b section) bool { return a.title == b.title && slices.Equal(a.flags, b.flags) }) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	proof   = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*(?:/\w+)?`)
	unnamed = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinksLeadSomewhere: what a document refers to in this repository is there, files and
// headings.
func TestLinksLeadSomewhere(t *testing.T) {
	for _, file := range documents(t) {
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(page), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s leads to %s, which is not there", file, m[1])
			} else if anchor != "" && !slices.Contains(anchors(t, target), anchor) {
				t.Errorf("%s leads to %s, but that page has no such heading", file, m[1])
			}
		}
	}
}

// TestProofsExist: each test that a document names is there.
func TestProofsExist(t *testing.T) {
	var sources strings.Builder
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
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
	for _, file := range documents(t) {
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range proof.FindAllString(string(page), -1) {
			test, part, _ := strings.Cut(name, "/")
			if !strings.Contains(sources.String(), "func "+test+"(") || part != "" && !strings.Contains(sources.String(), `t.Run("`+part+`"`) {
				t.Errorf("%s names %s, which is not there", file, name)
			}
		}
	}
}

func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "charts/*/README.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, error %v", pattern, len(files), err)
		}
		all = append(all, files...)
	}
	return all
}

// anchors gives the names by which the headings of a page can be linked to.
func anchors(t *testing.T, file string) []string {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range heading.FindAllStringSubmatch(string(page), -1) {
		name := unnamed.ReplaceAllString(strings.ToLower(m[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}
