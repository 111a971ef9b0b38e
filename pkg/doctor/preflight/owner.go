package preflight

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/doctor"
	"github.com/kube-vitals/kube-vitals/pkg/internal/command"
)

const (
	movePage    = "https://github.com/kube-vitals/kube-vitals/blob/main/docs/moving-from-metrics-server.md"
	adapterPage = "https://github.com/kube-vitals/kube-vitals/blob/main/docs/moving-from-prometheus-adapter.md"
)

// owner is who has installed the server of v1beta1.metrics.k8s.io.
type owner struct {
	name string // empty: there is no APIService

	installed bool   // it is kube-vitals
	managed   bool   // it cannot be switched off: an addon manager or operator restores it
	release   string // of helm; may be empty
	namespace string // of the release
	off       string // how to switch it off
	page      string // how to move
}

// apiService is the part of an APIService that is examined. Its package is not part of client-go.
type apiService struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Service *struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"service"`
	} `json:"spec"`
}

// checkOwner finds out who serves metrics.k8s.io.
func (p *preflight) checkOwner(ctx context.Context) []doctor.Check {
	c := doctor.Check{ID: "owner", Title: "metrics.k8s.io", Status: doctor.OK}
	body, err := doctor.Get(ctx, p.kube, "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io")
	a := &apiService{}
	if err == nil {
		err = json.Unmarshal(body, a)
	}
	switch {
	case apierrors.IsNotFound(err):
		c.Seen = "no server has the APIService v1beta1.metrics.k8s.io"
		return []doctor.Check{c}
	case err != nil:
		return []doctor.Check{doctor.Denied(c, err)}
	}
	service := "the API server itself"
	p.server.Kind = doctor.Other
	if s := a.Spec.Service; s != nil {
		service = "Service " + s.Namespace + "/" + s.Name
		p.server = doctor.Server{Kind: doctor.KindByName(s.Name), Namespace: s.Namespace, Service: s.Name}
	}
	o := ownerOf(p.server, &a.Metadata, p.distribution)
	p.owner = o
	c.Seen = fmt.Sprintf("%s is served by %s: %s", a.Metadata.Name, service, o.name)
	switch {
	case o.installed:
		c.Reason = alreadyInstalled
		c.Seen += "; the command below upgrades it"
	case o.managed:
		p.values["apiService"] = map[string]any{"create": false}
		c.Status, c.Reason, c.URL = doctor.Warning, ownerManaged, movePage
		c.Cure = o.off
	default:
		c.Status, c.Reason, c.URL = doctor.Failed, ownerInstalled, o.page
		c.Cure = o.off
	}
	return []doctor.Check{c}
}

// mark returns the value of an annotation or label of the APIService.
func mark(o *metav1.ObjectMeta, key string) string { return cmp.Or(o.Annotations[key], o.Labels[key]) }

// manager is what installs metrics-server by other means than helm or kubectl. Most managers restore it, so
// removing its objects is no cure.
type manager struct {
	name         string
	distribution distribution // of the nodes; empty: any
	key, value   string       // a label or annotation of the APIService; an empty value stands for any
	fieldManager string       // of the APIService, in place of key
	unreleased   bool         // not if helm has installed it
	off          string       // how to switch it off; empty: impossible
}

// The ends of sentences that say how to switch metrics-server off.
const (
	keep = "keep it: it would be restored. The command below installs kube-vitals beside it, without APIServices"
	then = "then run the command below"
)

const (
	releaseName  = "meta.helm.sh/release-name"
	addonManager = "addonmanager.kubernetes.io/mode"
	kopsAddon    = "addon.kops.k8s.io/name"
	kopsName     = "metrics-server.addons.k8s.io"
	k0sStack     = "k0s.k0sproject.io/stack"
	k0sName      = "metricserver"
)

// managers are all that are known. The first match counts.
// docs/distributions.md has the same marks.
var managers = []manager{
	// https://github.com/kubernetes/minikube/blob/master/deploy/addons/metrics-server/metrics-apiservice.yaml
	{name: "an addon of minikube", key: "kubernetes.io/minikube-addons", off: minikubeOff},
	{name: "an addon of minikube", distribution: minikube, key: addonManager, off: minikubeOff},
	{name: "GKE's, installed by an addon manager", distribution: gke, key: addonManager},
	// https://github.com/Azure/AKS/issues/3631
	{name: "AKS's, installed by an addon manager", distribution: aks, key: addonManager},
	// https://github.com/openshift/cluster-monitoring-operator/tree/main/assets/metrics-server
	{name: "OpenShift's, installed by the cluster monitoring operator", key: "app.kubernetes.io/managed-by",
		value: "cluster-monitoring-operator"},
	// The gardener-resource-manager adds the label and undoes changes: ManagedBy in
	// https://github.com/gardener/gardener/blob/master/pkg/apis/resources/v1alpha1/types.go
	{name: "Gardener's, installed by its resource manager", key: "resources.gardener.cloud/managed-by"},
	{name: "installed by an addon manager", key: addonManager, value: "Reconcile"},
	{name: "installed by an addon manager", key: addonManager, value: "EnsureExists"},
	// The label: https://github.com/kubernetes/kops/blob/master/pkg/model/components/addonmanifests/remap.go
	// The setting: https://kops.sigs.k8s.io/addons/#metrics-server
	{name: "an addon of kOps", key: kopsAddon, value: kopsName,
		off: lines("set spec.metricsServer.enabled to false with kops edit cluster, and apply that, or kOps installs it "+
			"again; delete what is left of it, "+then, "kops update cluster --name NAME --yes",
			"kubectl delete deployment,service,serviceaccount,rolebinding,poddisruptionbudget --namespace kube-system "+
				"--selector "+kopsAddon+"="+kopsName,
			"kubectl delete apiservice,clusterrole,clusterrolebinding --selector "+kopsAddon+"="+kopsName)},
	// The label: NameLabel in https://github.com/k0sproject/k0s/blob/main/pkg/applier/meta.go
	// The flag: https://docs.k0sproject.io/stable/configuration/#disabling-controller-components
	{name: "a component of k0s", key: k0sStack, value: k0sName,
		off: lines("start every k0s controller with --disable-components=metrics-server, or k0s installs it again; delete "+
			"what is left of it, "+then,
			"kubectl delete deployment,service,serviceaccount,rolebinding --namespace kube-system --selector "+
				k0sStack+"="+k0sName,
			"kubectl delete apiservice,clusterrole,clusterrolebinding --selector "+k0sStack+"="+k0sName)},
	// https://docs.rke2.io/install/packaged_components
	{name: "RKE2's chart", key: releaseName, value: "rke2-metrics-server",
		off: lines("put this into /etc/rancher/rke2/config.yaml of every server, restart them, "+then,
			"disable: [rke2-metrics-server]")},
	// https://docs.k3s.io/installation/packaged-components
	{name: "k3s' AddOn", key: "objectset.rio.cattle.io/owner-name", unreleased: true, off: k3sOff},
	{name: "k3s' AddOn", key: "objectset.rio.cattle.io/hash", unreleased: true, off: k3sOff},
	// The field manager: https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-field-management.html
	// eksctl and the console add it to new clusters only: https://github.com/eksctl-io/eksctl/issues/8652
	{name: "an add-on of EKS", fieldManager: "eks",
		off: lines("delete the add-on, "+then, "aws eks delete-addon --cluster-name NAME --addon-name metrics-server")},
	// The addon has no other mark. Disabling it deletes what its manifest has, no matter who has applied that:
	// https://github.com/canonical/microk8s-core-addons/tree/main/addons/metrics-server
	{name: "an addon of MicroK8s", distribution: microk8s, key: "k8s-app", value: "metrics-server",
		off: lines("switch it off, "+then, "microk8s disable metrics-server")},
}

var (
	minikubeOff = lines("switch it off, "+then, "minikube addons disable metrics-server")
	k3sOff      = "start every k3s server with --disable=metrics-server, which deletes it, " + then
)

// matches reports whether the manager has installed the APIService, and by which mark.
func (m *manager) matches(apiService *metav1.ObjectMeta, d distribution, released bool) (evidence string, ok bool) {
	if m.distribution != "" && m.distribution != d || m.unreleased && released {
		return "", false
	}
	if m.fieldManager != "" {
		return fmt.Sprintf("field manager %q", m.fieldManager), managedBy(apiService, m.fieldManager)
	}
	value := mark(apiService, m.key)
	return fmt.Sprintf("%s: %.100q", m.key, value), value != "" && (m.value == "" || m.value == value)
}

// ownerOf recognizes the owner by the labels, annotations and managers of the APIService. A tenant cannot
// create one, unlike the Service to which it leads.
func ownerOf(server doctor.Server, apiService *metav1.ObjectMeta, d distribution) owner {
	// They become a part of commands.
	release := command.Name(mark(apiService, releaseName), "")
	namespace := command.Name(mark(apiService, "meta.helm.sh/release-namespace"), "")
	if release == "" || namespace == "" {
		release, namespace = "", ""
	}
	if server.Kind == doctor.KubeVitals {
		return owner{name: "kube-vitals", installed: true, release: release, namespace: namespace}
	}
	for i := range managers {
		m := &managers[i]
		if evidence, ok := m.matches(apiService, d, release != ""); ok {
			return owner{name: m.name + " (" + evidence + ")", managed: m.off == "", page: movePage,
				off: cmp.Or(m.off, keep)}
		}
	}
	switch {
	case server.Namespace == "openshift-monitoring": // no tenant may create it
		return owner{name: "OpenShift's", managed: true, off: keep}
	case strings.Contains(server.Service, "prometheus-adapter"):
		return owner{name: "prometheus-adapter", page: adapterPage, release: release, namespace: namespace,
			off: "follow the page, which moves its resource metrics to kube-vitals"}
	case release != "" && server.Kind == doctor.MetricsServer:
		return owner{name: "the helm release " + namespace + "/" + release, page: movePage, release: release,
			namespace: namespace, off: lines("move without a failed request, as the page describes; or remove it, "+then,
				"helm uninstall "+release+" --namespace "+namespace)}
	case server.Kind == doctor.MetricsServer:
		return owner{name: "metrics-server, not installed by helm or a known addon manager", page: movePage,
			off: lines("move without a failed request, as the page describes; or remove what its manifest has, "+then,
				"kubectl delete --filename https://github.com/kubernetes-sigs/metrics-server/releases/latest/download/"+
					"components.yaml")}
	}
	return owner{name: "an unknown server", page: movePage, release: release, namespace: namespace,
		off: "remove the APIService from that server, " + then}
}

// managedBy reports whether a manager has set fields of an object.
func managedBy(o *metav1.ObjectMeta, manager string) bool {
	return slices.ContainsFunc(o.ManagedFields, func(f metav1.ManagedFieldsEntry) bool { return f.Manager == manager })
}
