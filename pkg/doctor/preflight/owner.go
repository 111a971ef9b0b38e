package preflight

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/doctor"
	"github.com/kube-vitals/kube-vitals/pkg/internal/command"
	"github.com/kube-vitals/kube-vitals/pkg/internal/pages"
)

// helmRelease is a release of helm. Its names are parts of commands, so they are empty unless both are DNS names.
type helmRelease struct{ name, namespace string }

func releaseOf(o *metav1.ObjectMeta) helmRelease {
	r := helmRelease{command.Name(o.Annotations[releaseName], ""), command.Name(o.Annotations[releaseNamespace], "")}
	if r.name == "" || r.namespace == "" {
		return helmRelease{}
	}
	return r
}

// findInstalled finds kube-vitals by its ClusterRoleBindings, which no tenant can create: a release may be beside
// another server, or have names of its own. Of several, it prefers that in a namespace.
func (p *preflight) findInstalled(ctx context.Context, served *doctor.Server, preferred string) error {
	list := p.kube.RbacV1().ClusterRoleBindings().List
	return pages.Each(ctx, list, metav1.ListOptions{}, func(b *rbacv1.ClusterRoleBinding) {
		name, isServer := strings.CutSuffix(b.Name, ":system:auth-delegator")
		if !isServer || !doctor.IsOurs(&b.ObjectMeta) || len(b.Subjects) == 0 {
			return
		}
		found := doctor.Server{Kind: doctor.KubeVitals, Namespace: b.Subjects[0].Namespace, Service: name}
		_, err := p.kube.CoreV1().Services(found.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) { // the binding was left behind
			return
		}
		if found.String() == served.String() {
			served.Kind = doctor.KubeVitals
		}
		if p.release == nil || found.Namespace == preferred {
			p.release, p.server = new(releaseOf(&b.ObjectMeta)), found
		}
	})
}

// checkOwner finds out whether kube-vitals is installed, and who serves metrics.k8s.io.
func (p *preflight) checkOwner(ctx context.Context, c doctor.Check) (checks []doctor.Check) {
	a, err := doctor.GetAPIService(ctx, p.kube, "v1beta1")
	seen, served := a.Metadata.Name+" is served by the API server itself", doctor.Server{Kind: doctor.Other}
	if s := a.Spec.Service; s != nil {
		served = doctor.Server{Kind: doctor.KindByName(s.Name), Namespace: s.Namespace, Service: s.Name}
		seen = fmt.Sprintf("%s is served by Service %s", a.Metadata.Name, served)
	}
	unknown := p.findInstalled(ctx, &served, cmp.Or(p.Namespace, served.Namespace))
	if unknown != nil && doctor.IsOurs(&a.Metadata) {
		served.Kind = doctor.KubeVitals
	}
	if p.release == nil && err == nil {
		if p.server = served; served.Kind == doctor.KubeVitals {
			p.release = new(releaseOf(&a.Metadata))
		}
	}
	switch installed := (doctor.Check{ID: c.ID, Title: "kube-vitals"}); {
	case p.release != nil:
		checks = installed.With(doctor.OK, alreadyInstalled, "Service %s is installed: kube-vitals", p.server)
	case unknown != nil:
		checks = installed.Denied(unknown)
	}
	switch {
	case apierrors.IsNotFound(err):
		p.takeV1beta1(a)
		return append(checks, c.OK("no server has the APIService v1beta1.metrics.k8s.io")...)
	case err != nil:
		return append(checks, c.Denied(err)...)
	case served.Kind == doctor.KubeVitals:
		p.v1beta1Free = true
		return append(checks, c.OK("%s", seen)...)
	}
	o := p.ownerOf(served, &a.Metadata)
	c.URL = movePage
	if strings.HasPrefix(o.off, followPage) {
		c.URL = adapterPage
	}
	if o.off == "" {
		p.values = append(p.values, onlyV1)
		if v1, err := doctor.GetAPIService(ctx, p.kube, "v1"); err == nil && !doctor.IsOurs(&v1.Metadata) {
			p.values = append(p.values, noAPIService)
		}
		managed := doctor.Problem{Reason: ownerManaged, Cure: keep + o.unless}
		return append(checks, c.Warn(managed, "%s: %s", seen, o.name)...)
	}
	p.takeV1beta1(a)
	return append(checks, c.Fail(doctor.Problem{Reason: ownerInstalled, Cure: o.off}, "%s: %s", seen, o.name)...)
}

// takeV1beta1 lets the command create v1beta1, which is free by then. An upgrade keeps the values of a release beside
// another server: apiService.create=false or apiService.versions=[v1].
func (p *preflight) takeV1beta1(a *doctor.APIService) {
	p.v1beta1Free = true
	if p.release != nil && !doctor.IsOurs(&a.Metadata) {
		p.values = append(p.values, "apiService.create=true", "apiService.versions={v1,v1beta1}")
	}
}

