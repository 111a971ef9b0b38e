package top

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
)

// asScheduler are the options of the scheduler of Kubernetes 1.36 and 1.37. During a resize, what counts is the
// largest of what the spec wants, and what the node has granted and applied.
var asScheduler = helpers.PodResourcesOptions{
	UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}

// unlimited are the bytes of memory from which on a limit is none. A kubelet of Kubernetes 1.36 with cgroup v1 reports
// the bytes of all pages that an int64 can count as the limit of a pod that has none.
const unlimited = 1 << 62

// newPod returns what is kept of a pod, and of its containers. One that has ended requests nothing, and does not count.
func newPod(p *corev1.Pod, withContainers bool) []*row {
	r := &row{Namespace: p.Namespace, APIVersion: "v1", Kind: "Pod", Name: p.Name, Node: p.Spec.NodeName,
		Objects: number(0), owner: controllerOf(p),
		ended: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed}
	if p.Status.Phase != corev1.PodRunning {
		r.Missing = map[string]int{phase(p): 1}
	}
	all := []*row{r}
	if r.ended {
		return all
	}
	r.Objects = number(1)
	if status := p.Status.Resources; status != nil && status.Limits.Memory().Value() >= unlimited {
		delete(status.Limits, corev1.ResourceMemory)
	}
	r.set(request, helpers.PodRequests(p, asScheduler))
	limits := helpers.PodLimits(p, asScheduler)
	r.set(limit, limits)
	maps.DeleteFunc(limits, func(name corev1.ResourceName, _ resource.Quantity) bool { return !isBounded(p, name) })
	r.set(bound, limits)
	if !withContainers {
		return all
	}
	one, options := &corev1.Pod{Status: p.Status}, helpers.PodResourcesOptions{UseStatusResources: true}
	containers := slices.Concat(p.Spec.Containers, p.Spec.InitContainers)
	for _, c := range p.Spec.EphemeralContainers {
		containers = append(containers, corev1.Container(c.EphemeralContainerCommon))
	}
	for i, c := range containers {
		one.Spec.Containers = []corev1.Container{c}
		of := &row{Namespace: r.Namespace, APIVersion: r.APIVersion, Kind: r.Kind, Name: r.Name, Container: c.Name,
			Node: r.Node, Objects: r.Objects, passing: i >= len(p.Spec.Containers) && !isSidecar(&c)}
		of.set(request, helpers.PodRequests(one, options))
		limits := helpers.PodLimits(one, options)
		of.set(limit, limits)
		of.set(bound, limits)
		all = append(all, of)
	}
	return all
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// isBounded reports whether the pod as a whole, or each of its containers and sidecars, has a limit.
func isBounded(p *corev1.Pod, name corev1.ResourceName) bool {
	if p.Spec.Resources != nil {
		if _, ok := p.Spec.Resources.Limits[name]; ok {
			return true
		}
	}
	unbounded := func(c corev1.Container) bool { return c.Resources.Limits.Name(name, resource.DecimalSI).IsZero() }
	return !slices.ContainsFunc(p.Spec.Containers, unbounded) &&
		!slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool { return isSidecar(&c) && unbounded(c) })
}

// phase returns why a pod that does not run has no metrics: its phase, and what it waits for.
func phase(p *corev1.Pod) string {
	why := p.Status.Reason
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			why = cmp.Or(why, c.Reason)
		}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if c.State.Waiting != nil {
			why = cmp.Or(why, c.State.Waiting.Reason)
		}
	}
	if why != "" {
		why = ": " + why
	}
	return cmp.Or(string(p.Status.Phase), string(corev1.PodUnknown)) + why
}

// containers returns the rows of containers, and those of pods that have ended. They follow that of their pod. Init
// and ephemeral containers count only while they run.
func containers(rows []*row) []*row {
	var pod *row
	return slices.DeleteFunc(rows, func(r *row) bool {
		if r.Container == "" {
			pod = r
			return !r.ended
		}
		if r.WithMetrics == 0 {
			if r.Missing, r.Message = pod.Missing, pod.Message; r.Missing == nil {
				r.Missing = map[string]int{noMetrics: 1}
			}
		}
		return r.WithMetrics == 0 && r.passing
	})
}
