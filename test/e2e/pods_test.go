package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/binaries"
)

// runPods creates a namespace with these pods on a node, and waits until all have figures. Each has the containers main,
// which uses 250 millicores and 100 MiB, and side, which uses no CPU and 8 MiB; the label app is the pod's name.
func runPods(t *testing.T, in, node string, names ...string) {
	t.Helper()
	namespace(t, in)
	var manifest strings.Builder
	for _, name := range names {
		fmt.Fprintf(&manifest, `
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  namespace: %[2]s
  labels: {app: %[1]s, tier: test}
  annotations:
    simulation.kube-vitals/cpu: main=250m,side=0
    simulation.kube-vitals/memory: main=100Mi,side=8Mi
spec:
  nodeName: %[3]s
  containers: [{name: main, image: simulated}, {name: side, image: simulated}]
---`, name, in, node)
	}
	apply(t, manifest.String())
	eventually(t, "figures of the pods in "+in, func(ctx context.Context) error {
		out, err := world.Run(ctx, binaries.Kubectl, "get", "podmetrics", "--namespace", in, "--no-headers")
		if err == nil && strings.Count(out, "\n") != len(names) {
			err = fmt.Errorf("%d of %d pods have figures:\n%s", strings.Count(out, "\n"), len(names), out)
		}
		return err
	})
}

// kubectlFails runs kubectl, which must fail, and gives its complaint.
func kubectlFails(t *testing.T, args ...string) string {
	t.Helper()
	out, err := world.Run(t.Context(), binaries.Kubectl, args...)
	if err == nil {
		t.Fatalf("kubectl %s succeeded:\n%s", strings.Join(args, " "), out)
	}
	return err.Error()
}
