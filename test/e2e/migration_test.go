package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// metricsServerAccess are the ServiceAccount, the roles and the Service of metrics-server's
// manifest. It has no Secret for its serving certificate.
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

// metricsServerAPIService is the APIService of metrics-server's manifest, for a port.
const metricsServerAPIService = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1beta1.metrics.k8s.io
  labels: {k8s-app: metrics-server}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics-server, namespace: kube-system, port: %s}
`

// TestMoveBackToMetricsServer takes the way back in docs/moving-from-metrics-server.md under
// requests, none of which may fail. A kube-vitals stands in for metrics-server, with the objects of
// metrics-server's manifest and a certificate that cannot be verified.
func TestMoveBackToMetricsServer(t *testing.T) {
	t.Parallel()
	i := startIdentity(t)
	port := i.startMetricsServer(t)

	// The release no longer owns the APIServices.
	stop := i.repeat(t, i.connections("v1", "v1beta1")) // around the Service, which helm leads away from this machine
	i.kubectl(t, "annotate", "apiservice", "v1.metrics.k8s.io", "v1beta1.metrics.k8s.io", "helm.sh/resource-policy=keep")
	if err := i.Helm(t.Context(), "upgrade", "apiService.create=false"); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := i.RouteService(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitTop(t, i.Cluster)

	// v1beta1 leads to metrics-server, which does not serve v1.
	stop = i.repeat(t, i.requests(t, "v1beta1"))
	i.kubectl(t, "patch", "apiservice", "v1beta1.metrics.k8s.io", "--type=merge", "--patch", `{"spec":{"insecureSkipTLSVerify":true,
		"caBundle":null,"service":{"name":"metrics-server","namespace":"kube-system","port":`+port+`}}}`)
	i.kubectl(t, "delete", "apiservice", "v1.metrics.k8s.io")
	i.kubectl(t, "annotate", "apiservice", "v1beta1.metrics.k8s.io", "helm.sh/resource-policy-")
	if err := i.Apply(t.Context(), fmt.Sprintf(metricsServerAPIService, port)); err != nil {
		t.Fatal(err)
	}
	awaitTop(t, i.Cluster)
	if _, err := i.Run(t.Context(), binaries.Helm, "uninstall", cluster.Release, "--namespace", cluster.Namespace, "--wait"); err != nil {
		t.Fatal(err)
	}
	for _, s := range i.servers {
		s.Kill()
	}
	awaitTop(t, i.Cluster)
	stop()

	if left := i.kubectl(t, "get", "apiservices", "--output", `jsonpath={range .items[?(@.spec.group=="metrics.k8s.io")]}`+
		`{.metadata.name} {.spec.service.name} {.spec.insecureSkipTLSVerify} {.spec.caBundle};{end}`); left !=
		"v1beta1.metrics.k8s.io metrics-server true ;" {
		t.Errorf("the APIServices are %q", left)
	}
	i.eventually(t, "discovery to have v1beta1 alone", func(ctx context.Context) error {
		versions, err := i.Kubectl(ctx, "api-versions")
		if err != nil {
			return err
		}
		if strings.Contains(versions, "metrics.k8s.io/v1\n") || !strings.Contains(versions, "metrics.k8s.io/v1beta1\n") {
			return errors.New(versions)
		}
		return nil
	})
}

// startMetricsServer starts what stands in for metrics-server, waits until it is ready, and returns
// its port.
func (i *owner) startMetricsServer(t *testing.T) string {
	t.Helper()
	if err := i.Apply(t.Context(), metricsServerAccess); err != nil {
		t.Fatal(err)
	}
	token, kubeconfig := i.File("metrics-server.token"), i.File("metrics-server.kubeconfig")
	text := i.kubectl(t, "create", "token", "metrics-server", "--namespace", cluster.Namespace, "--duration=1h")
	if err := os.WriteFile(token, []byte(strings.TrimSpace(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := i.WriteTokenKubeconfig(kubeconfig, token, cluster.Namespace); err != nil {
		t.Fatal(err)
	}
	s, err := i.servers[0].StartReplica("--tls-secret=", "--kubelet-service-account=", "--kubeconfig="+kubeconfig,
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Tail())
		}
		s.Kill()
	})
	probe := &reader{address: s.Address, transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	t.Cleanup(probe.transport.CloseIdleConnections)
	i.eventually(t, "metrics-server to be ready", func(ctx context.Context) error {
		if err := s.Running(); err != nil {
			return err
		}
		return probe.ok(ctx, "/readyz")
	})
	return s.Port()
}
