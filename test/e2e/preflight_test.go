package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// k3sMetricsServer is the APIService of k3s' metrics-server, as k3s applies it.
const k3sMetricsServer = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1beta1.metrics.k8s.io
  labels: {objectset.rio.cattle.io/hash: 22a4e2f8e9b4a4f2b1b0}
  annotations: {objectset.rio.cattle.io/owner-name: metrics-apiservice}
spec:
  group: metrics.k8s.io
  version: v1beta1
  service: {name: metrics-server, namespace: kube-system}
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`

// preflight examines the cluster before an installation.
func (c *testCluster) preflight(t *testing.T, flags ...string) (code int, report doctorReport) {
	t.Helper()
	code, report, err := c.report(t.Context(), append([]string{"preflight"}, flags...)...)
	must(t, err)
	return code, report
}

// check returns the check with an ID and status.
func (r doctorReport) check(t *testing.T, id, status string) doctorCheck {
	t.Helper()
	i := slices.IndexFunc(r.Checks, func(c doctorCheck) bool { return c.ID == id && c.Status == status })
	if i < 0 {
		t.Fatalf("there is no check %s with status %s: %+v", id, status, r.Checks)
	}
	return r.Checks[i]
}

// testPreflight examines clusters before an installation, and runs the command that it prints.
func (c *testCluster) testPreflight(t *testing.T) {
	code, report := c.preflight(t)
	const install = "helm install kube-vitals charts/kube-vitals --namespace kube-system " +
		"--set image.repository=REGISTRY/kube-vitals,image.tag=TAG"
	if code != 0 || report.Install.Command != install || report.Server.Kind != "none" {
		t.Errorf("default: got exit code %d, %+v", code, report)
	}
	report.check(t, "kubelet-certificates", "skipped") // API servers do not connect to loopback addresses

	// The control plane of kubeadm, with a taint.
	must(t, c.Simulation.AddNode(t.Context(), simulation.Node{Name: "kubeadm-0", Edit: func(n *corev1.Node) {
		n.Annotations = map[string]string{"kubeadm.alpha.kubernetes.io/cri-socket": "unix:///run/containerd.sock"}
		n.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: "NoSchedule"}}
	}}))
	code, report = c.preflight(t)
	pinned := install + " --set kubelet.tls=pin"
	if code != 0 || report.Install.Distribution != "kubeadm" || report.Install.Command != pinned {
		t.Errorf("kubeadm: got exit code %d, %+v", code, report)
	}

	t.Run("metrics-server of k3s", func(t *testing.T) {
		must(t, c.Apply(t.Context(), k3sMetricsServer))
		code, report := c.preflight(t)
		if got := report.check(t, "owner", "failed"); code != 1 || !strings.Contains(got.Cure, "--disable=metrics-server") ||
			report.Server.Kind != "metrics-server" {
			t.Errorf("got exit code %d, %+v", code, report)
		}
		c.kubectl(t, "delete", "apiservice", "v1beta1.metrics.k8s.io")
	})
	t.Run("pending request", c.testPendingRequest)
	t.Run("no permissions", func(t *testing.T) {
		code, report := c.preflight(t, c.stranger(t))
		if code != 2 || report.Summary.Skipped < 4 ||
			!strings.HasPrefix(report.Install.Command, install+" --kubeconfig=") {
			t.Errorf("got exit code %d, %+v", code, report)
		}
	})
	t.Run("the command", func(t *testing.T) {
		_, report := c.preflight(t)
		script := fmt.Sprintf("cd %s && PATH=%s:$PATH && %s --set replicas=0", c.Checkout,
			filepath.Dir(c.Binary(binaries.Helm)), report.Install.Command)
		_, err := c.Run(t.Context(), "/bin/sh", "-c", script)
		must(t, err)
		pins := c.kubectl(t, "get", "deployment", cluster.Release, inNamespace, "--output=jsonpath={..env}")
		if !strings.Contains(pins, `"kube-vitals-kubelet-pins"`) {
			t.Errorf("got the environment %s", pins)
		}
		code, report := c.preflight(t)
		want := strings.Replace(install, "helm install kube-vitals charts/kube-vitals",
			"helm upgrade kube-vitals charts/kube-vitals --reset-then-reuse-values", 1) + " --set kubelet.tls=pin"
		if code != 0 || report.Install.Command != want {
			t.Errorf("installed: got exit code %d, %s, want %s", code, report.Install.Command, want)
		}
	})
}

// testPendingRequest examines a cluster where a kubelet waits for its certificate.
func (c *testCluster) testPendingRequest(t *testing.T) {
	const node = "kubeadm-0"
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + node},
		DNSNames: []string{node},
	}, key)
	must(t, err)
	requests := c.Client.CertificatesV1().CertificateSigningRequests()
	for signer, usage := range map[string]certificatesv1.KeyUsage{
		certificatesv1.KubeletServingSignerName:             certificatesv1.UsageServerAuth,
		certificatesv1.KubeAPIServerClientKubeletSignerName: certificatesv1.UsageClientAuth,
	} {
		_, err = requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "csr-" + strings.ReplaceAll(signer[strings.Index(signer, "/")+1:], "/", "-")},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
				SignerName: signer,
				Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
			},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	code, report := c.preflight(t)
	got := report.check(t, "certificate-requests", "failed")
	if code != 1 || !slices.Equal(got.Objects, []string{"csr-kubelet-serving"}) {
		t.Errorf("got exit code %d, %+v", code, got)
	}
	if !strings.HasSuffix(got.Cure, "\nkubectl get csr\nkubectl describe csr") {
		t.Errorf("got the cure %s", got.Cure)
	}
	c.kubectl(t, "certificate", "approve", "csr-kubelet-serving")
	eventually(t, "the request not to wait", func(ctx context.Context) error {
		code, report, err := c.report(ctx, "preflight")
		if err == nil && code != 0 {
			err = fmt.Errorf("exit code %d: %+v", code, report.Checks)
		}
		return err
	})
}
