package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The usage of a busy container.
const (
	busyCPU    = 100 // millicores
	busyMemory = 64  // MiB
)

// The names of the workload's objects, and of the busy container of each pod.
const (
	loadPod      = "load"      // has two containers, a sidecar, and an init container that ends
	plainPod     = "plain"     // has one container
	completedPod = "completed" // ends
	replacedPod  = "replaced"  // is deleted, and created again with other usage
	deletedPod   = "deleted"   // is deleted
	restartedPod = "restarted" // its container restarts
	deployment   = "scaled"    // has an autoscaler
	busy         = "busy"
	roleLabel    = "metrics-conformance/role"
)

var workloadChecks = []Check{
	{"pods/load", Required, "containers of known load have that usage of cpu and memory", design, workload, checkLoad},
	{"pods/completed", Required, "a completed pod has no metrics", kubectlTop, workload, checkCompleted},
	{"pods/deleted", Required, "the metrics of a deleted pod vanish", conventions, workload, checkDeleted},
	{"pods/replaced", Recommended, "a pod never has the usage of its predecessor of the same name", conventions, workload,
		checkReplaced},
	{"pods/restarted", Required, "while a container restarts, usage stays below its limit and samples are whole",
		autoscaler,
		workload, checkRestarted},
	{"nodes/stopped", Required, "when a kubelet stops, no timestamp advances and its metrics expire; they return with it",
		definition, stopNode, checkStopped},
	{"extension/not-found-reason", Extension, "the message for a pod without metrics has a reason", conventions, workload,
		checkNotFoundReason},
}

func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), RunAsNonRoot: new(true), RunAsUser: new(int64(65534)),
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// The programs of containers. A busy one fills memory, and then uses as much CPU as its limit allows.
func busyScript(memory int) string {
	return fmt.Sprintf("dd if=/dev/zero of=/memory/load bs=1048576 count=%d && while :; do :; done", memory)
}

const (
	idleScript = "while :; do sleep 3600; done"
	// restartScript ends once, after 30 seconds. The volume outlives the container. A program that ended
	// more often would soon spend its time in CrashLoopBackOff.
	restartScript = "if [ ! -e /memory/restarted ]; then touch /memory/restarted; " +
		"end=$(( $(date +%s) + 30 )); while [ $(date +%s) -lt $end ]; do :; done; exit; fi; while :; do :; done"
)

func (e *env) container(name, script string) corev1.Container {
	cpu := corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(busyCPU, resource.DecimalSI)}
	c := corev1.Container{
		Name: name, Image: e.cfg.Workload.Image, Command: []string{"sh", "-c", script}, SecurityContext: restricted(),
		VolumeMounts: []corev1.VolumeMount{{Name: "memory", MountPath: "/memory"}},
		Resources:    corev1.ResourceRequirements{Requests: cpu, Limits: cpu},
	}
	if e.cfg.Workload.simulated() {
		c.Image = "simulated"
	}
	return c
}

// pod returns a pod whose busy container uses memory in MiB.
func (e *env) pod(name string, memory int, containers ...corev1.Container) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: e.namespace, Labels: map[string]string{roleLabel: name}},
		Spec: corev1.PodSpec{
			Containers:                    containers,
			AutomountServiceAccountToken:  new(false),
			TerminationGracePeriodSeconds: new(int64(0)),
			Volumes: []corev1.Volume{{Name: "memory", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
			}}},
		},
	}
	if w := e.cfg.Workload; w.simulated() {
		pod.Annotations = map[string]string{
			w.CPUAnnotation: fmt.Sprintf("%dm", busyCPU), w.MemoryAnnotation: fmt.Sprintf("%dMi", memory),
		}
	}
	return pod
}

func (e *env) workloadPods() []*corev1.Pod {
	load := e.pod(loadPod, busyMemory, e.container(busy, busyScript(busyMemory)), e.container("idle", idleScript))
	sidecar := e.container("sidecar", idleScript)
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	load.Spec.InitContainers = []corev1.Container{e.container("init", "true"), sidecar}
	completed := e.pod(completedPod, busyMemory, e.container(busy, "true"))
	completed.Spec.RestartPolicy = corev1.RestartPolicyNever
	return []*corev1.Pod{
		load, completed, e.replaced(4 * busyMemory),
		e.pod(plainPod, busyMemory, e.container(busy, busyScript(busyMemory))),
		e.pod(deletedPod, busyMemory, e.container(busy, idleScript)),
	}
}

