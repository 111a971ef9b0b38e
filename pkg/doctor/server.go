package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kube-vitals/kube-vitals/pkg/doctor/dial"
	"github.com/kube-vitals/kube-vitals/pkg/internal/command"
)

// workload is what runs behind the Service.
type workload struct {
	service    *corev1.Service    // nil: not found or not read
	deployment *appsv1.Deployment // nil: not found or not read
	pods       []corev1.Pod
	spec       *corev1.PodSpec // of the Deployment, or of a pod
}

// external returns the host that the Service is an alias of.
func (w workload) external() string {
	if w.service == nil || w.service.Spec.Type != corev1.ServiceTypeExternalName {
		return ""
	}
	return w.service.Spec.ExternalName
}

// container returns the container of the server, or nil.
func (w workload) container() *corev1.Container {
	if w.spec == nil || len(w.spec.Containers) == 0 {
		return nil
	}
	for i, c := range w.spec.Containers {
		if KindByName(c.Name+" "+c.Image) != Other {
			return &w.spec.Containers[i]
		}
	}
	return &w.spec.Containers[0]
}

// flag returns the value of a flag of the server, and whether it is set.
func (w workload) flag(names ...string) (value string, set bool) {
	c := w.container()
	if c == nil {
		return "", false
	}
	args := slices.Concat(c.Command, c.Args)
	for i, arg := range args {
		name, v, hasValue := strings.Cut(arg, "=")
		if !slices.Contains(names, name) {
			continue
		}
		if !hasValue && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			v = args[i+1]
		}
		value, set = v, true // the last one wins
	}
	return value, set
}

// usesEngine reports whether kube-vitals reads an engine instead of the kubelets.
func (w workload) usesEngine() bool {
	source, _ := w.flag("--source")
	return source == "prometheus"
}

func (d *doctor) checkService(ctx context.Context) []Check {
	c := Check{ID: "service", Title: "Service", Status: Failed}
	t := d.target
	if t.kind == None {
		c.Status, c.Reason, c.Seen = Skipped, noServer, "no server was found: set --namespace"
		return []Check{c}
	}
	service, err := d.kube.CoreV1().Services(t.namespace).Get(ctx, t.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		c.Reason, c.Seen = serviceMissing, t.String()+" does not exist"
		return []Check{c}
	}
	if err != nil {
		return []Check{Denied(c, err)}
	}
	d.workload.service = service
	if host := d.workload.external(); host != "" {
		c.Status, c.Seen = OK, fmt.Sprintf("%s is an alias of %s, outside of the cluster (ExternalName)", t, host)
		return []Check{c}
	}
	if !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == t.port }) {
		c.Reason, c.Seen = servicePortMissing, fmt.Sprintf("%s has no port %d, which the APIServices name", t, t.port)
		return []Check{c}
	}
	c.Status, c.Seen = OK, fmt.Sprintf("%s, port %d", t, t.port)
	return []Check{c, d.checkEndpoints(ctx)}
}

func (d *doctor) checkEndpoints(ctx context.Context) Check {
	c := Check{ID: "endpoints", Title: "endpoints", Status: Failed}
	list, err := d.kube.DiscoveryV1().EndpointSlices(d.target.namespace).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + d.target.name})
	if err != nil {
		return Denied(c, err)
	}
	ready, all := 0, 0
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			all += len(e.Addresses)
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				ready += len(e.Addresses)
			}
		}
	}
	switch {
	case ready > 0:
		c.Status, c.Seen = OK, fmt.Sprintf("%d of %d ready", ready, all)
	case all > 0:
		c.Reason, c.Seen = noEndpoints, fmt.Sprintf("none of %d is ready", all)
	default:
		c.Reason = noEndpoints
		c.Seen = fmt.Sprintf("Service %s has no endpoints; it selects pods with %s",
			d.target, labels.FormatLabels(d.workload.service.Spec.Selector))
	}
	return c
}

