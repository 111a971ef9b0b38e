package top

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"

	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/internal/terminal"
)

const (
	replicaSets = "/apis/apps/v1/namespaces/shop/replicasets"
	hpas        = "/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers"
	metricsV1   = "/apis/metrics.k8s.io/v1/"
	metricsV1b1 = "/apis/metrics.k8s.io/v1beta1/"
)

// world is an API server, and the flags of top.
type world struct {
	*sim.API
	config Config
}

// newWorld returns a world without objects. APIs that the simulated API server must list are listed.
func newWorld() *world {
	w := &world{API: sim.NewAPI()}
	w.Latency = 0
	w.config = Config{Client: w.Config(), Kind: Workloads, Namespace: "shop", SortBy: "name", Interval: 5 * time.Second}
	group := func(name, version string) metav1.APIGroup {
		v := metav1.GroupVersionForDiscovery{GroupVersion: name + "/" + version, Version: version}
		return metav1.APIGroup{Name: name, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
	}
	kinds := func(version string, kinds ...string) *metav1.APIResourceList {
		list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: version}
		for _, kind := range kinds {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: strings.ToLower(kind) + "s", Kind: kind,
				Namespaced: kind != "Island", Verbs: metav1.Verbs{"list"}})
		}
		return list
	}
	w.Objects["/api"] = &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	w.Objects["/apis"] = &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
		Groups: []metav1.APIGroup{group("apps", "v1"), group("batch", "v1"), group("example.com", "v1")}}
	w.Objects["/api/v1"] = kinds("v1", "Pod", "ReplicationController")
	w.Objects["/apis/apps/v1"] = kinds("apps/v1", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet")
	w.Objects["/apis/batch/v1"] = kinds("batch/v1", "Job", "CronJob")
	w.Objects["/apis/example.com/v1"] = kinds("example.com/v1", "Rollout", "Ring", "Island")
	return w
}

// own returns the metadata of an object of a namespace. The owner is a text such as apps/v1 ReplicaSet web-1, whose UID
// is that text.
func own(name, owner string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name}
	if part := strings.SplitN(owner, " ", 3); len(part) == 3 {
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: part[0], Kind: part[1], Name: part[2],
			UID: types.UID(owner), Controller: new(true)}}
	}
	return m
}

// owner adds an owner with its own owner.
func (w *world) owner(namespace, object, owner string) {
	part := strings.SplitN(object, " ", 3)
	m := own(part[2], owner)
	m.UID = types.UID(object)
	prefix := "/apis/"
	if part[0] == "v1" {
		prefix = "/api/"
	}
	w.Put(prefix+part[0]+"/namespaces/"+namespace+"/"+strings.ToLower(part[1])+"s/"+part[2],
		map[string]any{"metadata": m})
}

// list returns resources of a text such as "cpu=100m memory=64Mi".
func list(text string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for pair := range strings.FieldsSeq(text) {
		name, q, _ := strings.Cut(pair, "=")
		l[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	return l
}

func container(name, requests, limits string) corev1.Container {
	return corev1.Container{Name: name,
		Resources: corev1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}}
}

// pod adds a running pod. Its usage is that of each container; empty: it has no metrics.
func (w *world) pod(namespace, name, owner, usage string, containers ...corev1.Container) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: own(name, owner), Spec: corev1.PodSpec{NodeName: "n1", Containers: containers},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	p.Namespace = namespace
	w.Put("/api/v1/namespaces/"+namespace+"/pods/"+name, p)
	if usage != "" {
		m := &metricsv1.PodMetrics{Timestamp: metav1.NewTime(time.Now().Add(-12 * time.Second))}
		for _, c := range containers {
			m.Containers = append(m.Containers, metricsv1.ContainerMetrics{Name: c.Name, Usage: list(usage)})
		}
		w.Put(metricsV1+"namespaces/"+namespace+"/pods/"+name, m)
	}
	return p
}

// inPhase changes the phase of a pod.
func (w *world) inPhase(p *corev1.Pod, phase corev1.PodPhase, reason string) {
	p.Status.Phase, p.Status.Reason = phase, reason
	w.Put("/api/v1/namespaces/"+p.Namespace+"/pods/"+p.Name, p)
}

// unserved makes a GET of metrics fail with a reason of kube-vitals, or without one.
func (w *world) unserved(path, reason, message string) {
	refused := sim.Refuse(http.StatusNotFound, metav1.StatusReasonNotFound, "not found: "+message)
	if reason != "" {
		refused.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{
			{Type: metav1.CauseType(reason), Message: message}}}
	}
	w.Refusals[metricsV1+path] = *refused
}

func (w *world) node(name, allocatable, usage string) {
	w.Put("/api/v1/nodes/"+name, &corev1.Node{Status: corev1.NodeStatus{Capacity: list("cpu=64 memory=1Ti"),
		Allocatable: list(allocatable)}})
	if usage != "" {
		w.Put(metricsV1+"nodes/"+name, &metricsv1.NodeMetrics{
			Timestamp: metav1.NewTime(time.Now().Add(-8 * time.Second)), Usage: list(usage)})
	}
}

