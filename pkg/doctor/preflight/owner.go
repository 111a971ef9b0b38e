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

// mark returns the first value that the APIService has under one of the keys of its labels or annotations.
func mark(o *metav1.ObjectMeta, keys ...string) string {
	for _, key := range keys {
		if value := cmp.Or(o.Annotations[key], o.Labels[key]); value != "" {
			return value
		}
	}
	return ""
}

// ownerOf recognizes the owner by the labels, annotations and managers of the APIService. A tenant cannot
// create one, unlike the Service to which it leads. docs/moving-from-metrics-server.md has the same table.
func ownerOf(server doctor.Server, apiService *metav1.ObjectMeta, d distribution) owner {
	const (
		keep = "keep it: it would be restored. The command below installs kube-vitals beside it, without APIServices"
		then = "then run the command below"
	)
	// They become a part of commands.
	release := command.Name(mark(apiService, "meta.helm.sh/release-name"), "")
	namespace := command.Name(mark(apiService, "meta.helm.sh/release-namespace"), "")
	if release == "" || namespace == "" {
		release, namespace = "", ""
	}
	mode := mark(apiService, "addonmanager.kubernetes.io/mode")
	byAddonManager := fmt.Sprintf("installed by an addon manager (label addonmanager.kubernetes.io/mode: %.100q)", mode)
	minikubeAddon := d == minikube && mode != "" || mark(apiService, "kubernetes.io/minikube-addons") != ""
	cmo := mark(apiService, "app.kubernetes.io/managed-by") == "cluster-monitoring-operator" ||
		server.Namespace == "openshift-monitoring"
	switch {
	case server.Kind == doctor.KubeVitals:
		return owner{name: "kube-vitals", installed: true, release: release, namespace: namespace}
	case minikubeAddon:
		return owner{name: "an addon of minikube", page: movePage,
			off: lines("switch it off, "+then, "minikube addons disable metrics-server")}
	case d == gke && mode != "":
		return owner{name: "GKE's, " + byAddonManager, managed: true, off: keep}
	case d == aks && mode != "":
		return owner{name: "AKS's, " + byAddonManager, managed: true, off: keep}
	case cmo:
		return owner{name: "OpenShift's, installed by the cluster monitoring operator", managed: true, off: keep}
	case mode == "Reconcile" || mode == "EnsureExists":
		return owner{name: byAddonManager, managed: true, off: keep}
	case mark(apiService, "objectset.rio.cattle.io/owner-name", "objectset.rio.cattle.io/hash") != "" && release == "":
		return owner{name: "k3s' AddOn", page: movePage,
			off: "start every k3s server with --disable=metrics-server, which deletes it, " + then}
	case strings.HasPrefix(release, "rke2-"):
		return owner{name: "RKE2's chart " + release, page: movePage, release: release, namespace: namespace,
			off: lines("put this into /etc/rancher/rke2/config.yaml of every server, restart them, "+then,
				"disable: ["+release+"]")}
	case managedBy(apiService, "eks"):
		return owner{name: "an add-on of EKS", page: movePage,
			off: lines("delete the add-on, "+then, "aws eks delete-addon --cluster-name NAME --addon-name metrics-server")}
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
