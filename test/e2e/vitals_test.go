package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// vitalsReport is the JSON of kubectl vitals top.
type vitalsReport struct {
	Items []vitalsRow
	Total vitalsRow
}

type vitalsRow struct {
	Kind, Name           string
	Objects, WithMetrics int
	CPU, Memory          struct{ Usage, Request, Limit int64 }
}

const vitalsManifest = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: vitals}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeName: node-vitals
      initContainers:
        - {name: init, image: simulated, resources: {requests: {cpu: 700m}}}
        - {name: mesh, image: simulated, restartPolicy: Always, resources: {requests: {cpu: 50m, memory: 32Mi}}}
      containers:
        - name: app
          image: simulated
          resources: {requests: {cpu: 200m, memory: 64Mi}, limits: {memory: 128Mi}}
`

// TestVitalsTop compares kubectl vitals top with kubectl top and with the sums of kubectl describe node.
func TestVitalsTop(t *testing.T) {
	t.Parallel()
	const node, namespace = "node-vitals", "vitals"
	must(t, shared.Simulation.AddNode(t.Context(), simulation.Node{Name: node, Unschedulable: true}))
	must(t, shared.CreateNamespace(t.Context(), namespace))
	must(t, shared.Apply(t.Context(), vitalsManifest))
	plugin, err := shared.Plugin()
	must(t, err)
	read := func(ctx context.Context, args ...string) (report vitalsReport, err error) {
		code, out, err := shared.vitals(ctx, plugin, append([]string{"top", "--output=json"}, args...)...)
		if err == nil && code != 0 {
			err = fmt.Errorf("exit code %d", code)
		}
		return report, errors.Join(err, json.Unmarshal([]byte(out), &report))
	}
	eventually(t, "metrics of the Deployment", func(ctx context.Context) error {
		r, err := read(ctx, "--namespace", namespace)
		if err == nil && (len(r.Items) != 1 || r.Items[0].Kind != "Deployment" || r.Items[0].WithMetrics != 2 ||
			r.Total.Objects != 2 || r.Items[0].CPU.Request != 2*700e6 || r.Items[0].Memory.Request != 2*96<<20) {
			err = fmt.Errorf("got %+v", r)
		}
		return err
	})
	eventually(t, "the usage of kubectl top", func(ctx context.Context) error {
		want, err := shared.Kubectl(ctx, "top", "pods", "--no-headers", "--namespace", namespace)
		if err != nil {
			return err
		}
		_, out, err := shared.vitals(ctx, plugin, "top", "pods", "--no-headers", "--namespace", namespace)
		var rows []string
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 5 {
				rows = append(rows, strings.Join([]string{f[0], f[1], f[5]}, " "))
			}
		}
		if err == nil && !equalTables(want, rows) {
			err = fmt.Errorf("got\n%s\nwant\n%s", out, want)
		}
		return err
	})
	eventually(t, "the sums of kubectl describe node", func(ctx context.Context) error {
		text, err := shared.Kubectl(ctx, "describe", "node", node)
		if err != nil {
			return err
		}
		_, text, _ = strings.Cut(text, "Allocated resources:")
		sums := regexp.MustCompile(`(?m)^\s+(?:cpu|memory)\s+(\S+) \(\d+%\)\s+(\S+) \(`).FindAllStringSubmatch(text, 2)
		r, err := read(ctx, "nodes")
		i := slices.IndexFunc(r.Items, func(row vitalsRow) bool { return row.Name == node })
		if err != nil || i < 0 || len(sums) != 2 {
			return fmt.Errorf("got %+v, error %w, and of kubectl %q", r, err, sums)
		}
		cpu, memory := resource.MustParse(sums[0][1]), resource.MustParse(sums[1][1])
		limit, row := resource.MustParse(sums[1][2]), r.Items[i]
		if row.CPU.Request != cpu.ScaledValue(resource.Nano) || row.Memory.Request != memory.Value() ||
			row.Memory.Limit != limit.Value() {
			return fmt.Errorf("got %+v, want %q", row, sums)
		}
		return nil
	})
	code, out, err := shared.vitals(t.Context(), plugin, "top", "--namespace", namespace, shared.stranger(t))
	if code != 2 || out != "" || err == nil || !strings.Contains(err.Error(), `cannot list resource "pods"`) {
		t.Errorf("without permissions: got exit code %d, %q, %v", code, out, err)
	}
}
