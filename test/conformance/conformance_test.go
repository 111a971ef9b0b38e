package conformance

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// kubectl writes a program that prints what kubectl top prints, or nothing of it.
func kubectl(t *testing.T, output string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubectl")
	if err := os.WriteFile(file, []byte("#!/bin/sh\necho "+output+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// judge runs all checks against a cluster with a defect.
func judge(t *testing.T, defect string, change func(*Config)) *Report {
	t.Helper()
	output := "node-1 node-2 " + loadPod + " " + busy
	if defect == "client/kubectl-top" {
		output = "NAME"
	}
	program := kubectl(t, output)
	var report *Report
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, defect)
		cfg := c.config(program)
		if change != nil {
			change(&cfg)
		}
		var err error
		if report, err = Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		namespaces, err := c.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(namespaces.Items) > 0 {
			t.Errorf("namespaces after the run: %v, %v", namespaces, err)
		}
	})
	return report
}

// outcomes returns the IDs of the checks with a status.
func outcomes(r *Report, statuses ...Status) (ids []string) {
	for i := range r.Results {
		if slices.Contains(statuses, r.Results[i].Status) {
			ids = append(ids, r.Results[i].ID)
		}
	}
	return ids
}

func text(t *testing.T, r *Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestAllPass(t *testing.T) {
	report := judge(t, "", nil)
	if got := outcomes(report, Failed, Unsupported, Skipped); len(got) > 0 || !report.Conforms() ||
		len(report.Results) != len(Checks()) {
		t.Errorf("these checks did not pass: %v\n%s", got, text(t, report))
	}
}

// TestEveryCheckFails runs all checks against a cluster with one defect, for every check: this check
// must fail, and no other.
func TestEveryCheckFails(t *testing.T) {
	also := map[string][]string{ // a defect that other checks notice too
		"discovery/v1beta1": {"client/hpa-read"},
		"format/json":       {"list/get"},
		"format/protobuf":   {"client/hpa-read"},
		"pods/completed":    {"extension/not-found-reason"},
	}
	for _, check := range Checks() {
		t.Run(check.ID, func(t *testing.T) {
			t.Parallel()
			report := judge(t, check.ID, nil)
			want := append([]string{check.ID}, also[check.ID]...)
			got := outcomes(report, Failed, Unsupported)
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("these checks failed: %v, want %v\n%s", got, want, text(t, report))
			}
			for i := range report.Results {
				r := &report.Results[i]
				if r.ID == check.ID && !strings.Contains(r.Message, "expected") {
					t.Errorf("the message does not have what was expected: %s", r.Message)
				}
			}
			if report.Conforms() != (check.Profile == Extension && len(also[check.ID]) == 0) {
				t.Errorf("Conforms returned %t", report.Conforms())
			}
		})
	}
}

// TestImage runs the checks with pods that run an image, as on a real cluster: only the busy
// containers have a load, and pods complete and restart by themselves.
func TestImage(t *testing.T) {
	report := judge(t, "", func(cfg *Config) {
		cfg.Workload = Workload{Image: "busybox"}
		cfg.RestartContainer = nil
	})
	if got := outcomes(report, Failed, Unsupported, Skipped); len(got) > 0 {
		t.Errorf("these checks did not pass: %v\n%s", got, text(t, report))
	}
}

// TestServerOnStoppedNode must not blame the server for its own node.
func TestServerOnStoppedNode(t *testing.T) {
	for node, want := range map[string]Status{"node-1": Skipped, "node-2": Passed} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "")
			c.service = "metrics"
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Name: "metrics-x", Namespace: "kube-system",
					Labels: map[string]string{discoveryv1.LabelServiceName: c.service}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: &node}},
			}
			if err := c.Tracker().Add(slice); err != nil {
				t.Fatal(err)
			}
			cfg := c.config("")
			cfg.Only = regexp.MustCompile("^nodes/stopped$")
			report, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got := outcomes(report, want); len(got) != 1 {
				t.Errorf("server on %s, kubelet of node-1 stopped: want %s\n%s", node, want, text(t, report))
			}
		})
	}
}

// TestWithoutWorkload judges the metrics that exist, and creates nothing.
func TestWithoutWorkload(t *testing.T) {
	report := judge(t, "", func(cfg *Config) { cfg.Workload = Workload{} })
	if got := outcomes(report, Failed, Unsupported); len(got) > 0 || !report.Conforms() {
		t.Errorf("these checks failed: %v\n%s", got, text(t, report))
	}
	for i := range report.Results {
		if r := &report.Results[i]; (r.Status == Skipped) != (r.needs != nothing) {
			t.Errorf("%s: %s %s", r.ID, r.Status, r.Message)
		}
	}
}

func TestProfiles(t *testing.T) {
	for profile, want := range map[Profile][]Profile{
		"": {Required, Recommended}, Required: {Required}, Recommended: {Required, Recommended},
		Extension: {Required, Recommended, Extension},
	} {
		report := judge(t, "", func(cfg *Config) { cfg.Profile, cfg.Workload = profile, Workload{} })
		for _, p := range []Profile{Required, Recommended, Extension} {
			n := report.Count(p, Passed) + report.Count(p, Skipped)
			if (n > 0) != slices.Contains(want, p) {
				t.Errorf("profile %q ran %d checks of profile %s", profile, n, p)
			}
		}
	}
}

func TestOnly(t *testing.T) {
	report := judge(t, "", func(cfg *Config) { cfg.Only = regexp.MustCompile("^format/(json|yaml)$") })
	if got, want := outcomes(report, Passed), []string{"format/json", "format/yaml"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	c := newCluster(t, "")
	cfg := c.config("")
	cfg.Only = regexp.MustCompile("nothing")
	if _, err := Run(t.Context(), cfg); err == nil {
		t.Error("a run without checks has no error")
	}
}

// TestWorkloadDoesNotRun must not be taken for a defect of the server.
func TestWorkloadDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		c.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("pods are forbidden")
		})
		_, err := Run(t.Context(), c.config(""))
		if err == nil || !strings.Contains(err.Error(), "pods are forbidden") {
			t.Errorf("got %v", err)
		}
		namespaces, err := c.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(namespaces.Items) > 0 {
			t.Errorf("namespaces after the run: %v, %v", namespaces, err)
		}
	})
}

func TestCheckList(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.ID] || c.Title == "" || c.Source.Text == "" || !strings.HasPrefix(c.Source.URL, "https://") {
			t.Errorf("check %+v", c)
		}
		if strings.HasPrefix(c.ID, "extension/") && c.Profile != Extension {
			t.Errorf("%s has profile %s", c.ID, c.Profile)
		}
		seen[c.ID] = true
	}
}