// owner is what has installed another server. Most owners restore it, so removing its objects is no cure.
type owner struct {
	name         string
	mark         string // of the APIService
	distribution string // of the nodes; empty: any; unrecognized: none that is known
	unreleased   bool   // not if helm has installed it
	off          string // how to switch it off; empty: impossible
	unless       string // exception to the advice to keep it, if off is empty
}

const (
	movePage    = "https://github.com/kube-vitals/kube-vitals/blob/main/docs/moving-from-metrics-server.md"
	adapterPage = "https://github.com/kube-vitals/kube-vitals/blob/main/docs/moving-from-prometheus-adapter.md"
	keep        = "keep it: it would be restored. The command below installs kube-vitals beside it: " +
		"kubectl 1.37 reads kube-vitals, and autoscalers read the other one"
	followPage = "follow the page"
	then       = "then run the command below" // the end of sentences about how to switch a server off

	vitalsMark        = "app.kubernetes.io/name=kube-vitals"
	releaseName       = "meta.helm.sh/release-name"
	releaseNamespace  = "meta.helm.sh/release-namespace"
	unrecognized      = "unrecognized"
	addonManager      = "addonmanager.kubernetes.io/mode"
	addonReconcile    = addonManager + "=Reconcile"
	addonEnsureExists = addonManager + "=EnsureExists"
	kopsAddon         = "addon.kops.k8s.io/name=metrics-server.addons.k8s.io"
	k0sStack          = "k0s.k0sproject.io/stack=metricserver"
	minikubeOff       = "switch it off, " + then + "\nminikube addons disable metrics-server"
	k3sOff            = "start every k3s server with --disable=metrics-server, which deletes it, " + then
	manifest          = "k8s-app=metrics-server"
	orKubespray       = ". If Kubespray has installed it, it is not restored: follow " +
		"docs/distributions.md#kubespray, and run this again"
	unknownOwner = "metrics-server, not installed by helm or a known addon manager"
	deleteLeft   = "kubectl delete apiservice,clusterrole,clusterrolebinding --selector "
	deleteIn     = "\nkubectl delete deployment,service,serviceaccount,rolebinding,poddisruptionbudget " +
		"--namespace kube-system --selector "
)

// owners are all that are known. The first match counts. docs/distributions.md has further sources.
var owners = []owner{
	{name: "kube-vitals' own APIService, which was changed", mark: vitalsMark,
		off: "this prints how to restore it, if kube-vitals is installed\nkubectl vitals doctor"},
	{name: "an addon of minikube", mark: "kubernetes.io/minikube-addons", off: minikubeOff},
	{name: "an addon of minikube", mark: addonManager, distribution: "minikube", off: minikubeOff},
	{name: "GKE's, installed by an addon manager", mark: addonManager, distribution: "gke"},
	{name: "AKS's, installed by an addon manager", mark: addonManager, distribution: "aks"},
	{name: "OpenShift's, installed by the cluster monitoring operator",
		mark: "app.kubernetes.io/managed-by=cluster-monitoring-operator"},
	// The gardener-resource-manager adds the label and undoes changes: ManagedBy in
	// https://github.com/gardener/gardener/blob/master/pkg/apis/resources/v1alpha1/types.go
	{name: "Gardener's, installed by its resource manager", mark: "resources.gardener.cloud/managed-by"},
	{name: "installed by an addon manager", mark: addonReconcile, distribution: unrecognized, unless: orKubespray},
	{name: "installed by an addon manager", mark: addonEnsureExists, distribution: unrecognized, unless: orKubespray},
	// The label: https://github.com/kubernetes/kops/blob/master/pkg/model/components/addonmanifests/remap.go
	{name: "an addon of kOps", mark: kopsAddon, off: "set spec.metricsServer.enabled to false with kops edit cluster, " +
		"and apply that, or kOps installs it again; delete what is left of it, " + then +
		"\nkops update cluster --name NAME --yes" + deleteIn + kopsAddon + "\n" + deleteLeft + kopsAddon},
	// The label: NameLabel in https://github.com/k0sproject/k0s/blob/main/pkg/applier/meta.go
	{name: "a component of k0s", mark: k0sStack, off: "start every k0s controller with " +
		"--disable-components=metrics-server, or k0s installs it again; delete what is left of it, " + then +
		deleteIn + k0sStack + "\n" + deleteLeft + k0sStack},
	{name: "RKE2's chart", mark: releaseName + "=rke2-metrics-server", off: "put this into " +
		"/etc/rancher/rke2/config.yaml of every server, restart them, " + then + "\ndisable: [rke2-metrics-server]"},
	{name: "k3s' AddOn", mark: "objectset.rio.cattle.io/owner-name", unreleased: true, off: k3sOff},
	{name: "k3s' AddOn", mark: "objectset.rio.cattle.io/hash", unreleased: true, off: k3sOff},
	// The field manager: https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-field-management.html
	{name: "an add-on of EKS", mark: "field manager eks",
		off: "delete the add-on, " + then + "\naws eks delete-addon --cluster-name NAME --addon-name metrics-server"},
	// The addon has no other mark. Disabling it deletes what its manifest has, no matter who has applied that:
	// https://github.com/canonical/microk8s-core-addons/tree/main/addons/metrics-server
	{name: "an addon of MicroK8s", mark: manifest, distribution: "microk8s",
		off: "switch it off, " + then + "\nmicrok8s disable metrics-server"},
}

