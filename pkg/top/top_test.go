package top

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/kube-vitals/kube-vitals/internal/sim"
)

// TestGolden compares the output for terminals and pipes with testdata. KUBE_VITALS_UPDATE=1 writes it.
func TestGolden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld().shop()
		for _, kind := range []string{Workloads, Pods, Namespaces, Nodes} {
			for _, namespace := range []string{"shop", ""} {
				if (kind == Namespaces || kind == Nodes) != (namespace == "") && kind != Workloads {
					continue
				}
				w.config.Kind, w.config.Namespace = kind, namespace
				var all strings.Builder
				for _, width := range []int{0, 80, 100, 160} {
					if w.config.Screen.Size = nil; width > 0 {
						w.size(width, 50)
					}
					out, errOut, complete := w.top(t)
					if errOut != "" || !complete {
						t.Errorf("%s: got %s", kind, errOut)
					}
					for line := range strings.Lines(plainColors(out)) {
						if n := utf8.RuneCountInString(line) - 1; width > 0 && n > width {
							t.Errorf("%s: a line has %d of %d cells: %s", kind, n, width, line)
						}
					}
					fmt.Fprintf(&all, "%d:\n%s\n", width, strings.ReplaceAll(out, "\x1b", "^["))
				}
				golden(t, kind+map[string]string{"": "-all"}[namespace]+".txt", all.String())
			}
		}
		w.config.Screen.Size, w.config.Kind, w.config.Namespace = nil, Pods, "shop"
		for _, output := range []string{"wide", "json", "yaml", "name"} {
			w.config.Output = output
			out, _, _ := w.top(t)
			golden(t, "pods."+output, out)
		}
	})
}

// plainColors returns a text without the sequences of colors.
func plainColors(text string) string {
	for _, code := range []string{"31", "32", "33", "0"} {
		text = strings.ReplaceAll(text, "\x1b["+code+"m", "")
	}
	return text
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("KUBE_VITALS_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != got {
		t.Errorf("%s: got error %v and\n%s\nwant\n%s", name, err, got, want)
	}
}

// TestOutputs checks that JSON and YAML are equal, and that no text of others is a control character.
func TestOutputs(t *testing.T) {
	for _, text := range []string{
		"a\r\n\x1b[2J\x1b]0;a\x07\u009b2J\t\x00\x7f\u202eb\u2066\u2069\u2028\U000e0061",
		strings.Repeat("大", 400), "$(id)", " a ",
	} {
		w := newWorld()
		w.config.Kind = Workloads
		p := w.pod("shop", "web", "example.com/v1 "+strings.ReplaceAll(text, " ", "")+" "+text, "cpu=1m memory=1Mi",
			container(text, "", ""))
		w.inPhase(w.pod("shop", "b", "", "", container(text, "", "")), "Pending", text)
		w.pod("shop", "c", "", "")
		w.unserved("namespaces/shop/pods/c", "timeout", text)
		w.autoscaler("web", nil, 80)
		h := w.Get(hpas + "/web")
		h["spec"].(map[string]any)["scaleTargetRef"] = map[string]any{
			"apiVersion": "example.com/v1", "kind": p.OwnerReferences[0].Kind, "name": text}
		resource := h["spec"].(map[string]any)["metrics"].([]any)[0].(map[string]any)["resource"].(map[string]any)
		resource["name"] = text
		w.Put(hpas+"/web", h)
		m := w.Get(metricsV1 + "namespaces/shop/pods/web")
		m["containers"].([]any)[0].(map[string]any)["usage"] = map[string]any{text: "1", "cpu": "1m", "memory": "1Mi"}
		w.Put(metricsV1+"namespaces/shop/pods/web", m)
		w.RefuseBy(func(_, path string) *sim.Refusal {
			if strings.HasSuffix(path, "replicasets") {
				return sim.Refuse(500, "InternalError", text)
			}
			return nil
		})
		for _, kind := range []string{Workloads, Pods} {
			for _, output := range []string{"", "wide", "json", "yaml", "name"} {
				w.config.Kind, w.config.Output, w.config.Containers = kind, output, kind == Pods
				out, errOut, _ := w.top(t)
				isControl := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
				if i := strings.IndexFunc(out+errOut, isControl); i >= 0 || strings.Contains(errOut, "error") {
					t.Errorf("%.50q: %s %s: a control character at %d, or an error:\n%s%s", text, kind, output, i, out, errOut)
				}
				var got, read any
				switch output {
				case "json":
					if err := json.Unmarshal([]byte(out), &got); err != nil {
						t.Errorf("%.50q: the JSON cannot be read back: %v", text, err)
					}
				case "yaml":
					if err := yaml.Unmarshal([]byte(out), &read); err != nil {
						t.Errorf("%.50q: the YAML cannot be read back: %v", text, err)
					}
				}
			}
		}
	}
}

