// Package preflight examines a cluster before kube-vitals is installed: which distribution it is,
// who serves metrics.k8s.io, which certificates the kubelets have, and whether a pod can run. From
// that it chooses a preset and values of the chart, and prints the command that installs it.
// It only reads, and only from the API server.
package preflight

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-vitals/kube-vitals/pkg/doctor"
	"github.com/kube-vitals/kube-vitals/pkg/internal/command"
)

// The problems whose reasons are not in pkg/reason or pkg/doctor.
var (
	alreadyInstalled = doctor.Problem{Reason: "already-installed"}
	requestsPending  = doctor.Problem{Reason: "requests-pending",
		Cure: "check each of them before you approve it: the user must be system:node:NODE of a node, and the names and " +
			"addresses those of that node; an approver such as kubelet-csr-approver does so for each renewal\n" +
			"kubectl get csr\nkubectl describe csr"}
	certificatesUnknown = doctor.Problem{Reason: "certificates-unknown", Cure: usualValues}
	keysChange          = doctor.Problem{Reason: "keys-change",
		Cure: "let the cluster sign their certificates before the installation: docs/distributions.md#talos"}
	hostNetworkNeeded = doctor.Problem{Reason: "host-network-needed"}
	noNodeForPod      = doctor.Problem{Reason: "no-node-for-pod",
		Cure: "end the maintenance of a cordoned node (kubectl uncordon), add a node, or set tolerations in the chart"}
	noNodes = doctor.Problem{Reason: "no-nodes", Cure: "add a node"}
)

const (
	ownerManaged   = "owner-managed"
	ownerInstalled = "owner-installed"
	incomplete     = "incomplete"
	usualValues    = "the command below has the values that are usual for the distribution; if scrapes fail for a " +
		"reason that begins with tls-, docs/troubleshooting.md has the cure"
)

// InstallStep is the ID of the check with the command.
const InstallStep = "install"

// preflight is the state of an examination. Later steps use what earlier ones have found.
type preflight struct {
	doctor.Config
	kube kubernetes.Interface

	nodes        nodes
	distribution string
	presets      []string
	values       []string // of the chart, as helm --set reads them
	verified     bool     // the cluster's CA has signed the certificates of all examined kubelets
	selfSigned   bool     // some of them have signed their own, and keep them
	server       doctor.Server
	release      *helmRelease // of kube-vitals; nil: it is not installed
	v1beta1Free  bool         // for kube-vitals, so the values of a preset for a provider's server do not fit
	install      *doctor.Install
}

// Examine runs all checks before an installation. Its errors are those of doctor.Examine.
func Examine(ctx context.Context, c doctor.Config) (*doctor.Report, error) {
	p := &preflight{Config: c, server: doctor.Server{Kind: doctor.None}, presets: []string{}}
	c.Steps = func(kube kubernetes.Interface) []doctor.Step {
		p.kube = kube
		return []doctor.Step{
			{ID: "distribution", Title: "distribution", Run: p.checkDistribution},
			{ID: "owner", Title: "metrics.k8s.io", Run: p.checkOwner},
			{ID: "kubelet-certificates", Title: "kubelet TLS", Run: p.checkKubelets},
			{ID: "certificate-requests", Title: "kubelet CSRs", Run: p.checkRequests},
			{ID: "network", Title: "network", Run: p.checkNetwork},
			{ID: "scheduling", Title: "scheduling", Run: p.checkScheduling},
			{ID: InstallStep, Title: "installation", Run: p.checkInstall},
		}
	}
	report, err := doctor.Examine(ctx, c)
	if report != nil {
		report.Server, report.Install = p.server, p.install
	}
	return report, err
}

func (p *preflight) checkInstall(ctx context.Context, c doctor.Check) []doctor.Check {
	values := slices.Clone(p.values)
	switch { // what was seen counts more than what is usual for the distribution
	case p.selfSigned:
		values = append(values, pin)
	case p.verified && len(p.nodes.sample) == p.nodes.all: // pins do no harm where a CA has signed
		values = slices.DeleteFunc(values, func(value string) bool { return value == pin })
	}
	if p.v1beta1Free || slices.Contains(values, noAPIService) {
		values = slices.DeleteFunc(values, func(value string) bool { return value == onlyV1 })
	}
	slices.Sort(values)
	values = slices.Compact(values)
	cure := p.command(ctx, values)
	p.install = &doctor.Install{Distribution: p.distribution, Presets: p.presets, Command: p.Aim(cure)}
	if cure == "" {
		cure = "not by helm: update it as it was installed, with kubectl apply or a GitOps tool, and these values: " +
			cmp.Or(strings.Join(values, ", "), "the default ones")
	}
	if p.distribution == openShift || p.distribution == gardener {
		cure = fmt.Sprintf("copy the CA of kubelets into the namespace %s first, as docs/distributions.md#%s shows\n%s",
			p.namespace(), p.distribution, cure)
	}
	if p.nodes.all == 0 {
		return c.Warn(doctor.Problem{Reason: incomplete, Cure: cure},
			"the nodes could not be examined, so other values than these may be necessary")
	}
	seen := "preset " + strings.Join(p.presets, " and ")
	if len(p.presets) == 0 {
		seen = "no preset; the values follow from the checks"
	}
	if !p.selfSigned && !p.verified {
		seen += "; who signs the kubelets' certificates is not known, see kubelet TLS"
	}
	return c.With(doctor.OK, doctor.Problem{Cure: cure}, "%s", seen)
}

// released matches the versions whose chart and image are published.
var released = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// namespace returns that of kube-vitals, which may not exist yet.
func (p *preflight) namespace() string {
	namespace := p.Namespace
	switch {
	case p.release != nil:
		namespace = cmp.Or(p.release.namespace, p.server.Namespace)
	case p.distribution == openShift || p.distribution == gardener: // they restrict pods in kube-system
		namespace = cmp.Or(namespace, "kube-vitals")
	}
	return command.Name(cmp.Or(namespace, "kube-system"), "NAMESPACE")
}

// command returns that of helm, or "" if kube-vitals is installed without it. Without a release, it needs a checkout.
func (p *preflight) command(ctx context.Context, values []string) string {
	chart, image := "charts/kube-vitals", " --set image.repository=REGISTRY/kube-vitals,image.tag=TAG"
	if released.MatchString(p.Version) {
		chart = "oci://ghcr.io/kube-vitals/charts/kube-vitals --version " + strings.TrimPrefix(p.Version, "v")
		image = ""
	}
	run, namespace := "helm install kube-vitals "+chart, p.namespace()
	if r := p.release; r != nil && r.name == "" {
		return ""
	} else if r != nil {
		run = "helm upgrade " + r.name + " " + chart + " --reset-then-reuse-values"
	}
	run += " --namespace " + namespace + image
	if p.release == nil { // without need, helm would fail without the permission to create it
		if _, err := p.kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			run += " --create-namespace"
		}
	}
	for _, value := range values {
		if strings.ContainsAny(value, "[{") { // shells would expand it
			value = "'" + value + "'"
		}
		run += " --set " + value
	}
	return run
}
