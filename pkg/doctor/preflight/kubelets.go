package preflight

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/doctor"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

const (
	// maxSample bounds the kubelets that are connected to.
	maxSample = 5
	// maxNames bounds the names of a certificate that are printed.
	maxNames    = 8
	kubeletPort = 10250
)

// kubelets is what is known of the certificates of the sampled kubelets.
type kubelets struct {
	verified   bool // all of them
	selfSigned bool // some, and they can be pinned
}

// typeNames are the types of addresses that the chart prefers, in its order.
func typeNames() []string {
	return []string{string(corev1.NodeInternalIP), string(corev1.NodeExternalIP), string(corev1.NodeHostName)}
}

// endpointOf returns where the kubelet of a node listens, by the chart's default flags.
func endpointOf(node *corev1.Node) (host, port string, ok bool) {
	port = strconv.Itoa(int(cmp.Or(node.Status.DaemonEndpoints.KubeletEndpoint.Port, kubeletPort)))
	for _, t := range typeNames() {
		for _, a := range node.Status.Addresses {
			if string(a.Type) == t && a.Address != "" {
				return a.Address, port, true
			}
		}
	}
	return "", port, false
}

// kubeletResult is what is known of the certificate of one kubelet.
type kubeletResult struct {
	node   string
	reason reason.Reason // empty: it is verified
	named  bool          // it is for the node's name or address
	detail string
}

// checkKubelets reads the certificates of some kubelets.
func (p *preflight) checkKubelets(ctx context.Context) []doctor.Check {
	c := doctor.Check{ID: "kubelet-certificates", Title: "kubelet TLS", Status: doctor.OK}
	if p.nodes.err != nil || p.nodes.all == 0 {
		return nil
	}
	roots, source := p.authority(ctx)
	results := make([]kubeletResult, len(p.nodes.sample))
	var wg sync.WaitGroup
	for i := range p.nodes.sample {
		wg.Go(func() { results[i] = p.examine(ctx, &p.nodes.sample[i], roots) })
	}
	wg.Wait()
	groups := map[reason.Reason][]kubeletResult{}
	for _, r := range results {
		groups[r.reason] = append(groups[r.reason], r)
	}
	sample := fmt.Sprintf("of %s examined", count(len(results), "kubelet"))
	p.kubelets.verified = len(groups[""]) == len(results)
	var checks []doctor.Check
	for _, why := range sortedKeys(groups) {
		check, group := c, groups[why]
		for _, r := range group {
			check.Objects = append(check.Objects, r.node)
		}
		p.describe(&check, why, group, sample, source)
		checks = append(checks, check)
	}
	return checks
}

// describe sets what a group of kubelets means.
func (p *preflight) describe(c *doctor.Check, why reason.Reason, group []kubeletResult, sample, source string) {
	detail := group[0].detail
	description := why.Describe()
	pinnable := !slices.ContainsFunc(group, func(r kubeletResult) bool { return !r.named })
	if why != "" {
		c.Reason, c.URL, c.Cure = string(why), why.URL(), description.Cure
	}
	switch {
	case why == "":
		c.Objects = nil
		c.Seen = fmt.Sprintf("%d %s: %s; verified by %s", len(group), sample, detail, source)
	case why == reason.TLSSelfSigned && pinnable:
		p.kubelets.selfSigned = true
		c.Seen = fmt.Sprintf("%d %s: self-signed, %s; the command below pins them", len(group), sample, detail)
		c.Status = doctor.Warning
		c.Cure = "better: set serverTLSBootstrap in the kubelets' configuration, then check and approve their requests"
	case why == reason.NoAddress: // shown by the check of addresses
		c.Status, c.URL, c.Cure = doctor.Skipped, "", "see kubelet addresses"
		c.Seen = fmt.Sprintf("%d %s cannot be connected to: %s", len(group), sample, detail)
	case why == reason.ConnectTimeout:
		c.Status, c.Reason = doctor.Skipped, notReachable
		c.Seen = fmt.Sprintf("%d %s cannot be connected to from this machine, and the API does not show their "+
			"certificates: %s", len(group), sample, detail)
		c.Cure = "run it on a machine of the nodes' network to include the check; the command below has the values that " +
			"are usual for the distribution"
		c.URL = ""
	case why == reason.TLSHandshake:
		c.Status = doctor.Failed
		c.Seen = fmt.Sprintf("%d %s: %s: %s", len(group), sample, description.Problem, detail)
		c.Cure = "see kubelet CSRs: a kubelet with serverTLSBootstrap has no certificate until its request is approved"
	default:
		c.Status = doctor.Failed
		c.Seen = fmt.Sprintf("%d %s: %s: %s", len(group), sample, description.Problem, detail)
	}
}

