package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientset "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// cluster is a cluster in memory with an implementation of metrics.k8s.io that passes all checks,
// except for one defect. The defect is the ID of the check that must notice it.
type cluster struct {
	*clientset.Clientset
	defect  string
	service string // of the API, in kube-system; empty: the server is outside the cluster

	mu        sync.Mutex
	started   time.Time
	stopped   time.Time // when the kubelet of node-1 stopped; zero: it runs
	restarted time.Time // when the container of the restarted pod did
	deleted   []*corev1.Pod
	created   map[string]int // number of creations by pod name
}

const scrapeInterval = 10 * time.Second

// newCluster returns a cluster with two nodes and two pods.
func newCluster(t *testing.T, defect string) *cluster {
	t.Helper()
	plain := clientset.NewSimpleClientset() // managed fields would take a third of the CPU
	c := &cluster{Clientset: plain, defect: defect, started: time.Now(), created: map[string]int{}}
	c.PrependReactor("create", "*", c.create)
	c.PrependReactor("delete", "pods", c.delete)
	c.PrependReactor("get", "pods", c.get)
	size := int64(8 << 30)
	for _, name := range []string{"node-1", "node-2"} {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": name}},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
				Capacity:   usage("8", "32Gi"),
				NodeInfo:   corev1.NodeSystemInfo{Swap: &corev1.NodeSwapStatus{Capacity: &size}},
			},
		}
		if _, err := c.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"api", "web"} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": name}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: simulatedImage}, {Name: "proxy",
				Image: simulatedImage}}},
		}
		if _, err := c.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

const simulatedImage = "simulated"

// has reports whether the cluster has the defect.
func (c *cluster) has(defect string) bool { return c.defect == defect }

// config returns the configuration of a run. Waiting takes no time in the tests.
func (c *cluster) config(kubectl string) Config {
	return Config{
		REST:     &rest.Config{Host: "http://cluster", Transport: c},
		Profile:  Extension,
		Workload: Workload{CPUAnnotation: "fake/cpu", MemoryAnnotation: "fake/memory"},
		Timeout:  time.Minute,
		MaxAge:   time.Minute,
		Interval: 5 * time.Second,
		Kubectl:  kubectl,
		client:   c,
		StopNode: func(context.Context, string) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.stopped = time.Now()
			return nil
		},
		StartNode: func(context.Context, string) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.stopped = time.Time{}
			return nil
		},
		RestartContainer: func(context.Context, string, string, string) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.restarted = time.Now()
			return nil
		},
	}
}

// create does what the API server, controllers and kubelets do with new objects.
func (c *cluster) create(action clienttesting.Action) (handled bool, _ runtime.Object, _ error) {
	object := action.(clienttesting.CreateAction).GetObject()
	switch object := object.(type) {
	case *corev1.Namespace:
		object.Name = object.GenerateName + "x"
	case *corev1.Pod:
		c.mu.Lock()
		c.created[object.Name]++
		c.mu.Unlock()
		run(object)
	case *autoscalingv2.HorizontalPodAutoscaler:
		utilization := int32(100)
		object.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.ScalingActive,
			Status: "True"}}
		if !c.has("client/hpa-status") {
			object.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{
				Type: autoscalingv2.ResourceMetricSourceType,
				Resource: &autoscalingv2.ResourceMetricStatus{
					Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: &utilization},
				},
			}}
		}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: "scaled-x", Namespace: action.GetNamespace(), Labels: map[string]string{roleLabel: deployment},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: busy, Image: simulatedImage}}},
		}
		run(pod)
		return false, nil, c.Tracker().Add(pod)
	case *authenticationv1.TokenRequest:
		object.Status.Token = action.(clienttesting.CreateActionImpl).Name
		return true, object, nil
	}
	return false, nil, nil
}