func (d *doctor) checkDeployment(ctx context.Context) []Check {
	c := Check{ID: "deployment", Title: "Deployment", Status: Failed}
	if d.workload.service == nil || len(d.workload.service.Spec.Selector) == 0 {
		c.Status, c.Reason, c.Seen = Skipped, noServer, "there is no Service that selects pods"
		return []Check{c}
	}
	list, err := d.kube.AppsV1().Deployments(d.target.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return []Check{Denied(c, err)}
	}
	selector := labels.SelectorFromSet(d.workload.service.Spec.Selector)
	i := slices.IndexFunc(list.Items, func(o appsv1.Deployment) bool {
		return selector.Matches(labels.Set(o.Spec.Template.Labels))
	})
	if i < 0 {
		c.Status, c.Reason = Warning, deploymentMissing
		c.Seen = fmt.Sprintf("no Deployment in %s has pods that Service %s selects (%s)",
			d.target.namespace, d.target, selector)
		return []Check{c}
	}
	o := &list.Items[i]
	d.workload.deployment, d.workload.spec = o, &o.Spec.Template.Spec
	d.identify()
	wanted := int32(1)
	if o.Spec.Replicas != nil {
		wanted = *o.Spec.Replicas
	}
	c.Seen = fmt.Sprintf("%s/%s: %d of %d replicas ready", o.Namespace, o.Name, o.Status.ReadyReplicas, wanted)
	if container := d.workload.container(); container != nil {
		c.Seen += ", image " + container.Image
	}
	switch {
	case wanted == 0 && d.workload.external() != "":
		c.Status = OK // the server runs outside of the cluster
	case wanted == 0:
		c.Reason = zeroReplicas
		c.Cure = fmt.Sprintf("start it, and find out who stopped it:\nkubectl --namespace %s scale deployment %s "+
			"--replicas=1", command.Name(o.Namespace, "NAMESPACE"), command.Name(o.Name, "NAME"))
	case o.Status.ReadyReplicas == 0:
		c.Reason = noReplicaReady
	case o.Status.ReadyReplicas < wanted:
		c.Status, c.Reason = Warning, noReplicaReady
	default:
		c.Status = OK
	}
	return []Check{c}
}

// identify sets the version of the server, and its kind if the names of the Service do not tell it.
func (d *doctor) identify() {
	c := d.workload.container()
	if c == nil {
		return
	}
	if d.target.kind == Other {
		d.target.kind = KindByName(c.Name + " " + c.Image)
	}
	image, _, _ := strings.Cut(c.Image, "@")
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		d.target.version = image[i+1:]
	}
}

func (d *doctor) checkPods(ctx context.Context) []Check {
	c := Check{ID: "pods", Title: "pods"}
	w := &d.workload
	switch {
	case w.external() != "":
		d.dial = dial.Host(w.external(), d.target.port)
		c.Status, c.Reason, c.Seen = Skipped, noServer, "the server runs outside of the cluster"
		return []Check{c}
	case w.service == nil || len(w.service.Spec.Selector) == 0:
		c.Status, c.Reason, c.Seen = Skipped, noServer, "there is no Service that selects pods"
		return []Check{c}
	}
	list, err := d.kube.CoreV1().Pods(d.target.namespace).List(ctx,
		metav1.ListOptions{LabelSelector: labels.SelectorFromSet(w.service.Spec.Selector).String()})
	if err != nil {
		return []Check{Denied(c, err)}
	}
	w.pods = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if len(w.pods) == 0 {
		c.Status, c.Reason, c.Seen = Failed, noPods, "there are none, apart from those that are being deleted"
		return []Check{c}
	}
	if w.spec == nil {
		w.spec = &w.pods[0].Spec
		d.identify()
	}
	ready, restarts := 0, int32(0)
	groups := map[string]*Check{} // by reason
	var checks []Check
	for i := range w.pods {
		pod := &w.pods[i]
		if isReady(pod) {
			ready++
		}
		for _, s := range pod.Status.ContainerStatuses {
			restarts += s.RestartCount
		}
		status, reason, seen := podProblem(pod)
		if reason == "" {
			continue
		}
		if groups[reason] == nil {
			cure := strings.NewReplacer("NAMESPACE", command.Name(pod.Namespace, "NAMESPACE"),
				"POD", command.Name(pod.Name, "POD")).Replace(cures()[reason])
			groups[reason] = &Check{ID: "pods", Title: "pods", Status: status, Reason: reason, Seen: seen, Cure: cure}
		}
		groups[reason].Objects = append(groups[reason].Objects, objectName(pod.Namespace, pod.Name))
	}
	for _, reason := range sortedKeys(groups) {
		checks = append(checks, *groups[reason])
	}
	if len(checks) == 0 {
		c.Status = OK
		c.Seen = fmt.Sprintf("%d of %d ready, %s", ready, len(w.pods), count(int(restarts), "restart"))
		checks = append(checks, c)
	}
	if pod := reachable(w.pods); pod != nil {
		d.dial = dial.Pod(d.Client, d.kube, pod, targetPort(w.service, d.target.port, pod))
	}
	return checks
}