// gitOps are marks of Argo CD, which sets one of the first two, and of Flux. They restore what they apply.
// https://argo-cd.readthedocs.io/en/stable/user-guide/resource_tracking/
// https://fluxcd.io/flux/components/helm/helmreleases/, https://fluxcd.io/flux/components/kustomize/kustomizations/
var gitOps = []string{"argocd.argoproj.io/tracking-id", "argocd.argoproj.io/instance",
	"helm.toolkit.fluxcd.io/name", "kustomize.toolkit.fluxcd.io/name"}

// ownerOf recognizes the owner by the metadata of the APIService: tenants cannot create one, unlike its Service.
func (p *preflight) ownerOf(server doctor.Server, o *metav1.ObjectMeta) owner {
	r := releaseOf(o)
	for _, known := range owners {
		matches := hasMark(o, known.mark) || known.mark == vitalsMark && doctor.IsOurs(o) ||
			slices.ContainsFunc(o.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
				return "field manager "+f.Manager == known.mark
			})
		if matches && (known.distribution == "" || known.distribution == cmp.Or(p.distribution, unrecognized)) &&
			(!known.unreleased || r.name == "") {
			known.name += " (" + known.mark + ")"
			return known
		}
	}
	switch {
	case server.Namespace == "openshift-monitoring": // no tenant may create it
		return owner{name: "OpenShift's"}
	case strings.Contains(server.Service, "prometheus-adapter"):
		return owner{name: "prometheus-adapter", off: followPage + ", which moves its resource metrics to kube-vitals"}
	case server.Kind != doctor.MetricsServer:
		return owner{name: "an unknown server", off: "remove the APIService from that server, " + then}
	case slices.ContainsFunc(gitOps, func(mark string) bool { return hasMark(o, mark) }):
		return owner{name: "metrics-server, applied by Argo CD or Flux", off: "remove it from what " +
			"that tool applies, or else it is restored, " + then}
	case r.name != "":
		return owner{name: "the helm release " + r.namespace + "/" + r.name, off: "move without a failed request, as the " +
			"page describes; or remove it, " + then + ". If the release has more than metrics-server, disable that in its " +
			"values instead of this:\nhelm uninstall " + r.name + " --namespace " + r.namespace}
	// Kubespray and old manifests have the label. Of the distributions that are recognized, only those in owners have an
	// addon manager: https://github.com/kubernetes-sigs/kubespray/tree/master/roles/kubernetes-apps/metrics_server
	case server.Namespace == metav1.NamespaceSystem && (hasMark(o, addonReconcile) || hasMark(o, addonEnsureExists)):
		return owner{name: "metrics-server, installed by Kubespray or from an old manifest (" + addonManager + ")",
			off: "set metrics_server_enabled to false if Kubespray has installed it. Then move without a failed request, as " +
				"the page describes; or remove it, " + then + "\nkubectl delete apiservice v1beta1.metrics.k8s.io" +
				"\nkubectl delete clusterrole,clusterrolebinding system:metrics-server" +
				"\nkubectl delete clusterrolebinding metrics-server:system:auth-delegator" +
				"\nkubectl delete rolebinding metrics-server-auth-reader --namespace kube-system" +
				"\nkubectl delete deployment,service,serviceaccount metrics-server --namespace kube-system"}
	// The manifest has no such label, and Argo CD can use it as its own.
	case server.Namespace == metav1.NamespaceSystem && hasMark(o, manifest) && !hasMark(o, "app.kubernetes.io/instance"):
		return owner{name: unknownOwner, off: "move without a failed request, as the page describes; or remove what its " +
			"manifest has, " + then + "\nkubectl delete --filename " +
			"https://github.com/kubernetes-sigs/metrics-server/releases/latest/download/components.yaml"}
	}
	return owner{name: unknownOwner, off: "move without a failed request, as the page describes; or remove it in the " +
		"way that it was installed, " + then}
}