// authority returns the CAs that verify kubelets, and where they are from.
func (p *preflight) authority(ctx context.Context) (roots *x509.CertPool, source string) {
	roots = x509.NewCertPool()
	for _, bundle := range []struct {
		namespace, name, key, source string
		use                          bool
	}{
		{metav1.NamespaceSystem, "kube-root-ca.crt", "ca.crt", "the cluster's CA", p.distribution != openShift},
		{"openshift-config-managed", "kubelet-serving-ca", "ca-bundle.crt", "OpenShift's CA of kubelets",
			p.distribution == openShift},
	} {
		if !bundle.use {
			continue
		}
		object, err := p.kube.CoreV1().ConfigMaps(bundle.namespace).Get(ctx, bundle.name, metav1.GetOptions{})
		if err == nil && roots.AppendCertsFromPEM([]byte(object.Data[bundle.key])) {
			return roots, bundle.source
		}
	}
	if ca := p.Client.CAData; len(ca) > 0 { // often the same one
		roots.AppendCertsFromPEM(ca)
	}
	return roots, "the CA of the kubeconfig"
}

// examine reads the certificate of a kubelet, or else its configuration through the API server.
func (p *preflight) examine(ctx context.Context, node *corev1.Node, roots *x509.CertPool) kubeletResult {
	r := kubeletResult{node: node.Name}
	host, port, ok := endpointOf(node)
	if !ok {
		r.reason, r.detail = reason.NoAddress, "it has no address"
		return r
	}
	// Firewalls often drop the connection to a kubelet, so it gets a third of the time of a request.
	chain, err := certificates(ctx, net.JoinHostPort(host, port), p.Timeout/3)
	var dial *dialError
	switch {
	case errors.As(err, &dial):
		return p.configured(ctx, r, err)
	case err != nil:
		r.reason, r.detail = reason.TLSHandshake, err.Error()
		return r
	}
	leaf := chain[0]
	r.named = named(leaf, host, node.Name)
	r.detail = "for " + names(leaf)
	r.reason = judge(chain, roots, host, node.Name)
	if r.reason == reason.TLSAuthority || r.reason == "" {
		r.detail += fmt.Sprintf(", of issuer %.100q", leaf.Issuer.CommonName)
	}
	return r
}

// judge verifies a certificate as kube-vitals does: for the address or for the node's name.
func judge(chain []*x509.Certificate, roots *x509.CertPool, host, node string) reason.Reason {
	leaf := chain[0]
	options := x509.VerifyOptions{
		Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, c := range chain[1:] {
		options.Intermediates.AddCert(c)
	}
	_, err := leaf.Verify(options)
	var invalid x509.CertificateInvalidError
	switch {
	case err != nil && isSelfSigned(leaf): // its validity does not matter if its key is pinned
		return reason.TLSSelfSigned
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return reason.TLSExpired
	case err != nil:
		return reason.TLSAuthority
	case !named(leaf, host, node):
		return reason.TLSName
	}
	return ""
}

// named reports whether a certificate is for the address or the name of a node.
func named(leaf *x509.Certificate, host, node string) bool {
	return leaf.VerifyHostname(host) == nil || leaf.VerifyHostname(node) == nil
}

// isSelfSigned reports whether a kubelet created the certificate itself: it then signs NAME@TIME with
// a CA of its own, NAME-ca@TIME (client-go, util/cert.GenerateSelfSignedCertKeyWithOptions).
func isSelfSigned(leaf *x509.Certificate) bool {
	subject, _, _ := strings.Cut(leaf.Subject.CommonName, "@")
	issuer, _, found := strings.Cut(leaf.Issuer.CommonName, "@")
	return found && issuer == subject+"-ca" || leaf.Subject.String() == leaf.Issuer.String()
}

// names returns the names in a certificate. A kubelet can put anything there.
func names(leaf *x509.Certificate) string {
	all := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) == 0 {
		return "no name"
	}
	text := strings.Join(all[:min(len(all), maxNames)], ", ")
	if len(all) > maxNames {
		text += fmt.Sprintf(" and %d more", len(all)-maxNames)
	}
	return fmt.Sprintf("%.500s", text)
}

