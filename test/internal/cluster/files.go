package cluster

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
)

// frontProxyName is the common name in the client certificate of the aggregation layer.
const frontProxyName = "front-proxy-client"

// writeFiles writes the certificates and kubeconfigs of a cluster whose API server has the URL, and
// makes the administrator's clients. Administrators have a token because servers cache its review,
// whereas a client certificate is verified at each connection.
func (c *Cluster) writeFiles(server string) error {
	frontProxyCA := kubelettest.NewCA()
	frontProxy := frontProxyCA.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: frontProxyName}), longLived)
	c.token, c.Kubeconfig = rand.Text(), c.File("kubeconfig")
	err := errors.Join(
		c.write("ca.crt", c.CA.PEM()),
		c.writePair("kube-apiserver", c.issue("kube-apiserver", "")),
		c.writePair("service-accounts", c.issue("service-accounts", "")), // the key signs tokens
		c.write("front-proxy-ca.crt", frontProxyCA.PEM()),
		c.writePair("front-proxy", frontProxy),
		c.write("tokens.csv", []byte(c.token+",admin,admin,system:masters\n")),
		c.writeKubeconfig(c.Kubeconfig, server, "", &clientcmdapi.AuthInfo{Token: c.token}),
	)
	if err != nil {
		return err
	}
	if c.REST, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return fmt.Errorf("read the administrator's kubeconfig: %w", err)
	}
	c.REST.QPS = -1 // no limit
	if c.Client, err = kubernetes.NewForConfig(c.REST); err != nil {
		return fmt.Errorf("create the administrator's client: %w", err)
	}
	return errors.Join(
		c.WriteUserKubeconfig(c.File("kube-controller-manager.kubeconfig"), "system:kube-controller-manager", ""),
		c.WriteUserKubeconfig(c.File("kube-scheduler.kubeconfig"), "system:kube-scheduler", ""),
	)
}

// WriteUserKubeconfig writes a kubeconfig with a client certificate of a user. The group may be
// empty.
func (c *Cluster) WriteUserKubeconfig(file, user, group string) error {
	cert, key := kubelettest.PEM(c.issue(user, group))
	return c.writeKubeconfig(file, c.REST.Host, "",
		&clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

// WriteAccountKubeconfig writes a kubeconfig with a token of a ServiceAccount, whose namespace is the
// default, and returns its name.
func (c *Cluster) WriteAccountKubeconfig(ctx context.Context, namespace, account string) (string, error) {
	seconds := int64((30 * 24 * time.Hour).Seconds()) // longer than any cluster
	token, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}},
		metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("create a token of the ServiceAccount %s/%s: %w", namespace, account, err)
	}
	if err := c.write(account+".token", []byte(token.Status.Token)); err != nil {
		return "", err
	}
	file := c.File(account + ".kubeconfig")
	user := &clientcmdapi.AuthInfo{TokenFile: c.File(account + ".token")}
	return file, c.writeKubeconfig(file, c.REST.Host, namespace, user)
}

func (c *Cluster) writeKubeconfig(file, server, namespace string, user *clientcmdapi.AuthInfo) error {
	const name = "kube-vitals-test"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: c.CA.PEM()}
	config.AuthInfos[name] = user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// issue returns a certificate of the cluster's CA for a user, and for servers on 127.0.0.1. The
// group may be empty.
func (c *Cluster) issue(user, group string) tls.Certificate {
	subject := pkix.Name{CommonName: user}
	if group != "" {
		subject.Organization = []string{group}
	}
	return c.CA.Issue([]string{"localhost", "kubernetes.default.svc"}, []net.IP{net.IPv4(127, 0, 0, 1)},
		kubelettest.Subject(subject), longLived)
}

// longLived makes a certificate outlive any cluster.
func longLived(certificate *x509.Certificate) { certificate.NotAfter = time.Now().AddDate(1, 0, 0) }

func (c *Cluster) write(name string, content []byte) error {
	if err := os.WriteFile(c.File(name), content, 0o600); err != nil {
		return fmt.Errorf("write the cluster's files: %w", err)
	}
	return nil
}

// writePair writes the files NAME.crt and NAME.key.
func (c *Cluster) writePair(name string, certificate tls.Certificate) error {
	cert, key := kubelettest.PEM(certificate)
	return errors.Join(c.write(name+".crt", cert), c.write(name+".key", key))
}
