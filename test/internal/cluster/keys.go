package cluster

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
)

// frontProxyName is the common name by which aggregated API servers know the API server when it
// forwards requests.
const frontProxyName = "front-proxy-client"

// keys are the files by which the parts of a control plane know each other.
type keys struct {
	ca              string // of all certificates but the front proxy's
	frontProxyCA    string
	server          pair
	frontProxy      pair
	serviceAccounts pair // the key signs tokens

	admin, controllerManager, scheduler string // kubeconfigs
}

// pair is a certificate's two files.
type pair struct{ cert, key string }

// writeKeys makes the cluster's certificates and kubeconfigs. The API server will be at the given
// URL.
func (c *Cluster) writeKeys(server string) (*keys, error) {
	frontProxyCA := kubelettest.NewCA()
	k := &keys{
		ca:              c.File("ca.crt"),
		frontProxyCA:    c.File("front-proxy-ca.crt"),
		server:          pair{cert: c.File("kube-apiserver.crt"), key: c.File("kube-apiserver.key")},
		frontProxy:      pair{cert: c.File("front-proxy.crt"), key: c.File("front-proxy.key")},
		serviceAccounts: pair{cert: c.File("service-accounts.crt"), key: c.File("service-accounts.key")},
		admin:           c.File("kubeconfig"),

		controllerManager: c.File("kube-controller-manager.kubeconfig"),
		scheduler:         c.File("kube-scheduler.kubeconfig"),
	}
	w := &keyWriter{server: server, ca: c.CA}
	w.file(k.ca, c.CA.PEM())
	w.file(k.frontProxyCA, frontProxyCA.PEM())
	w.pair(k.server, c.CA, "kube-apiserver")
	w.pair(k.frontProxy, frontProxyCA, frontProxyName)
	w.pair(k.serviceAccounts, c.CA, "service-accounts")
	w.kubeconfig(k.admin, "admin", "system:masters")
	w.kubeconfig(k.controllerManager, "system:kube-controller-manager", "")
	w.kubeconfig(k.scheduler, "system:kube-scheduler", "")
	return k, w.err
}

// WriteUserKubeconfig writes a kubeconfig for a user whom a client certificate names. The group may
// be empty.
func (c *Cluster) WriteUserKubeconfig(file, user, group string) error {
	w := &keyWriter{server: c.REST.Host, ca: c.CA}
	w.kubeconfig(file, user, group)
	return w.err
}

// WriteTokenKubeconfig writes a kubeconfig for the holder of the token in a file, who works in a
// namespace.
func (c *Cluster) WriteTokenKubeconfig(file, tokenFile, namespace string) error {
	w := &keyWriter{server: c.REST.Host, ca: c.CA}
	w.kubeconfigWith(file, namespace, &clientcmdapi.AuthInfo{TokenFile: tokenFile})
	return w.err
}

// keyWriter writes files until one cannot be written.
type keyWriter struct {
	server string // URL of the API server
	ca     *kubelettest.CA
	err    error
}

func (w *keyWriter) file(name string, content []byte) {
	if w.err != nil {
		return
	}
	if err := os.WriteFile(name, content, 0o600); err != nil {
		w.err = fmt.Errorf("the cluster's certificates cannot be written: %w", err)
	}
}

func (w *keyWriter) pair(files pair, ca *kubelettest.CA, user string) {
	cert, key := issue(ca, user, "")
	w.file(files.cert, cert)
	w.file(files.key, key)
}

func (w *keyWriter) kubeconfig(file, user, group string) {
	cert, key := issue(w.ca, user, group)
	w.kubeconfigWith(file, "", &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

func (w *keyWriter) kubeconfigWith(file, namespace string, user *clientcmdapi.AuthInfo) {
	const name = "kube-vitals-test"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: w.server, CertificateAuthorityData: w.ca.PEM()}
	config.AuthInfos[name] = user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	config.CurrentContext = name
	content, err := clientcmd.Write(*config)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("a kubeconfig cannot be written: %w", err)
	}
	w.file(file, content)
}

// issue makes a certificate for a user, and for servers on 127.0.0.1, that lasts as long as a
// cluster may stay up.
func issue(ca *kubelettest.CA, user, group string) (cert, key []byte) {
	subject := pkix.Name{CommonName: user}
	if group != "" {
		subject.Organization = []string{group}
	}
	certificate := ca.Issue([]string{"localhost", "kubernetes.default.svc"}, []net.IP{net.IPv4(127, 0, 0, 1)},
		kubelettest.Subject(subject),
		func(c *x509.Certificate) { c.NotAfter = time.Now().AddDate(1, 0, 0) })
	return kubelettest.PEM(certificate)
}
