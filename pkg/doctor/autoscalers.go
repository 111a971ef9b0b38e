package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checkAutoscalers finds HorizontalPodAutoscalers that get no usage of CPU or memory, and why.
func (d *doctor) checkAutoscalers(ctx context.Context) []Check {
	c := Check{ID: "autoscalers", Title: "autoscalers", Status: OK}
	groups := map[string]*Check{}
	all := 0
	err := Pages(func(o metav1.ListOptions) (string, error) {
		list, err := d.kube.AutoscalingV2().HorizontalPodAutoscalers(metav1.NamespaceAll).List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			all++
			d.addAutoscaler(ctx, groups, &list.Items[i])
		}
		return list.Continue, nil
	})
	if err != nil {
		return []Check{Denied(c, err)}
	}
	if len(groups) == 0 {
		c.Seen = "there is no HorizontalPodAutoscaler"
		if all > 0 {
			c.Seen = count(all, "HorizontalPodAutoscaler") + " without an error of CPU or memory metrics"
		}
		return []Check{c}
	}
	var checks []Check
	for _, r := range sortedKeys(groups) {
		checks = append(checks, *groups[r])
	}
	return checks
}

func (d *doctor) addAutoscaler(ctx context.Context, groups map[string]*Check,
	h *autoscalingv2.HorizontalPodAutoscaler) {
	i := slices.IndexFunc(h.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.ScalingActive && c.Status == corev1.ConditionFalse &&
			(c.Reason == "FailedGetResourceMetric" || c.Reason == "FailedGetContainerResourceMetric")
	})
	if i < 0 {
		return
	}
	message := h.Status.Conditions[i].Message
	r := autoscalerReason(message)
	group := groups[r]
	if group == nil {
		group = &Check{ID: "autoscalers", Title: "autoscalers", Status: Failed, Reason: r, Seen: message}
		if r == hpaNoMetrics {
			d.explainAutoscaler(ctx, group, h)
		}
		groups[r] = group
	}
	group.Objects = append(group.Objects, h.Namespace+"/"+h.Name)
}

// explainAutoscaler adds why a pod of the autoscaler's target has no metrics.
func (d *doctor) explainAutoscaler(ctx context.Context, c *Check, h *autoscalingv2.HorizontalPodAutoscaler) {
	selector := d.targetSelector(ctx, h)
	if selector == "" {
		return
	}
	pods, err := d.kube.CoreV1().Pods(h.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector, Limit: pageSize})
	if err != nil {
		return
	}
	i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return !d.api.pods[p.Namespace+"/"+p.Name] })
	switch {
	case len(pods.Items) == 0:
		c.Reason, c.Cure = hpaNoPods, ""
		c.Seen += fmt.Sprintf("; its target has no pods (%s)", selector)
	case i >= 0 && d.target.kind == KubeVitals && d.api.pods != nil:
		message, known := d.notFound(ctx, "namespaces/"+h.Namespace+"/pods/"+pods.Items[i].Name)
		if message != "" {
			c.Seen += "; " + message
		}
		c.Cure = known.Describe().Cure
		if known != "" {
			c.URL = known.URL()
		}
	case i >= 0:
		c.Seen += fmt.Sprintf("; pod %s, whose phase is %s, has no metrics", pods.Items[i].Name, pods.Items[i].Status.Phase)
	}
}

// targetSelector returns the selector of the pods of the autoscaler's target, or "".
func (d *doctor) targetSelector(ctx context.Context, h *autoscalingv2.HorizontalPodAutoscaler) string {
	ref, apps := h.Spec.ScaleTargetRef, d.kube.AppsV1()
	switch ref.Kind {
	case "Deployment":
		if scale, err := apps.Deployments(h.Namespace).GetScale(ctx, ref.Name, metav1.GetOptions{}); err == nil {
			return scale.Status.Selector
		}
	case "StatefulSet":
		if scale, err := apps.StatefulSets(h.Namespace).GetScale(ctx, ref.Name, metav1.GetOptions{}); err == nil {
			return scale.Status.Selector
		}
	}
	return ""
}

func autoscalerReason(message string) string {
	for _, known := range []struct{ text, reason string }{
		{"missing request for", hpaNoRequest},
		{"is forbidden", hpaForbidden},
		{"could not find the requested resource", hpaNoAPI},
		{"unable to handle the request", hpaNoAPI},
		{"no metrics returned", hpaNoMetrics},
		{"did not receive metrics for", hpaNoMetrics},
		{"unable to fetch metrics", hpaNoAPI},
	} {
		if strings.Contains(message, known.text) {
			return known.reason
		}
	}
	return hpaOther
}
