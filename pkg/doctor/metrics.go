package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// podStart is the time in which a new pod gets metrics.
const podStart = time.Minute

func (d *doctor) checkMetricsAPI(ctx context.Context, c Check) []Check {
	version, seen := d.version(), []string{}
	for _, kind := range []struct {
		noun  string
		names *map[string]bool
	}{{"node", &d.nodes}, {"pod", &d.pods}} {
		start := time.Now()
		names, err := d.metrics(ctx, "/apis/metrics.k8s.io/"+version+"/"+kind.noun+"s")
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), " cannot ") {
			return c.Denied(err)
		}
		if err != nil {
			return c.Fail(serverSymptoms.of(err.Error(), apiServiceUnavailable), "GET %ss: %v", kind.noun, err)
		}
		*kind.names = names
		seen = append(seen, fmt.Sprintf("%s in %v", Count(len(names), kind.noun), time.Since(start).Round(time.Millisecond)))
	}
	if len(d.nodes) == 0 {
		return c.Fail(Problem{noMetrics.Reason, "see nodes"}, "%s responds, but has no metrics of any node", version)
	}
	return c.OK("%s serves %s", version, strings.Join(seen, " and "))
}

// metrics returns the names of the objects in a LIST.
func (d *doctor) metrics(ctx context.Context, path string) (map[string]bool, error) {
	var list struct {
		Items []struct {
			Metadata struct{ Name, Namespace string }
		}
	}
	if err := Get(ctx, d.kube, path, &list); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, item := range list.Items {
		names[objectName(item.Metadata.Namespace, item.Metadata.Name)] = true
	}
	return names, nil
}

// checkNodesByAPI finds nodes and pods without metrics by the API.
func (d *doctor) checkNodesByAPI(ctx context.Context, c Check) []Check {
	if d.nodes == nil || d.pods == nil {
		return c.Skip(noConnection, "the metrics API does not respond")
	}
	var missing, notReady []string
	all := 0
	err := Each(ctx, d.kube.CoreV1().Nodes().List,
		metav1.ListOptions{LabelSelector: d.workload.flag("--node-selector", "-l")}, func(n *corev1.Node) {
			all++
			isReady := func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}
			switch {
			case d.nodes[n.Name]:
			case slices.ContainsFunc(n.Status.Conditions, isReady):
				missing = append(missing, n.Name)
			default:
				notReady = append(notReady, n.Name)
			}
		})
	if err != nil {
		return c.Denied(err)
	}
	var checks []Check
	if len(missing)+len(notReady) == 0 {
		checks = c.OK("%d of %d have metrics", all, all)
	}
	if c.Objects = missing; len(missing) > 0 {
		checks = c.Fail(noMetrics, "%d of %d have no metrics", len(missing), all)
		d.explain(ctx, &checks[0], "nodes/"+missing[0])
	}
	if c.Objects = notReady; len(notReady) > 0 {
		checks = append(checks, c.Warn(nodeNotReady, "%d of %d have no metrics and are not Ready", len(notReady), all)...)
	}
	return append(checks, d.checkPodsByAPI(ctx)...)
}

// checkPodsByAPI finds pods without metrics.
func (d *doctor) checkPodsByAPI(ctx context.Context) []Check {
	c := Check{ID: "pod-metrics", Title: "pod metrics"}
	var missing []string
	all := 0
	err := Each(ctx, d.kube.CoreV1().Pods(metav1.NamespaceAll).List,
		metav1.ListOptions{FieldSelector: "status.phase=" + string(corev1.PodRunning)}, func(p *corev1.Pod) {
			all++
			started := p.Status.StartTime
			if !d.pods[p.Namespace+"/"+p.Name] && started != nil && time.Since(started.Time) > podStart {
				missing = append(missing, p.Namespace+"/"+p.Name)
			}
		})
	if err != nil {
		return c.Denied(err)
	}
	if len(missing) == 0 {
		return c.OK("all running pods have metrics or have just started: %d", all)
	}
	c.Objects = missing
	result := c.Warn(noMetrics, "%d of %d running pods have no metrics", len(missing), all)
	d.explain(ctx, &result[0], "namespaces/"+strings.Replace(missing[0], "/", "/pods/", 1))
	return result
}

