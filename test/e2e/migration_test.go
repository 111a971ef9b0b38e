package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// metricsServerAccess has the ServiceAccount, the roles and the Service of metrics-server's
// manifest. It has no Secret with a serving certificate.
const metricsServerAccess = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics-server, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:metrics-server"}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:metrics-server"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:metrics-server"}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "metrics-server:system:auth-delegator"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: metrics-server-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {type: ExternalName, externalName: localhost}
`

// metricsServerAPIService is the APIService of metrics-server's manifest. PORT and METADATA are
// replaced.
const metricsServerAPIService = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io, METADATA}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics-server, namespace: kube-system, port: PORT}
`

// startMetricsServer starts a kube-vitals in the place of metrics-server, with the objects of
// metrics-server's manifest and a certificate that cannot be verified. It returns its APIService.
func (c *servingCluster) startMetricsServer(t *testing.T, metadata string) (port, apiService string) {
	t.Helper()
	if err := c.Apply(t.Context(), metricsServerAccess); err != nil {
		t.Fatal(err)
	}
	kubeconfig := c.accountKubeconfig(t, cluster.Namespace, "metrics-server")
	s := c.replica(t, c.server, "--tls-secret=", "--kubelet-service-account=", "--kubeconfig="+kubeconfig,
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	return s.Port(), strings.NewReplacer("PORT", s.Port(), "METADATA", metadata).Replace(metricsServerAPIService)
}

// TestMoveFromMetricsServer follows the chart's README while clients send requests: v1beta1 refers
// to another Service, and belongs to another release.
func TestMoveFromMetricsServer(t *testing.T) {
	t.Parallel()
	c := startServing(t)
	if err := c.Helm(t.Context(), "upgrade", "apiService.create=false"); err != nil {
		t.Fatal(err)
	}
	_, apiService := c.startMetricsServer(t, `
  labels: {app.kubernetes.io/managed-by: Helm, k8s-app: metrics-server},
  annotations: {
    meta.helm.sh/release-name: metrics-server,
    meta.helm.sh/release-namespace: kube-system,
    helm.sh/resource-policy: keep}`)
	if err := c.Apply(t.Context(), apiService); err != nil {
		t.Fatal(err)
	}
	c.awaitTop(t)

	port := c.kubectl(t, "get", "service", cluster.Release, inNamespace, "--output=jsonpath={.spec.ports[0].port}")
	c.routeService(t)
	requests := startLoad(t, c.requests("v1beta1"))
	ca := c.kubectl(t, "get", "secret", servingSecret, inNamespace, "--output", `jsonpath={.data.ca\.crt}`)
	c.kubectl(t, "patch", "apiservice", "v1beta1.metrics.k8s.io", "--type=merge", "--patch",
		`{"spec":{"insecureSkipTLSVerify":null,"caBundle":"`+ca+`",
		"service":{"name":"kube-vitals","namespace":"kube-system","port":`+port+`}}}`)
	c.awaitCertificate(t, c.awaitCertificate(t, nil)) // until a renewal
	requests.stop()

	connections := startLoad(t, c.connections("v1beta1")) // helm undoes the route of the Service
	if _, err := c.Run(t.Context(), binaries.Helm, "upgrade", cluster.Release, c.Chart, inNamespace,
		"--reuse-values", "--set", "apiService.create=true", "--take-ownership"); err != nil {
		t.Fatal(err)
	}
	connections.stop()
	c.routeService(t)
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
	left := c.kubectl(t, "get", "apiservices", "--output",
		`jsonpath={.items[?(@.spec.group=="metrics.k8s.io")].metadata.name}`)
	if left != "" {
		t.Errorf("after uninstalling: got APIServices %s, want none", left)
	}
}

// TestMoveBackToMetricsServer follows the way back in docs/moving-from-metrics-server.md while
// clients send requests.
func TestMoveBackToMetricsServer(t *testing.T) {
	t.Parallel()
	c := startServing(t)
	port, apiService := c.startMetricsServer(t, "labels: {k8s-app: metrics-server}")

	// The release no longer owns the APIServices.
	connections := startLoad(t, c.connections("v1", "v1beta1")) // helm undoes the route of the Service
	c.kubectl(t, "annotate", "apiservice", "v1.metrics.k8s.io", "v1beta1.metrics.k8s.io", "helm.sh/resource-policy=keep")
	if err := c.Helm(t.Context(), "upgrade", "apiService.create=false"); err != nil {
		t.Fatal(err)
	}
	connections.stop()
	c.routeService(t)
	c.awaitTop(t)

	// v1beta1 refers to metrics-server, which does not serve v1.
	requests := startLoad(t, c.requests("v1beta1"))
	c.kubectl(t, "patch", "apiservice", "v1beta1.metrics.k8s.io", "--type=merge", "--patch",
		`{"spec":{"insecureSkipTLSVerify":true,"caBundle":null,
		"service":{"name":"metrics-server","namespace":"kube-system","port":`+port+`}}}`)
	c.kubectl(t, "delete", "apiservice", "v1.metrics.k8s.io")
	c.kubectl(t, "annotate", "apiservice", "v1beta1.metrics.k8s.io", "helm.sh/resource-policy-")
	if err := c.Apply(t.Context(), apiService); err != nil {
		t.Fatal(err)
	}
	c.awaitTop(t)
	c.uninstall(t)
	for _, s := range c.servers {
		s.Kill()
	}
	c.awaitTop(t)
	requests.stop()

	if left := c.kubectl(t, "get", "apiservices", "--output", `jsonpath={range .items[?(@.spec.group=="metrics.k8s.io")]}`+
		`{.metadata.name} {.spec.service.name} {.spec.insecureSkipTLSVerify} {.spec.caBundle};{end}`); left !=
		"v1beta1.metrics.k8s.io metrics-server true ;" {
		t.Errorf("got APIServices %q, want that of metrics-server", left)
	}
	eventually(t, "discovery to have v1beta1 only", func(ctx context.Context) error {
		versions, err := c.Kubectl(ctx, "api-versions")
		if err != nil {
			return err
		}
		if strings.Contains(versions, "metrics.k8s.io/v1\n") || !strings.Contains(versions, "metrics.k8s.io/v1beta1\n") {
			return errors.New(versions)
		}
		return nil
	})
}
