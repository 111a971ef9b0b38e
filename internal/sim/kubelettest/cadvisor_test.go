package kubelettest

import (
	"bytes"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestCadvisorMatchesRealKubelet compares the lines with those of a real kubelet, except names that
// are generated, values and times.
func TestCadvisorMatchesRealKubelet(t *testing.T) {
	want, err := os.ReadFile("testdata/cadvisor.txt")
	if err != nil {
		t.Fatal(err)
	}
	k := New("node1", Config{})
	k.SetNode(Usage{CPU: 1, Memory: 1 << 30})
	k.SetContainer("lab", "sidecar", "main", Usage{CPU: 0.1, Memory: 1 << 20})
	k.SetContainer("lab", "sidecar", "side", Usage{CPU: 0.1, Memory: 1 << 20})
	got := get(t, k, CadvisorPath)
	if got.Code != http.StatusOK {
		t.Fatalf("status %d: %s", got.Code, got.Body)
	}
	if got, want := cadvisorShape(t, got.Body.Bytes()), cadvisorShape(t, want); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// cadvisorShape returns the lines without what differs between kubelets.
func cadvisorShape(t *testing.T, text []byte) []string {
	t.Helper()
	generated := regexp.MustCompile(`[0-9a-f]{64}|[0-9a-f]{8}-[0-9a-f-]{27}|image="[^"]+"`)
	var lines []string
	for l := range bytes.Lines(text) {
		l = bytes.TrimSuffix(l, []byte("\n"))
		if l[0] == '#' {
			lines = append(lines, string(l))
			continue
		}
		s := parseSample(l)
		if _, err := strconv.ParseFloat(string(s.value), 64); err != nil {
			t.Errorf("%s: %v", l, err)
		}
		_, hasTime := s.time()
		lines = append(lines, generated.ReplaceAllString(string(s.series), "GENERATED")+" time="+strconv.FormatBool(hasTime))
	}
	return lines
}