// run makes a pod running.
func run(pod *corev1.Pod) {
	pod.CreationTimestamp = metav1.Now()
	pod.Spec.NodeName = "node-1"
	pod.Status.Phase = corev1.PodRunning
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for _, container := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses,
			corev1.ContainerStatus{Name: container.Name, State: running})
	}
	for _, container := range pod.Spec.InitContainers {
		status := corev1.ContainerStatus{Name: container.Name, State: running}
		if container.RestartPolicy == nil {
			status.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
		}
		pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, status)
	}
	if pod.Name == completedPod && pod.Spec.Containers[0].Image != simulatedImage {
		pod.Status.Phase = corev1.PodSucceeded
	}
}

// get restarts the container of the restarted pod every 30 seconds.
func (c *cluster) get(action clienttesting.Action) (handled bool, _ runtime.Object, _ error) {
	if action.(clienttesting.GetAction).GetName() != restartedPod {
		return false, nil, nil
	}
	object, err := c.Tracker().Get(action.GetResource(), action.GetNamespace(), restartedPod)
	if err != nil {
		return true, nil, err
	}
	pod := object.(*corev1.Pod).DeepCopy()
	pod.Status.ContainerStatuses[0].RestartCount = int32(time.Since(pod.CreationTimestamp.Time) / (30 * time.Second))
	return true, pod, nil
}

func (c *cluster) delete(action clienttesting.Action) (handled bool, _ runtime.Object, _ error) {
	pod, err := c.Tracker().Get(action.GetResource(), action.GetNamespace(), action.(clienttesting.DeleteAction).GetName())
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.deleted = append(c.deleted, pod.(*corev1.Pod))
	}
	return false, nil, nil
}

func usage(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory)}
}

// sampled returns the time of the last scrape.
func (c *cluster) sampled() time.Time { return time.Now().Truncate(scrapeInterval) }

// nodes returns the metrics of nodes.
func (c *cluster) nodes() []metricsv1beta1.NodeMetrics {
	var items []metricsv1beta1.NodeMetrics
	for _, name := range []string{"node-1", "node-2"} {
		m := metricsv1beta1.NodeMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": name}, CreationTimestamp: metav1.Now()},
			Timestamp:  metav1.NewTime(c.sampled()), Window: metav1.Duration{Duration: scrapeInterval}, Usage: usage("4", "4Gi"),
		}
		if !c.has("extension/swap") {
			m.Usage["swap"] = resource.MustParse("1Gi")
		}
		switch {
		case name == "node-1":
			if c.has("values/sum") {
				m.Usage = usage("50m", "4Gi")
				m.Usage["swap"] = resource.MustParse("0")
			}
			if !c.fresh(&m.Timestamp) {
				continue
			}
		case c.has("nodes/complete"):
			continue
		case c.has("values/format"):
			m.Usage[corev1.ResourceMemory] = resource.MustParse("4G")
		case c.has("values/window"):
			m.Window.Duration = 0
		case c.has("values/timestamp"):
			m.Timestamp = metav1.NewTime(m.Timestamp.Add(time.Hour))
		case c.has("values/progress"):
			m.Timestamp = metav1.NewTime(c.started)
		case c.has("values/capacity"):
			m.Usage[corev1.ResourceCPU] = resource.MustParse("80")
		case c.has("metadata/creation"):
			m.CreationTimestamp = metav1.NewTime(m.Timestamp.Add(time.Hour))
		}
		items = append(items, m)
	}
	return items
}

// fresh reports whether node-1 has metrics, and sets their time if its kubelet is stopped.
func (c *cluster) fresh(timestamp *metav1.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped.IsZero() || c.has("nodes/stopped") {
		return true
	}
	*timestamp = metav1.NewTime(c.stopped.Truncate(scrapeInterval))
	return time.Since(c.stopped) < 3*scrapeInterval
}

// pods returns the metrics of pods, sorted by namespace and name.
func (c *cluster) pods() []metricsv1beta1.PodMetrics {
	var items []metricsv1beta1.PodMetrics
	list, err := c.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		panic(err)
	}
	if c.has("pods/deleted") {
		c.mu.Lock()
		for _, pod := range c.deleted {
			if pod.Name == deletedPod {
				list.Items = append(list.Items, *pod)
			}
		}
		c.mu.Unlock()
	}
	for i := range list.Items {
		if m, ok := c.pod(&list.Items[i]); ok {
			items = append(items, m)
		}
	}
	slices.SortFunc(items, func(a, b metricsv1beta1.PodMetrics) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return items
}

