package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/internal/terminal"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// TestGolden compares the text and JSON with testdata. KUBE_VITALS_UPDATE=1 writes it.
func TestGolden(t *testing.T) {
	for name, prepare := range map[string]func(*world){
		"healthy": func(*world) {},
		"broken": func(w *world) {
			w.takeOver("v1beta1")
			w.denied = func(s authorizationv1.SubjectAccessReviewSpec) bool {
				return s.ResourceAttributes.Subresource == "metrics"
			}
			n := &w.page.Nodes[1]
			n.State, n.Reason = nodez.Failing, reason.TLSSelfSigned
			d := n.Reason.Describe()
			n.Problem, n.Cure, n.URL = d.Problem, d.Cure, n.Reason.URL()
			n.ClockSkewSeconds = new(-61.0)
			w.page.Memory.LimitBytes = 64 << 20
			w.status[hpas] = forbidden(`list resource "horizontalpodautoscalers" ` +
				`in API group "autoscaling" at the cluster scope`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			prepare(w)
			report, text := w.examine(t)
			var asJSON bytes.Buffer
			if err := terminal.WriteJSON(&asJSON, report); err != nil {
				t.Fatal(err)
			}
			golden(t, w, name+".txt", text)
			golden(t, w, name+".json", asJSON.String())
		})
	}
}

