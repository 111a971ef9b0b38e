package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/internal/terminal"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
)

const (
	token       = "secret-token-of-kube-vitals"
	ns          = "kube-system"
	kubeSystem  = "/api/v1/namespaces/kube-system/"
	accounts    = kubeSystem + "serviceaccounts"
	aggregation = kubeSystem + "configmaps/extension-apiserver-authentication"
	apiservices = "/apis/apiregistration.k8s.io/v1/apiservices/"
	services    = "/api/v1/services"
	deployments = "/apis/apps/v1/namespaces/kube-system/deployments"
	metricsV1b1 = "/apis/metrics.k8s.io/v1beta1/"
	hpas        = "/apis/autoscaling/v2/horizontalpodautoscalers"
	bindings    = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
)

// world is an API server, and a fake kube-vitals outside of the cluster. An alias leads to the
// latter. Tests change it before they examine it.
type world struct {
	api     *sim.API
	objects map[string]any // of the API server by path
	status  map[string]metav1.Status
	denied  func(authorizationv1.SubjectAccessReviewSpec) bool
	page    *nodez.Report // nil: /nodez is forbidden
	client  rest.Config

	namespace string // --namespace
	forwards  bool   // port-forwards lead to kube-vitals

	ca     *kubelettest.CA
	served tls.Certificate
	port   int32

	mu       sync.Mutex
	requests []string // to kube-vitals
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		api:    sim.NewAPI(),
		denied: func(authorizationv1.SubjectAccessReviewSpec) bool { return false },
		ca:     kubelettest.NewCA(),
	}
	w.objects, w.status, w.api.Latency = w.api.Objects, w.api.Refusals, 0
	w.api.Authorize = func(_ context.Context, spec *authorizationv1.SubjectAccessReviewSpec) bool {
		return !w.denied(*spec)
	}
	w.served = w.ca.Issue([]string{"kube-vitals.kube-system.svc"}, nil)
	vitals := httptest.NewUnstartedServer(http.HandlerFunc(w.serveVitals))
	vitals.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return &w.served,
			nil
	}}
	vitals.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes fail
	vitals.StartTLS()
	t.Cleanup(vitals.Close)
	u, err := url.Parse(vitals.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	w.port = int32(n)
	api := httptest.NewServer(http.HandlerFunc(w.serveAPI))
	t.Cleanup(api.Close)
	w.client = rest.Config{Host: api.URL, BearerToken: "credentials-of-the-admin"}
	w.client.ContentType = "application/json" // instead of protobuf
	w.install()
	return w
}

// takeOver lets an APIService of the release lead to metrics-server.
func (w *world) takeOver(version string) {
	w.spec(version)["service"].(map[string]any)["name"] = "metrics-server"
	w.objects[apiservices+version+".metrics.k8s.io"].(map[string]any)["metadata"] = metav1.ObjectMeta{
		Name: version + ".metrics.k8s.io", Labels: map[string]string{"app.kubernetes.io/name": "kube-vitals"}}
}

// install fills the world with a healthy kube-vitals.
func (w *world) install() {
	w.objects["/api"] = map[string]any{}
	w.objects[accounts+"/kube-vitals/token"] = &authenticationv1.TokenRequest{
		Status: authenticationv1.TokenRequestStatus{Token: token}}
	for _, name := range []string{"kube-vitals", "kube-vitals-kubelet"} {
		w.objects[accounts+"/"+name] = &corev1.ServiceAccount{}
	}
	w.objects["/version"] = map[string]string{"gitVersion": "v1.36.3"}
	w.objects[aggregation] = &corev1.ConfigMap{Data: map[string]string{
		"requestheader-client-ca-file": string(w.ca.PEM()), "client-ca-file": string(w.ca.PEM()),
	}}
	for _, version := range versions() {
		a := w.apiService("kube-vitals")
		a["metadata"] = map[string]any{"name": version + ".metrics.k8s.io"}
		w.objects[apiservices+version+".metrics.k8s.io"] = a
	}
	labels := map[string]string{"app.kubernetes.io/name": "kube-vitals"}
	service := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-vitals", Namespace: ns, Labels: labels},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1", Selector: labels,
			Ports: []corev1.ServicePort{{Port: w.port, TargetPort: intstr.FromString("https")}},
		},
	}
	w.objects[kubeSystem+"services/kube-vitals"] = &service
	w.objects[services] = &corev1.ServiceList{Items: []corev1.Service{service}}
	w.objects[bindings] = &rbacv1.ClusterRoleBindingList{Items: []rbacv1.ClusterRoleBinding{
		binding("system:kube-vitals", ns)}}
	w.objects[deployments] = &appsv1.DeploymentList{Items: []appsv1.Deployment{{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-vitals", Namespace: ns},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(0)),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()},
		},
	}}}
	w.objects[kubeSystem+"pods"] = &corev1.PodList{}
	w.objects["/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"] = &discoveryv1.EndpointSliceList{}
	w.objects[metricsV1b1+"nodes"] = metricsList("/n1", "/n2")
	w.objects[metricsV1b1+"pods"] = metricsList("default/a")
	w.objects[metricsV1b1+"pods"].(map[string]any)["metadata"] = map[string]any{"continue": "x", "remainingItemCount": 2}
	w.objects["/api/v1/nodes"] = &corev1.NodeList{Items: []corev1.Node{node("n1", true), node("n2", true)}}
	w.objects[hpas] = &autoscalingv2.HorizontalPodAutoscalerList{}
	w.page = &nodez.Report{
		Totals: nodez.Totals{Nodes: 2, Pods: 3, PodsWithMetrics: 3},
		Memory: &nodez.Memory{ResidentBytes: 60 << 20, LimitBytes: 1 << 30},
		Nodes: []nodez.Node{
			{Name: "n1", State: nodez.Ready, ClockSkewSeconds: new(0.1)}, {Name: "n2", State: nodez.Ready,
				ClockSkewSeconds: new(-0.4)},
		},
	}
}

