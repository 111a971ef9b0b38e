package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/kube-vitals/kube-vitals/pkg/nodez"
)

// forward leads a port of this machine's loopback interface to the server's pod, as kubectl port-forward does, until
// the context ends. It returns its address.
func (d *doctor) forward(ctx context.Context) (address string, err error) {
	pod, port := d.workload.pod, d.workload.podPort()
	if port == 0 {
		return "", fmt.Errorf("no container of the pod has the port %s of the Service", d.workload.port.TargetPort.String())
	}
	config := rest.CopyConfig(d.Client)
	config.Timeout = 0 // it would end the connection
	to := d.kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).
		SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return "", err
	}
	websocket, err := portforward.NewSPDYOverWebsocketDialer(to, config)
	if err != nil {
		return "", err
	}
	dialer := portforward.NewFallbackDialer(websocket,
		spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, to),
		func(err error) bool { return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) })
	ready, failed := make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"},
		[]string{fmt.Sprintf("0:%d", port)}, ctx.Done(), ready, io.Discard, io.Discard)
	if err != nil {
		return "", err
	}
	go func() { failed <- forwarder.ForwardPorts() }()
	waiting, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	select {
	case <-ready:
	case err := <-failed:
		return "", err
	case <-waiting.Done():
		return "", waiting.Err()
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return "", err
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))), nil
}

// serverName is the name that the API server verifies.
func (d *doctor) serverName() string { return d.target.Service + "." + d.target.Namespace + ".svc" }

// handshake verifies the server's certificate as the API server does, and returns it also if that fails.
func (d *doctor) handshake(ctx context.Context, bundle []byte) (*x509.Certificate, error) {
	config := &tls.Config{ServerName: d.serverName(), MinVersion: tls.VersionTLS12}
	if len(bundle) > 0 { // otherwise the roots of the system
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(bundle)
	}
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: d.Timeout}, Config: config}
	conn, err := dialer.DialContext(ctx, "tcp", d.address)
	if unverified := (*tls.CertificateVerificationError)(nil); errors.As(err, &unverified) {
		return unverified.UnverifiedCertificates[0], unverified.Err
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

func (d *doctor) checkCertificate(ctx context.Context, c Check) []Check {
	if d.workload.pod != nil {
		var err error
		if d.address, err = d.forward(ctx); err != nil {
			problem := noConnection
			if strings.Contains(err.Error(), "forbidden") {
				problem = noPermission
			}
			return c.Skip(problem, "the pod cannot be connected to by port-forward: %v", err)
		}
	}
	if d.address == "" {
		return d.skip(c, noConnection, "there is no running pod whose certificate can be read", chain)
	}
	result := c.Skip(noConnection, "there is no caBundle to compare the certificate with")
	for _, version := range versions() {
		a := d.apiServices[version]
		switch {
		case !d.target.serves(a):
		case a.Spec.InsecureSkipTLSVerify:
			result = c.Skip(tlsNotVerified, "the API server does not verify the certificate (insecureSkipTLSVerify)")
		default:
			result = d.verify(ctx, c, "caBundle of "+version+".metrics.k8s.io", a.Spec.CABundle)
			if result[0].Status != OK {
				return result
			}
		}
	}
	if d.beside { // kube-vitals publishes its CA for other clients, too
		name := d.target.Service + "-ca"
		object, err := d.kube.CoreV1().ConfigMaps(d.target.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return d.verify(ctx, c, "CA in ConfigMap "+name, []byte(object.Data["ca.crt"]))
		}
	}
	return result
}

func (d *doctor) verify(ctx context.Context, c Check, source string, bundle []byte) []Check {
	leaf, err := d.handshake(ctx, bundle)
	if failed := (*net.OpError)(nil); errors.As(err, &failed) && failed.Op == "dial" {
		return c.Skip(noConnection, "the server cannot be connected to: %v", err)
	}
	if leaf == nil {
		return c.Fail(certificateHandshake, "the TLS handshake with the server fails: %v", err)
	}
	served := fmt.Sprintf("the server presents a certificate of issuer %q for %s, valid until %s",
		leaf.Issuer.CommonName, append(leaf.DNSNames, leaf.Subject.String())[0],
		leaf.NotAfter.UTC().Format("2006-01-02 15:04Z"))
	if err != nil {
		p := serverSymptoms.of(err.Error(), caBundleForeign)
		if len(bundle) == 0 && p == caBundleForeign {
			return c.Skip(noConnection, "%s. There is no %s: the API server verifies it by its own roots, which are not known "+
				"here", served, source)
		} else if len(bundle) == 0 {
			source = "API server"
		}
		if d.beside && p == caBundleForeign {
			p.Cure = "see the log of kube-vitals, which writes its CA there with --tls-ca-configmap"
		}
		return c.Fail(p, "%s. The %s does not verify it: %v", served, source, err)
	}
	if len(d.bundle) == 0 {
		d.bundle = bundle
	}
	return c.OK("%s", served)
}

// nodez reads the page of nodes, or returns why not. No pod gets credentials of the user, but a short-lived token.
func (d *doctor) nodez(ctx context.Context) (*nodez.Report, []Check) {
	c := Check{ID: "nodez", Title: "page of nodes"}
	switch {
	case d.address == "":
		return nil, d.skip(c, noConnection, "there is no connection to a running pod of kube-vitals", chain)
	case len(d.bundle) == 0:
		return nil, c.Skip(noConnection, "no published CA verifies kube-vitals, so no token is sent to it")
	case d.workload.spec == nil:
		return nil, c.Skip(noServer, "the ServiceAccount of kube-vitals is not known")
	}
	request := &authenticationv1.TokenRequest{}
	request.Spec.ExpirationSeconds = new(int64(600)) // the shortest that the API server allows
	request, err := d.kube.CoreV1().ServiceAccounts(d.target.Namespace).CreateToken(ctx, d.workload.account(), request,
		metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		return nil, c.Skip(accountMissing, "ServiceAccount %s/%s does not exist", d.target.Namespace, d.workload.account())
	}
	if err != nil {
		denied := c.Denied(err)
		denied[0].Status = Skipped
		return nil, denied
	}
	// The library verifies the certificate by the bundle before it sends anything.
	vitals, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + d.address, BearerToken: request.Status.Token, Timeout: d.Timeout,
		TLSClientConfig: rest.TLSClientConfig{CAData: d.bundle, ServerName: d.serverName()},
	})
	report := &nodez.Report{}
	if err == nil {
		err = Get(ctx, vitals, "/nodez", report)
	}
	if err != nil {
		problem := nodezUnavailable
		if failed := (*url.Error)(nil); errors.As(err, &failed) {
			problem = noConnection
		} else if apierrors.IsTooManyRequests(err) {
			problem = requestFailed
		}
		return nil, c.Skip(problem, "/nodez of kube-vitals cannot be read: %s",
			strings.ReplaceAll(err.Error(), request.Status.Token, "<token>"))
	}
	return report, nil
}