func (e *env) replaced(memory int) *corev1.Pod {
	return e.pod(replacedPod, memory, e.container(busy, busyScript(memory)))
}

// createWorkload creates the namespace and its pods, and waits until they run.
func (e *env) createWorkload(ctx context.Context) error {
	namespace, err := e.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "metrics-conformance-",
		Labels:       map[string]string{"app.kubernetes.io/managed-by": "metrics-conformance"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	e.namespace = namespace.Name
	for _, pod := range e.workloadPods() {
		if err := e.createPod(ctx, pod); err != nil {
			return err
		}
	}
	template := e.pod(deployment, busyMemory, e.container(busy, busyScript(busyMemory)))
	template.Namespace, template.Name = "", ""
	selector := &metav1.LabelSelector{MatchLabels: template.Labels}
	_, err = e.client.AppsV1().Deployments(e.namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: deployment},
		Spec: appsv1.DeploymentSpec{
			Selector: selector,
			Template: corev1.PodTemplateSpec{ObjectMeta: template.ObjectMeta, Spec: template.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := e.createAutoscaler(ctx); err != nil {
		return err
	}
	return e.eventually(ctx, func(ctx context.Context) error {
		var errs []error
		for _, pod := range e.workloadPods() {
			errs = append(errs, e.running(ctx, pod.Name))
		}
		return first(errs)
	})
}

func (e *env) createAutoscaler(ctx context.Context) error {
	_, err := e.client.AutoscalingV2().HorizontalPodAutoscalers(e.namespace).Create(ctx,
		&autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Name: deployment},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
					Name: deployment},
				MaxReplicas: 2,
				// The target is what the busy container has, so that nothing is scaled.
				Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType,
					Resource: &autoscalingv2.ResourceMetricSource{
						Name: corev1.ResourceCPU,
						Target: autoscalingv2.MetricTarget{
							Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(100)),
						},
					}}},
			},
		}, metav1.CreateOptions{})
	return err
}

