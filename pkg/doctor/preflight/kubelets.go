package preflight

import (
	"context"
	"fmt"
	"strings"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/doctor"
	"github.com/kube-vitals/kube-vitals/pkg/internal/pages"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

const maxSample = 8 // kubelets whose configuration is read

// checkKubelets reads the configuration of some kubelets through the API server, which can connect to nodes.
func (p *preflight) checkKubelets(ctx context.Context, c doctor.Check) []doctor.Check {
	if p.nodes.all == 0 {
		return nil
	}
	sample := p.nodes.sample
	results := make([][]doctor.Check, len(sample))
	var reads sync.WaitGroup
	for i, node := range sample {
		reads.Go(func() { results[i] = p.checkKubelet(ctx, c, node) })
	}
	reads.Wait()
	groups := doctor.Groups{}
	for i, result := range results {
		groups.Add(result[0].Reason, sample[i].name, func() []doctor.Check { return result })
	}
	p.verified = groups[""] != nil && len(groups) == 1
	p.selfSigned = groups[string(reason.TLSSelfSigned)] != nil
	return groups.Checks(func(n int) string {
		return fmt.Sprintf("%d of %s examined (%d in the cluster): ", n, doctor.Count(len(sample), "kubelet"), p.nodes.all)
	})
}

func (p *preflight) checkKubelet(ctx context.Context, c doctor.Check, node sampledNode) []doctor.Check {
	var config struct {
		Kubelet *struct {
			ServerTLSBootstrap             bool
			TLSCertFile, TLSPrivateKeyFile string
		} `json:"kubeletconfig"`
	}
	err := doctor.Get(ctx, p.kube, "/api/v1/nodes/"+node.name+"/proxy/configz", &config)
	if err == nil && config.Kubelet == nil {
		err = fmt.Errorf("the kubelet of node %q does not show its configuration", node.name)
	}
	switch {
	case err != nil:
		denied := c.Denied(err)[0]
		return c.Skip(doctor.Problem{Reason: denied.Reason, Cure: usualValues}, "their configuration cannot be read: %s",
			denied.Seen)
	case config.Kubelet.ServerTLSBootstrap:
		return c.OK("a CA of the cluster signs their certificates (serverTLSBootstrap)")
	// Of k3s and RKE2: https://github.com/k3s-io/k3s/blob/main/pkg/agent/config/config.go
	case strings.HasSuffix(config.Kubelet.TLSCertFile, "/agent/serving-kubelet.crt"):
		return c.OK("the cluster's CA signs their certificates (serving-kubelet.crt)")
	// A kubelet without any of these settings reports the files that it creates in --cert-dir: InitializeTLS in
	// https://github.com/kubernetes/kubernetes/blob/master/cmd/kubelet/app/server.go
	case config.Kubelet.TLSCertFile != "" &&
		strings.TrimSuffix(config.Kubelet.TLSCertFile, "/kubelet.crt")+"/kubelet.key" != config.Kubelet.TLSPrivateKeyFile:
		return c.Skip(certificatesUnknown,
			"they have certificates of their own (tlsCertFile), and the API does not show who signed them")
	}
	c.URL = reason.TLSSelfSigned.URL()
	if node.distribution == talos {
		return c.Fail(keysChange,
			"they sign their own certificates, with a new key at each start, so that pinned keys would not last")
	}
	return c.Warn(doctor.Problem{Reason: string(reason.TLSSelfSigned),
		Cure: "better: set serverTLSBootstrap in the kubelets' configuration, then check and approve their requests"},
		"they sign their own certificates, because serverTLSBootstrap is not set, unless kubelet.crt was replaced; "+
			"the command below pins those that no CA has signed")
}

func (p *preflight) checkRequests(ctx context.Context, c doctor.Check) []doctor.Check {
	err := pages.Each(ctx, p.kube.CertificatesV1().CertificateSigningRequests().List,
		metav1.ListOptions{FieldSelector: "spec.signerName=" + certificatesv1.KubeletServingSignerName},
		func(r *certificatesv1.CertificateSigningRequest) {
			if len(r.Status.Conditions) == 0 {
				c.Objects = append(c.Objects, r.Name)
			}
		})
	if err != nil {
		return c.Denied(err)
	}
	if pending := len(c.Objects); pending > 0 {
		return c.Fail(requestsPending, "%s of kubelets for serving certificates wait for approval",
			doctor.Count(pending, "request"))
	}
	return c.OK("no request of a kubelet waits for approval")
}