// dialError is a failure to connect, from which nothing follows about the certificate.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// certificates returns the certificates that a server shows. Nothing is sent after the handshake.
func certificates(ctx context.Context, address string, timeout time.Duration) ([]*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, &dialError{err}
	}
	defer func() { _ = conn.Close() }()
	client := tls.Client(conn, &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // the certificate is judged afterwards, and nothing is sent
	})
	if err := client.HandshakeContext(ctx); err != nil {
		if ctx.Err() != nil { // nothing responds
			return nil, &dialError{err}
		}
		return nil, err
	}
	return client.ConnectionState().PeerCertificates, nil
}

// configured reads through the API server how a kubelet that cannot be connected to gets its
// certificate.
func (p *preflight) configured(ctx context.Context, r kubeletResult, unreachable error) kubeletResult {
	var config struct {
		Kubelet *struct {
			ServerTLSBootstrap bool   `json:"serverTLSBootstrap"`
			TLSCertFile        string `json:"tlsCertFile"`
		} `json:"kubeletconfig"`
	}
	body, err := doctor.Get(ctx, p.kube, "/api/v1/nodes/"+r.node+"/proxy/configz")
	if err == nil {
		err = json.Unmarshal(body, &config)
	}
	switch {
	case err != nil || config.Kubelet == nil || !config.Kubelet.ServerTLSBootstrap && config.Kubelet.TLSCertFile != "":
		r.reason, r.detail = reason.ConnectTimeout, unreachable.Error()
	case config.Kubelet.ServerTLSBootstrap:
		r.detail = "serverTLSBootstrap is set, and the certificate itself could not be read"
	default: // kubelets create one, for the node's name
		r.reason, r.named = reason.TLSSelfSigned, true
		r.detail = "because serverTLSBootstrap is not set; the certificate itself could not be read"
	}
	return r
}

// checkRequests looks for requests for certificates that wait for approval.
func (p *preflight) checkRequests(ctx context.Context) []doctor.Check {
	c := doctor.Check{ID: "certificate-requests", Title: "kubelet CSRs", Status: doctor.OK}
	var pending []string
	approved := 0
	err := doctor.Pages(func(o metav1.ListOptions) (string, error) {
		o.FieldSelector = "spec.signerName=" + certificatesv1.KubeletServingSignerName
		list, err := p.kube.CertificatesV1().CertificateSigningRequests().List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			switch r := &list.Items[i]; {
			case len(r.Status.Conditions) == 0:
				pending = append(pending, r.Name)
			case len(r.Status.Certificate) > 0:
				approved++
			}
		}
		return list.Continue, nil
	})
	if err != nil {
		return []doctor.Check{doctor.Denied(c, err)}
	}
	c.Seen = fmt.Sprintf("no request of a kubelet waits for approval; %s in the last hour", count(approved, "certificate"))
	if len(pending) > 0 {
		c.Status, c.Reason, c.Objects = doctor.Failed, requestsPending, pending
		c.Seen = fmt.Sprintf("%s of kubelets for serving certificates wait for approval", count(len(pending), "request"))
		c.Cure = lines("check each of them before you approve it: the user must be system:node:NODE of a node, and the "+
			"names and addresses those of that node; an approver such as kubelet-csr-approver does so for each renewal",
			"kubectl get csr", "kubectl describe csr")
	}
	return []doctor.Check{c}
}
