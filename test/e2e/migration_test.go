package e2e

import (
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// otherServer is a metrics server that kube-vitals replaces.
type otherServer struct{ name, namespace, port, labels, annotations string }

func (s otherServer) fill(manifest string) string {
	return strings.NewReplacer("NAMESPACE", s.namespace, "NAME", s.name, "PORT", s.port,
		"LABELS", s.labels, "ANNOTATIONS", s.annotations).Replace(manifest)
}

// access returns the ServiceAccount, the roles and the Service of the server.
func (s otherServer) access() string {
	return s.fill(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: NAME, namespace: NAMESPACE, labels: {LABELS}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:NAME", labels: {LABELS}}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {apiGroups: [""], resources: [nodes, namespaces, pods, services], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: "system:aggregated-metrics-reader"
  labels: {LABELS, rbac.authorization.k8s.io/aggregate-to-view: "true"}
rules:
- {apiGroups: [metrics.k8s.io], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:NAME", labels: {LABELS}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:NAME"}
subjects: [{kind: ServiceAccount, name: NAME, namespace: NAMESPACE}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "NAME:system:auth-delegator", labels: {LABELS}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{kind: ServiceAccount, name: NAME, namespace: NAMESPACE}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: NAME-auth-reader, namespace: kube-system, labels: {LABELS}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: NAME, namespace: NAMESPACE}]
---
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: NAMESPACE, labels: {LABELS}}
spec: {type: ExternalName, externalName: localhost}
`)
}

func (s otherServer) apiService() string {
	return s.fill(`
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io, labels: {LABELS}, annotations: {ANNOTATIONS}}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: NAME, namespace: NAMESPACE, port: PORT}
`)
}

// patch returns a merge patch that makes an APIService refer to the server.
func (s otherServer) patch() string {
	return s.fill(`{"spec": {"insecureSkipTLSVerify": true, "caBundle": null,
		"service": {"name": "NAME", "namespace": "NAMESPACE", "port": PORT}}}`)
}

// metricsServer returns a metrics-server that listens on a port.
func metricsServer(port string) otherServer {
	return otherServer{"metrics-server", cluster.Namespace, port, "k8s-app: metrics-server", ""}
}

// patchToKubeVitals makes v1beta1 refer to kube-vitals, as documents describe it.
func (c *testCluster) patchToKubeVitals(t *testing.T, namespace, port string) {
	t.Helper()
	ca := c.kubectl(t, "get", "secret", servingSecret, "--namespace="+namespace, "--output", `jsonpath={.data.ca\.crt}`)
	c.patchAPIService(t, "v1beta1", `{"spec": {"insecureSkipTLSVerify": null, "caBundle": "`+ca+`",
		"service": {"name": "kube-vitals", "namespace": "`+namespace+`", "port": `+port+`}}}`)
}

// TestMoveFromMetricsServer follows the way back in docs/moving-from-metrics-server.md, and then the
// move in the chart's README, while clients send requests. A kube-vitals runs in the place of
// metrics-server, with the objects of its manifest and a certificate that cannot be verified. Last, it
// changes the chart of a release.
func TestMoveFromMetricsServer(t *testing.T) {
	t.Parallel()
	c := startServing(t, loopbackServices)
	must(t, c.Apply(t.Context(), metricsServer("").access()))
	s := c.startMetricsServer(t)
	t.Run("back", func(t *testing.T) { c.testMoveBack(t, metricsServer(s.Port())) })
	// The move needs what the way back leaves: no release, and the v1beta1 of metrics-server.
	t.Run("move", func(t *testing.T) { c.testMove(t, metricsServer(s.Port())) })
	t.Run("release", c.testMoveInRelease)
}

// startMetricsServer starts a kube-vitals in the place of metrics-server, with its ServiceAccount.
func (c *servingCluster) startMetricsServer(t *testing.T) *cluster.Server {
	t.Helper()
	kubeconfig := c.accountKubeconfig(t, cluster.Namespace, "metrics-server")
	return c.replica(t, c.server, "--tls-secret=", "--kubelet-service-account=", "--kubeconfig="+kubeconfig,
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
}

// testMove moves v1beta1, which belongs to another release, from the Service of metrics-server.
func (c *servingCluster) testMove(t *testing.T, other otherServer) {
	c.kubectl(t, "delete", "apiservice", "v1beta1.metrics.k8s.io")
	c.start(t)
	must(t, c.Helm(t.Context(), "upgrade", "apiService.create=false"))
	other.labels = "app.kubernetes.io/managed-by: Helm, k8s-app: metrics-server"
	other.annotations = "meta.helm.sh/release-name: metrics-server, meta.helm.sh/release-namespace: kube-system, " +
		"helm.sh/resource-policy: keep"
	must(t, c.Apply(t.Context(), other.apiService()))
	c.awaitTop(t)

	port := c.kubectl(t, "get", "service", cluster.Release, inNamespace, "--output=jsonpath={.spec.ports[0].port}")
	requests := startLoad(t, c.requests("v1beta1"))
	c.patchToKubeVitals(t, cluster.Namespace, port)
	c.awaitCertificate(t, c.awaitCertificate(t, nil)) // until a renewal
	requests.stop()

	load := c.startLoad(t, "v1beta1")
	_, err := c.Run(t.Context(), binaries.Helm, append([]string{"upgrade", cluster.Release, c.Chart, inNamespace,
		"--reuse-values", "--set", "apiService.create=true", "--take-ownership"}, cluster.Routed()...)...)
	must(t, err)
	load.stop()
	c.awaitTop(t)

	// Without this, v1beta1 would remain when the release is uninstalled, and refer to a Service
	// that does not exist.
	c.kubectl(t, "annotate", "apiservice", "v1beta1.metrics.k8s.io", "helm.sh/resource-policy-")
	c.kubectl(t, "label", "apiservice", "v1beta1.metrics.k8s.io", "--overwrite", "k8s-app-",
		"app.kubernetes.io/name=kube-vitals", "app.kubernetes.io/instance=kube-vitals",
		"app.kubernetes.io/managed-by=Helm")
	c.kubectl(t, "annotate", "apiservice", "v1beta1.metrics.k8s.io", "--overwrite",
		"meta.helm.sh/release-name=kube-vitals", "meta.helm.sh/release-namespace=kube-system",
		"kubectl.kubernetes.io/last-applied-configuration-")
	if err := c.Helm(t.Context(), "upgrade"); err != nil {
		t.Errorf("the release cannot be upgraded after the move: %v", err)
	}
	c.uninstall(t)
	if left := c.metricsAPIServices(t); left != "" {
		t.Errorf("after uninstalling: got APIServices %s, want none", left)
	}
}

// testMoveBack moves v1beta1 to metrics-server, and uninstalls the release.
func (c *servingCluster) testMoveBack(t *testing.T, other otherServer) {
	// The release no longer owns the APIServices.
	load := c.startLoad(t, "v1", "v1beta1")
	c.kubectl(t, "annotate", "apiservice", "v1.metrics.k8s.io", "v1beta1.metrics.k8s.io", "helm.sh/resource-policy=keep")
	must(t, c.Helm(t.Context(), "upgrade", "apiService.create=false"))
	load.stop()
	c.awaitTop(t)

	// v1beta1 refers to metrics-server, which does not serve v1.
	requests := startLoad(t, c.requests("v1beta1"))
	c.patchAPIService(t, "v1beta1", other.patch())
	c.kubectl(t, "delete", "apiservice", "v1.metrics.k8s.io")
	c.kubectl(t, "annotate", "apiservice", "v1beta1.metrics.k8s.io", "helm.sh/resource-policy-")
	must(t, c.Apply(t.Context(), other.apiService()))
	c.awaitTop(t)
	c.uninstall(t)
	for _, s := range c.servers {
		s.Kill()
	}
	c.awaitTop(t)
	requests.stop()

	if left := c.metricsAPIServices(t); left != "v1beta1.metrics.k8s.io metrics-server true ;" {
		t.Errorf("got APIServices %q, want that of metrics-server", left)
	}
	c.awaitOutput(t, func(versions string) bool {
		return !strings.Contains(versions, "metrics.k8s.io/v1\n") && strings.Contains(versions, "metrics.k8s.io/v1beta1\n")
	}, "api-versions")
}

// metricsAPIServices returns the APIServices of metrics.k8s.io, their Services and how these are verified.
func (c *servingCluster) metricsAPIServices(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "apiservices", "--output", `jsonpath={range .items[?(@.spec.group=="metrics.k8s.io")]}`+
		`{.metadata.name} {.spec.service.name} {.spec.insecureSkipTLSVerify} {.spec.caBundle};{end}`)
}