// pod returns the metrics of a pod, if it has any.
func (c *cluster) pod(pod *corev1.Pod) (m metricsv1beta1.PodMetrics, ok bool) {
	m = metricsv1beta1.PodMetrics{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: maps.Clone(pod.Labels),
			CreationTimestamp: metav1.Now()},
		Timestamp: metav1.NewTime(c.sampled()), Window: metav1.Duration{Duration: scrapeInterval},
	}
	if !c.fresh(&m.Timestamp) || pod.Status.Phase != corev1.PodRunning && !c.has("pods/completed") {
		return m, false
	}
	lag := time.Second // until a server has seen that a pod was replaced
	if c.has("pods/replaced") {
		lag = 2 * scrapeInterval
	}
	c.mu.Lock()
	predecessor := pod.Name == replacedPod && c.created[pod.Name] == 2 && time.Since(pod.CreationTimestamp.Time) < lag
	c.mu.Unlock()
	if !m.Timestamp.After(pod.CreationTimestamp.Time) && !predecessor && pod.Namespace != "default" {
		return m, false
	}
	for _, name := range runningContainers(pod) {
		used := c.used(pod, name)
		if predecessor {
			used = usage("100m", "256Mi")
		}
		m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: name, Usage: used})
	}
	if pod.Namespace == "default" && pod.Name == "web" {
		switch {
		case c.has("pods/complete"):
			m.Containers = m.Containers[:1]
		case c.has("values/usage"):
			delete(m.Containers[0].Usage, corev1.ResourceMemory)
		case c.has("metadata/labels"):
			m.Labels["app"] = "other"
		}
	}
	return m, true
}

// used returns the usage of a container: that in the annotations, or what its program uses.
func (c *cluster) used(pod *corev1.Pod, container string) corev1.ResourceList {
	used := usage("1m", "1Mi")
	switch {
	case pod.Annotations["fake/cpu"] != "":
		used = usage(pod.Annotations["fake/cpu"], pod.Annotations["fake/memory"])
	case container == busy:
		used = usage("100m", "64Mi")
		if pod.Name == replacedPod && c.created[pod.Name] == 1 {
			used = usage("100m", "256Mi")
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case pod.Name == plainPod && c.has("pods/load"):
		used[corev1.ResourceCPU] = resource.MustParse("200m")
	case pod.Name == restartedPod && c.has("pods/restarted") && !c.restarted.IsZero():
		used[corev1.ResourceCPU] = resource.MustParse("5")
	}
	return used
}

// RoundTrip implements http.RoundTripper, so that no network is involved.
func (c *cluster) RoundTrip(request *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	recorder.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
	recorder.Header().Set("Content-Type", typeJSON)
	c.serve(recorder, request)
	response := recorder.Result()
	response.Request = request
	return response, nil
}

func (c *cluster) serve(w *httptest.ResponseRecorder, r *http.Request) {
	accept, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	switch p := r.URL.Path; {
	case p == "/version":
		reply(w, map[string]string{"gitVersion": "v1.99.0"})
	case p == "/apis":
		c.serveGroups(w, accept)
	case p == "/openapi/v2":
		w.Body.WriteString(c.openAPI("openapi/v2",
			`{"swagger":"2.0","info":{"title":"t","version":"v"},"paths":{},"definitions":{%s}}`, "definitions", versions...))
	case strings.HasPrefix(p, "/openapi/v3/apis/metrics.k8s.io/"):
		w.Body.WriteString(c.openAPI("openapi/v3",
			`{"openapi":"3.0.0","info":{"title":"t","version":"v"},"paths":{},"components":{"schemas":{%s}}}`,
			"components/schemas", strings.TrimPrefix(p, "/openapi/v3/apis/metrics.k8s.io/")))
	case p == "/apis/apiregistration.k8s.io/v1/apiservices/v1.metrics.k8s.io" && c.service != "":
		w.Body.WriteString(`{"spec":{"service":{"namespace":"kube-system","name":"` + c.service + `"}}}`)
	case strings.HasPrefix(p, "/apis/metrics.k8s.io/"):
		parts := strings.Split(strings.TrimPrefix(p, "/apis/metrics.k8s.io/"), "/")
		if !c.serves(parts[0]) {
			fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "")
			return
		}
		if len(parts) == 1 {
			reply(w, c.resources(parts[0]))
			return
		}
		c.serveMetrics(w, r, parts[0], parts[1:], accept)
	default:
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, p)
	}
}

