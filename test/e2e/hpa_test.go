package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// scaled is a Deployment of two containers and its autoscaler: NAMESPACE and METRIC stand for what
// differs. Each container requests 200 millicores.
const scaled = `apiVersion: apps/v1
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

// TestAutoscaling has the real controller scale a Deployment up and down again, by the CPU of its
// pods and by that of one container, and checks that it did so for the reason that it was given.
func TestAutoscaling(t *testing.T) {
	t.Parallel()
	tests := []struct {
		namespace string
		metric    string // of the autoscaler: 50 % of what is requested
		busy      string // the load that needs 4 replicas
		idle      string // the load that needs 1 replica
		reason    string // why it scales up
	}{
		{
			namespace: "hpa-resource",
			metric:    "{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}",
			busy:      "app=700m,proxy=100m",
			idle:      "app=100m,proxy=50m",
			reason:    "cpu resource utilization (percentage of request) above target",
		},
		{
			// The proxy is as busy as can be all the time, and it must not count.
			namespace: "hpa-container",
			metric: "{type: ContainerResource, containerResource: {name: cpu, container: app, " +
				"target: {type: Utilization, averageUtilization: 50}}}",
			busy:   "app=400m,proxy=2",
			idle:   "app=80m,proxy=2",
			reason: "cpu container resource utilization (percentage of request) above target",
		},
	}
	for _, test := range tests {
		t.Run(test.namespace, func(t *testing.T) {
			t.Parallel()
			namespace := test.namespace
			if err := shared.CreateNamespace(t.Context(), namespace); err != nil {
				t.Fatal(err)
			}
			if err := shared.Apply(t.Context(), strings.NewReplacer("NAMESPACE", namespace, "METRIC", test.metric).Replace(scaled)); err != nil {
				t.Fatal(err)
			}
			awaitReplicas(t, namespace, test.idle, 1)
			awaitReplicas(t, namespace, test.busy, 4)
			awaitReplicas(t, namespace, test.idle, 1)
			checkRescales(t, namespace, test.reason)
		})
	}
}

// awaitReplicas sets the load of the Deployment, and waits until the autoscaler has settled on a
// number of replicas, by figures that are within its tolerance or, with one replica, below.
func awaitReplicas(t *testing.T, namespace, load string, replicas int32) {
	t.Helper()
	kubectl(t, "annotate", "deployment", "web", "--namespace", namespace, "--overwrite", "simulation.kube-vitals/load="+load)
	what := fmt.Sprintf("%d replicas in %s", replicas, namespace)
	err := process.Poll(t.Context(), 3*time.Minute, what, func(ctx context.Context) error {
		hpa, err := shared.Client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		utilization, err := utilizationOf(hpa)
		if err != nil {
			return err
		}
		current, desired := hpa.Status.CurrentReplicas, hpa.Status.DesiredReplicas
		if current != replicas || desired != replicas || utilization > 55 || (replicas > 1 && utilization < 45) {
			return fmt.Errorf("it has %d replicas, wants %d, and sees a utilization of %d %%", current, desired, utilization)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// utilizationOf is what an autoscaler sees, in percent of what is requested.
func utilizationOf(hpa *autoscalingv2.HorizontalPodAutoscaler) (int32, error) {
	for _, c := range hpa.Status.Conditions {
		if c.Type == autoscalingv2.ScalingActive && c.Status != corev1.ConditionTrue {
			return 0, fmt.Errorf("it does not scale: %s: %s", c.Reason, c.Message)
		}
	}
	for _, m := range hpa.Status.CurrentMetrics {
		var current *int32
		switch {
		case m.Resource != nil:
			current = m.Resource.Current.AverageUtilization
		case m.ContainerResource != nil:
			current = m.ContainerResource.Current.AverageUtilization
		}
		if current != nil {
			return *current, nil
		}
	}
	return 0, errors.New("it has seen no figures yet")
}

// checkRescales checks that the autoscaler told the right reason whenever it scaled up, and that it
// did scale both ways.
func checkRescales(t *testing.T, namespace, reason string) {
	t.Helper()
	messages, err := shared.Kubectl(t.Context(), "get", "events", "--namespace", namespace,
		"--field-selector=reason=SuccessfulRescale", "--output", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
	if err != nil {
		t.Fatal(err)
	}
	var up, down int
	for line := range strings.Lines(messages) {
		switch {
		case strings.Contains(line, reason):
			up++
		case strings.Contains(line, "All metrics below target"):
			down++
		default:
			t.Errorf("it scaled for another reason: %s", line)
		}
	}
	if up == 0 || down == 0 {
		t.Errorf("it scaled up %d times and down %d times, want both:\n%s", up, down, messages)
	}
}
