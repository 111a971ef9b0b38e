package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// autoscaled is a Deployment with two containers, which request 200m each. NAMESPACE is replaced.
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
`

// autoscaler is its autoscaler. NAMESPACE and METRIC are replaced.
const autoscaler = `apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: NAMESPACE}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 1
  maxReplicas: 5
  metrics: [METRIC]
`

// autoscaling is a test of the autoscaler with one kind of metric.
type autoscaling struct {
	namespace string
	metric    string // of the autoscaler; the target is 50 % of the request
	busy      string // a load that needs 4 replicas
	idle      string // a load that needs 1 replica
	reason    string // for scaling up
}

func autoscalings() []autoscaling {
	return []autoscaling{
		{
			namespace: "hpa-resource",
			metric:    "{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}",
			busy:      "app=700m,proxy=100m",
			idle:      "app=100m,proxy=50m",
			reason:    "cpu resource utilization (percentage of request) above target",
		},
		{
			// The proxy is busy all the time, which must not count.
			namespace: "hpa-container",
			metric: "{type: ContainerResource, containerResource: {name: cpu, container: app, " +
				"target: {type: Utilization, averageUtilization: 50}}}",
			busy:   "app=400m,proxy=2",
			idle:   "app=80m,proxy=2",
			reason: "cpu container resource utilization (percentage of request) above target",
		},
	}
}

// TestAutoscaling scales a Deployment up and down with the real HorizontalPodAutoscaler: by the CPU
// usage of pods, and by that of one container.
func TestAutoscaling(t *testing.T) {
	t.Parallel()
	each(t, autoscalings(), func(t *testing.T, a autoscaling) {
		shared.createNamespaces(t, a.namespace)
		a.create(t, shared)
		a.awaitReplicas(t, shared, a.idle, 1)
		a.awaitReplicas(t, shared, a.busy, 4)
		a.awaitReplicas(t, shared, a.idle, 1)
		a.checkRescales(t, shared)
	})
}

// each runs a step for each autoscaler at the same time, and ends the test if one fails.
func each(t *testing.T, all []autoscaling, step func(*testing.T, autoscaling)) {
	t.Helper()
	steps := map[string]func(*testing.T){}
	for _, a := range all {
		steps[a.namespace] = func(t *testing.T) { step(t, a) }
	}
	if concurrently(t, steps); t.Failed() {
		t.FailNow()
	}
}

// create creates the Deployment and its autoscaler in a namespace that exists.
func (a autoscaling) create(t *testing.T, c *testCluster) {
	t.Helper()
	manifest := strings.NewReplacer("NAMESPACE", a.namespace, "METRIC", a.metric).Replace(autoscaled + autoscaler)
	must(t, c.Apply(t.Context(), manifest))
}

func (a autoscaling) setLoad(t *testing.T, c *testCluster, load string) {
	t.Helper()
	c.kubectl(t, "annotate", "deployment", "web", "--namespace", a.namespace, "--overwrite",
		"simulation.kube-vitals/load="+load)
}

// awaitReplicas sets the load of the Deployment, and waits until the autoscaler has settled on a
// number of replicas, with a usage within its tolerance or, with one replica, below.
func (a autoscaling) awaitReplicas(t *testing.T, c *testCluster, load string, replicas int32) {
	t.Helper()
	a.setLoad(t, c, load)
	c.awaitAutoscaler(t, a.namespace, func(s *autoscalingv2.HorizontalPodAutoscalerStatus) bool {
		percent := seen(s).AverageUtilization
		return s.CurrentReplicas == replicas && s.DesiredReplicas == replicas &&
			percent != nil && *percent <= 55 && (replicas == 1 || *percent >= 45)
	})
}

// seen returns the value of an autoscaler's metric; the zero value: it has none.
func seen(s *autoscalingv2.HorizontalPodAutoscalerStatus) autoscalingv2.MetricValueStatus {
	for _, m := range s.CurrentMetrics {
		switch {
		case m.Resource != nil:
			return m.Resource.Current
		case m.ContainerResource != nil:
			return m.ContainerResource.Current
		}
	}
	return autoscalingv2.MetricValueStatus{}
}

// awaitAutoscaler waits until the status of the autoscaler web is right.
func (c *testCluster) awaitAutoscaler(
	t *testing.T, namespace string, isRight func(*autoscalingv2.HorizontalPodAutoscalerStatus) bool,
) {
	t.Helper()
	eventually(t, "the autoscaler in "+namespace, func(ctx context.Context) error {
		a, err := c.Client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get(ctx, "web", metav1.GetOptions{})
		if err == nil && !isRight(&a.Status) {
			err = fmt.Errorf("got %v", a.Status.String())
		}
		return err
	})
}

// checkRescales checks the reasons in the events of scaling, if there are any: the controller writes at most 25 events
// of one object, and then one in 5 minutes, and it writes two every 2 seconds until the first pod has metrics.
func (a autoscaling) checkRescales(t *testing.T, c *testCluster) {
	t.Helper()
	messages := c.kubectl(t, "get", "events", "--namespace", a.namespace, "--field-selector=reason=SuccessfulRescale",
		"--output", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
	for line := range strings.Lines(messages) {
		// Without a reason, the autoscaler had recommended more than it adds in one step, and now adds the rest. Rates
		// that include the load of fewer replicas can make it do so.
		isKnown := strings.Contains(line, a.reason) || strings.Contains(line, "All metrics below target") ||
			strings.HasSuffix(line, "reason: \n")
		if !isKnown {
			t.Errorf("got another reason: %s", line)
		}
	}
}
