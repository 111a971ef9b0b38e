// Package preflight examines a cluster before kube-vitals is installed: which distribution it is,
// who serves metrics.k8s.io, which certificates the kubelets have, and whether a pod can run. From
// that it chooses a preset and values of the chart, and prints the command that installs it.
//
// It only reads, and only from the API server.
package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-vitals/kube-vitals/pkg/doctor"
)

// minVersion is the oldest version of Kubernetes that the chart allows.
const minVersion = "1.29"

// The reasons of checks that are not in pkg/reason or pkg/doctor. docs/why-no-metrics.md describes each.
const (
	versionUnsupported  = "version-unsupported"
	ownerManaged        = "owner-managed"
	ownerInstalled      = "owner-installed"
	alreadyInstalled    = "already-installed"
	requestsPending     = "requests-pending"
	certificatesUnknown = "certificates-unknown"
	hostNetworkNeeded   = "host-network-needed"
	routeUnknown        = "route-unknown"
	noNodeForPod        = "no-node-for-pod"
	noNodes             = "no-nodes"
	incomplete          = "incomplete"
)

// preflight is the state of an examination. Later steps use what earlier ones have found.
type preflight struct {
	doctor.Config
	kube kubernetes.Interface

	nodes        nodes
	distribution distribution
	owner        owner
	kubelets     kubelets
	values       map[string]any // in addition to those of the presets
	presets      []string
	server       doctor.Server
	install      *doctor.Install
}

// Examine runs all checks before an installation. Its errors are those of doctor.Examine.
func Examine(ctx context.Context, c doctor.Config) (*doctor.Report, error) {
	p := &preflight{Config: c, values: map[string]any{}, server: doctor.Server{Kind: doctor.None}}
	if p.Timeout <= 0 {
		p.Timeout = doctor.DefaultTimeout
	}
	c.Steps = func(kube kubernetes.Interface) []doctor.Step {
		p.kube = kube
		return []doctor.Step{
			{Title: "version", Run: p.checkVersion},
			{Title: "distribution", Run: p.checkDistribution},
			{Title: "metrics.k8s.io", Run: p.checkOwner},
			{Title: "kubelet TLS", Run: p.checkKubelets},
			{Title: "kubelet CSRs", Run: p.checkRequests},
			{Title: "network", Run: p.checkNetwork},
			{Title: "scheduling", Run: p.checkScheduling},
			{Title: "installation", Run: p.checkInstall},
		}
	}
	report, err := doctor.Examine(ctx, c)
	if report != nil {
		report.Server, report.Install = p.server, p.install
	}
	return report, err
}

func (p *preflight) checkVersion(ctx context.Context) []doctor.Check {
	c := doctor.Check{ID: "version", Title: "version", Status: doctor.OK}
	body, err := doctor.Get(ctx, p.kube, "/version")
	if err != nil {
		return []doctor.Check{doctor.Denied(c, err)}
	}
	var info struct {
		GitVersion string `json:"gitVersion"`
	}
	var server *version.Version
	if err = json.Unmarshal(body, &info); err == nil {
		server, err = version.ParseGeneric(info.GitVersion)
	}
	if err != nil {
		return []doctor.Check{doctor.Denied(c, fmt.Errorf("the API server has no valid version: %w", err))}
	}
	c.Seen = fmt.Sprintf("Kubernetes %d.%d; kube-vitals needs %s or newer", server.Major(), server.Minor(), minVersion)
	if server.LessThan(version.MustParseGeneric(minVersion)) {
		c.Status, c.Reason, c.Cure = doctor.Failed, versionUnsupported, "upgrade Kubernetes"
	}
	return []doctor.Check{c}
}

// count returns a number with a noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// lines joins sentences and commands to a cure: each on its own line.
func lines(all ...string) string { return strings.Join(all, "\n") }