var versions = []string{"v1", "v1beta1"}

func (c *cluster) serves(version string) bool {
	return slices.Contains(versions, version) && !c.has("discovery/"+version)
}

func (c *cluster) serveGroups(w *httptest.ResponseRecorder, accept string) {
	if strings.Contains(accept, "APIGroupDiscoveryList") {
		text := `{"items":[{"metadata":{"name":"metrics.k8s.io"},"versions":[` +
			`{"version":"v1","resources":[{"resource":"nodes"},{"resource":"pods"}]},` +
			`{"version":"v1beta1","resources":[{"resource":"nodes"},{"resource":"pods"}]}]}]}`
		if c.has("discovery/aggregated") {
			text = `{"items":[]}`
		}
		w.Body.WriteString(text)
		return
	}
	groups := &metav1.APIGroupList{Groups: []metav1.APIGroup{{Name: group}}}
	for _, v := range versions {
		if c.serves(v) {
			groups.Groups[0].Versions = append(groups.Groups[0].Versions, metav1.GroupVersionForDiscovery{Version: v})
		}
	}
	if c.has(groupCheck) {
		groups.Groups = nil
	}
	reply(w, groups)
}

func (c *cluster) resources(version string) *metav1.APIResourceList {
	verbs := []string{"get", "list", "watch"}
	if c.has("extension/watch") {
		verbs = verbs[:2]
	}
	return &metav1.APIResourceList{GroupVersion: group + "/" + version, APIResources: []metav1.APIResource{
		{Name: "nodes", Kind: "NodeMetrics", Verbs: verbs},
		{Name: "pods", Kind: "PodMetrics", Verbs: verbs, Namespaced: !c.has("discovery/resources")},
	}}
}

// openAPI returns a document. The defect of a check is that it describes another type of a field.
func (c *cluster) openAPI(check, document, at string, versions ...string) string {
	timestamp := "string"
	if c.has(check) {
		timestamp = "integer"
	}
	var definitions []string
	for _, v := range versions {
		for _, kind := range []string{"NodeMetrics", "PodMetrics"} {
			name := "io.k8s.metrics." + v + "." + kind
			definitions = append(definitions, fmt.Sprintf(`%q:{"type":"object","properties":{"kind":{"type":"string"},`+
				`"apiVersion":{"type":"string"},"metadata":{"type":"object"},"timestamp":{"type":%q},"window":{"type":"string"},`+
				`"usage":{"type":"object","additionalProperties":{"type":"string"}},`+
				`"containers":{"type":"array","items":{"type":"object"}}}}`, name, timestamp),
				fmt.Sprintf(`%q:{"type":"object","required":["items"],"properties":{"kind":{"type":"string"},`+
					`"apiVersion":{"type":"string"},"metadata":{"type":"object"},`+
					`"items":{"type":"array","items":{"$ref":"#/%s/%s"}}},`+
					`"x-kubernetes-group-version-kind":[{"group":%q,"kind":%q,"version":%q}]}`, name+"List", at, name, group,
					kind+"List", v))
		}
	}
	return fmt.Sprintf(document, strings.Join(definitions, ","))
}

// items are the metrics of nodes or pods in one of the lists.
type items struct {
	nodes []metricsv1beta1.NodeMetrics
	pods  []metricsv1beta1.PodMetrics
}

func (i *items) filter(keep func(*metav1.ObjectMeta) bool) {
	i.nodes = slices.DeleteFunc(i.nodes, func(m metricsv1beta1.NodeMetrics) bool { return !keep(&m.ObjectMeta) })
	i.pods = slices.DeleteFunc(i.pods, func(m metricsv1beta1.PodMetrics) bool { return !keep(&m.ObjectMeta) })
}

