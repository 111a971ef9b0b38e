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
	"time"
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

// TestCadvisorRestart checks the series of a container before and after a restart, and the label of
// sandboxes.
func TestCadvisorRestart(t *testing.T) {
	clock := &clock{start}
	k := New("n", Config{Now: clock.now, SandboxContainer: "POD"})
	k.SetContainer("ns", "pod", "c", Usage{CPU: 0.5, Memory: 8 << 20})
	const prefix = `container_cpu_usage_seconds_total{container="c",cpu="total",id="`
	counter := func() (id string, value float64) {
		t.Helper()
		text := get(t, k, CadvisorPath).Body.String()
		if !strings.Contains(text, `container_cpu_usage_seconds_total{container="POD",`) {
			t.Errorf("the sandbox is missing in\n%s", text)
		}
		_, text, ok := strings.Cut(text, "\n"+prefix)
		id, _, ended := strings.Cut(text, `"`)
		if !ok || !ended {
			t.Fatalf("the container is missing in\n%s", text)
		}
		line, _, _ := strings.Cut(text, "\n")
		value, err := strconv.ParseFloat(strings.Fields(line)[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return id, value
	}
	clock.advance(time.Minute)
	before, value := counter()
	if value < 29.9 || value > 30 {
		t.Errorf("got %v core-seconds after a minute of 500m", value)
	}
	k.Restart("ns", "pod", "c")
	clock.advance(10 * time.Second)
	after, value := counter()
	if value < 4.9 || value > 5 {
		t.Errorf("got %v core-seconds 10 s after a restart", value)
	}
	if before == after || before[:strings.LastIndexByte(before, '/')] != after[:strings.LastIndexByte(after, '/')] {
		t.Errorf("got %q and %q, want two containers of the same pod", before, after)
	}
}
