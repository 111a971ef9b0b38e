package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/doctor"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// maxSample bounds the kubelets whose configuration is read.
const maxSample = 5

// certificateSource is where a kubelet gets its serving certificate from.
type certificateSource int

const (
	unknownSource certificateSource = iota // its configuration cannot be read
	requested                              // from the cluster's CA, by a request that must be approved
	selfSigned                             // from itself
	fromFile                               // from a file of the node
	numSources
)

// checkKubelets finds out where some kubelets get their certificates from. It reads their configuration
// through the API server: this machine often cannot connect to nodes.
func (p *preflight) checkKubelets(ctx context.Context) []doctor.Check {
	if p.nodes.err != nil || p.nodes.all == 0 {
		return nil
	}
	sources, errs := make([]certificateSource, len(p.nodes.sample)), make([]error, len(p.nodes.sample))
	var reads sync.WaitGroup
	for i, node := range p.nodes.sample {
		reads.Go(func() { sources[i], errs[i] = p.sourceOf(ctx, node) })
	}
	reads.Wait()
	var groups [numSources][]string
	var err error // the first one
	for i, source := range sources {
		groups[source] = append(groups[source], p.nodes.sample[i])
		if err == nil {
			err = errs[i]
		}
	}
	p.kubelets = kubelets{verified: len(groups[requested]) == len(sources), selfSigned: len(groups[selfSigned]) > 0}
	var checks []doctor.Check
	for source, names := range groups {
		if len(names) > 0 {
			c := describe(certificateSource(source), err)
			c.Seen = fmt.Sprintf("%d of %s examined: %s", len(names), count(len(sources), "kubelet"), c.Seen)
			if c.Status != doctor.OK {
				c.Objects = names
			}
			checks = append(checks, c)
		}
	}
	return checks
}

// describe returns what a source of certificates means. The error is that of an unknown source.
func describe(source certificateSource, err error) doctor.Check {
	c := doctor.Check{ID: "kubelet-certificates", Title: "kubelet TLS", Status: doctor.OK}
	switch source {
	case requested:
		c.Seen = "the cluster's CA signs their certificates (serverTLSBootstrap)"
	case selfSigned:
		c.Status, c.Reason, c.URL = doctor.Warning, string(reason.TLSSelfSigned), reason.TLSSelfSigned.URL()
		c.Seen = "they sign their own certificates, because serverTLSBootstrap is not set; the command below pins them"
		c.Cure = "better: set serverTLSBootstrap in the kubelets' configuration, then check and approve their requests"
	case fromFile:
		c.Status, c.Reason = doctor.Skipped, certificatesUnknown
		c.Seen = "they have certificates of their own (tlsCertFile), and the API does not show who signed them"
	default:
		c = doctor.Denied(c, err)
		c.Status = doctor.Skipped
		c.Seen = "their configuration cannot be read: " + c.Seen
	}
	if c.Status == doctor.Skipped {
		c.Cure = "the command below has the values that are usual for the distribution; if scrapes fail for a reason " +
			"that begins with tls-, docs/troubleshooting.md has the cure"
	}
	return c
}

// sourceOf reads where a kubelet gets its certificate from.
func (p *preflight) sourceOf(ctx context.Context, node string) (certificateSource, error) {
	var config struct {
		Kubelet *struct {
			ServerTLSBootstrap bool   `json:"serverTLSBootstrap"`
			TLSCertFile        string `json:"tlsCertFile"`
		} `json:"kubeletconfig"`
	}
	body, err := doctor.Get(ctx, p.kube, "/api/v1/nodes/"+node+"/proxy/configz")
	if err == nil {
		err = json.Unmarshal(body, &config)
	}
	switch {
	case err != nil:
		return unknownSource, err
	case config.Kubelet == nil:
		return unknownSource, fmt.Errorf("the kubelet of node %q does not show its configuration", node)
	case config.Kubelet.ServerTLSBootstrap:
		return requested, nil
	case config.Kubelet.TLSCertFile != "":
		return fromFile, nil
	}
	return selfSigned, nil
}

// kubelets is what is known of the certificates of the sampled kubelets.
type kubelets struct {
	verified   bool // all of them are signed by the cluster's CA
	selfSigned bool // some are
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