func (i *items) names() (names []string) {
	i.filter(func(m *metav1.ObjectMeta) bool { names = append(names, m.Name); return true })
	return names
}

// cut removes all items but those from one index to another.
func (i *items) cut(from, to int) {
	index := -1
	i.filter(func(*metav1.ObjectMeta) bool { index++; return index >= from && index < to })
}

// serveMetrics serves a path below the version.
func (c *cluster) serveMetrics(w *httptest.ResponseRecorder, r *http.Request, version string, parts []string,
	accept string) {
	namespace, name, kind := "", "", parts[0]
	if kind == "namespaces" {
		namespace, parts = parts[1], parts[2:]
		kind = parts[0]
	}
	if len(parts) > 1 {
		name = parts[1]
	}
	q := r.URL.Query()
	switch {
	case !c.allowed(r, kind, namespace):
		fail(w, http.StatusForbidden, metav1.StatusReasonForbidden, "")
		return
	case r.Method != http.MethodGet && (r.Method != http.MethodPatch || !c.has("verbs/write")),
		q.Has("watch") && (c.has("verbs/watch") || c.has("extension/watch")):
		fail(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "")
		return
	case q.Has("watch"):
		return
	case namespace == unknown && c.has("list/unknown-namespace"):
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "")
		return
	}
	all := &items{}
	if kind == "nodes" {
		all.nodes = c.nodes()
	} else {
		all.pods = c.pods()
	}
	if version == "v1" && c.has("versions/equal") {
		for i := range all.nodes {
			all.nodes[i].Usage[corev1.ResourceMemory] = resource.MustParse("5Gi")
		}
	}
	all.filter(func(m *metav1.ObjectMeta) bool {
		return (namespace == "" || m.Namespace == namespace) && (name == "" || m.Name == name)
	})
	if name != "" {
		c.serveOne(w, version, kind, name, accept, all)
		return
	}
	if namespace != "" && len(q) == 0 && c.has("list/namespace") {
		all.filter(func(m *metav1.ObjectMeta) bool { return m.Name != "web" })
	}
	meta, err := c.selectItems(all, q)
	if err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	if q.Has("labelSelector") && accept == typeProtobuf && c.has("client/hpa-read") {
		all.cut(0, 0)
	}
	if c.has("list/order") && accept == typeJSON {
		slices.Reverse(all.nodes)
		slices.Reverse(all.pods)
	}
	c.serveList(w, version, kind, accept, all, meta)
}

// allowed returns whether the ServiceAccount whose name is the token has permission.
func (c *cluster) allowed(r *http.Request, kind, namespace string) bool {
	own := kind == "pods" && strings.HasPrefix(namespace, "metrics-conformance-")
	switch strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") {
	case "guest":
		return c.has("access/forbidden")
	case "reader":
		return own || c.has("access/namespace")
	case "viewer":
		return own && !c.has("access/view")
	}
	return true
}

// selectItems applies selectors and limits.
func (c *cluster) selectItems(all *items, q url.Values) (meta metav1.ListMeta, err error) {
	text := q.Get("labelSelector")
	selector, err := labels.Parse(text)
	if err != nil {
		if c.has("list/invalid-selector") {
			return meta, nil
		}
		return meta, err
	}
	field, err := fields.ParseSelector(q.Get("fieldSelector"))
	if err != nil {
		return meta, err
	}
	all.filter(func(m *metav1.ObjectMeta) bool {
		set := fields.Set{"metadata.name": m.Name, "metadata.namespace": m.Namespace}
		return (selector.Matches(labels.Set(m.Labels)) || strings.Contains(text, "!=") && c.has("list/label-selector")) &&
			(field.Matches(set) || c.has("list/field-selector"))
	})
	if limit, _ := strconv.Atoi(q.Get("limit")); limit > 0 {
		n := len(all.names())
		from, _ := strconv.Atoi(q.Get("continue"))
		to := min(n, from+limit)
		if to < n {
			left := int64(n - to)
			meta.Continue, meta.RemainingItemCount = strconv.Itoa(to), &left
			if c.has("extension/remaining-items") {
				meta.RemainingItemCount = nil
			}
		} else if c.has("list/limit") {
			to--
		}
		all.cut(from, to)
	}
	return meta, nil
}

