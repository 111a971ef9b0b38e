package reason

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// objects returns the other reasons than Scrapes, why nodes and pods have no metrics, in the order of their
// documentation.
func objects() []Reason {
	return []Reason{
		NodeNotFound, NotSelected, NodeStarting, StaleSamples, EngineFailing, NotInEngine, PodNotFound, PodPending,
		PodStarting, PodSucceeded, PodFailed, PodUnknown, NotRunning, NoContainers, ContainerMissing,
	}
}

// TestEveryReasonIsDescribed checks that the set is closed: each reason is listed once and has a
// description, and there are no other descriptions.
func TestEveryReasonIsDescribed(t *testing.T) {
	all := slices.Concat(Scrapes(), objects())
	name := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	seen := map[Reason]bool{}
	for _, r := range all {
		d := r.Describe()
		switch {
		case seen[r]:
			t.Errorf("%s is listed twice", r)
		case !name.MatchString(string(r)):
			t.Errorf("%q is not an anchor", r)
		case d.Problem == "":
			t.Errorf("%s has no description", r)
		case strings.HasSuffix(d.Problem, ".") || strings.HasSuffix(d.Cure, "."):
			t.Errorf("%s: got a full stop in %+v", r, d)
		case !strings.HasSuffix(r.URL(), "#"+string(r)):
			t.Errorf("%s: got URL %q", r, r.URL())
		}
		seen[r] = true
	}
	for r := range descriptions() {
		if !seen[r] {
			t.Errorf("%s is not listed", r)
		}
	}
	if d := Reason("unknown").Describe(); d != (Description{}) {
		t.Errorf("got %+v for an unknown reason", d)
	}
}

// TestReasonsOfExportersAreDescribed checks that exporters have another description than kubelets.
func TestReasonsOfExportersAreDescribed(t *testing.T) {
	for _, r := range Scrapes() {
		d := r.DescribeExporter()
		if d.Problem == "" || d.Cure == "" || strings.HasSuffix(d.Problem, ".") || strings.HasSuffix(d.Cure, ".") ||
			strings.Contains(d.Problem+d.Cure, "kubelet") {
			t.Errorf("%s: got %+v", r, d)
		}
	}
	if d := Reason("").DescribeExporter(); d != (Description{}) {
		t.Errorf("got %+v without a reason", d)
	}
}