// frames is an output that keeps each write.
type frames struct{ writes []string }

func (f *frames) Write(p []byte) (int, error) {
	f.writes = append(f.writes, string(p))
	return len(p), nil
}

// TestWatch checks that a terminal gets one write every 5 seconds, keeps the last table if reading fails, and is
// restored at the end.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld().shop()
		w.size(80, 11)
		w.config.Watch = true
		screen := &frames{}
		w.config.Out, w.config.ErrOut = screen, screen
		go func() {
			time.Sleep(7 * time.Second)
			w.RefuseBy(func(_, path string) *sim.Refusal {
				if strings.HasPrefix(path, "/apis/metrics.k8s.io/") {
					return &sim.Refusal{}
				}
				return nil
			})
			time.Sleep(5 * time.Second)
			w.RefuseBy(func(string, string) *sim.Refusal { return &sim.Refusal{} })
		}()
		ctx, cancel := contextOf(t, 17*time.Second)
		defer cancel()
		if _, err := Run(ctx, w.config); err != nil {
			t.Fatal(err)
		}
		got := screen.writes
		if len(got) != 6 || !strings.HasPrefix(got[0], "\x1b[?1049h") || !strings.HasSuffix(got[5], "\x1b[?1049l") ||
			!strings.Contains(got[0], "\x1b[?25l") || !strings.Contains(got[5], "\x1b[?25h") {
			t.Fatalf("got %d writes: %q", len(got), got)
		}
		for i, frame := range got[1:5] {
			lines := strings.Split(frame, "\n")
			if !strings.HasPrefix(frame, "\x1b[H") || len(lines) > 11 || !strings.Contains(frame, "7 of 9 pods") ||
				!strings.Contains(frame, "more lines") || strings.Contains(frame, "refused") != (i >= 2) {
				t.Errorf("frame %d has %d lines: %q", i, len(lines), frame)
			}
		}
	})
}

// TestFlags checks that all wrong flags are reported at once.
func TestFlags(t *testing.T) {
	c := Config{Kind: Nodes, SortBy: "age", Output: "xml", Containers: true}
	err := c.Validate()
	for _, flag := range []string{"--sort-by", "--output", "--containers"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("got %v, want %s", err, flag)
		}
	}
	if err := (&Config{Kind: Pods, SortBy: "memory-percent", Watch: true, Output: "json"}).Validate(); err == nil {
		t.Error("--watch with JSON is accepted")
	}
	for _, by := range []string{"name", "cpu", "memory-request", "cpu-limit", "memory-percent"} {
		if err := (&Config{Kind: Pods, SortBy: by}).Validate(); err != nil {
			t.Error(err)
		}
	}
}

// TestOrder checks that the largest values come first, and unknown ones last.
func TestOrder(t *testing.T) {
	w := newWorld().shop()
	w.config.Kind, w.config.Namespace, w.config.SortBy, w.config.NoHeaders = Pods, "", "cpu", true
	out, _, _ := w.top(t)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 10 || !strings.Contains(lines[0], "checkout") ||
		!strings.Contains(lines[1], "web-6f9c7d5b8d-8hvzl") ||
		!strings.Contains(lines[6], "canary") || !strings.Contains(lines[9], "q7d2m") {
		t.Errorf("got\n%s", out)
	}
	w.config.Names, w.config.SortBy = []string{"db-0", "debug"}, "memory-request"
	if out, _, _ = w.top(t); strings.Count(out, "\n") != 2 || !strings.Contains(strings.Split(out, "\n")[0], "db-0") {
		t.Errorf("got\n%s", out)
	}
}

// TestWhy checks that reasons of pods that have ended do not hide those of others.
func TestWhy(t *testing.T) {
	r := &row{Missing: map[string]int{"Succeeded": 200, "Failed": 30, "Failed: Evicted": 12, "timeout": 2}}
	if got := why(r, false); got != "2 timeout, 200 Succeeded, 30 Failed, ..." {
		t.Errorf("got %q", got)
	}
}