// explain adds why the first object of a check has no metrics: kube-vitals says so in its 404.
func (d *doctor) explain(ctx context.Context, c *Check, path string) {
	if d.target.kind != KubeVitals {
		return
	}
	err := Get(ctx, d.kube, "/apis/metrics.k8s.io/"+d.version()+"/"+path, &struct{}{})
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return
	}
	if message := status.Status().Message; message != "" {
		c.Seen += "; of the first one: " + message
	}
	if status.Status().Details == nil {
		return
	}
	for _, cause := range status.Status().Details.Causes {
		r := reason.Reason(cause.Type)
		description := r.Describe()
		if d.workload.usesEngine() {
			description = r.DescribeEngine()
		}
		if description.Problem != "" {
			c.Reason, c.Cure, c.URL = string(r), description.Cure, r.URL()
		}
	}
}

// checkAutoscalers finds HorizontalPodAutoscalers that get no usage of CPU or memory, and why.
func (d *doctor) checkAutoscalers(ctx context.Context, c Check) []Check {
	all, failing := 0, Groups{}
	err := Each(ctx, d.kube.AutoscalingV2().HorizontalPodAutoscalers(metav1.NamespaceAll).List, metav1.ListOptions{},
		func(h *autoscalingv2.HorizontalPodAutoscaler) {
			all++
			i := slices.IndexFunc(h.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
				return c.Type == autoscalingv2.ScalingActive && c.Status == corev1.ConditionFalse &&
					(c.Reason == "FailedGetResourceMetric" || c.Reason == "FailedGetContainerResourceMetric")
			})
			if i < 0 {
				return
			}
			message := h.Status.Conditions[i].Message
			problem := autoscalerSymptoms.of(message, hpaOther)
			failing.Add(problem.Reason, h.Namespace+"/"+h.Name, func() []Check {
				result := c.Fail(problem, "%s", message)
				if problem == hpaNoMetrics {
					d.explainAutoscaler(ctx, &result[0], h)
				}
				return result
			})
		})
	switch {
	case err != nil:
		return c.Denied(err)
	case len(failing) > 0:
		return failing.Checks()
	case all == 0:
		return c.OK("there is no HorizontalPodAutoscaler")
	}
	return c.OK("%s without an error of CPU or memory metrics", Count(all, "HorizontalPodAutoscaler"))
}

// explainAutoscaler adds why a pod of the autoscaler's target has no metrics. Only Deployments and
// StatefulSets are known to have the subresource scale.
func (d *doctor) explainAutoscaler(ctx context.Context, c *Check, h *autoscalingv2.HorizontalPodAutoscaler) {
	ref := h.Spec.ScaleTargetRef
	if d.pods == nil || ref.Kind != "Deployment" && ref.Kind != "StatefulSet" {
		return
	}
	var scale struct{ Status struct{ Selector string } }
	path := fmt.Sprintf("/apis/apps/v1/namespaces/%s/%ss/%s/scale", h.Namespace, strings.ToLower(ref.Kind), ref.Name)
	if err := Get(ctx, d.kube, path, &scale); err != nil || scale.Status.Selector == "" {
		return
	}
	pods, err := d.kube.CoreV1().Pods(h.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: scale.Status.Selector, Limit: 500})
	if err != nil {
		return
	}
	if len(pods.Items) == 0 {
		c.Reason, c.Cure = hpaNoPods.Reason, hpaNoPods.Cure
		c.Seen += fmt.Sprintf("; its target has no pods (%s)", scale.Status.Selector)
		return
	}
	for _, p := range pods.Items {
		if !d.pods[p.Namespace+"/"+p.Name] {
			c.Seen += fmt.Sprintf("; pod %s, whose phase is %s, has no metrics", p.Name, p.Status.Phase)
			d.explain(ctx, c, "namespaces/"+p.Namespace+"/pods/"+p.Name)
			c.Reason = hpaNoMetrics.Reason
			return
		}
	}
}