// autoscaler adds a HorizontalPodAutoscaler of a Deployment in the namespace shop.
func (w *world) autoscaler(deployment string, seen *int32, want int32) {
	cpu := autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{Name: "cpu", Target: autoscalingv2.MetricTarget{
			Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &want}}}
	h := &autoscalingv2.HorizontalPodAutoscaler{}
	h.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
		Name: deployment}
	h.Spec.Metrics = []autoscalingv2.MetricSpec{cpu}
	h.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{}} // as while a metric fails
	if seen != nil {
		q := resource.MustParse("144m")
		h.Status.CurrentMetrics = append(h.Status.CurrentMetrics, autoscalingv2.MetricStatus{Type: cpu.Type,
			Resource: &autoscalingv2.ResourceMetricStatus{Name: "cpu", Current: autoscalingv2.MetricValueStatus{
				AverageUtilization: seen, AverageValue: &q}}})
	}
	w.Put(hpas+"/"+deployment, h)
}

// shop fills the world with one of everything.
func (w *world) shop() *world {
	app := func(requests, limits string) corev1.Container { return container("app", requests, limits) }
	w.owner("shop", "apps/v1 ReplicaSet web-6f9c7d5b8d", "apps/v1 Deployment web")
	w.owner("shop", "apps/v1 Deployment web", "")
	w.owner("shop", "apps/v1 ReplicaSet checkout-with-a-long-name-7d4b9cf6c5",
		"apps/v1 Deployment checkout-with-a-long-name")
	w.owner("shop", "apps/v1 Deployment checkout-with-a-long-name", "")
	w.owner("shop", "batch/v1 Job backup-29384", "batch/v1 CronJob backup")
	w.owner("shop", "batch/v1 CronJob backup", "")
	w.owner("shop", "apps/v1 ReplicaSet canary-5b", "example.com/v1 Rollout canary")
	w.owner("shop", "example.com/v1 Rollout canary", "")
	for i, name := range []string{"web-6f9c7d5b8d-2xk9p", "web-6f9c7d5b8d-8hvzl"} {
		w.pod("shop", name, "apps/v1 ReplicaSet web-6f9c7d5b8d", []string{"cpu=120m memory=96Mi", "cpu=168m memory=118Mi"}[i],
			app("cpu=200m memory=128Mi", "cpu=500m memory=128Mi"))
	}
	w.pod("shop", "web-6f9c7d5b8d-q7d2m", "apps/v1 ReplicaSet web-6f9c7d5b8d", "",
		app("cpu=200m memory=128Mi", "cpu=500m memory=128Mi"))
	w.unserved("namespaces/shop/pods/web-6f9c7d5b8d-q7d2m", "tls-self-signed",
		`the metrics of its node "n7" cannot be read since 06:32:33 UTC (17s): the kubelet's certificate is self-signed`)
	w.pod("shop", "checkout-with-a-long-name-7d4b9cf6c5-rs8xk",
		"apps/v1 ReplicaSet checkout-with-a-long-name-7d4b9cf6c5", "cpu=1234567890n memory=901Mi",
		app("cpu=1 memory=1Gi", ""),
		container("proxy", "cpu=100m memory=64Mi", "memory=128Mi"))
	w.pod("shop", "db-0", "apps/v1 StatefulSet db", "cpu=3m memory=2000Mi swap=12Mi", app("memory=4Gi", "memory=4Gi"))
	w.pod("shop", "canary-5b-x", "apps/v1 ReplicaSet canary-5b", "cpu=0 memory=10Mi", app("cpu=10m memory=16Mi", ""))
	w.pod("shop", "debug", "", "cpu=20m memory=30Mi", app("", ""))
	w.pod("shop", "etcd-n1", "v1 Node n1", "cpu=50m memory=80Mi", app("cpu=100m memory=100Mi", ""))
	w.inPhase(w.pod("shop", "backup-29384-zz9x4", "batch/v1 Job backup-29384", "", app("cpu=1", "")),
		corev1.PodSucceeded, "")
	w.inPhase(w.pod("shop", "agent-k2d8f", "apps/v1 DaemonSet agent", "", app("cpu=50m memory=32Mi", "memory=64Mi")),
		corev1.PodPending, "Unschedulable")
	w.autoscaler("web", new(int32(72)), 80)
	w.autoscaler("checkout-with-a-long-name", nil, 60)
	w.node("n1", "cpu=4 memory=8Gi", "cpu=3100m memory=4000Mi nvidia.com/gpu=1500m")
	w.node("n2", "cpu=4 memory=8Gi", "")
	w.unserved("nodes/n2", "timeout", "the metrics of node n2 cannot be read")
	return w
}

// size makes the output a terminal.
func (w *world) size(width, height int) {
	w.config.Screen = terminal.Screen{Size: func() (int, int) { return width, height }, Color: width == 160}
}

// top returns the output, and that for errors.
func (w *world) top(t *testing.T) (out, errOut string, complete bool) {
	t.Helper()
	var o, e bytes.Buffer
	w.config.Out, w.config.ErrOut = &o, &e
	if err := w.config.Validate(); err != nil {
		t.Fatal(err)
	}
	complete, err := Run(t.Context(), w.config)
	if err != nil {
		fmt.Fprintln(&e, "error:", err)
	}
	return o.String(), e.String(), complete
}

// report returns the report.
func (w *world) report(t *testing.T) *report {
	t.Helper()
	r, err := newReader(&w.config)
	if err != nil {
		t.Fatal(err)
	}
	made, err := r.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// find returns the row of a name and container.
func (r *report) find(t *testing.T, name, container string) *row {
	t.Helper()
	for i := range r.Items {
		if r.Items[i].Name == name && r.Items[i].Container == container {
			return r.Items[i]
		}
	}
	t.Fatalf("there is no row %s %s: %+v", name, container, r.Items)
	return nil
}
