package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-vitals/kube-vitals/pkg/internal/command"
)

// workload is what runs behind the Service.
type workload struct {
	service *corev1.Service // nil: not found or not read
	spec    *corev1.PodSpec // of the Deployment, or of a pod
	pod     *corev1.Pod     // one that a port-forward can reach, a ready one if there is one
	port    corev1.ServicePort
}

// selects reports whether the Service is known and selects pods.
func (w *workload) selects() bool { return w.service != nil && len(w.service.Spec.Selector) > 0 }

func (w *workload) external() string {
	if w.service == nil || w.service.Spec.Type != corev1.ServiceTypeExternalName {
		return ""
	}
	return w.service.Spec.ExternalName
}

// podPort returns the pod's port behind the Service, or 0.
func (w *workload) podPort() int32 {
	for _, p := range w.container().Ports {
		if p.Name != "" && p.Name == w.port.TargetPort.StrVal {
			return p.ContainerPort
		}
	}
	return w.port.TargetPort.IntVal
}

// container returns the container of the server, or an empty one.
func (w *workload) container() corev1.Container {
	if w.spec == nil || len(w.spec.Containers) == 0 {
		return corev1.Container{}
	}
	known := func(c corev1.Container) bool { return KindByName(c.Name+" "+c.Image) != Other }
	return w.spec.Containers[max(0, slices.IndexFunc(w.spec.Containers, known))]
}

// flag returns the value of a flag of the server: "" if it is not set, "true" if it has no value. The environment
// variable KUBE_VITALS_X_Y sets --x-y, if the command line does not.
func (w *workload) flag(names ...string) (value string) {
	c := w.container()
	var args []string
	for _, variable := range c.Env {
		if name, ok := strings.CutPrefix(variable.Name, "KUBE_VITALS_"); ok && variable.Value != "" {
			args = append(args, "--"+strings.ToLower(strings.ReplaceAll(name, "_", "-"))+"="+variable.Value)
		}
	}
	args = slices.Concat(args, c.Command, c.Args)
	for i, arg := range args {
		name, v, hasValue := strings.Cut(arg, "=")
		switch {
		case !slices.Contains(names, name):
		case hasValue:
			value = v // the last one wins
		case i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
			value = args[i+1]
		default:
			value = "true"
		}
	}
	return value
}

func (w *workload) isSet(name string) bool {
	return !slices.Contains([]string{"", "false"}, w.flag(name))
}

func (w *workload) account() string { return cmp.Or(w.spec.ServiceAccountName, "default") }

// usesEngine reports whether kube-vitals reads an engine instead of the kubelets.
func (w *workload) usesEngine() bool { return w.flag("--source") == "prometheus" }

// named returns the problem with the names of an object in the commands of its cure.
func (p Problem) named(kind, namespace, name string) Problem {
	p.Cure = strings.NewReplacer("NAMESPACE", command.Name(namespace, "NAMESPACE"), kind, command.Name(name, kind)).
		Replace(p.Cure)
	return p
}

func (d *doctor) checkService(ctx context.Context, c Check) []Check {
	t := d.target
	if t.Kind == None {
		return d.skip(c, noServer, "no server was found: set --namespace", chain)
	}
	service, err := d.kube.CoreV1().Services(t.Namespace).Get(ctx, t.Service, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return c.Fail(d.missingService(ctx), "%s does not exist", t)
	}
	if err != nil {
		return c.Denied(err)
	}
	d.workload.service = service
	if host := d.workload.external(); host != "" {
		return c.OK("%s is an alias of %s, outside of the cluster (ExternalName)", t, host)
	}
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == t.port })
	if i < 0 {
		return c.Fail(servicePortMissing, "%s has no port %d, which the APIServices name", t, t.port)
	}
	d.workload.port = service.Spec.Ports[i]
	return append(c.OK("%s, port %d", t, t.port), d.checkEndpoints(ctx)...)
}

// missingService returns the problem of a Service that does not exist. While its namespace is being deleted, it
// cannot be created again. The deletion does not end while an APIService is unavailable, since the namespace's
// controller cannot list the objects of its group (kubernetes#83332).
func (d *doctor) missingService(ctx context.Context) Problem {
	namespace, err := d.kube.CoreV1().Namespaces().Get(ctx, d.target.Namespace, metav1.GetOptions{})
	if err != nil || namespace.DeletionTimestamp == nil {
		return serviceMissing
	}
	var names []string
	for _, version := range versions() {
		if d.target.serves(d.apiServices[version]) {
			names = append(names, version+".metrics.k8s.io")
		}
	}
	if len(names) == 0 {
		return serviceMissing
	}
	p := namespaceTerminating.named("NAME", d.target.Namespace, "")
	p.Cure = strings.ReplaceAll(p.Cure, "APISERVICES", strings.Join(names, " "))
	return p
}

func (d *doctor) checkEndpoints(ctx context.Context) []Check {
	c := Check{ID: "endpoints", Title: "endpoints"}
	list, err := d.kube.DiscoveryV1().EndpointSlices(d.target.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + d.target.Service})
	if err != nil {
		return c.Denied(err)
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
		return c.OK("%d of %d ready", ready, all)
	case all > 0:
		return c.Fail(noEndpoints, "none of %d is ready", all)
	}
	return c.Fail(noEndpoints, "Service %s has no endpoints; it selects pods with %s", d.target,
		labels.FormatLabels(d.workload.service.Spec.Selector))
}