// createPod creates a pod. In a new namespace, that fails until there is a ServiceAccount; after a
// deletion, until the old pod is gone.
func (e *env) createPod(ctx context.Context, pod *corev1.Pod) error {
	return e.eventually(ctx, func(ctx context.Context) error {
		_, err := e.client.CoreV1().Pods(e.namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}

func (e *env) deletePod(ctx context.Context, name string) error {
	return e.client.CoreV1().Pods(e.namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
}

// running returns an error unless a pod runs or has run.
func (e *env) running(ctx context.Context, name string) error {
	pod, err := e.client.CoreV1().Pods(e.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodSucceeded {
		message := pod.Status.Message
		for _, c := range pod.Status.ContainerStatuses {
			if c.State.Waiting != nil {
				message += c.State.Waiting.Reason + " " + c.State.Waiting.Message
			}
		}
		return mismatch("pod "+e.namespace+"/"+name, "phase Running", string(pod.Status.Phase)+" "+message)
	}
	return nil
}

// deleteWorkload deletes the namespace, even if ctx has ended.
func (e *env) deleteWorkload(ctx context.Context) error {
	if e.namespace == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err := e.client.CoreV1().Namespaces().Delete(ctx, e.namespace, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete namespace %s: %w", e.namespace, err)
	}
	return nil
}

// podMetrics returns the metrics of a pod of the workload, or nil if it has none.
func (e *env) podMetrics(ctx context.Context, version, name string) (*object, error) {
	l, err := e.list(ctx, query(path(version, "pods", e.namespace, ""), "labelSelector", roleLabel+"="+name))
	if err != nil {
		return nil, err
	}
	return l.find(e.namespace + "/" + name), nil
}

func checkLoad(ctx context.Context, e *env) error {
	return e.eachVersion(func(version string) error {
		return e.eventually(ctx, func(ctx context.Context) error {
			var errs []error
			for _, name := range []string{loadPod, plainPod} {
				o, err := e.podMetrics(ctx, version, name)
				if err != nil {
					return err
				}
				if o == nil {
					return e.none(ctx, version, name)
				}
				for container, usage := range o.usages() {
					errs = append(errs, e.checkContainer(o.key()+", container "+container, container, usage))
				}
			}
			return first(errs)
		})
	})
}

// checkContainer compares usage with the known load. Memory includes that of the program.
func (e *env) checkContainer(object, container string, usage corev1.ResourceList) error {
	cpu, memory := float64(busyCPU), float64(busyMemory)
	if container != busy && !e.cfg.Workload.simulated() {
		cpu, memory = 0, 0
	}
	q := usage[corev1.ResourceCPU]
	if got := q.AsApproximateFloat64() * 1000; math.Abs(got-cpu) > busyCPU/5 {
		return mismatch(object, fmt.Sprintf("cpu of %g±%dm", cpu, busyCPU/5), fmt.Sprintf("%gm", math.Round(got)))
	}
	q = usage[corev1.ResourceMemory]
	if got := q.AsApproximateFloat64() / (1 << 20); math.Abs(got-memory) > busyMemory/8 {
		return mismatch(object, fmt.Sprintf("memory of %g±%d MiB", memory, busyMemory/8), fmt.Sprintf("%.1f MiB", got))
	}
	return nil
}

// vanish waits until a pod has no metrics in any version, neither in lists nor by name.
func (e *env) vanish(ctx context.Context, name, why string) error {
	return e.eachVersion(func(version string) error {
		return e.eventually(ctx, func(ctx context.Context) error {
			o, err := e.podMetrics(ctx, version, name)
			if err != nil {
				return err
			}
			if o != nil {
				return mismatch("pod "+o.key()+", which "+why+",", "no metrics", string(describe(o)))
			}
			_, err = e.admin.expect(ctx, path(version, "pods", e.namespace, name), typeJSON, http.StatusNotFound)
			return err
		})
	})
}

// complete ends a simulated pod, as its kubelet would. A pod that runs an image ends by itself.
func (e *env) complete(ctx context.Context) error {
	pods := e.client.CoreV1().Pods(e.namespace)
	return e.eventually(ctx, func(ctx context.Context) error {
		pod, err := pods.Get(ctx, completedPod, metav1.GetOptions{})
		if err != nil || pod.Status.Phase == corev1.PodSucceeded {
			return err
		}
		if !e.cfg.Workload.simulated() {
			return mismatch("pod "+e.namespace+"/"+completedPod, "phase Succeeded", pod.Status.Phase)
		}
		const patch = `{"status":{"phase":"Succeeded","containerStatuses":[{"name":"` + busy + `","image":"simulated",` +
			`"imageID":"","ready":false,"restartCount":0,"started":false,` +
			`"state":{"terminated":{"exitCode":0,"reason":"Completed"}}}]}}`
		_, err = pods.Patch(ctx, completedPod, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		return err
	})
}

func checkCompleted(ctx context.Context, e *env) error {
	if err := e.complete(ctx); err != nil {
		return err
	}
	return e.vanish(ctx, completedPod, "has completed")
}

// none returns the error for a pod without metrics. It has what the server and the API server say of
// the pod.
func (e *env) none(ctx context.Context, version, name string) error {
	got := "none"
	if r, err := e.admin.get(ctx, path(version, "pods", e.namespace, name), typeJSON); err == nil {
		if status, err := r.statusObject(); err == nil {
			got += fmt.Sprintf(" (%d: %s)", r.status, status.Message)
		}
	}
	if pod, err := e.client.CoreV1().Pods(e.namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
		got += fmt.Sprintf("; it is %s on node %q since %s", pod.Status.Phase, pod.Spec.NodeName,
			pod.CreationTimestamp.UTC().Format(time.RFC3339))
	}
	return mismatch("pod "+e.namespace+"/"+name, "metrics", got)
}

// awaitMetrics waits until a pod has metrics.
func (e *env) awaitMetrics(ctx context.Context, name string) (o *object, err error) {
	err = e.eventually(ctx, func(ctx context.Context) error {
		if o, err = e.podMetrics(ctx, e.versions[0], name); err == nil && o == nil {
			err = e.none(ctx, e.versions[0], name)
		}
		return err
	})
	return o, err
}

func checkDeleted(ctx context.Context, e *env) error {
	if _, err := e.awaitMetrics(ctx, deletedPod); err != nil {
		return err
	}
	if err := e.deletePod(ctx, deletedPod); err != nil {
		return err
	}
	return e.vanish(ctx, deletedPod, "was deleted")
}

func checkReplaced(ctx context.Context, e *env) error {
	const between = 2 * busyMemory << 20 // the pod used four times this usage, and its successor uses one
	const watchLag = 2 * time.Second     // until the server has seen that the pod was replaced, on an idle machine
	err := e.eventually(ctx, func(ctx context.Context) error {
		o, err := e.podMetrics(ctx, e.versions[0], replacedPod)
		if err == nil && (o == nil || o.sum(corev1.ResourceMemory) < between) {
			err = mismatch("pod "+e.namespace+"/"+replacedPod, fmt.Sprintf("memory of %d MiB", 4*busyMemory), "less")
		}
		return err
	})
	if err != nil {
		return err
	}
	began := time.Now()
	if err := e.deletePod(ctx, replacedPod); err != nil {
		return err
	}
	if err := e.createPod(ctx, e.replaced(busyMemory)); err != nil {
		return err
	}
	replacedAt := time.Now()
	lag := watchLag + min(10*replacedAt.Sub(began), 2*watchLag) // on a busy machine
	return e.eventually(ctx, func(ctx context.Context) error {
		sent := time.Now()
		o, err := e.podMetrics(ctx, e.versions[0], replacedPod)
		switch {
		case err != nil:
			return err
		case o == nil:
			// kwok may have deleted the new pod: it deletes by name, even if the pod is another by then.
			_, err := e.client.CoreV1().Pods(e.namespace).Create(ctx, e.replaced(busyMemory), metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
			return e.none(ctx, e.versions[0], replacedPod)
		case o.sum(corev1.ResourceMemory) > between:
			err := mismatch("pod "+o.key()+", which replaced another of the same name,",
				fmt.Sprintf("memory of up to %d MiB, or no metrics", busyMemory), "that of the other: "+string(describe(o)))
			if sent.Sub(replacedAt) > lag {
				return conclusive{err}
			}
			return err
		}
		return nil
	})
}

// checkRestarted observes a new pod whose container restarts: a simulated one when it has metrics,
// the other when its program ends.
func checkRestarted(ctx context.Context, e *env) error {
	if e.cfg.Workload.simulated() && e.cfg.RestartContainer == nil {
		return skip("simulated containers cannot be restarted from here")
	}
	if err := e.createPod(ctx, e.pod(restartedPod, busyMemory, e.container(busy, restartScript))); err != nil {
		return err
	}
	o, err := e.awaitMetrics(ctx, restartedPod)
	if err != nil {
		return err
	}
	if e.cfg.Workload.simulated() {
		if err := e.cfg.RestartContainer(ctx, e.namespace, restartedPod, busy); err != nil {
			return err
		}
	}
	samples, last := 0, o.Timestamp
	return e.until(ctx, 2*e.cfg.Timeout, func(ctx context.Context) error {
		pod, err := e.client.CoreV1().Pods(e.namespace).Get(ctx, restartedPod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if o, err = e.podMetrics(ctx, e.versions[0], restartedPod); err != nil {
			return err
		}
		if o != nil {
			if err := e.checkWhole(o); err != nil {
				return conclusive{err}
			}
			restarted := e.cfg.Workload.simulated() || restarts(pod) > 0
			if restarted && o.Timestamp.After(last.Time) {
				samples, last = samples+1, o.Timestamp
			}
		}
		const enough = 3 // the window of the last one begins after the restart
		if samples < enough {
			return mismatch("pod "+e.namespace+"/"+restartedPod, fmt.Sprintf("%d samples after a restart", enough), samples)
		}
		return nil
	})
}

func restarts(pod *corev1.Pod) (n int32) {
	for _, c := range pod.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}

// checkWhole returns an error unless the only container is there, with a CPU usage between 0 and its
// limit.
func (e *env) checkWhole(o *object) error {
	usage, ok := o.usages()[busy]
	if !ok || o.Timestamp.IsZero() {
		return mismatch("pod "+o.key()+", whose container restarted,", "its container and a timestamp, or no metrics",
			fmt.Sprintf("%s at %s", describe(o), o.Timestamp))
	}
	q := usage[corev1.ResourceCPU]
	if cpu := q.AsApproximateFloat64() * 1000; cpu < 0 || cpu > 1.2*busyCPU {
		return mismatch("pod "+o.key()+", whose container restarted,", fmt.Sprintf("cpu between 0 and its limit of %dm",
			busyCPU),
			fmt.Sprintf("%gm", math.Round(cpu)))
	}
	return nil
}

// checkStopped stops the kubelet of a pod of the workload.
func checkStopped(ctx context.Context, e *env) (err error) {
	pod, err := e.client.CoreV1().Pods(e.namespace).Get(ctx, plainPod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if _, err := e.awaitMetrics(ctx, plainPod); err != nil {
		return err
	}
	node := pod.Spec.NodeName
	servers, err := e.serverNodes(ctx)
	if err != nil {
		return err
	}
	if len(servers) == 1 && servers[node] {
		return skip("the server itself runs on node " + node + ", whose kubelet would be stopped: add another node")
	}
	if err := e.cfg.StopNode(ctx, node); err != nil {
		return fmt.Errorf("stop the kubelet of node %s: %w", node, err)
	}
	stopped := true
	start := func() error {
		stopped = false
		if err := e.cfg.StartNode(context.WithoutCancel(ctx), node); err != nil {
			return fmt.Errorf("start the kubelet of node %s: %w", node, err)
		}
		return nil
	}
	defer func() {
		if stopped {
			err = errors.Join(err, start())
		}
	}()
	// A sample that was on its way is not made up.
	r, err := e.admin.get(ctx, "/version", typeJSON)
	if err != nil {
		return err
	}
	end := r.now().Add(clockTolerance)
	err = e.until(ctx, e.cfg.MaxAge+e.cfg.Timeout, func(ctx context.Context) error {
		l, err := e.list(ctx, path(e.versions[0], "nodes", "", ""))
		if err != nil {
			return err
		}
		o := l.find(node)
		if o == nil {
			if o, err = e.podMetrics(ctx, e.versions[0], plainPod); err != nil || o == nil {
				return err
			}
		}
		if o.Timestamp.After(end) {
			return conclusive{mismatch(o.key()+", whose kubelet was stopped,",
				"no timestamp after "+end.UTC().Format(time.RFC3339), o.Timestamp.UTC().Format(time.RFC3339))}
		}
		return mismatch(o.key()+", whose kubelet was stopped,", fmt.Sprintf("no metrics that are older than %s",
			e.cfg.MaxAge),
			"a timestamp of "+o.Timestamp.UTC().Format(time.RFC3339))
	})
	if err != nil {
		return err
	}
	if err := start(); err != nil {
		return err
	}
	return e.eventually(ctx, func(ctx context.Context) error {
		l, err := e.list(ctx, path(e.versions[0], "nodes", "", ""))
		if err != nil {
			return err
		}
		if l.find(node) == nil {
			return mismatch("node "+node+", whose kubelet was started again,", "metrics", "none")
		}
		return nil
	})
}

// serverNodes returns the nodes that run the server of the API: a pod whose kubelet is stopped receives
// no requests. It returns none for a server outside the cluster.
func (e *env) serverNodes(ctx context.Context) (map[string]bool, error) {
	r, err := e.admin.get(ctx, "/apis/apiregistration.k8s.io/v1/apiservices/"+e.versions[0]+"."+group, typeJSON)
	if err != nil || r.status == http.StatusNotFound {
		return nil, err
	}
	if err := r.expect(http.StatusOK); err != nil {
		return nil, err
	}
	var apiService struct {
		Spec struct {
			Service struct{ Namespace, Name string }
		}
	}
	if err := json.Unmarshal(r.body, &apiService); err != nil {
		return nil, err
	}
	service := apiService.Spec.Service
	slices, err := e.client.DiscoveryV1().EndpointSlices(service.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service.Name})
	if err != nil {
		return nil, err
	}
	nodes := map[string]bool{}
	for i := range slices.Items {
		for _, endpoint := range slices.Items[i].Endpoints {
			if endpoint.NodeName != nil {
				nodes[*endpoint.NodeName] = true
			}
		}
	}
	return nodes, nil
}

func checkNotFoundReason(ctx context.Context, e *env) error {
	if err := checkCompleted(ctx, e); err != nil {
		return err
	}
	return e.eachVersion(func(version string) error {
		r, err := e.admin.get(ctx, path(version, "pods", e.namespace, completedPod), typeJSON)
		if err != nil {
			return err
		}
		status, err := r.statusObject()
		if err != nil {
			return err
		}
		for _, bare := range []string{completedPod, e.namespace + "/" + completedPod} {
			if status.Message == fmt.Sprintf("pods.%s %q not found", group, bare) ||
				status.Message == fmt.Sprintf("podmetrics.%s %q not found", group, bare) {
				return mismatch(r.request, "a message with the reason", fmt.Sprintf("%q", status.Message))
			}
		}
		return nil
	})
}