func golden(t *testing.T, w *world, name, got string) {
	t.Helper()
	got = strings.ReplaceAll(got, w.client.Host, "https://cluster.example:6443")
	got = regexp.MustCompile(fmt.Sprintf(`(port[ \\":]+)%d`, w.port)).ReplaceAllString(got, "${1}443")
	got = regexp.MustCompile(`in \d+(\.\d+)?m?s`).ReplaceAllString(got, "in 1ms")
	got = regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?Z`).ReplaceAllString(got, "2026-01-02T03:04:05Z")
	file := filepath.Join("testdata", name)
	if os.Getenv("KUBE_VITALS_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// TestNodezCredentials checks that the page of nodes is read with a token of kube-vitals' own, and
// that nothing is sent to a server that the caBundle does not verify.
func TestNodezCredentials(t *testing.T) {
	w := newWorld(t)
	w.examine(t)
	if want := []string{"/nodez Bearer " + token}; !slices.Equal(w.requests, want) {
		t.Errorf("got requests %q, want %q", w.requests, want)
	}
	for name, prepare := range map[string]func(*world){
		"foreign CA":  func(w *world) { w.served = kubelettest.NewCA().Issue([]string{"kube-vitals.kube-system.svc"}, nil) },
		"other name":  func(w *world) { w.served = w.ca.Issue([]string{"other.kube-system.svc"}, nil) },
		"no caBundle": func(w *world) { delete(w.spec("v1"), "caBundle"); delete(w.spec("v1beta1"), "caBundle") },
	} {
		w := newWorld(t)
		prepare(w)
		if report, _ := w.examine(t); find(report, "nodez").Status != Skipped {
			t.Errorf("%s: got %+v, want a skipped check", name, find(report, "nodez"))
		}
		if len(w.requests) > 0 {
			t.Errorf("%s: got requests %q", name, w.requests)
		}
	}
}

// TestPasswordOfServer checks that a password in the address of the API server is not shown.
func TestPasswordOfServer(t *testing.T) {
	for _, scheme := range []string{"http://", ""} {
		w := newWorld(t)
		w.client.Host = scheme + "ci:s3cret@" + strings.TrimPrefix(w.client.Host, "http://")
		report, text := w.examine(t)
		if strings.Contains(text+report.Checks[0].Seen, "s3cret") || !strings.Contains(text, "://ci:xxxxx@") {
			t.Errorf("got\n%s", text)
		}
	}
}

// find returns the first check with an ID that is not ok, or else the first one.
func find(r *Report, id string) (found Check) {
	for _, c := range r.Checks {
		if c.ID == id && (found.ID == "" || found.Status == OK) {
			found = c
		}
	}
	return found
}

// TestBroken breaks one thing at a time.
func TestBroken(t *testing.T) {
	noHeader := func(w *world) {
		delete(w.objects[aggregation].(*corev1.ConfigMap).Data, "requestheader-client-ca-file")
	}
	waiting := func(reason, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{RestartCount: 3, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
	}
	oom := corev1.ContainerStatus{RestartCount: 2, LastTerminationState: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled"}}}
	evicted := serverPod(false, corev1.ContainerStatus{})
	evicted.Name, evicted.Status = "evicted", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
	unavailable := func(reason, message string) func(*world) {
		return func(w *world) {
			a := w.objects[apiservices+"v1beta1.metrics.k8s.io"].(map[string]any)
			a["status"] = map[string]any{"conditions": []any{map[string]any{
				"type": "Available", "status": "False", "reason": reason, "message": message}}}
		}
	}
	node2 := func(change func(*nodez.Node)) func(*world) {
		return func(w *world) { change(&w.page.Nodes[1]) }
	}
	// engine returns a function that makes the server read an engine, which change may change.
	engine := func(change func(*nodez.Report)) func(*world) {
		return func(w *world) {
			d := &w.objects[deployments].(*appsv1.DeploymentList).Items[0]
			d.Spec.Template.Spec.Containers[0].Args = []string{"--source=prometheus", "--prometheus-url=http://p"}
			w.denied = func(r authorizationv1.SubjectAccessReviewSpec) bool {
				a := r.ResourceAttributes
				return a.Resource == "nodes" && a.Subresource != ""
			}
			w.page.Time, w.page.MaxSampleAgeSeconds = time.Now(), 150
			w.page.Engine = &nodez.Engine{Host: "p:9090", State: nodez.Ready, DurationSeconds: 0.2, WindowSeconds: 112,
				Series: map[string]int{"containerCPU": 5, "containerMemory": 5, "nodeCPU": 2, "nodeMemory": 2}}
			for i := range w.page.Nodes {
				n := &w.page.Nodes[i]
				n.ClockSkewSeconds, n.SampleAgeSeconds, n.SampleIntervalSeconds = nil, new(10.0), new(30.0)
			}
			if change != nil {
				change(w.page)
			}
		}
	}
	noSamples := func(r *nodez.Report) {
		for i := range r.Nodes {
			n := &r.Nodes[i]
			n.ClockSkewSeconds, n.SampleAgeSeconds, n.SampleIntervalSeconds = nil, nil, nil
		}
	}
	tooMany := apierrors.NewTooManyRequestsError("try again later").ErrStatus
	exporter := func(pods ...nodez.DevicePod) func(*world) {
		return func(w *world) {
			w.page.DeviceExporters = []nodez.DeviceExporter{{Name: "dcgm", Namespace: "gpu", PodSelector: "app=x", Pods: pods}}
		}
	}
	hpa := func(message string) func(*world) {
		return func(w *world) { w.objects[hpas] = autoscaler(message) }
	}
	// scaled returns a function that adds a HorizontalPodAutoscaler of CPU and of a custom metric.
	scaled := func(active corev1.ConditionStatus, reason string, current ...autoscalingv2.MetricStatus) func(*world) {
		return func(w *world) {
			list := autoscaler("the first error")
			h := &list.Items[0]
			h.Status.Conditions[0].Status, h.Status.Conditions[0].Reason = active, reason
			h.Spec.Metrics = []autoscalingv2.MetricSpec{{External: &autoscalingv2.ExternalMetricSource{}},
				{Resource: &autoscalingv2.ResourceMetricSource{Name: "cpu"}},
				{ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Name: "memory", Container: "app"}}}
			h.Status.CurrentMetrics = current
			w.objects[hpas] = list
		}
	}
	ofCPU := autoscalingv2.MetricStatus{Resource: &autoscalingv2.ResourceMetricStatus{Name: "cpu"}}
	failed := autoscalingv2.MetricStatus{}
	ofMemory := autoscalingv2.MetricStatus{ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: "memory",
		Container: "app"}}
	tests := []struct {
		name    string
		prepare func(*world)
		id      string
		status  Status
		reason  string
		seen    string // part of it
		object  string // one of them
	}{
		{"request-header CA missing", noHeader, "aggregation", Failed, headerCAMissing.Reason,
			"has no requestheader-client-ca-file", ""},
		{"no authentication ConfigMap", func(w *world) { delete(w.objects, aggregation) },
			"aggregation", Failed, headerCAMissing.Reason, "does not exist", ""},
		{"request-header CA invalid", func(w *world) {
			w.objects[aggregation].(*corev1.ConfigMap).Data["requestheader-client-ca-file"] = "x"
		}, "aggregation", Failed, headerCAInvalid.Reason, "requestheader-client-ca-file: ", ""},
		{"client CA missing", func(w *world) { delete(w.objects[aggregation].(*corev1.ConfigMap).Data, "client-ca-file") },
			"aggregation", Warning, clientCAMissing.Reason, "no client-ca-file", ""},
		{"ConfigMap forbidden", func(w *world) { w.status[aggregation] = forbidden(`get resource "configmaps"`) },
			"aggregation", Skipped, noPermission.Reason, `you cannot get resource "configmaps"`, ""},

		{"v1beta1 elsewhere", func(w *world) { w.takeOver("v1beta1") }, "apiservice", Failed, apiServiceElsewhere.Reason,
			"kube-system/metrics-server instead of kube-system/kube-vitals", ""},
		{"both elsewhere", func(w *world) {
			w.spec("v1beta1")["service"].(map[string]any)["name"] = "metrics-server"
			w.spec("v1")["service"].(map[string]any)["name"] = "metrics-server"
		}, "apiservice", Warning, runsBeside.Reason, "instead of kube-system/kube-vitals, which is kube-vitals", ""},
		{"both elsewhere, nodes", func(w *world) { // that v1beta1 has all nodes says nothing of kube-vitals
			w.spec("v1beta1")["service"].(map[string]any)["name"] = "metrics-server"
			w.spec("v1")["service"].(map[string]any)["name"] = "metrics-server"
		}, "nodes", Skipped, noConnection.Reason, "leads to another server than kube-system/kube-vitals", ""},
		{"v1beta1 missing", func(w *world) { delete(w.objects, apiservices+"v1beta1.metrics.k8s.io") },
			"apiservice", Failed, apiServiceMissing.Reason, "v1beta1.metrics.k8s.io does not exist", ""},
		{"v1 missing", func(w *world) { delete(w.objects, apiservices+"v1.metrics.k8s.io") },
			"apiservice", Warning, apiServiceMissing.Reason, "v1.metrics.k8s.io does not exist", ""},
		{"unverified", func(w *world) { w.spec("v1")["insecureSkipTLSVerify"] = true },
			"apiservice", Warning, tlsNotVerified.Reason, "insecureSkipTLSVerify", ""},
		{"unavailable", unavailable("FailedDiscoveryCheck", "x509: certificate signed by unknown authority"),
			"apiservice", Failed, caBundleForeign.Reason, "FailedDiscoveryCheck: x509", ""},
		{"not examined yet", func(w *world) {
			delete(w.objects[apiservices+"v1beta1.metrics.k8s.io"].(map[string]any), "status")
		}, "apiservice", Failed, apiServiceUnavailable.Reason, "not available: the API server has not examined it yet", ""},
		{"no route", unavailable("FailedDiscoveryCheck", "context deadline exceeded"), "apiservice", Failed,
			serverUnreachable.Reason, "deadline", ""},
		{"rejected", unavailable("FailedDiscoveryCheck", "bad status from https://x: 401 Unauthorized"),
			"apiservice", Failed, apiServerRejected.Reason, "401", ""},
		{"available without endpoints", unavailable("MissingEndpoints", "none"), "apiservice", Failed, noEndpoints.Reason,
			"none", ""},

		{"no Service", func(w *world) { delete(w.objects, kubeSystem+"services/kube-vitals") },
			"service", Failed, serviceMissing.Reason, "kube-system/kube-vitals does not exist", ""},
		{"terminating namespace", terminating, "service", Failed, namespaceTerminating.Reason,
			"kube-system/kube-vitals does not exist", ""},
		{"terminating namespace, APIService", func(w *world) {
			terminating(w)
			unavailable("ServiceNotFound", "service is not present")(w)
		}, "apiservice", Failed, namespaceTerminating.Reason, "ServiceNotFound", ""},
		{"other port", func(w *world) { w.inCluster(1); w.service().Spec.Ports[0].Port = 1 },
			"service", Failed, servicePortMissing.Reason, "has no port", ""},
		{"no endpoints", func(w *world) { w.inCluster(1) }, "endpoints", Failed, noEndpoints.Reason,
			"app.kubernetes.io/name=kube-vitals", ""},
		{"no ready endpoint", func(w *world) { w.inCluster(1, serverPod(false, waiting("", ""))) },
			"endpoints", Failed, noEndpoints.Reason, "none of 1", ""},
		{"zero replicas", func(w *world) { w.inCluster(0) }, "deployment", Failed, zeroReplicas.Reason,
			"0 of 0 replicas", ""},
		{"no Deployment", func(w *world) { w.objects[deployments] = &appsv1.DeploymentList{} },
			"deployment", Warning, deploymentMissing.Reason, "no Deployment", ""},
		{"no pods", func(w *world) { w.inCluster(1) }, "pods", Failed, noPods.Reason, "none", ""},
		{"an evicted pod beside its successor", func(w *world) { w.inCluster(1, evicted, serverPod(true, running())) },
			"pods", OK, "", "1 of 1 ready", ""},
		{"an evicted pod without a successor", func(w *world) { w.inCluster(1, evicted) },
			"pods", Failed, noPods.Reason, "none", ""},
		{"image", func(w *world) { w.inCluster(1, serverPod(false, waiting("ImagePullBackOff", "not found"))) },
			"pods", Failed, imagePull.Reason, "ImagePullBackOff: not found", "kube-system/kube-vitals-x"},
		{"crash", func(w *world) { w.inCluster(1, serverPod(false, waiting("CrashLoopBackOff", ""))) },
			"pods", Failed, crashLoop.Reason, "restarted 3 times", "kube-system/kube-vitals-x"},
		{"memory", func(w *world) { w.inCluster(1, serverPod(false, oom)) }, "pods", Failed,
			oomKilled.Reason, "more memory", ""},
		{"memory, ready again", func(w *world) { w.inCluster(1, serverPod(true, oom)) }, "pods", Warning, oomKilled.Reason,
			"last at", ""},
		{"memory, one of two ready again", func(w *world) { w.inCluster(2, serverPod(true, oom), serverPod(false, oom)) },
			"pods", Failed, oomKilled.Reason, "last at", ""},
		{"waiting", func(w *world) { w.inCluster(1, serverPod(false, waiting("CreateContainerConfigError", "no secret"))) },
			"pods", Failed, containerWaiting.Reason, "no secret", ""},
		{"pod not ready", func(w *world) { w.inCluster(1, serverPod(false, corev1.ContainerStatus{})) },
			"pods", Failed, podNotReady.Reason, "runs but is not ready", ""},
		{"node of the pod not ready", func(w *world) {
			pod := serverPod(false, corev1.ContainerStatus{})
			pod.Spec.NodeName = "node1"
			pod.Status.Conditions = append(pod.Status.Conditions,
				corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue})
			w.inCluster(1, pod)
		}, "pods", Failed, nodeOrGate.Reason, "its node node1 or", ""},
		{"pods forbidden", func(w *world) { w.inCluster(1); w.status[kubeSystem+"pods"] = forbidden(`list resource "pods"`) },
			"pods", Skipped, noPermission.Reason, `you cannot list resource "pods"`, ""},

		{"foreign caBundle", func(w *world) { w.spec("v1beta1")["caBundle"] = kubelettest.NewCA().PEM() },
			"certificate", Failed, caBundleForeign.Reason, "The caBundle of v1beta1.metrics.k8s.io", ""},
		{"no caBundle", func(w *world) { delete(w.spec("v1beta1"), "caBundle") }, "certificate", Skipped, noConnection.Reason,
			"There is no caBundle of v1beta1.metrics.k8s.io: the API server verifies it by its own roots", ""},
		{"no caBundle, certificate of another name", func(w *world) {
			delete(w.spec("v1beta1"), "caBundle")
			w.served = w.ca.Issue([]string{"other.svc"}, nil)
		}, "certificate", Failed, certificateName.Reason, "The API server does not verify it: x509: certificate", ""},
		{"certificate of another name", func(w *world) { w.served = w.ca.Issue([]string{"other.svc"}, nil) },
			"certificate", Failed, certificateName.Reason, "other.svc", ""},
		{"expired certificate", func(w *world) {
			w.served = w.ca.Issue([]string{"kube-vitals.kube-system.svc"}, nil, kubelettest.Expired)
		}, "certificate", Failed, certificateExpired.Reason, "expired", ""},
		{"no running container", func(w *world) { w.inCluster(1, serverPod(false, waiting("CrashLoopBackOff", ""))) },
			"certificate", Skipped, noConnection.Reason, "no running pod", ""},
		{"no port", func(w *world) {
			w.inCluster(1, serverPod(true, running()))
			w.service().Spec.Ports[0].TargetPort = intstr.FromString("metrics")
		}, "certificate", Skipped, noConnection.Reason, "no container of the pod has the port metrics of the Service", ""},
		{"no port-forward", func(w *world) { w.inCluster(1, serverPod(true, running())) },
			"certificate", Skipped, noConnection.Reason, "port-forward", ""},

		{"metrics API unavailable", func(w *world) {
			w.status[metricsV1b1+"nodes"] = metav1.Status{Code: http.StatusServiceUnavailable,
				Reason:  metav1.StatusReasonServiceUnavailable,
				Message: "error trying to reach service: x509: certificate signed by unknown authority"}
		}, "metrics-api", Failed, caBundleForeign.Reason, "GET nodes", ""},
		{"too many requests", func(w *world) { w.status[metricsV1b1+"pods"] = tooMany },
			"metrics-api", Warning, RequestFailed, "try again later", ""},
		{"too many requests of the API server", func(w *world) { w.status["/api"] = tooMany },
			"api-server", OK, "", "v1.36.3", ""},
		{"no metrics", func(w *world) { w.objects[metricsV1b1+"nodes"] = metricsList() }, "metrics-api", Failed,
			noMetrics.Reason, "no metrics of any node", ""},
		{"no metrics of pods", func(w *world) { w.objects[metricsV1b1+"pods"] = metricsList() }, "metrics-api", Warning,
			noMetrics.Reason, "2 nodes, but of no pod", ""},
		{"metrics forbidden", func(w *world) {
			w.status[metricsV1b1+"pods"] = forbidden(`list resource "pods" in API group "metrics.k8s.io"`)
		},
			"metrics-api", Skipped, noPermission.Reason, "metrics.k8s.io", ""},

		{"RBAC of kubelets", func(w *world) {
			w.denied = func(s authorizationv1.SubjectAccessReviewSpec) bool {
				return s.User == "system:serviceaccount:kube-system:kube-vitals-kubelet"
			}
		}, "permissions", Failed, permissionMissing.Reason, "kube-system/kube-vitals-kubelet cannot", "get nodes/metrics"},
		{"RBAC of stats", func(w *world) {
			w.denied = func(s authorizationv1.SubjectAccessReviewSpec) bool {
				return s.ResourceAttributes.Subresource == "stats"
			}
		}, "permissions", Warning, permissionMissing.Reason, "cannot", "get nodes/stats"},
		{"RBAC of events", func(w *world) {
			w.addArgs("--deployment=kube-vitals")
			w.denied = func(s authorizationv1.SubjectAccessReviewSpec) bool { return s.ResourceAttributes.Resource == "events" }
		}, "permissions", Warning, permissionMissing.Reason, "cannot", "create+patch events in default"},
		{"RBAC of pins", func(w *world) {
			w.addArgs("--kubelet-pins=keys")
			w.denied = func(s authorizationv1.SubjectAccessReviewSpec) bool { return s.ResourceAttributes.Name == "keys" }
		}, "permissions", Failed, permissionMissing.Reason, "cannot",
			"list+watch+update configmaps keys in kube-system"},
		{"RBAC of the CA", func(w *world) {
			w.addArgs("--tls-ca-configmap=ca")
			w.denied = func(s authorizationv1.SubjectAccessReviewSpec) bool { return s.ResourceAttributes.Name == "ca" }
		}, "permissions", Warning, permissionMissing.Reason, "cannot", "get+update configmaps ca in kube-system"},
		{"RBAC of APIServices without a managed certificate", func(w *world) {
			w.addArgs("--service=kube-vitals.kube-system.svc:443", "--tls-secret=")
			w.denied = func(s authorizationv1.SubjectAccessReviewSpec) bool {
				return s.ResourceAttributes.Resource == "apiservices"
			}
		}, "permissions", Warning, permissionMissing.Reason, "cannot",
			"get apiservices.apiregistration.k8s.io v1.metrics.k8s.io"},
		{"RBAC for kubelets without tokens", func(w *world) {
			w.addArgs("--deprecated-kubelet-completely-insecure")
			w.denied = func(s authorizationv1.SubjectAccessReviewSpec) bool {
				return s.ResourceAttributes.Resource == "nodes" &&
					s.ResourceAttributes.Subresource != ""
			}
		}, "permissions", OK, "", "have all", ""},
		{"no ServiceAccount", func(w *world) {
			delete(w.objects, accounts+"/kube-vitals")
			delete(w.objects, accounts+"/kube-vitals/token")
		}, "permissions", Failed, accountMissing.Reason, "kube-system/kube-vitals does not exist", ""},
		{"no ServiceAccount, page of nodes", func(w *world) { delete(w.objects, accounts+"/kube-vitals/token") },
			"nodez", Skipped, accountMissing.Reason, "kube-system/kube-vitals does not exist", ""},
		{"no ServiceAccount for kubelets", func(w *world) { delete(w.objects, accounts+"/kube-vitals-kubelet") },
			"permissions", Failed, accountMissing.Reason, "kube-system/kube-vitals-kubelet does not exist", ""},
		{"ServiceAccounts forbidden", func(w *world) {
			w.status[accounts] = forbidden(`list resource "serviceaccounts"`)
			delete(w.objects, accounts+"/kube-vitals")
		}, "permissions", OK, "", "have all", ""},
		{"reviews forbidden", func(w *world) {
			w.status["/apis/authorization.k8s.io/v1/subjectaccessreviews"] = forbidden(`create resource "subjectaccessreviews"`)
		}, "permissions", Skipped, noPermission.Reason, "subjectaccessreviews", ""},

		{"failing node", node2(func(n *nodez.Node) {
			n.State, n.Reason, n.Problem, n.Cure, n.URL = nodez.Failing, reason.TLSExpired, "expired",
				reason.TLSExpired.Describe().Cure, reason.TLSExpired.URL()
			n.Error = `x509: since 2020`
		}), "nodes", Failed, "tls-expired", "1 of 2 nodes: tls-expired: expired: x509: since 2020", "n2"},
		{"failing node with a cure of its own", node2(func(n *nodez.Node) {
			n.State, n.Reason, n.Problem, n.Cure = nodez.Failing, reason.BadEndpoint, "not allowed", "unset the flag"
			n.Error = "invalid port"
		}), "nodes", Failed, "bad-endpoint", "1 of 2 nodes: bad-endpoint: not allowed: invalid port (unset the flag)", "n2"},
		{"stale node", node2(func(n *nodez.Node) { n.State, n.Reason = nodez.Stale, reason.StaleSamples }),
			"nodes", Failed, "stale-samples", "stale-samples", "n2"},
		{"pods without metrics", func(w *world) {
			w.page.Totals.Pods, w.page.Nodes[1].RunningPods = 14, 11
		}, "nodes", Warning, noMetrics.Reason, "1 of 2 nodes scraped without an error, but", "n2"},
		{"pods of a starting node", node2(func(n *nodez.Node) { n.State, n.RunningPods = nodez.Starting, 11 }),
			"nodes", OK, "", "pods with metrics: 3 of 3", ""},
		{"slow node", node2(func(n *nodez.Node) { n.Reason, n.DurationSeconds = reason.Slow, 12.34 }), "slow", Warning,
			"slow", "kubelets of 1 node respond slowly, but the metrics are current", "n2 12s"},
		{"slow node, nodes", node2(func(n *nodez.Node) { n.Reason, n.DurationSeconds = reason.Slow, 12.34 }), "nodes", OK,
			"", "2 of 2 scraped without an error", ""},
		{"clock", node2(func(n *nodez.Node) { n.ClockSkewSeconds = new(-3600.0) }), "clocks", Warning, clockSkew.Reason,
			"1 node", "n2 -3600.0s"},
		{"unknown clocks", func(w *world) { noSamples(w.page) }, "clocks", Skipped, noServer.Reason, "no clock of", ""},
		{"one known clock", node2(func(n *nodez.Node) { n.ClockSkewSeconds = nil }), "clocks", OK, "", "of 1 node is", ""},
		{"capacity", node2(func(n *nodez.Node) { n.CapacityCores, n.UsedCores = 2, 6.125 }), "capacity", Warning,
			"above-capacity", "1 node used more cores than the capacity in the status", "n2 6.125 of 2"},
		{"memory limit", func(w *world) { w.page.Memory.LimitBytes = 64 << 20 }, "memory", Warning, memoryLimit.Reason,
			"limit of 64 MiB", ""},
		{"no nodes", func(w *world) { w.page.Totals.Nodes = 0 }, "nodes", Failed, noMetrics.Reason,
			"its --node-selector may match none, or it has read none yet", ""},
		{"page forbidden", func(w *world) { w.page = nil }, "nodez", Skipped, nodezUnavailable.Reason,
			"/nodez of kube-vitals cannot be read: forbidden: cannot get path", ""},
		{"engine", engine(nil), "engine", OK, "", "p:9090 was read in 0.2s: 14 series", ""},
		{"engine, nodes", engine(nil), "nodes", OK, "", "2 of 2 read from the engine; pods with metrics: 3 of 3", ""},
		{"engine, permissions", engine(nil), "permissions", OK, "", "have all", ""},
		{"engine, permissions of events", func(w *world) {
			engine(nil)(w)
			w.addArgs("--deployment=kube-vitals")
			w.denied = func(s authorizationv1.SubjectAccessReviewSpec) bool {
				return s.ResourceAttributes.Resource == "events" && s.ResourceAttributes.Namespace == "default"
			}
		}, "permissions", Warning, permissionMissing.Reason, "cannot", "create+patch events in default"},
		{"devices", exporter(nodez.DevicePod{Node: "n1", State: nodez.Ready, Devices: 8}), "devices", OK, "",
			"exporter dcgm: 1 of 1 pods can be read, with 8 devices", ""},
		{"many exporters", func(w *world) {
			exporter(nodez.DevicePod{Node: "n1", State: nodez.Ready, Devices: 8})(w)
			w.page.DeviceExporters[0].LeftOut, w.page.DeviceExporters[0].LeftOutPod = 3, "n1 e3"
		}, "devices", Warning, exporterManyPods.Reason, "3 other pods are not scraped, such as (node, pod) n1 e3", ""},
		{"no exporter", exporter(), "devices", Warning, exporterNoPods.Reason,
			`no running pod matches "app=x" in namespace "gpu"`, ""},
		{"failing exporter", exporter(nodez.DevicePod{Node: "n1", State: nodez.Ready}, nodez.DevicePod{
			Node: "n2", State: nodez.Failing, Diagnosis: nodez.Diagnosis{Reason: reason.Timeout, Error: "deadline exceeded",
				Cure: reason.Timeout.DescribeExporter().Cure, URL: reason.ExporterURL},
		}), "devices", Failed, "timeout", "1 of 2 pods of exporter dcgm cannot be read: timeout: deadline exceeded", "n2"},
		{"engine, memory", engine(nil), "memory", OK, "", "uses 60 MiB; its limit is 1024 MiB", ""},
		{"engine, clocks", engine(nil), "clocks", OK, "", "no sample of 2 nodes is from the future", ""},
		{"engine, intervals", engine(nil), "scrape-interval", OK, "", "2 nodes are at most 56s apart", ""},
		{"engine without samples, clocks", engine(noSamples), "clocks", Skipped, noServer.Reason, "no clock of", ""},
		{"engine without samples, intervals", engine(noSamples), "scrape-interval", Skipped, noServer.Reason,
			"no node has two samples", ""},
		{"engine, page forbidden", func(w *world) { engine(nil)(w); w.page = nil }, "nodes", OK, "",
			"2 of 2 have metrics", ""},
		{"failing engine", engine(func(r *nodez.Report) {
			d := reason.ConnectRefused.DescribeEngine()
			r.Engine.State, r.Engine.Reason, r.Engine.Problem, r.Engine.Cure = nodez.Failing, reason.ConnectRefused, d.Problem,
				d.Cure
			r.Engine.URL, r.Engine.Error = reason.EngineFailing.URL(), "query nodeCPU at p:9090: connection refused"
			r.Engine.LastSuccess = new(r.Time.Add(-90 * time.Second))
		}), "engine", Failed, "connect-refused",
			"connect-refused: the engine's port refuses connections: query nodeCPU at p:9090: connection refused; " +
				"it was last read 1m30s ago", ""},
		{"engine without a tenant", engine(func(r *nodez.Report) {
			r.Engine.State, r.Engine.Reason, r.Engine.URL = nodez.Failing, reason.NoSamples, reason.EngineFailing.URL()
			r.Engine.Cure = reason.NoSamples.DescribeEngine().Cure
		}), "engine", Failed, "no-samples", "no-samples", ""},
		{"engine not read yet", engine(func(r *nodez.Report) { r.Engine.State = nodez.Starting }), "engine", Warning,
			engineStarting.Reason, "has not read p:9090 yet", ""},
		{"partial engine", engine(func(r *nodez.Report) { r.Engine.Partial, r.Engine.Warning = true, "store 3 is down" }),
			"engine", Warning, enginePartial.Reason, "incomplete: store 3 is down", ""},
		{"engine with an invalid file", engine(func(r *nodez.Report) { r.Engine.FileRejected = true }), "engine", Warning,
			engineFile.Reason, "cannot be used", ""},
		{"engine without series of nodes", engine(func(r *nodez.Report) { r.Engine.Series["nodeCPU"] = 0 }), "engine",
			Warning, engineSeries.Reason, "no series of nodeCPU", ""},
		{"engine of several clusters", engine(func(r *nodez.Report) { r.Engine.UnknownSeries = 100 }), "engine", Warning,
			engineOtherNodes.Reason, "100 series are of nodes", ""},
		{"engine with rare samples", engine(func(r *nodez.Report) { r.Nodes[1].SampleIntervalSeconds = new(60.0) }),
			"scrape-interval", Warning, scrapeInterval.Reason, "1 node", "n2 60s"},
		{"engine with samples from the future", engine(func(r *nodez.Report) { r.Nodes[1].SampleAgeSeconds = new(-7.0) }),
			"clocks", Warning, clockSkew.Reason, "1 node", "n2 +7.0s"},
		{"engine without a node", engine(func(r *nodez.Report) {
			n, d := &r.Nodes[1], reason.NotInEngine.Describe()
			n.State, n.Reason, n.Problem, n.Cure, n.URL = nodez.Failing, reason.NotInEngine, d.Problem, d.Cure,
				reason.NotInEngine.URL()
		}), "nodes", Failed, "not-in-engine", "1 of 2 nodes: not-in-engine", "n2"},
		{"page forbidden, node without metrics", func(w *world) {
			w.page = nil
			w.objects[metricsV1b1+"nodes"] = metricsList("/n1")
			w.status[metricsV1b1+"nodes/n2"] = metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
				Message: "node n2 has no metrics: expired",
				Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "tls-expired"}}}}
		}, "nodes", Failed, "tls-expired", "of the first one: node n2 has no metrics: expired", "n2"},
		{"page forbidden, node not ready", func(w *world) {
			w.page = nil
			w.objects["/api/v1/nodes"] = &corev1.NodeList{Items: []corev1.Node{node("n1", true), node("n3", false)}}
		}, "nodes", Failed, noMetrics.Reason, "1 of 2 have no metrics", "n3"},

		{"no requests", hpa("failed to get cpu utilization: missing request for cpu in container app of Pod web-1"),
			"autoscalers", Failed, hpaNoRequest.Reason, "container app", "default/web"},
		{"no API", hpa("unable to fetch metrics from resource metrics API: the server could not find the requested resource"),
			"autoscalers", Failed, hpaNoAPI.Reason, "could not find", "default/web"},
		{"no pods of the target", hpa("no metrics returned from resource metrics API"),
			"autoscalers", Failed, hpaNoMetrics.Reason, "no metrics returned", "default/web"},
		{"all metrics of an autoscaler", scaled(corev1.ConditionTrue, "ValidMetricFound", ofCPU, ofMemory),
			"autoscalers", OK, "", "1 HorizontalPodAutoscaler without an error of CPU or memory metrics", ""},
		{"no CPU beside another metric", scaled(corev1.ConditionTrue, "ValidMetricFound", failed, ofMemory),
			"autoscalers", Failed, hpaOther.Reason, "no current value of cpu", "default/web"},
		{"no memory behind the error of a custom metric", scaled(corev1.ConditionFalse, "FailedGetExternalMetric", ofCPU),
			"autoscalers", Failed, hpaOther.Reason, "no current value of memory of container app", "default/web"},
		{"error of a custom metric only", scaled(corev1.ConditionFalse, "FailedGetExternalMetric", ofCPU, ofMemory),
			"autoscalers", OK, "", "without an error of CPU or memory metrics", ""},
		{"autoscaler that was not read", func(w *world) {
			scaled(corev1.ConditionFalse, "ScalingDisabled")(w)
			h := &w.objects[hpas].(*autoscalingv2.HorizontalPodAutoscalerList).Items[0]
			h.Status.Conditions = nil
		}, "autoscalers", OK, "", "the controller has not read the metrics of 1", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.prepare(w)
			report, text := w.examine(t)
			c := find(report, tt.id)
			if c.Status != tt.status || c.Reason != tt.reason || !strings.Contains(c.Seen, tt.seen) {
				t.Errorf("got %+v\nin\n%s", c, text)
			}
			if strings.Contains(c.Cure, "--namespace NAMESPACE") {
				t.Errorf("the cure does not name the pod: %s", c.Cure)
			}
			if tt.object != "" && !slices.Contains(c.Objects, tt.object) {
				t.Errorf("got objects %q, want %q", c.Objects, tt.object)
			}
			if (c.Status == Failed || c.Status == Warning) && (c.Cure == "" || c.URL == "") && tt.name != "stale node" {
				t.Errorf("a check without a cure or URL: %+v", c)
			}
		})
	}
}

// terminating deletes the Service and marks its namespace as being deleted.
func terminating(w *world) {
	delete(w.objects, kubeSystem+"services/kube-vitals")
	w.objects["/api/v1/namespaces/kube-system"] = &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: ns, DeletionTimestamp: &metav1.Time{Time: time.Now()}}}
}

func (w *world) service() *corev1.Service {
	return w.objects[kubeSystem+"services/kube-vitals"].(*corev1.Service)
}

func autoscaler(message string) *autoscalingv2.HorizontalPodAutoscalerList {
	h := autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}
	h.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "web"}
	h.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{
		Type: autoscalingv2.ScalingActive, Status: corev1.ConditionFalse, Reason: "FailedGetResourceMetric", Message: message,
	}}
	return &autoscalingv2.HorizontalPodAutoscalerList{Items: []autoscalingv2.HorizontalPodAutoscaler{h}}
}

// TestMetricsServer checks a cluster with metrics-server instead of kube-vitals.
func TestMetricsServer(t *testing.T) {
	w := newWorld(t)
	w.objects[services] = &corev1.ServiceList{}
	delete(w.objects, apiservices+"v1.metrics.k8s.io")
	w.objects[apiservices+"v1beta1.metrics.k8s.io"] = w.apiService("metrics-server")
	pod := serverPod(true, running())
	pod.Spec.Containers[0].Name, pod.Spec.Containers[0].Image = "metrics-server",
		"registry.k8s.io/metrics-server/metrics-server:v0.8.0"
	w.objects[deployments].(*appsv1.DeploymentList).Items[0].Spec.Template.Spec = pod.Spec
	w.inCluster(1, pod)
	w.objects[kubeSystem+"services/metrics-server"] = w.service()
	w.service().Labels = nil
	w.objects[metricsV1b1+"nodes"] = metricsList("/n1")
	report, _ := w.examine(t)
	if report.Server.Kind != MetricsServer {
		t.Errorf("got %+v", report.Server)
	}
	if c := find(report, "nodes"); c.Status != Failed || !slices.Equal(c.Objects, []string{"n2"}) {
		t.Errorf("got %+v", c)
	}
	for _, c := range report.Checks {
		if c.ID == "nodez" || c.ID == "clocks" {
			t.Errorf("a check of kube-vitals: %+v", c)
		}
	}
}

func TestNotInstalled(t *testing.T) {
	w := newWorld(t)
	w.objects[services] = &corev1.ServiceList{}
	for _, version := range versions() {
		delete(w.objects, apiservices+version+".metrics.k8s.io")
	}
	report, text := w.examine(t)
	last := report.Checks[len(report.Checks)-1]
	if last.ID != "installation" || last.Status != Failed || !strings.Contains(text, "kubectl vitals preflight") {
		t.Errorf("got\n%s", text)
	}
}

// TestUnreachable checks that a failure of the API server or of the credentials ends the examination.
func TestUnreachable(t *testing.T) {
	rancher := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		http.Error(out, `{"type":"error","status":"401","message":"must authenticate"}`, http.StatusUnauthorized)
	}))
	t.Cleanup(rancher.Close)
	for name, tt := range map[string]struct {
		prepare func(*world)
		reason  string
	}{
		"unreachable": {func(w *world) { w.client.Host = "https://127.0.0.1:1" }, apiServerUnreachable.Reason},
		"invalid credentials": {func(w *world) {
			w.status["/version"] = metav1.Status{Code: http.StatusUnauthorized, Reason: metav1.StatusReasonUnauthorized}
		}, unauthorizedUser.Reason},
		"401 that is no Status": {func(w *world) { w.client.Host = rancher.URL }, unauthorizedUser.Reason},
		"no credentials": {func(w *world) { // /version is public
			w.status["/api"] = metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
				Message: `forbidden: User "system:anonymous" cannot get path "/api"`}
		}, unauthorizedUser.Reason},
	} {
		w := newWorld(t)
		tt.prepare(w)
		report, err := Examine(t.Context(), Config{Client: &w.client})
		if !errors.Is(err, ErrUnreachable) || len(report.Checks) != 1 || report.Checks[0].Reason != tt.reason ||
			report.Checks[0].Status != Failed {
			t.Errorf("%s: got %+v, %v", name, report, err)
		}
	}
}

// roundTripper is a transport.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestSlowLogin checks that a credential plugin may take longer than a request: it runs within the first one, which
// then fails, and the next ones have its credentials.
func TestSlowLogin(t *testing.T) {
	w := newWorld(t)
	requests := 0
	w.client.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if requests++; requests == 1 {
				return nil, context.DeadlineExceeded
			}
			return next.RoundTrip(r)
		})
	})
	kube, err := kubernetes.NewForConfig(&w.client)
	if err != nil {
		t.Fatal(err)
	}
	d := &doctor{Config: Config{Client: &rest.Config{ExecProvider: &clientcmdapi.ExecConfig{}}}, kube: kube}
	if c := d.checkAPIServer(t.Context(), Check{})[0]; c.Status != OK {
		t.Errorf("got %+v", c)
	}
	requests = 0
	d.Client = &w.client
	if c := d.checkAPIServer(t.Context(), Check{})[0]; c.Reason != apiServerUnreachable.Reason {
		t.Errorf("without a plugin: got %+v", c)
	}
}

// TestForbidden checks that a user without any permission gets a report without failures.
func TestForbidden(t *testing.T) {
	w := newWorld(t)
	for path := range w.objects {
		if path, _, _ := strings.Cut(path, "?"); path != "/version" {
			w.status[path] = forbidden("do anything")
		}
	}
	report, text := w.examine(t)
	if report.Summary[Failed] > 0 || report.Summary[Warning] > 0 || report.Summary[Skipped] < 5 {
		t.Errorf("got\n%s", text)
	}
	for _, c := range report.Checks[1:] { // nothing is known of what was not read
		if c.Reason != noPermission.Reason || !strings.Contains(c.Seen, "you cannot do anything") {
			t.Errorf("got %+v", c)
		}
	}
}

// TestDenied checks what is seen of an error of the API server.
func TestDenied(t *testing.T) {
	denied := &apierrors.StatusError{ErrStatus: forbidden("list nodes")}
	for _, tt := range []struct {
		err    error
		status Status
		p      Problem
		seen   string
	}{
		{fmt.Errorf("page 2: %w", denied), Skipped, noPermission, "you cannot list nodes"},
		{&url.Error{Op: "Get", Err: context.DeadlineExceeded}, Warning, requestFailed,
			"there was no response in time"},
		{apierrors.NewGenericServerResponse(http.StatusForbidden, "GET", schema.GroupResource{}, "", "<html>", 0, true),
			Skipped, noPermission, "<html>"},
		{io.ErrUnexpectedEOF, Warning, requestFailed, "unexpected EOF"},
	} {
		c := Check{ID: "nodes", Objects: []string{"of page 1"}}.Denied(tt.err)[0]
		if c.Status != tt.status || c.Reason != tt.p.Reason || c.Seen != tt.seen || c.Objects != nil {
			t.Errorf("%v: got %+v", tt.err, c)
		}
	}
}

// TestSlowMetricsAPI checks that a response that takes longer than --timeout, or its body, does not look as
// if the API server could not connect to the server.
func TestSlowMetricsAPI(t *testing.T) {
	for _, body := range []string{"", `{"items":[`} {
		api := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			fmt.Fprint(out, body)
			if body != "" {
				out.(http.Flusher).Flush()
			}
			<-r.Context().Done()
		}))
		t.Cleanup(api.Close)
		kube, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, Timeout: 50 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		d := &doctor{kube: kube}
		c := d.checkMetricsAPI(t.Context(), Check{ID: "metrics-api"})[0]
		if c.Status != Warning || c.Reason != requestFailed.Reason || !strings.Contains(c.Seen, "no response in time") ||
			!strings.Contains(c.Cure, "--timeout") {
			t.Errorf("%q: got %+v", body, c)
		}
	}
}

// TestPrinter checks the output on a terminal, and that text of the cluster cannot control it.
func TestPrinter(t *testing.T) {
	var out bytes.Buffer
	p := &Printer{Out: &out, Terminal: true, Color: true}
	p.Start("pods")
	objects := make([]string, 12)
	for i := range objects {
		objects[i] = fmt.Sprintf("n%d", i)
	}
	p.Done(Check{Title: "pods", Status: Failed, Seen: "a\x1b[2Jb", Objects: objects})
	want := "… pods\r\x1b[K\x1b[31m✗\x1b[0m pods               a [2Jb\n" +
		"                         n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, and 2 more (-v shows all)\n"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
	out.Reset()
	p = &Printer{Out: &out, All: true}
	p.Start("pods")
	p.Done(Check{Title: "pods", Status: Failed, Seen: "a", Objects: objects})
	if got := out.String(); strings.ContainsAny(got, "\x1b\r…") || !strings.Contains(got, "n11") {
		t.Errorf("got %q", got)
	}
}

// TestDocumented checks that docs/why-no-metrics.md has a section for each check and the name of each
// reason, and that each reason has a cure unless there is nothing to do.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/why-no-metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("problems.go")
	if err != nil {
		t.Fatal(err)
	}
	problems := regexp.MustCompile(`(?m)^\t\w+ += Problem\{"([a-z-]+)",(?: "")?`).FindAllStringSubmatch(string(source), -1)
	if len(problems) < 50 {
		t.Fatalf("got %d problems", len(problems))
	}
	for _, m := range problems {
		if !strings.Contains(string(text), "`"+m[1]+"`") {
			t.Errorf("docs/why-no-metrics.md does not have %s", m[1])
		}
		if strings.HasSuffix(m[0], `""`) && m[1] != noServer.Reason && m[1] != noConnection.Reason {
			t.Errorf("%s has no cure", m[1])
		}
	}
	for _, id := range []string{"installation", "api-server", "aggregation", "apiservice", "service", "endpoints",
		"deployment", "pods",
		"certificate", "metrics-api", "permissions", "nodez", "nodes", "devices", "clocks", "capacity", "memory",
		"autoscalers"} {
		if !strings.Contains(string(text), "\n### "+id+"\n") {
			t.Errorf("docs/why-no-metrics.md has no section %s", id)
		}
	}
}

// TestCommands checks that commands can be pasted, and that those of a pod fit its state.
func TestCommands(t *testing.T) {
	const accept = "kubectl -n kube-system patch configmap kube-vitals-kubelet-pins --type=merge -p " +
		"'data: {!!str 010: sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef 93d81b5e-0000}'"
	changedKey := func(command string) func(*world) {
		return func(w *world) {
			n := &w.page.Nodes[1]
			n.State, n.Reason, n.Problem = nodez.Failing, reason.TLSKeyChanged, "the kubelet does not have the pinned key"
			n.Cure, n.Error, n.Command = reason.TLSKeyChanged.Describe().Cure, "it has the key sha256:1", command
		}
	}
	notReady := func(condition corev1.PodConditionType) func(*world) {
		return func(w *world) {
			pod := serverPod(false, corev1.ContainerStatus{})
			pod.Spec.NodeName = "node1"
			pod.Status.Conditions = append(pod.Status.Conditions,
				corev1.PodCondition{Type: condition, Status: corev1.ConditionTrue})
			w.inCluster(1, pod)
		}
	}
	crash := serverPod(false, corev1.ContainerStatus{State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}})
	crash.Status.ContainerStatuses[0].Name = "proxy" // not the first container
	for name, tt := range map[string]struct {
		prepare  func(*world)
		id       string
		commands []string
	}{
		"crash of a container": {func(w *world) { w.inCluster(1, crash) }, "pods", []string{
			"kubectl --namespace kube-system describe pod kube-vitals-x",
			"kubectl --namespace kube-system logs kube-vitals-x --tail=20 --previous --container=proxy"}},
		"terminating namespace": {terminating, "service", []string{
			"kubectl delete apiservice v1beta1.metrics.k8s.io v1.metrics.k8s.io",
			"kubectl wait --for=delete namespace/kube-system"}},
		"foreign caBundle of v1": {func(w *world) { w.spec("v1")["caBundle"] = kubelettest.NewCA().PEM() }, "certificate",
			[]string{"kubectl get apiservice v1beta1.metrics.k8s.io v1.metrics.k8s.io --output=yaml --show-managed-fields"}},
		"changed key":                  {changedKey(accept), "nodes", []string{accept}},
		"changed key, not our command": {changedKey(accept + ";id"), "nodes", nil},
		"containers not ready": {notReady(corev1.PodInitialized), "pods", []string{
			"kubectl --namespace kube-system describe pod kube-vitals-x",
			"kubectl --namespace kube-system logs kube-vitals-x --tail=20"}},
		"node not ready": {notReady(corev1.ContainersReady), "pods", []string{ // it returns no logs
			"kubectl describe node node1", "kubectl --namespace kube-system describe pod kube-vitals-x"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.prepare(w)
			report, text := w.examine(t)
			var got []string
			for line := range strings.Lines(find(report, tt.id).Cure) {
				if line = strings.TrimSuffix(line, "\n"); !strings.HasPrefix(line, "kubectl ") {
					continue
				}
				if got = append(got, line); !strings.Contains(text, " "+line+"\n") {
					t.Errorf("%s is not on one line of\n%s", line, text)
				}
			}
			if !slices.Equal(got, tt.commands) {
				t.Errorf("got commands %q, want %q", got, tt.commands)
			}
		})
	}
}
