package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// autoscaled is a Deployment with two containers, which request 200m each, and its autoscaler.
// NAMESPACE and METRIC are replaced.
const autoscaled = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: NAMESPACE
  annotations: {simulation.kube-vitals/load: "app=100m,proxy=100m"}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - {name: app, image: simulated, resources: {requests: {cpu: 200m}}}
        - {name: proxy, image: simulated, resources: {requests: {cpu: 200m}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: NAMESPACE}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 1
  maxReplicas: 5
  metrics: [METRIC]
`

// TestAutoscaling scales a Deployment up and down with the real HorizontalPodAutoscaler: by the CPU
// usage of pods, and by that of one container.
func TestAutoscaling(t *testing.T) {
	t.Parallel()
	tests := []struct {
		namespace string
		metric    string // of the autoscaler; the target is 50 % of the request
		usage     string // the field of the autoscaler's status that has the current usage
		busy      string // a load that needs 4 replicas
		idle      string // a load that needs 1 replica
		reason    string // for scaling up
	}{
		{
			namespace: "hpa-resource",
			metric:    "{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}",
			usage:     "resource",
			busy:      "app=700m,proxy=100m",
			idle:      "app=100m,proxy=50m",
			reason:    "cpu resource utilization (percentage of request) above target",
		},
		{
			// The proxy is busy all the time, which must not count.
			namespace: "hpa-container",
			metric: "{type: ContainerResource, containerResource: {name: cpu, container: app, " +
				"target: {type: Utilization, averageUtilization: 50}}}",
			usage:  "containerResource",
			busy:   "app=400m,proxy=2",
			idle:   "app=80m,proxy=2",
			reason: "cpu container resource utilization (percentage of request) above target",
		},
	}
	for _, test := range tests {
		t.Run(test.namespace, func(t *testing.T) {
			t.Parallel()
			shared.createNamespaces(t, test.namespace)
			manifest := strings.NewReplacer("NAMESPACE", test.namespace, "METRIC", test.metric).Replace(autoscaled)
			if err := shared.Apply(t.Context(), manifest); err != nil {
				t.Fatal(err)
			}
			awaitReplicas(t, test.namespace, test.usage, test.idle, 1)
			awaitReplicas(t, test.namespace, test.usage, test.busy, 4)
			awaitReplicas(t, test.namespace, test.usage, test.idle, 1)
			checkRescales(t, test.namespace, test.reason)
		})
	}
}

// awaitReplicas sets the load of the Deployment, and waits until the autoscaler has settled on a
// number of replicas, with a usage within its tolerance or, with one replica, below.
func awaitReplicas(t *testing.T, namespace, usage, load string, replicas int) {
	t.Helper()
	shared.kubectl(t, "annotate", "deployment", "web", "--namespace", namespace, "--overwrite",
		"simulation.kube-vitals/load="+load)
	what := fmt.Sprintf("%d replicas in %s", replicas, namespace)
	err := process.Poll(t.Context(), 3*time.Minute, what, func(ctx context.Context) error {
		status, err := shared.Kubectl(ctx, "get", "hpa", "web", "--namespace", namespace, "--output=jsonpath="+
			"{.status.currentReplicas} {.status.desiredReplicas} "+
			"{.status.currentMetrics[0]."+usage+".current.averageUtilization} {.status.conditions}")
		if err != nil {
			return err
		}
		var current, desired, percent int
		if _, err := fmt.Sscan(status, &current, &desired, &percent); err != nil ||
			current != replicas || desired != replicas || percent > 55 || (replicas > 1 && percent < 45) {
			return fmt.Errorf("current replicas, desired replicas, CPU in percent, conditions: %s", status)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkRescales checks that the autoscaler has scaled up and down, and the reasons in its events.
func checkRescales(t *testing.T, namespace, reason string) {
	t.Helper()
	messages := shared.kubectl(t, "get", "events", "--namespace", namespace,
		"--field-selector=reason=SuccessfulRescale", "--output", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
	var up, down int
	for line := range strings.Lines(messages) {
		switch {
		case strings.Contains(line, reason):
			up++
		case strings.Contains(line, "All metrics below target"):
			down++
		default:
			t.Errorf("got another reason: %s", line)
		}
	}
	if up == 0 || down == 0 {
		t.Errorf("got %d events of scaling up and %d of scaling down, want both:\n%s", up, down, messages)
	}
}
