package decode

import (
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// nodeTime is the time of a node's CPU in a response to /metrics/resource, in milliseconds.
var nodeTime = regexp.MustCompile(`(?m)^node_cpu_usage_seconds_total \S+ (\d+)$`)

// TestVersions decodes the responses of real kubelets with containerd 1.6, with containerd 2.4 and with CRI-O 1.36, to
// both paths. The pod "crash" has another container, which has ended: with CRI-O, cAdvisor still reports it. "web" has
// a sidecar.
func TestVersions(t *testing.T) {
	const both = usage.HasCPU | usage.HasMemory
	for version, swap := range map[string]struct{ node, containers usage.Has }{
		"1.31":             {0, 0},
		"1.33":             {usage.HasSwap, 0},
		"1.34-containerd2": {usage.HasSwap, usage.HasSwap},
		"1.35":             {usage.HasSwap, usage.HasSwap}, // 0, which is true: the node has none
		"1.36-crio":        {usage.HasSwap, usage.HasSwap},
		"1.37":             {usage.HasSwap, 0}, // 0, which is not true: the node has 5.5 MB in use, and the pod "web" too
	} {
		t.Run(version, func(t *testing.T) {
			want := []string{"crash/b", "kube-vitals/kube-vitals", "podlevel/a", "step/a", "web/burn", "web/mem", "web/side"}
			if version == "1.36-crio" {
				want = slices.Insert(want, 0, "crash/a")
			}
			resource := readFile(t, "kubelet-"+version+"-resource.txt")
			summary := readFile(t, "kubelet-"+version+"-summary-cpu-memory.json")
			millis, err := strconv.ParseInt(string(nodeTime.FindSubmatch(resource)[1]), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			at := usage.At(time.UnixMilli(millis).Add(20 * time.Second))
			byText, bySummary := usage.Scrape{At: at}, usage.Scrape{At: at}
			if err := (&Text{MaxContainers: enough}).Decode(&byText, resource); err != nil {
				t.Fatal(err)
			}
			if err := (&Summary{MaxContainers: enough}).Decode(&bySummary, summary, "node1"); err != nil {
				t.Fatal(err)
			}
			started := map[string]usage.NodeTime{}
			for path, s := range map[string]*usage.Scrape{resourcePath: &byText, shortSummaryPath: &bySummary} {
				if s.Skipped != (usage.Scrape{}).Skipped || s.Partial {
					t.Errorf("%s: got skipped lines %v, partial %v", path, s.Skipped, s.Partial)
				}
				if has := s.Node.Has &^ usage.HasRate; has != both|swap.node {
					t.Errorf("%s: got %b of the node", path, has)
				}
				var names []string
				for _, c := range s.Containers {
					name := podName.ReplaceAllString(string(c.Pod), "") + "/" + string(c.Name)
					names = append(names, name)
					if has := c.Has &^ usage.HasRate; has != both|swap.containers || c.Untimed {
						t.Errorf("%s, %s: got %b, untimed %v", path, name, has, c.Untimed)
					}
					// The summary truncates it to seconds.
					start := usage.NodeTime(time.Duration(c.StartedAt).Truncate(time.Second))
					if before, ok := started[name]; start == 0 || ok && start != before {
						t.Errorf("%s, %s: got start time %v and %v", path, name, c.StartedAt.Time(), before.Time())
					}
					started[name] = start
				}
				slices.Sort(names)
				if !slices.Equal(names, want) {
					t.Errorf("%s: got containers %q, want %q", path, names, want)
				}
			}
		})
	}
}

// podName is what a Deployment appends to the name of a pod.
var podName = regexp.MustCompile(`-[0-9a-f]+-[0-9a-z]{5}$`)
