package reason_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/reason/reasontest"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	root            = "../.."
	troubleshooting = root + "/docs/troubleshooting.md"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestEveryReasonHasASection checks that docs/troubleshooting.md has a section with the anchor of
// each reason, in order, and of no other, and that it begins with the description of the server.
func TestEveryReasonHasASection(t *testing.T) {
	page := readFile(t, troubleshooting)
	want := slices.Concat(reasontest.Scrapes(), objects())
	var got []reason.Reason
	for _, section := range regexp.MustCompile(`(?m)^#+ `).Split(page, -1) {
		title, body, _ := strings.Cut(section, "\n")
		if !regexp.MustCompile(`^[a-z-]+$`).MatchString(title) {
			continue // not the name of a reason
		}
		r := reason.Reason(title)
		got = append(got, r)
		d := r.Describe()
		intro := strings.TrimSuffix(d.Problem+": "+d.Cure, ": ") + "."
		intro = strings.ToUpper(intro[:1]) + intro[1:]
		if text := strings.Join(strings.Fields(body), " "); !strings.HasPrefix(text, intro) {
			t.Errorf("the section %s does not begin with %q", title, intro)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has sections of\n%s\nwant\n%s", troubleshooting, got, want)
	}
	// GitHub appends a number to an anchor that occurs before.
	for _, title := range regexp.MustCompile(`(?m)^#+ ([\w -]+)$`).FindAllStringSubmatch(page, -1) {
		r := reason.Reason(strings.ReplaceAll(strings.ToLower(title[1]), " ", "-"))
		if title[1] != string(r) && slices.Contains(want, r) {
			t.Errorf("the section %q has the anchor of a reason", title[1])
		}
	}
}

// TestEngineReasonsAreDescribed checks that each reason why an engine cannot be read has a
// description of its own.
func TestEngineReasonsAreDescribed(t *testing.T) {
	for _, r := range reasontest.Refreshes() {
		d := r.DescribeEngine()
		if strings.Contains(d.Problem+d.Cure, "kubelet") || d.Problem == "" || d.Cure == "" && r != reason.Canceled {
			t.Errorf("%s is described as %+v", r, d)
		}
	}
}

// TestLabelValuesExist checks the values of the label reason in alerts, dashboards, their tests, and
// documents.
func TestLabelValuesExist(t *testing.T) {
	scrapes, skipped := []string{string(reason.NotInEngine)}, []string(nil)
	for _, r := range reasontest.Scrapes() {
		scrapes = append(scrapes, string(r))
	}
	for r := range usage.SkipReason(usage.NumSkipReasons) {
		skipped = append(skipped, r.String())
	}
	matcher := regexp.MustCompile(`\breason(?:=|=~|!=|!~)\\?"([^"\\]*)\\?"`)
	found := 0
	for _, pattern := range []string{
		"README.md", "docs/*.md", "docs/runbooks/*.md", "charts/*/alerts/*", "charts/*/dashboards/*",
		"charts/*/templates/*.*", "manifests/components/*/*", "test/internal/observability/testdata/*",
	} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, error %v", pattern, len(files), err)
		}
		for _, file := range files {
			for line := range strings.Lines(readFile(t, file)) {
				known := scrapes
				if strings.Contains(line, "samples_skipped") {
					known = skipped
				}
				for _, m := range matcher.FindAllStringSubmatch(line, -1) {
					found++
					for value := range strings.SplitSeq(m[1], "|") {
						if value != "" && !slices.Contains(known, value) {
							t.Errorf("%s has %s, but there is no such reason: %s", file, m[0], strings.TrimSpace(line))
						}
					}
				}
			}
		}
	}
	if found == 0 {
		t.Error("found no values")
	}
}