func (d *doctor) checkDeployment(ctx context.Context, c Check) []Check {
	w := &d.workload
	if !w.selects() {
		return d.skip(c, noServer, "there is no Service that selects pods", chain)
	}
	list, err := d.kube.AppsV1().Deployments(d.target.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return c.Denied(err)
	}
	selector := labels.SelectorFromSet(w.service.Spec.Selector)
	i := slices.IndexFunc(list.Items, func(o appsv1.Deployment) bool {
		return selector.Matches(labels.Set(o.Spec.Template.Labels))
	})
	if i < 0 {
		return c.Warn(deploymentMissing, "no Deployment in %s has pods that Service %s selects (%s)", d.target.Namespace,
			d.target, selector)
	}
	o := &list.Items[i]
	w.spec = &o.Spec.Template.Spec
	d.identify()
	ready, wanted := o.Status.ReadyReplicas, int32(1)
	if o.Spec.Replicas != nil {
		wanted = *o.Spec.Replicas
	}
	seen := fmt.Sprintf("%s/%s: %d of %d replicas ready, image %s", o.Namespace, o.Name, ready, wanted,
		cmp.Or(w.container().Image, "unknown"))
	switch {
	case wanted == 0 && w.external() == "":
		return c.Fail(zeroReplicas.named("NAME", o.Namespace, o.Name), "%s", seen)
	case wanted > 0 && ready == 0:
		return c.Fail(noReplicaReady, "%s", seen)
	case ready < wanted:
		return c.Warn(noReplicaReady, "%s", seen)
	}
	return c.OK("%s", seen) // without replicas, the server runs outside of the cluster
}

// identify sets the version of the server, and its kind: its Service may have any name.
func (d *doctor) identify() {
	c := d.workload.container()
	if kind := KindByName(c.Name + " " + c.Image); kind == KubeVitals || d.target.Kind == Other {
		d.target.Kind = kind
	}
	image, _, _ := strings.Cut(c.Image, "@")
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		d.target.Version = image[i+1:]
	}
}

func (d *doctor) checkPods(ctx context.Context, c Check) []Check {
	w := &d.workload
	if host := w.external(); host != "" {
		d.address = net.JoinHostPort(host, strconv.Itoa(int(d.target.port)))
		return c.Skip(noServer, "the server runs outside of the cluster")
	}
	if !w.selects() {
		return d.skip(c, noServer, "there is no Service that selects pods", chain)
	}
	list, err := d.kube.CoreV1().Pods(d.target.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: labels.SelectorFromSet(w.service.Spec.Selector).String()})
	if err != nil {
		return c.Denied(err)
	}
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { // it has a successor, for example after an eviction
		return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
	})
	if len(pods) == 0 {
		return c.Fail(noPods, "there are none, apart from those that end or have ended")
	}
	if w.spec == nil {
		w.spec = &pods[0].Spec
		d.identify()
	}
	ready, restarts, failing := 0, 0, Groups{}
	for i := range pods {
		pod := &pods[i]
		if isReady(pod) {
			ready++
		}
		runs := false // the phase is Running, too, while a container waits to be restarted
		for _, s := range pod.Status.ContainerStatuses {
			restarts += int(s.RestartCount)
			runs = runs || s.State.Running != nil
		}
		if runs && (w.pod == nil || isReady(pod)) {
			w.pod = pod
		}
		if problem, seen := podProblem(pod); problem.Reason != "" {
			failing.Add(problem.Reason, pod.Namespace+"/"+pod.Name, func() []Check {
				problem = problem.named("POD", pod.Namespace, pod.Name).named("NODE", "", pod.Spec.NodeName)
				return c.Warn(problem, "%s", seen)
			})
			if problem.Reason != oomKilled.Reason || !isReady(pod) {
				failing[problem.Reason].Status = Failed
			}
		}
	}
	if len(failing) > 0 {
		return failing.Checks(nil)
	}
	return c.OK("%d of %d ready, %s", ready, len(pods), Count(restarts, "restart"))
}

// podProblem returns what is wrong with a pod of the server.
func podProblem(pod *corev1.Pod) (p Problem, seen string) {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		last := cmp.Or(s.LastTerminationState.Terminated, s.State.Terminated)
		seen = fmt.Sprintf("container %s was restarted %s", s.Name, Count(int(s.RestartCount), "time"))
		switch waiting := s.State.Waiting; {
		case last != nil && last.Reason == "OOMKilled":
			return oomKilled, fmt.Sprintf("%s; it was killed because it used more memory than its limit, last at %s", seen,
				last.FinishedAt.UTC().Format("2006-01-02 15:04:05Z"))
		case waiting == nil || waiting.Reason == "ContainerCreating" || waiting.Reason == "PodInitializing":
		case waiting.Reason == "CrashLoopBackOff":
			if last != nil {
				seen += fmt.Sprintf("; it exits with %d", last.ExitCode)
			}
			return crashLoop.named("CONTAINER", "", s.Name), seen
		case strings.Contains(waiting.Reason, "Image"):
			return imagePull, fmt.Sprintf("image %s: %s: %s", s.Image, waiting.Reason, waiting.Message)
		default:
			return containerWaiting, fmt.Sprintf("container %s waits: %s: %s", s.Name, waiting.Reason, waiting.Message)
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return unschedulable, condition.Message
		}
	}
	switch {
	case isReady(pod):
		return Problem{}, ""
	case pod.Status.Phase == corev1.PodRunning && hasCondition(pod, corev1.ContainersReady):
		return nodeOrGate, fmt.Sprintf("its containers are ready, but its node %s or a readiness gate is not",
			pod.Spec.NodeName) // the node controller changes only the condition Ready
	case pod.Status.Phase == corev1.PodRunning:
		return podNotReady, "it runs but is not ready"
	}
	return podNotReady, fmt.Sprintf("its phase is %s, and it is not ready", pod.Status.Phase)
}

func isReady(pod *corev1.Pod) bool { return hasCondition(pod, corev1.PodReady) }

func hasCondition(pod *corev1.Pod, condition corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == condition && c.Status == corev1.ConditionTrue
	})
}
