package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// presetLabel is the label of a node with the name of the preset that it is for.
const presetLabel = "kube-vitals.test/preset"

// distribution is how the nodes of a preset differ. docs/distributions.md has the sources.
type distribution struct {
	node        string
	addresses   []corev1.NodeAddressType // in this order; InternalIP is the kubelet's
	certificate func(ca *kubelettest.CA, node string, ip net.IP) tls.Certificate
}

// ownCertificate is the certificate that a kubelet creates itself.
func ownCertificate(_ *kubelettest.CA, node string, _ net.IP) tls.Certificate {
	return kubelettest.KubeletSigned(node)
}

// requested is the certificate of serverTLSBootstrap, signed by the cluster's CA.
func requested(ca *kubelettest.CA, node string, ip net.IP) tls.Certificate {
	return ca.Issue([]string{node}, []net.IP{ip},
		kubelettest.Subject(pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + node}))
}

// servingKubelet is the certificate that a server of k3s or RKE2 issues.
func servingKubelet(ca *kubelettest.CA, node string, ip net.IP) tls.Certificate {
	return ca.Issue([]string{node, "localhost"}, []net.IP{net.IPv4(127, 0, 0, 1), ip},
		kubelettest.Subject(pkix.Name{CommonName: node}))
}

// distributions returns the nodes by preset. The other CA signs the certificates of OpenShift's and Gardener's
// kubelets.
func distributions(other *kubelettest.CA) map[string]distribution {
	const (
		hostname, internal, external = corev1.NodeHostName, corev1.NodeInternalIP, corev1.NodeExternalIP
		internalDNS, externalDNS     = corev1.NodeInternalDNS, corev1.NodeExternalDNS
	)
	type types = []corev1.NodeAddressType
	ofOther := func(_ *kubelettest.CA, node string, ip net.IP) tls.Certificate { return requested(other, node, ip) }
	return map[string]distribution{
		"kubeadm":      {"kubeadm-0", types{internal, hostname}, ownCertificate},
		"kind":         {"kind-control-plane", types{internal, hostname}, ownCertificate},
		"minikube":     {"minikube", types{internal, hostname}, ownCertificate},
		"talos":        {"talos-cp-0", types{hostname, internal}, requested},
		"microk8s":     {"microk8s-0", types{internal, hostname}, requested},
		"linode":       {"lke27049-39949-60a531334464", types{hostname, external, internal}, ownCertificate},
		"k3s":          {"k3s-server-0", types{internal, hostname}, servingKubelet},
		"rke2":         {"rke2-server-0", types{internal, hostname}, servingKubelet},
		"eks":          {"ip-10-0-1-7.ec2.local", types{internal, external, internalDNS, externalDNS, hostname}, requested},
		"eks-fargate":  {"fargate-ip-10-0-1-8.ec2.local", types{internal, internalDNS, hostname}, requested},
		"gke":          {"gke-c-default-pool-1a2b3c4d-x5yz", types{internal, external, internalDNS, hostname}, requested},
		"aks":          {"aks-nodepool1-12345678-vmss000000", types{internal, hostname}, requested},
		"gardener":     {"shoot--p--c-worker-z1-5d4f9-x2x7k", types{internal, hostname}, ofOther},
		"openshift":    {"worker-0.ocp.example.com", types{internal, hostname}, ofOther},
		"cilium":       {"cilium-0", types{internal, hostname}, requested},
		"host-network": {"host-network-0", types{internal, hostname}, requested},
	}
}

// TestPresets installs the chart with each preset in one cluster: each release has its own
// namespace, and its server scrapes a node of that distribution only.
func TestPresets(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	other := kubelettest.NewCA()
	all := distributions(other)
	files, err := filepath.Glob(filepath.Join(c.Chart, "presets", "*.yaml"))
	if err != nil || len(files) != len(all) {
		t.Errorf("the chart has %d presets, error %v, want %d", len(files), err, len(all))
	}
	presets := map[string]func(*testing.T){}
	for preset, d := range all {
		presets[preset] = func(t *testing.T) {
			c.addDistribution(t, preset, d)
			must(t, c.CreateNamespace(t.Context(), preset))
			args := []string{"--node-selector=" + presetLabel + "=" + preset}
			switch preset { // where kubelets have a CA of their own, the administrator copies it
			case "gardener", "openshift":
				_, err := c.Client.CoreV1().ConfigMaps(preset).Create(t.Context(), &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: "kubelet-serving-ca"},
					Data:       map[string]string{"ca-bundle.crt": string(other.PEM())},
				}, metav1.CreateOptions{})
				must(t, err)
			}
			server, err := c.InstallPreset(t.Context(), preset, args...)
			must(t, err)
			t.Cleanup(server.Kill)
			admin := c.asAdmin(t, server)
			eventually(t, "metrics of node "+d.node, func(ctx context.Context) error {
				body, err := admin.getOK(ctx, "/apis/metrics.k8s.io/v1beta1/nodes")
				var list v1beta1.NodeMetricsList
				if err == nil {
					err = json.Unmarshal(body, &list)
				}
				if err == nil && (len(list.Items) != 1 || list.Items[0].Name != d.node ||
					list.Items[0].Usage.Cpu().IsZero() || list.Items[0].Usage.Memory().IsZero()) {
					err = fmt.Errorf("got %s%s", body, server.Tail())
				}
				return err
			})
		}
	}
	concurrently(t, presets)
}

// addDistribution adds a node of a distribution.
func (c *testCluster) addDistribution(t *testing.T, preset string, d distribution) {
	t.Helper()
	err := c.Simulation.AddNode(t.Context(), simulation.Node{
		Name:        d.node,
		Labels:      map[string]string{presetLabel: preset},
		Certificate: func(ip net.IP) tls.Certificate { return d.certificate(c.CA, d.node, ip) },
		Edit: func(node *corev1.Node) {
			ip := node.Status.Addresses[0].Address
			node.Status.Addresses = nil
			for _, addressType := range d.addresses {
				address := map[corev1.NodeAddressType]string{
					corev1.NodeInternalIP: ip, corev1.NodeExternalIP: "203.0.113.7", corev1.NodeExternalDNS: "node.example.com",
				}[addressType]
				if address == "" {
					address = d.node // names
				}
				node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: addressType, Address: address})
			}
		},
	})
	must(t, err)
}