func (c *cluster) serveOne(w *httptest.ResponseRecorder, version, kind, name, accept string, all *items) {
	if len(all.names()) == 0 {
		if name == unknown && c.has("get/unknown") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		message := "it has completed"
		if c.has("extension/not-found-reason") {
			message = fmt.Sprintf("pods.metrics.k8s.io %q not found", name)
		}
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, message)
		return
	}
	if kind == "nodes" {
		if c.has("format/json") && accept == typeJSON {
			all.nodes[0].Window.Duration *= 2
		}
		c.encode(w, version, accept, &all.nodes[0], &metricsv1.NodeMetrics{})
		return
	}
	if c.has("list/get") && name == "web" {
		all.pods[0].Window.Duration *= 2
	}
	c.encode(w, version, accept, &all.pods[0], &metricsv1.PodMetrics{})
}

func (c *cluster) serveList(w *httptest.ResponseRecorder, version, kind, accept string, all *items,
	meta metav1.ListMeta) {
	names := all.names()
	switch accept {
	case typeTable:
		table := metav1.Table{TypeMeta: metav1.TypeMeta{Kind: "Table"},
			ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name"}}}
		cells := 1
		if !c.has("extension/table-usage") {
			table.ColumnDefinitions = append(table.ColumnDefinitions, metav1.TableColumnDefinition{Name: "cpu"},
				metav1.TableColumnDefinition{Name: "memory"})
			cells = 3
		}
		for i, name := range names {
			if i == 0 && c.has("format/table") {
				continue
			}
			table.Rows = append(table.Rows, metav1.TableRow{Cells: []any{name, "1m", "1Mi"}[:cells]})
		}
		reply(w, table)
	case typePartial:
		list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList"}}
		if c.has("format/metadata") {
			list.Kind = "PodMetricsList"
		}
		for _, name := range names {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		reply(w, list)
	default:
		if kind == "nodes" {
			c.encode(w, version, accept, &metricsv1beta1.NodeMetricsList{ListMeta: meta, Items: all.nodes},
				&metricsv1.NodeMetricsList{})
		} else {
			c.encode(w, version, accept, &metricsv1beta1.PodMetricsList{ListMeta: meta, Items: all.pods},
				&metricsv1.PodMetricsList{})
		}
	}
}

// encode writes an object in a format. v1 is an empty object of version v1.
func (c *cluster) encode(w *httptest.ResponseRecorder, version, accept string, object, v1 runtime.Object) {
	switch {
	case accept == "*/*":
		accept = typeJSON
		if c.has("format/default") {
			accept = typeYAML
		}
	case accept == typeYAML && c.has("format/yaml"), accept == typeProtobuf && c.has("format/protobuf"),
		accept == typeCBOR && c.has("format/cbor"):
		fail(w, http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "")
		return
	}
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), accept)
	if !ok {
		if c.has("format/not-acceptable") {
			return
		}
		fail(w, http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "")
		return
	}
	gv := schema.GroupVersion{Group: group, Version: version}
	if version == "v1" {
		text, err := json.Marshal(object)
		if err != nil {
			panic(err)
		}
		if err := json.Unmarshal(text, v1); err != nil {
			panic(err)
		}
		object = v1
	}
	var body bytes.Buffer
	if err := codecs.EncoderForVersion(info.Serializer, gv).Encode(object, &body); err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", accept)
	w.Body = &body
}

func reply(w *httptest.ResponseRecorder, object any) {
	if err := json.NewEncoder(w).Encode(object); err != nil {
		panic(err)
	}
}

func fail(w *httptest.ResponseRecorder, code int, reason metav1.StatusReason, message string) {
	if message == "" {
		message = string(reason)
	}
	w.WriteHeader(code)
	reply(w, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason,
		Message: message,
	})
}
