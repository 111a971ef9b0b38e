package reason_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/reason/reasontest"
)

// objects returns the other reasons than those of scrapes, why nodes and pods have no metrics, in the order
// of their documentation.
func objects() []reason.Reason {
	return []reason.Reason{
		reason.NodeNotFound, reason.NotSelected, reason.NodeStarting, reason.StaleSamples, reason.Slow,
		reason.EngineFailing, reason.NotInEngine, reason.UsageUnknown, reason.BadTime, reason.BadValue,
		reason.CounterFell, reason.AboveCapacity, reason.OtherPod, reason.PodNotFound, reason.PodPending,
		reason.PodStarting, reason.PodSucceeded, reason.PodFailed, reason.PodUnknown, reason.NotRunning,
		reason.NoContainers, reason.ContainerMissing,
	}
}

// TestEveryReasonIsDescribed checks that the set is closed: each reason is listed once and has a
// description, and there are no other descriptions.
func TestEveryReasonIsDescribed(t *testing.T) {
	all := slices.Concat(reasontest.Scrapes(), objects())
	name := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	seen := map[reason.Reason]bool{}
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
	for r := range reason.Descriptions() {
		if !seen[r] {
			t.Errorf("%s is not listed", r)
		}
	}
	if d := reason.Reason("unknown").Describe(); d != (reason.Description{}) {
		t.Errorf("got %+v for an unknown reason", d)
	}
}

// TestReasonsOfExportersAreDescribed checks that exporters have another description than kubelets.
func TestReasonsOfExportersAreDescribed(t *testing.T) {
	for _, r := range reasontest.Scrapes() {
		d := r.DescribeExporter()
		if d.Problem == "" || d.Cure == "" || strings.HasSuffix(d.Problem, ".") || strings.HasSuffix(d.Cure, ".") ||
			strings.Contains(d.Problem+d.Cure, "kubelet") {
			t.Errorf("%s: got %+v", r, d)
		}
	}
	if d := reason.Reason("").DescribeExporter(); d != (reason.Description{}) {
		t.Errorf("got %+v without a reason", d)
	}
}
