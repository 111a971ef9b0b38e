package conformance

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"strings"
	"testing"
	"time"
)

// sample has a result of every status.
func sample() *Report {
	source := Source{"conventions", "https://example.com/conventions"}
	check := func(id string, profile Profile) Check {
		return Check{ID: id, Profile: profile, Title: "title of " + id, Source: source}
	}
	return &Report{
		Kubernetes: "v1.36.3", Versions: []string{"v1", "v1beta1"}, Profile: Extension,
		Started: time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC),
		Results: []Result{
			{Check: check("a/passed", Required), Status: Passed, Seconds: 0.25},
			{Check: check("b/failed", Recommended), Status: Failed,
				Message: "pod <x>: expected 1, got 2\npod y: expected 3, got 4"},
			{Check: check("c/skipped", Required), Status: Skipped, Message: "needs a workload"},
			{Check: check("d/absent", Extension), Status: Unsupported, Message: "expected swap, got none"},
		},
	}
}

func TestText(t *testing.T) {
	var b strings.Builder
	if err := sample().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	const want = `passed      required    a/passed                   title of a/passed
failed      recommended b/failed                   title of b/failed
    pod <x>: expected 1, got 2
    pod y: expected 3, got 4
    source: conventions, https://example.com/conventions
skipped     required    c/skipped                  title of c/skipped
    needs a workload
unsupported extension   d/absent                   title of d/absent
    expected swap, got none

Kubernetes v1.36.3, metrics.k8s.io v1 and v1beta1, profile extension
required     1 passed, 1 skipped
recommended  1 failed
extension    1 unsupported
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	if err := sample().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := sample()
	if len(got.Results) != len(want.Results) || got.Kubernetes != want.Kubernetes || !got.Started.Equal(want.Started) {
		t.Fatalf("got %+v", got)
	}
	for i := range got.Results {
		g, w := got.Results[i], want.Results[i]
		if g.ID != w.ID || g.Status != w.Status || g.Message != w.Message || g.Source != w.Source || g.Profile != w.Profile {
			t.Errorf("got %+v, want %+v", g, w)
		}
	}
}

func TestJUnit(t *testing.T) {
	var b bytes.Buffer
	if err := sample().WriteJUnit(&b); err != nil {
		t.Fatal(err)
	}
	var got junitSuite
	if err := xml.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Tests != 4 || got.Failures != 1 || got.Skipped != 2 || len(got.Cases) != 4 {
		t.Fatalf("got %+v", got)
	}
	for i, c := range got.Cases {
		if (c.Failure != nil) != (i == 1) || (c.Skipped != nil) != (i > 1) {
			t.Errorf("case %+v", c)
		}
	}
	if f := got.Cases[1].Failure; !strings.Contains(f.Message, "pod <x>") || !strings.Contains(f.Text,
		"https://example.com/") {
		t.Errorf("failure %+v", f)
	}
}

func TestConforms(t *testing.T) {
	r := sample()
	if r.Conforms() {
		t.Error("a report with a failure conforms")
	}
	r.Results = append(r.Results[:1], r.Results[2:]...)
	if !r.Conforms() {
		t.Error("skipped checks and missing extensions must not count as failures")
	}
	r.Results = r.Results[1:]
	if r.Conforms() {
		t.Error("a report conforms although nothing passed")
	}
}