// binding returns a ClusterRoleBinding of kube-vitals with a ServiceAccount of a namespace as subject.
func binding(name, namespace string) rbacv1.ClusterRoleBinding {
	labels := map[string]string{"app.kubernetes.io/name": "kube-vitals"}
	return rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Subjects: []rbacv1.Subject{
		{Kind: rbacv1.ServiceAccountKind, Name: "kube-vitals", Namespace: namespace}}}
}

// inCluster makes the Service select pods instead.
func (w *world) inCluster(replicas int32, pods ...corev1.Pod) {
	service := w.objects[kubeSystem+"services/kube-vitals"].(*corev1.Service)
	service.Spec.Type, service.Spec.ExternalName = corev1.ServiceTypeClusterIP, ""
	deployment := &w.objects[deployments].(*appsv1.DeploymentList).Items[0]
	deployment.Spec.Replicas = &replicas
	w.objects[kubeSystem+"pods"] = &corev1.PodList{Items: pods}
	slice := discoveryv1.EndpointSlice{}
	for i := range pods {
		ready := isReady(&pods[i])
		if ready {
			deployment.Status.ReadyReplicas++
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.0.%d", i)}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	w.objects["/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"] =
		&discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{slice}}
}

// apiService returns an available APIService as JSON.
func (w *world) apiService(service string) map[string]any {
	return map[string]any{
		"spec": map[string]any{
			"service":  map[string]any{"namespace": ns, "name": service, "port": w.port},
			"caBundle": w.ca.PEM(),
		},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Available", "status": "True"}}},
	}
}

// spec returns the spec of an APIService.
func (w *world) spec(version string) map[string]any {
	return w.objects[apiservices+version+".metrics.k8s.io"].(map[string]any)["spec"].(map[string]any)
}

// addArgs adds flags to those of the Deployment.
func (w *world) addArgs(args ...string) {
	c := &w.objects[deployments].(*appsv1.DeploymentList).Items[0].Spec.Template.Spec.Containers[0]
	c.Args = append(c.Args, args...)
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{ServiceAccountName: "kube-vitals", Containers: []corev1.Container{{
		Name: "kube-vitals", Image: "ghcr.io/kube-vitals/kube-vitals:v0.1.0",
		Args:  []string{"--kubelet-service-account=kube-vitals-kubelet", "--tls-secret=kube-vitals-serving"},
		Ports: []corev1.ContainerPort{{Name: "other", ContainerPort: 1}, {Name: "https", ContainerPort: 10251}},
	}}}
}

// serverPod returns a pod of kube-vitals.
func serverPod(ready bool, status corev1.ContainerStatus) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "kube-vitals-x", Namespace: ns}, Spec: podSpec()}
	pod.Status.Phase = corev1.PodRunning
	status.Name = "kube-vitals"
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: conditionStatus(ready)}}
	return pod
}

func running() corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func conditionStatus(ok bool) corev1.ConditionStatus {
	if ok {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

func node(name string, ready bool) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: conditionStatus(ready)}}
	return n
}

func metricsList(names ...string) map[string]any {
	items := []any{}
	for _, name := range names {
		namespace, name, _ := strings.Cut(name, "/")
		items = append(items, map[string]any{"metadata": map[string]any{"namespace": namespace, "name": name}})
	}
	return map[string]any{"items": items}
}

// forbidden is the response to a request that the user may not send.
func forbidden(what string) metav1.Status {
	return metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: fmt.Sprintf("x is forbidden: User \"u\" cannot %s", what)}
}

func (w *world) serveAPI(out http.ResponseWriter, r *http.Request) {
	path, query := r.URL.Path, r.URL.Query()
	switch {
	case w.forwards && strings.HasSuffix(path, "/pods/kube-vitals-x/portforward") && r.Header.Get("Upgrade") == "SPDY/3.1":
		w.forward(out, r)
		return
	case path == metricsV1b1+"pods" && query.Get("limit") != "1":
		http.Error(out, "all pods", http.StatusRequestEntityTooLarge)
		return
	}
	w.api.ServeHTTP(out, r)
}

func (w *world) serveVitals(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.requests = append(w.requests, r.URL.Path+" "+r.Header.Get("Authorization"))
	w.mu.Unlock()
	if w.page == nil {
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(http.StatusForbidden)
		// A server may repeat the request in its error.
		fmt.Fprintf(out, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden",`+
			`"message":"forbidden: cannot get path \"/nodez\" with %s"}`, r.Header.Get("Authorization"))
		return
	}
	if err := json.NewEncoder(out).Encode(w.page); err != nil {
		panic(err)
	}
}

// examine returns the report and the text of an examination.
func (w *world) examine(t *testing.T) (*Report, string) {
	t.Helper()
	var text bytes.Buffer
	p := &Printer{Out: &text}
	report, err := Examine(t.Context(), Config{Client: &w.client, Namespace: w.namespace, Version: "v0.1.0",
		Timeout: testenv.Patience, Start: p.Start, Done: p.Done})
	if report == nil {
		t.Fatal(err)
	}
	p.Finish(report)
	var encoded bytes.Buffer
	if err := terminal.WriteJSON(&encoded, report); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{token, w.client.BearerToken} {
		if strings.Contains(text.String(), secret) || strings.Contains(encoded.String(), secret) {
			t.Errorf("the output has the token %s", secret)
		}
	}
	return report, text.String()
}