// podProblem returns what is wrong with a pod of the server, or no reason.
func podProblem(pod *corev1.Pod) (status Status, reason, seen string) {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		last := s.LastTerminationState.Terminated
		if last == nil {
			last = s.State.Terminated
		}
		restarted := fmt.Sprintf("container %s was restarted %s", s.Name, count(int(s.RestartCount), "time"))
		switch waiting := s.State.Waiting; {
		case last != nil && last.Reason == "OOMKilled":
			if !isReady(pod) {
				return Failed, oomKilled, restarted + "; it was killed because it used more memory than its limit"
			}
			return Warning, oomKilled, restarted + "; it was killed because it used more memory than its limit, last at " +
				last.FinishedAt.UTC().Format("2006-01-02 15:04:05Z")
		case waiting != nil && waiting.Reason == "CrashLoopBackOff":
			seen = restarted
			if last != nil {
				seen += fmt.Sprintf("; it exits with %d", last.ExitCode)
			}
			return Failed, crashLoop, seen
		case waiting != nil && strings.Contains(waiting.Reason, "Image"):
			return Failed, imagePull, fmt.Sprintf("image %s: %s: %s", s.Image, waiting.Reason, waiting.Message)
		case waiting != nil && waiting.Reason != "ContainerCreating" && waiting.Reason != "PodInitializing":
			return Failed, containerWaiting, fmt.Sprintf("container %s waits: %s: %s", s.Name, waiting.Reason, waiting.Message)
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return Failed, unschedulable, condition.Message
		}
	}
	switch {
	case isReady(pod):
		return "", "", ""
	case pod.Status.Phase == corev1.PodRunning:
		return Failed, podNotReady, "it runs but is not ready"
	default:
		return Failed, podNotReady, strings.TrimSpace("its phase is "+string(pod.Status.Phase)+" "+pod.Status.Reason) +
			", and it is not ready"
	}
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// reachable returns a pod that a port-forward can reach, a ready one if there is one.
func reachable(pods []corev1.Pod) (found *corev1.Pod) {
	for i := range pods {
		pod := &pods[i]
		runs := slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.State.Running != nil // the phase is Running, too, while a container waits to be restarted
		})
		if runs && (found == nil || isReady(pod)) {
			found = pod
		}
	}
	return found
}

// targetPort returns the pod's port behind a port of the Service.
func targetPort(service *corev1.Service, port int32, pod *corev1.Pod) int32 {
	for _, p := range service.Spec.Ports {
		if p.Port != port {
			continue
		}
		if p.TargetPort.Type == intstr.Int && p.TargetPort.IntVal != 0 {
			return p.TargetPort.IntVal
		}
		for _, c := range pod.Spec.Containers {
			for _, cp := range c.Ports {
				if p.TargetPort.Type == intstr.String && cp.Name == p.TargetPort.StrVal {
					return cp.ContainerPort
				}
			}
		}
	}
	return port
}
