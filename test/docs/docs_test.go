// Package docs checks the documentation against the project: docs/configuration.md lists the flags
// of the program, links between documents resolve, and the tests that a document names exist.
//
//	go test ./docs -update    # updates the flags
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

var update = flag.Bool("update", false, "update docs/configuration.md")

// chartValues are the values of the chart that set a flag, or "" for a flag that the chart has no
// use for. All other flags are set in `args`.
var chartValues = map[string]string{
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

// section is a group of flags in --help.
type section struct {
	title string
	flags []flagHelp
}

type flagHelp struct{ name, short, kind, value, usage string }

var (
	sectionLine   = regexp.MustCompile(`^(\S.*) flags:$`)
	flagLine      = regexp.MustCompile(`^ {2,6}(?:-(\w), )?--([\w-]+)(?: (\S+))?\s*$`)
	defaultSuffix = regexp.MustCompile(`\s*\(default[:=]? ([^()]+)\)$|\s*\[default=(\S+)\]$`)
)

// parseHelp parses the output of --help: sections, flags, and usage on indented lines, which may end
// with the default value.
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
			s.flags = append(s.flags, flagHelp{short: m[1], name: m[2], kind: m[3]})
		} else if n := len(s.flags); n > 0 && line != "" {
			s.flags[n-1].usage += " " + strings.TrimSpace(line)
		}
	}
	for _, s := range sections {
		for i := range s.flags {
			f := &s.flags[i]
			f.usage = strings.TrimSpace(f.usage)
			if suffix := defaultSuffix.FindStringSubmatch(f.usage); suffix != nil {
				f.value, f.usage = suffix[1]+suffix[2], strings.TrimSuffix(f.usage, suffix[0])
			}
		}
	}
	return sections
}

// markdown returns the sections as tables.
func markdown(sections []section) string {
	code := func(text string) string {
		if text == "" {
			return ""
		}
		return "`" + text + "`"
	}
	escape := strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`)
	var b strings.Builder
	for _, s := range sections {
		fmt.Fprintf(&b, "\n### %s\n\n| Flag | Default | In the chart | Meaning |\n|---|---|---|---|\n", s.title)
		for _, f := range s.flags {
			name := code("--" + f.name)
			if f.short != "" {
				name += ", " + code("-"+f.short)
			}
			if f.kind != "" {
				name += " " + f.kind
			}
			value, ok := chartValues[f.name]
			if !ok {
				value = "args"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, code(f.value), code(value), escape.Replace(f.usage))
		}
	}
	return b.String()
}

// TestFlags compares docs/configuration.md with --help.
func TestFlags(t *testing.T) {
	const begin, end = "<!-- flags: by go test ./docs -update, in test -->\n", "\n<!-- end of flags -->"
	file := filepath.Join(root, "docs", "configuration.md")
	page := read(t, file)
	before, rest, hasBegin := strings.Cut(page, begin)
	_, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		t.Fatalf("%s has no lines %q and %q", file, begin, end)
	}
	sections := parseHelp(help(t))
	for name := range chartValues {
		if !slices.ContainsFunc(sections, func(s section) bool {
			return slices.ContainsFunc(s.flags, func(f flagHelp) bool { return f.name == name })
		}) {
			t.Errorf("--help has no flag --%s", name)
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
		t.Errorf("%s does not list the flags of the program: run go test ./docs -update in test", file)
	}
}

// help builds the program and returns the output of --help.
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

// TestChartValues checks that the chart has the values that set flags.
func TestChartValues(t *testing.T) {
	readme := read(t, filepath.Join(root, "charts", "kube-vitals", "README.md"))
	for name, value := range chartValues {
		if value != "" && !strings.Contains(readme, "\n| "+value+" |") {
			t.Errorf("the chart has no value %s, which sets --%s", value, name)
		}
	}
}

func TestParseHelp(t *testing.T) {
	const text = `About it.

One flags:

  -h, --help
                Print this.
      --port int
                The port. It is
                described here. (default 1)

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
		{"One", []flagHelp{
			{"help", "h", "", "", "Print this."},
			{"port", "", "int", "1", "The port. It is described here."},
		}},
		{"Two two", []flagHelp{
			{"none", "", "strings", "false", "What (if any)."},
			{"last", "", "", "", "Ends (so to speak)."},
			{"address", "", "ip", "0.0.0.0",
				"The associated interface(s) must be reachable. If blank or unspecified (0.0.0.0 or ::), all are used."},
			{"format", "", "string", `"text"`, `Permitted: "json" (gated), "text".`},
			{"ca", "", "string", "the cluster's CA", "The file."},
		}},
	}
	got := parseHelp(text)
	if !slices.EqualFunc(got, want, func(a, b section) bool {
		return a.title == b.title && slices.Equal(a.flags, b.flags)
	}) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

var (
	link       = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#+ (.+)$`)
	testName   = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*(?:/\w+)?`)
	notInNames = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinks checks that the files and headings that a document links to exist.
func TestLinks(t *testing.T) {
	for file, page := range documents(t) {
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
				t.Errorf("%s: link to %s: %v", file, m[1], err)
			} else if anchor != "" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s: link to %s: the page has no such heading", file, m[1])
			}
		}
	}
}

// TestTestNames checks that the tests and subtests that a document names exist.
func TestTestNames(t *testing.T) {
	var sources bytes.Buffer
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			sources.WriteString(read(t, path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	has := func(text string) bool { return bytes.Contains(sources.Bytes(), []byte(text)) }
	for file, page := range documents(t) {
		for _, name := range testName.FindAllString(page, -1) {
			test, subtest, _ := strings.Cut(name, "/")
			if !has("func "+test+"(") || subtest != "" && !has(`t.Run("`+subtest+`"`) {
				t.Errorf("%s names %s, which does not exist", file, name)
			}
		}
	}
}

// documents returns the content of all documents by file name.
func documents(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "charts/*/README.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: got %d files and error %v", pattern, len(files), err)
		}
		for _, file := range files {
			pages[file] = read(t, file)
		}
	}
	return pages
}

// anchors returns the anchors of the headings of a page.
func anchors(page string) (anchors []string) {
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		name := notInNames.ReplaceAllString(strings.ToLower(m[1]), "")
		anchors = append(anchors, strings.ReplaceAll(name, " ", "-"))
	}
	return anchors
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
