package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/util/cert"
)

// scaledObject is what KEDA makes an autoscaler of. NAMESPACE is replaced.
const scaledObject = `apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: web, namespace: NAMESPACE}
spec:
  scaleTargetRef: {name: web}
  minReplicaCount: 1
  maxReplicaCount: 5
  advanced: {horizontalPodAutoscalerConfig: {name: web}}
  triggers: [{type: cpu, metricType: Utilization, metadata: {value: "50"}}]
`

// TestKEDA scales a Deployment up and down with the CPU scaler of KEDA's operator, which has the objects and
// permissions of its installation.
func TestKEDA(t *testing.T) {
	t.Parallel()
	program := clientProgram(t, "keda")
	c := newCluster(t)
	c.install(t)
	const crds = "config/crd/bases/"
	c.createNamespaces(t, "keda")
	c.applyFiles(t, "keda", "github.com/kedacore/keda/v2", crds+"keda.sh_scaledobjects.yaml",
		crds+"keda.sh_scaledjobs.yaml", crds+"keda.sh_triggerauthentications.yaml",
		crds+"keda.sh_clustertriggerauthentications.yaml", crds+"eventing.keda.sh_cloudeventsources.yaml",
		crds+"eventing.keda.sh_clustercloudeventsources.yaml", "config/service_account/service_account.yaml",
		"config/rbac/role.yaml", "config/rbac/role_binding.yaml")
	p, err := c.StartProcess("/usr/bin/env", "WATCH_NAMESPACE=", "KEDA_CLUSTER_OBJECT_NAMESPACE=keda", program,
		"--kubeconfig="+c.accountKubeconfig(t, "keda", "keda-operator"), "--cert-dir="+certificates(t),
		"--metrics-bind-address=0", fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", freePort(t)),
		fmt.Sprintf("--metrics-service-bind-address=127.0.0.1:%d", freePort(t)))
	must(t, err)
	logOnFailure(t, p)

	a := autoscalings()[0]
	c.createNamespaces(t, a.namespace)
	eventually(t, "a ScaledObject", func(ctx context.Context) error { // once the API server knows the kind
		return c.Apply(ctx, strings.ReplaceAll(autoscaled+scaledObject, "NAMESPACE", a.namespace))
	})
	a.awaitReplicas(t, c, a.idle, 1)
	a.awaitReplicas(t, c, a.busy, 4)
	a.awaitReplicas(t, c, a.idle, 1)
}

// certificates returns a folder with a certificate, its key and its CA, as KEDA's operator mounts them.
func certificates(t *testing.T) string {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("keda-operator", nil, nil)
	must(t, err)
	folder := t.TempDir()
	for name, content := range map[string][]byte{"tls.crt": certificate, "tls.key": key, "ca.crt": certificate} {
		must(t, os.WriteFile(filepath.Join(folder, name), content, 0o600))
	}
	return folder
}
