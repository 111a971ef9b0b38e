package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/conformance"
	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// conformanceFile is the page whose table `make conformance` writes; the reports are beside it, in
// the folder conformance.
var conformanceFile = flag.String("conformance", "", "write the results of the conformance suite into this page")

// TestConformance runs the conformance suite of metrics.k8s.io. kube-vitals must pass all required
// and recommended checks with each source. metrics-server runs if METRICS_SERVER names its binary;
// its results are only reported.
func TestConformance(t *testing.T) {
	t.Parallel()
	var table conformanceTable
	servers := map[string]func(*testing.T){
		"kubelets": func(t *testing.T) {
			c := newConformanceCluster(t)
			c.install(t, "--max-sample-age=1m")
			c.mustConform(t, &table, "kube-vitals")
		},
		"prometheus": func(t *testing.T) {
			newPrometheusCluster(t).mustConform(t, &table, "kube-vitals-prometheus")
		},
	}
	if path := os.Getenv("METRICS_SERVER"); path != "" {
		servers["metrics-server"] = func(t *testing.T) {
			c := newConformanceCluster(t)
			c.installMetricsServer(t, path)
			c.conformance(t, &table, "metrics-server")
		}
	}
	concurrently(t, servers)
	if *conformanceFile != "" && !t.Failed() {
		must(t, table.write(*conformanceFile))
	}
}

// newConformanceCluster starts a cluster with nodes with and without swap.
func newConformanceCluster(t *testing.T) *testCluster {
	t.Helper()
	return startBare(t, cluster.Config{Nodes: simulation.Nodes(prometheusNodes)})
}

// mustConform fails the test if a check fails, or is skipped.
func (c *testCluster) mustConform(t *testing.T, table *conformanceTable, server string) {
	t.Helper()
	report := c.conformance(t, table, server)
	for i := range report.Results {
		r := &report.Results[i]
		if r.Status == conformance.Failed || r.Status == conformance.Skipped && r.Profile != conformance.Extension {
			t.Error(r.Text())
		}
	}
}

// conformance runs the suite with pods of simulated kubelets.
func (c *testCluster) conformance(t *testing.T, table *conformanceTable, server string) *conformance.Report {
	t.Helper()
	faults := func(faults ...kubelettest.Fault) func(context.Context, string) error {
		return func(_ context.Context, node string) error {
			c.Simulation.Kubelet(node).SetFaults(faults...)
			return nil
		}
	}
	report, err := conformance.Run(t.Context(), conformance.Config{
		REST:    c.REST,
		Profile: conformance.Extension,
		Workload: conformance.Workload{CPUAnnotation: simulation.CPUAnnotation,
			MemoryAnnotation: simulation.MemoryAnnotation},
		Timeout:    max(time.Minute, 4*c.started), // what a server does not support takes as long
		MaxAge:     time.Minute,
		Interval:   250 * time.Millisecond, // the resolution is shorter than usual too
		Kubectl:    c.Binary(binaries.Kubectl),
		Kubeconfig: c.Kubeconfig,
		StopNode:   faults(kubelettest.Refuse),
		StartNode:  faults(),
		RestartContainer: func(ctx context.Context, namespace, pod, container string) error {
			object, err := c.Client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
			if err == nil {
				c.Simulation.Kubelet(object.Spec.NodeName).Restart(namespace, pod, container)
			}
			return err
		},
		Progress: func(r conformance.Result) { t.Logf("%5.1fs %s", r.Seconds, r.Text()) },
	})
	must(t, err)
	table.add(server, report)
	return report
}

// installMetricsServer starts metrics-server with the objects of its manifest, and waits until it
// serves metrics.
func (c *testCluster) installMetricsServer(t *testing.T, path string) {
	t.Helper()
	port := fmt.Sprint(freePort(t))
	server := metricsServer(port)
	must(t, c.Apply(t.Context(), server.access()+"---"+server.apiService()))
	kubeconfig := c.accountKubeconfig(t, cluster.Namespace, "metrics-server")
	p, err := c.StartProcess(path,
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port="+port, "--cert-dir="+c.Dir,
		"--kubelet-certificate-authority="+c.File("ca.crt"),
		"--kubelet-preferred-address-types=InternalIP", "--kubelet-use-node-status-port",
		"--metric-resolution=10s", "--kubelet-request-timeout=5s", // the shortest allowed resolution
	)
	must(t, err)
	logOnFailure(t, p)
	c.awaitOutput(t, has("node-01 "), "top", "nodes")
}

// conformanceTable has the results of all servers, in the order of their names.
type conformanceTable struct {
	mu      sync.Mutex
	servers []string
	reports []*conformance.Report
}

func (table *conformanceTable) add(server string, report *conformance.Report) {
	table.mu.Lock()
	defer table.mu.Unlock()
	i, _ := slices.BinarySearch(table.servers, server)
	table.servers = slices.Insert(table.servers, i, server)
	table.reports = slices.Insert(table.reports, i, report)
}

// The table in the page is between these lines.
const (
	conformanceBegin = "<!-- BEGIN written by make conformance -->\n"
	conformanceEnd   = "<!-- END -->\n"
)

// write writes the reports, and replaces the table in the page.
func (table *conformanceTable) write(page string) error {
	for i, server := range table.servers {
		var text bytes.Buffer
		if err := table.reports[i].WriteJSON(&text); err != nil {
			return err
		}
		name := filepath.Join(filepath.Dir(page), "results", server+".json")
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), conformanceBegin)
	_, after, ended := strings.Cut(rest, conformanceEnd)
	if !ok || !ended {
		return fmt.Errorf("%s: no lines %q and %q", page, conformanceBegin, conformanceEnd)
	}
	return os.WriteFile(page, []byte(before+conformanceBegin+"\n"+table.markdown()+"\n"+conformanceEnd+after), 0o644)
}

// markdown returns the checks that not every server passed, and the sums. The reports have all checks.
func (table *conformanceTable) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| Check | Profile | Demand and source | %s |\n", strings.Join(table.servers, " | "))
	fmt.Fprintf(&b, "|---|---|---%s|\n", strings.Repeat("|---", len(table.servers)))
	for i := range table.reports[0].Results {
		hasPassed := func(r *conformance.Report) bool { return r.Results[i].Status == conformance.Passed }
		if !slices.ContainsFunc(table.reports, func(r *conformance.Report) bool { return !hasPassed(r) }) {
			continue
		}
		check := table.reports[0].Results[i].Check
		fmt.Fprintf(&b, "| `%s` | %s | %s ([%s](%s)) |", check.ID, check.Profile, check.Title, check.Source.Text,
			check.Source.URL)
		for _, report := range table.reports {
			status := string(report.Results[i].Status)
			if status == string(conformance.Failed) {
				status = "**" + status + "**"
			}
			fmt.Fprintf(&b, " %s |", status)
		}
		b.WriteString("\n")
	}
	for _, profile := range []conformance.Profile{conformance.Required, conformance.Recommended, conformance.Extension} {
		fmt.Fprintf(&b, "| all | %s | |", profile)
		for _, report := range table.reports {
			fmt.Fprintf(&b, " %s |", report.Summary(profile))
		}
		b.WriteString("\n")
	}
	return b.String()
}
