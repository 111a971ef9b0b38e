package preflight

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/doctor"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

const (
	apiServicePath = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io"
	csrs           = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	bindings       = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
	daemonSets     = "/apis/apps/v1/namespaces/kube-system/daemonsets"
	configMaps     = "/api/v1/namespaces/kube-system/configmaps/"
	credentials    = "credentials-of-the-admin"
)

// world is an API server. Tests change its objects before they examine it.
type world struct {
	t       *testing.T
	objects map[string]any // by path
	status  map[string]metav1.Status
	nodes   []corev1.Node
	ca      *kubelettest.CA
	client  rest.Config
	version string // of doctor

	namespace string // --namespace
}

// newWorld returns a cluster without nodes and without a metrics server.
func newWorld(t *testing.T) *world {
	t.Helper()
	api := sim.NewAPI()
	w := &world{t: t, objects: api.Objects, status: api.Refusals, ca: kubelettest.NewCA(),
		client: *api.Config(), version: "v0.2.0"}
	w.client.BearerToken = credentials
	api.Latency = 0
	api.RefuseBy(func(verb, path string) *sim.Refusal {
		if verb != "get" {
			t.Errorf("an examination must only read, but sends %s %s", verb, path)
		}
		return nil
	})
	w.objects["/api"] = map[string]any{}
	w.objects["/api/v1/namespaces/kube-system"] = &corev1.Namespace{}
	w.objects[bindings] = &rbacv1.ClusterRoleBindingList{}
	w.objects["/version"] = map[string]string{"gitVersion": "v1.36.3"}
	w.objects[configMaps+"extension-apiserver-authentication"] = &corev1.ConfigMap{Data: map[string]string{
		"requestheader-client-ca-file": string(w.ca.PEM()), "client-ca-file": string(w.ca.PEM()),
	}}
	return w
}

// forbid makes the API server reject requests for the paths.
func (w *world) forbid(paths ...string) {
	for _, path := range paths {
		w.status[path] = metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
			Message: `x is forbidden: User "u" cannot get what is at ` + path}
	}
}

// node adds a Linux node with this configuration of its kubelet (nil: it cannot be read), and returns it
// to be changed.
func (w *world) node(name string, config any) *corev1.Node {
	if config != nil {
		w.objects[configz(name)] = map[string]any{"kubeletconfig": config}
	}
	w.nodes = append(w.nodes, corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"},
			Annotations: map[string]string{}},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.3", OSImage: "Ubuntu 24.04 LTS"}},
	})
	return &w.nodes[len(w.nodes)-1]
}

func configz(node string) string { return "/api/v1/nodes/" + node + "/proxy/configz" }

// signed adds a node whose certificate the cluster's CA has signed.
func (w *world) signed(name string) *corev1.Node {
	return w.node(name, map[string]any{"serverTLSBootstrap": true})
}

// selfSigned adds a node whose kubelet has created its certificate.
func (w *world) selfSigned(name string) *corev1.Node {
	return w.node(name, map[string]any{"tlsCertFile": "/var/lib/kubelet/pki/kubelet.crt",
		"tlsPrivateKeyFile": "/var/lib/kubelet/pki/kubelet.key"})
}

// rancher adds a node of k3s or RKE2, whose server has signed the certificate of the kubelet.
func (w *world) rancher(name, distribution string) *corev1.Node {
	agent := "/var/lib/rancher/" + distribution + "/agent/"
	return w.node(name, map[string]any{"tlsCertFile": agent + "serving-kubelet.crt",
		"tlsPrivateKeyFile": agent + "serving-kubelet.key"})
}

// metricsServer adds the APIService.
func (w *world) metricsServer(namespace, service string, meta metav1.ObjectMeta) {
	meta.Name = "v1beta1.metrics.k8s.io"
	w.objects[apiServicePath] = map[string]any{
		"metadata": meta, "spec": map[string]any{"service": map[string]any{"namespace": namespace, "name": service}},
	}
}

// v1 adds the APIService of the other version.
func (w *world) v1(meta metav1.ObjectMeta) {
	w.objects["/apis/apiregistration.k8s.io/v1/apiservices/v1.metrics.k8s.io"] = map[string]any{"metadata": meta}
}

func (w *world) daemonSet(app string) { w.daemonSetIn("kube-system", app) }

func (w *world) daemonSetIn(namespace, app string) {
	d := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{
		Name: app, Namespace: namespace, Labels: map[string]string{"k8s-app": app}}}
	for _, path := range []string{"/apis/apps/v1/daemonsets", "/apis/apps/v1/namespaces/" + namespace + "/daemonsets"} {
		list, ok := w.objects[path].(*appsv1.DaemonSetList)
		if !ok {
			list = &appsv1.DaemonSetList{}
			w.objects[path] = list
		}
		list.Items = append(list.Items, d)
	}
}

// cilium adds Cilium in place of kube-proxy.
func (w *world) cilium(ipam string) {
	w.daemonSet("cilium")
	w.objects[configMaps+"cilium-config"] = &corev1.ConfigMap{Data: map[string]string{
		"kube-proxy-replacement": "true", "ipam": ipam}}
}

// result is a report with its text.
type result struct {
	*doctor.Report
	text string
}

func (w *world) examine() result {
	w.t.Helper()
	w.objects["/api/v1/nodes"] = &corev1.NodeList{Items: w.nodes}
	var text bytes.Buffer
	p := &doctor.Printer{Out: &text}
	report, err := Examine(w.t.Context(), doctor.Config{Client: &w.client, Version: w.version, Namespace: w.namespace,
		Timeout: testenv.Patience, Start: p.Start, Done: p.Done})
	if err != nil {
		w.t.Fatal(err)
	}
	p.Finish(report)
	encoded, err := json.Marshal(report)
	if err != nil || bytes.Contains(encoded, []byte(":null")) || bytes.Contains(encoded, []byte(credentials)) ||
		strings.Contains(text.String(), credentials) {
		w.t.Errorf("error %v, or the output has null or the credentials: %s", err, encoded)
	}
	return result{report, text.String()}
}

// check returns the first check with an ID.
func (r result) check(t *testing.T, id string) doctor.Check {
	t.Helper()
	i := slices.IndexFunc(r.Checks, func(c doctor.Check) bool { return c.ID == id })
	if i < 0 {
		t.Fatalf("there is no check %s:\n%s", id, r.text)
	}
	return r.Checks[i]
}

// want fails the test unless the first check with an ID has this status and reason.
func (r result) want(t *testing.T, id string, status doctor.Status, why string) doctor.Check {
	t.Helper()
	c := r.check(t, id)
	if c.Status != status || c.Reason != why {
		t.Errorf("%s: got %s %q, want %s %q:\n%s", id, c.Status, c.Reason, status, why, r.text)
	}
	return c
}

const (
	helmInstall = "helm install kube-vitals oci://ghcr.io/kube-vitals/charts/kube-vitals --version 0.2.0 " +
		"--namespace kube-system"
	beside = " --set 'apiService.versions[0]=v1'"
	both   = " --set apiService.create=true --set 'apiService.versions={v1,v1beta1}'"
	withCA = " --set 'extraVolumeMounts[0].mountPath=/etc/kube-vitals/kubelet-ca'" +
		" --set 'extraVolumeMounts[0].name=kubelet-ca' --set 'extraVolumeMounts[0].readOnly=true'" +
		" --set 'extraVolumes[0].configMap.name=kubelet-serving-ca' --set 'extraVolumes[0].name=kubelet-ca'" +
		" --set kubelet.certificateAuthority=/etc/kube-vitals/kubelet-ca/ca-bundle.crt"
	ofHostNetwork = " --set containerPort=4443 --set hostNetwork.enabled=true" +
		" --set updateStrategy.rollingUpdate.maxSurge=0 --set updateStrategy.rollingUpdate.maxUnavailable=1"
)

func label(name, value string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Labels: map[string]string{name: value}}
}

func release(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Labels:      map[string]string{"app.kubernetes.io/name": "metrics-server"},
		Annotations: map[string]string{"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": "kube-system"},
	}
}

// TestDistributions examines each distribution as it is by default.
func TestDistributions(t *testing.T) {
	t.Parallel()
	reconcile := label("addonmanager.kubernetes.io/mode", "Reconcile")
	for name, tt := range map[string]struct {
		world   func(w *world)
		presets []string
		flags   string // after helmInstall
		owner   doctor.Status
		off     string // in the cure of the owner

		ownNamespace bool
	}{
		"kubeadm": {
			world: func(w *world) {
				w.selfSigned("a").Annotations[criSocket] = "unix:///run/containerd/containerd.sock"
			},
			presets: []string{"kubeadm"}, flags: " --set kubelet.tls=pin", owner: doctor.OK,
		},
		"kubeadm by its ConfigMap": {
			world: func(w *world) {
				w.selfSigned("a")
				w.objects[configMaps+"kubeadm-config"] = &corev1.ConfigMap{}
			},
			presets: []string{"kubeadm"}, flags: " --set kubelet.tls=pin", owner: doctor.OK,
		},
		"kubeadm with serverTLSBootstrap": {
			world:   func(w *world) { w.signed("a").Annotations[criSocket] = "x" },
			presets: []string{"kubeadm"}, owner: doctor.OK,
		},
		"kubeadm with Kubespray's metrics-server": {
			world: func(w *world) {
				w.selfSigned("a").Annotations[criSocket] = "x"
				w.metricsServer("kube-system", "metrics-server", reconcile)
			},
			presets: []string{"kubeadm"}, flags: " --set kubelet.tls=pin",
			owner: doctor.Failed, off: "set metrics_server_enabled to false",
		},
		"kubeadm with metrics-server of helm, which has the label of Kubespray's": {
			world: func(w *world) {
				w.signed("a").Annotations[criSocket] = "x"
				meta := release("ms")
				meta.Labels["addonmanager.kubernetes.io/mode"] = "Reconcile"
				w.metricsServer("kube-system", "metrics-server", meta)
			},
			presets: []string{"kubeadm"}, owner: doctor.Failed, off: "helm uninstall ms --namespace kube-system",
		},
		"kubeadm with one node": {
			world: func(w *world) {
				n := w.signed("a")
				n.Annotations[criSocket] = "x"
				n.Labels[controlPlane] = ""
				n.Spec.Taints = []corev1.Taint{{Key: controlPlane, Effect: corev1.TaintEffectNoSchedule}}
			},
			presets: []string{"kubeadm"}, owner: doctor.OK,
			flags: " --set 'tolerations[0].key=" + controlPlane + "' --set 'tolerations[0].operator=Exists'",
		},
		"kind": {
			world: func(w *world) {
				n := w.selfSigned("kind-control-plane")
				n.Spec.ProviderID = "kind://docker/kind/kind-control-plane"
				n.Annotations[criSocket] = "x"
			},
			presets: []string{"kind"}, flags: " --set kubelet.tls=pin", owner: doctor.OK,
		},
		"minikube": {
			world: func(w *world) {
				n := w.selfSigned("minikube")
				n.Labels["minikube.k8s.io/name"] = "minikube"
				n.Annotations[criSocket] = "x"
				w.metricsServer("kube-system", "metrics-server", metav1.ObjectMeta{Labels: map[string]string{
					"addonmanager.kubernetes.io/mode": "Reconcile", "kubernetes.io/minikube-addons": "metrics-server"}})
			},
			presets: []string{"minikube"}, flags: " --set kubelet.tls=pin",
			owner: doctor.Failed, off: "minikube addons disable metrics-server",
		},
		"k3s": {
			world: func(w *world) {
				w.rancher("a", "k3s").Status.NodeInfo.KubeletVersion = "v1.36.3+k3s1"
				w.metricsServer("kube-system", "metrics-server", label("objectset.rio.cattle.io/hash", "0123"))
			},
			presets: []string{"k3s"}, owner: doctor.Failed, off: "--disable=metrics-server",
		},
		"RKE2": {
			world: func(w *world) {
				w.rancher("a", "rke2").Status.NodeInfo.KubeletVersion = "v1.36.3+rke2r1"
				w.metricsServer("kube-system", "rke2-metrics-server", release("rke2-metrics-server"))
			},
			presets: []string{"rke2"}, owner: doctor.Failed, off: "disable: [rke2-metrics-server]",
		},
		"EKS with its add-on": {
			world: func(w *world) {
				w.signed("a").Status.NodeInfo.KubeletVersion = "v1.36.3-eks-0123456"
				w.daemonSet("aws-node")
				w.metricsServer("kube-system", "metrics-server", metav1.ObjectMeta{
					Labels:        map[string]string{"app.kubernetes.io/name": "metrics-server"},
					ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "eks", Operation: metav1.ManagedFieldsOperationApply}},
				})
			},
			presets: []string{"eks"}, owner: doctor.Failed, off: "aws eks delete-addon",
		},
		"EKS with Calico": {
			world: func(w *world) {
				w.signed("a").Status.NodeInfo.KubeletVersion = "v1.36.3-eks-0123456"
				w.daemonSet("calico-node")
				w.daemonSet("kube-proxy")
			},
			presets: []string{"eks", "host-network"}, flags: ofHostNetwork, owner: doctor.OK,
		},
		"EKS with Calico of its operator": {
			world: func(w *world) {
				w.signed("a").Status.NodeInfo.KubeletVersion = "v1.36.3-eks-0123456"
				w.objects["/apis/operator.tigera.io"] = metav1.APIGroup{Name: "operator.tigera.io"}
				w.daemonSetIn("calico-system", "calico-node")
			},
			presets: []string{"eks", "host-network"}, flags: ofHostNetwork, owner: doctor.OK,
		},
		"EKS with DaemonSets of tenants": {
			world: func(w *world) {
				w.signed("a").Status.NodeInfo.KubeletVersion = "v1.36.3-eks-0123456"
				w.daemonSetIn("tenant", "calico-node")
				w.daemonSetIn("calico-system", "calico-node") // without the operator's API
			},
			presets: []string{"eks"}, owner: doctor.OK,
		},
		"EKS with Fargate and other nodes": {
			world: func(w *world) {
				for _, name := range []string{"a", "b"} {
					n := w.signed("fargate-" + name)
					n.Status.NodeInfo.KubeletVersion, n.Labels[computeType] = "v1.36.3-eks-0123456", "fargate"
				}
				w.signed("c").Status.NodeInfo.KubeletVersion = "v1.36.3-eks-0123456"
			},
			presets: []string{"eks"}, owner: doctor.OK,
		},
		"EKS Fargate": {
			world: func(w *world) {
				n := w.signed("a")
				n.Status.NodeInfo.KubeletVersion, n.Labels[computeType] = "v1.36.3-eks-0123456", "fargate"
				n.Spec.Taints = []corev1.Taint{{Key: computeType, Value: "fargate", Effect: corev1.TaintEffectNoSchedule}}
			},
			presets: []string{"eks-fargate"}, flags: " --set containerPort=10251", owner: doctor.OK,
		},
		"GKE": {
			world: func(w *world) {
				w.signed("a").Status.NodeInfo.KubeletVersion = "v1.36.3-gke.1000"
				w.metricsServer("kube-system", "metrics-server", reconcile)
			},
			presets: []string{"gke"}, flags: beside, owner: doctor.Warning, off: "keep it",
		},
		"AKS": {
			world: func(w *world) {
				w.signed("a").Labels["kubernetes.azure.com/cluster"] = "MC_x"
				w.metricsServer("kube-system", "metrics-server", reconcile)
			},
			presets: []string{"aks"}, flags: beside, owner: doctor.Warning, off: "keep it",
		},
		"OpenShift": {
			world: func(w *world) {
				w.signed("a").Labels["node.openshift.io/os_id"] = "rhel"
				w.metricsServer("openshift-monitoring", "metrics-server",
					label("app.kubernetes.io/managed-by", "cluster-monitoring-operator"))
			},
			presets: []string{"openshift"}, owner: doctor.Warning, off: "keep it",
			ownNamespace: true,
			flags:        beside + withCA + " --set securityContext.runAsGroup=null --set securityContext.runAsUser=null",
		},
		"OpenShift without monitoring": {
			world:   func(w *world) { w.signed("a").Labels["node.openshift.io/os_id"] = "rhel" },
			presets: []string{"openshift"}, owner: doctor.OK, ownNamespace: true,
			flags: withCA + " --set securityContext.runAsGroup=null --set securityContext.runAsUser=null",
		},
		"GKE where v1beta1 is free": {
			world:   func(w *world) { w.signed("a").Status.NodeInfo.KubeletVersion = "v1.36.3-gke.1000" },
			presets: []string{"gke"}, owner: doctor.OK,
		},
		"MicroK8s": {
			world: func(w *world) {
				w.selfSigned("a").Labels["microk8s.io/cluster"] = "true"
				w.metricsServer("kube-system", "metrics-server", label("k8s-app", "metrics-server"))
			},
			presets: []string{"microk8s"}, flags: " --set kubelet.tls=pin",
			owner: doctor.Failed, off: "microk8s disable metrics-server",
		},
		"MicroK8s with metrics-server of helm": {
			world: func(w *world) {
				w.selfSigned("a").Labels["microk8s.io/cluster"] = "true"
				w.metricsServer("kube-system", "metrics-server", release("ms"))
			},
			presets: []string{"microk8s"}, flags: " --set kubelet.tls=pin",
			owner: doctor.Failed, off: "If the release has more than metrics-server, disable that in its values instead of " +
				"this:\nhelm uninstall ms --namespace kube-system",
		},
		"k0s": {
			world: func(w *world) {
				w.signed("a").Status.NodeInfo.KubeletVersion = "v1.36.3+k0s"
				w.metricsServer("kube-system", "metrics-server", metav1.ObjectMeta{Labels: map[string]string{
					"k8s-app": "metrics-server", "k0s.k0sproject.io/stack": "metricserver"}})
			},
			presets: []string{}, owner: doctor.Failed, off: "--disable-components=metrics-server",
		},
		"kOps": {
			world: func(w *world) {
				w.node("a", map[string]any{"tlsCertFile": "/srv/kubernetes/kubelet-server.crt"}).
					Labels["kops.k8s.io/instancegroup"] = "nodes"
				w.metricsServer("kube-system", "metrics-server", metav1.ObjectMeta{Labels: map[string]string{
					"addon.kops.k8s.io/name": "metrics-server.addons.k8s.io", "app.kubernetes.io/managed-by": "kops",
					"k8s-app": "metrics-server"}})
			},
			presets: []string{}, owner: doctor.Failed, off: "kops update cluster",
		},
		"Gardener": {
			world: func(w *world) {
				w.signed("a").Labels["worker.gardener.cloud/pool"] = "worker"
				w.metricsServer("kube-system", "metrics-server", label("resources.gardener.cloud/managed-by", "gardener"))
			},
			presets: []string{"gardener"}, owner: doctor.Warning, off: "keep it", flags: beside + withCA,
			ownNamespace: true,
		},
		"Linode": {
			world:   func(w *world) { w.selfSigned("a").Labels["lke.linode.com/pool-id"] = "39949" },
			presets: []string{"linode"}, flags: " --set kubelet.tls=pin", owner: doctor.OK,
		},
		"DigitalOcean": {
			world:   func(w *world) { w.signed("a").Labels["doks.digitalocean.com/node-id"] = "x" },
			presets: []string{}, owner: doctor.OK,
		},
		"Talos": {
			world:   func(w *world) { w.selfSigned("a").Status.NodeInfo.OSImage = "Talos (v1.12.0)" },
			presets: []string{"talos"}, owner: doctor.OK, // pins would not last
		},
		"kubeadm with a node of Talos": {
			world: func(w *world) {
				w.selfSigned("a").Annotations[criSocket] = "x"
				w.selfSigned("b").Annotations[criSocket] = "x"
				w.selfSigned("c").Status.NodeInfo.OSImage = "Talos (v1.12.0)"
			},
			presets: []string{"kubeadm"}, flags: " --set kubelet.tls=pin", owner: doctor.OK,
		},
		"Cilium without kube-proxy": {
			world: func(w *world) {
				w.signed("a").Annotations[criSocket] = "x"
				w.cilium("cluster-pool")
			},
			presets: []string{"kubeadm"}, owner: doctor.OK,
		},
		"EKS with Cilium": {
			world: func(w *world) {
				w.signed("a").Status.NodeInfo.KubeletVersion = "v1.36.3-eks-0123456"
				w.cilium("cluster-pool")
			},
			presets: []string{"eks", "host-network"}, flags: ofHostNetwork, owner: doctor.OK,
		},
		"EKS Anywhere with Cilium": {
			world: func(w *world) {
				n := w.selfSigned("a")
				n.Status.NodeInfo.KubeletVersion, n.Annotations[criSocket] = "v1.36.3-eks-0123456", "x"
				w.cilium("kubernetes")
			},
			presets: []string{"kubeadm"}, flags: " --set kubelet.tls=pin", owner: doctor.OK,
		},
		"EKS with Cilium in Amazon's network": {
			world: func(w *world) {
				w.signed("a").Status.NodeInfo.KubeletVersion = "v1.36.3-eks-0123456"
				w.cilium("eni")
			},
			presets: []string{"eks"}, owner: doctor.OK,
		},
		"unknown": {
			world: func(w *world) { w.signed("a") }, presets: []string{}, owner: doctor.OK,
		},
		"unknown with self-signed certificates and an addon manager": {
			world: func(w *world) {
				w.selfSigned("a")
				w.metricsServer("kube-system", "metrics-server", reconcile)
			},
			presets: []string{}, flags: beside + " --set kubelet.tls=pin", owner: doctor.Warning,
			off: "and autoscalers read the other one. If Kubespray has installed it",
		},
		"metrics-server of helm": {
			world: func(w *world) {
				w.signed("a")
				w.metricsServer("kube-system", "metrics-server", release("ms"))
			},
			presets: []string{}, owner: doctor.Failed, off: "helm uninstall ms --namespace kube-system",
		},
		"kube-vitals, with an APIService that leads elsewhere": {
			world: func(w *world) {
				w.signed("a")
				meta := release("kube-vitals")
				meta.Labels = map[string]string{"app.kubernetes.io/name": "kube-vitals"}
				w.metricsServer("kube-system", "metrics-server", meta)
			},
			presets: []string{}, owner: doctor.Failed, off: "kubectl vitals doctor",
		},
		"metrics-server of its manifest": {
			world: func(w *world) {
				w.signed("a")
				w.metricsServer("kube-system", "metrics-server", label("k8s-app", "metrics-server"))
			},
			presets: []string{}, owner: doctor.Failed, off: "kubectl delete --filename",
		},
		"metrics-server of its manifest, in another namespace": {
			world: func(w *world) {
				w.signed("a")
				w.metricsServer("monitoring", "metrics-server", label("k8s-app", "metrics-server"))
			},
			presets: []string{}, owner: doctor.Failed, off: "in the way that it was installed",
		},
		"metrics-server of its manifest, with the label of Argo CD": {
			world: func(w *world) {
				w.signed("a")
				w.metricsServer("kube-system", "metrics-server", metav1.ObjectMeta{Labels: map[string]string{
					"k8s-app": "metrics-server", "app.kubernetes.io/instance": "platform"}})
			},
			presets: []string{}, owner: doctor.Failed, off: "in the way that it was installed",
		},
		"prometheus-adapter": {
			world: func(w *world) {
				w.signed("a")
				w.metricsServer("monitoring", "prometheus-adapter", label("app.kubernetes.io/name", "prometheus-adapter"))
			},
			presets: []string{}, owner: doctor.Failed, off: "follow the page",
		},
		"release with a name that is none": {
			world: func(w *world) {
				w.signed("a")
				w.metricsServer("kube-system", "x", release("$(reboot)"))
			},
			presets: []string{}, owner: doctor.Failed, off: "remove the APIService from that server",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.world(w)
			r := w.examine()
			command := helmInstall + tt.flags
			if tt.ownNamespace {
				command = strings.Replace(command, "kube-system", "kube-vitals --create-namespace", 1)
			}
			newKeys := strings.Contains(r.text, "with a new key at each start")
			failed := r.Summary[doctor.Failed] > 0 && tt.owner != doctor.Failed
			if newKeys != strings.Contains(name, "Talos") || newKeys != failed {
				t.Errorf("new keys: %t:\n%s", newKeys, r.text)
			}
			if r.Install == nil || !slices.Equal(r.Install.Presets, tt.presets) || r.Install.Command != command {
				t.Errorf("got %+v\nwant presets %q and\n%s\n%s", r.Install, tt.presets, command, r.text)
			}
			owner := r.check(t, "owner")
			if owner.Status != tt.owner || !strings.Contains(owner.Cure, tt.off) || strings.Contains(r.text, "reboot") {
				t.Errorf("got %+v, want %s and %q", owner, tt.owner, tt.off)
			}
			cure := r.check(t, "install").Cure
			copies := strings.HasPrefix(cure, "copy the CA of kubelets into the namespace kube-vitals first")
			if copies != strings.Contains(tt.flags, "kubelet.certificateAuthority") {
				t.Errorf("copy the CA: %t:\n%s", copies, r.text)
			}
			if !strings.Contains(r.text, "→ "+command+"\n") && !strings.Contains(r.text, "  "+command+"\n") {
				t.Errorf("the command is not on one line:\n%s", r.text)
			}
		})
	}
}

// TestGitOps checks that no command deletes what a tool restores, or more.
func TestGitOps(t *testing.T) {
	t.Parallel()
	for _, mark := range []string{"argocd.argoproj.io/tracking-id", "argocd.argoproj.io/instance",
		"helm.toolkit.fluxcd.io/name", "kustomize.toolkit.fluxcd.io/name"} {
		for _, meta := range []metav1.ObjectMeta{release("ms"), label("k8s-app", "metrics-server")} {
			w := newWorld(t)
			w.signed("a")
			meta.Labels[mark] = "x"
			w.metricsServer("kube-system", "metrics-server", meta)
			r := w.examine()
			c := r.want(t, "owner", doctor.Failed, ownerInstalled)
			if !strings.Contains(c.Cure, "from what that tool applies") || strings.Contains(r.text, "helm uninstall") ||
				strings.Contains(r.text, "kubectl delete") {
				t.Errorf("%s: got\n%s", mark, r.text)
			}
		}
	}
}

// TestPresets checks that the chart's presets can be read and belong to a distribution, and that
// docs/distributions.md describes the distributions without one.
func TestPresets(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/distributions.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"cilium": true, "host-network": true}
	for _, d := range distributions {
		known[d.name] = true
		_, err := readPreset(d.name)
		if errors.Is(err, fs.ErrNotExist) && strings.Contains(string(page), "\n## "+d.name+"\n") {
			continue
		}
		if err != nil {
			t.Errorf("%s: %v, and docs/distributions.md has no section %s", d.name, err, d.name)
		}
	}
	files, err := filepath.Glob("../../../charts/kube-vitals/presets/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		if _, err := readPreset(name); err != nil || !known[name] {
			t.Errorf("preset %s: known %v, error %v", name, known[name], err)
		}
	}
}

// TestKubelets examines where kubelets get their certificates from.
func TestKubelets(t *testing.T) {
	t.Parallel()
	const id = "kubelet-certificates"
	for name, tt := range map[string]struct {
		config any // nil: not found
		status doctor.Status
		why    string
		pins   bool
	}{
		"configuration that cannot be read": {nil, doctor.Skipped, "request-failed", true},
		"a file": {
			map[string]any{"tlsCertFile": "/etc/kubelet.crt"}, doctor.Skipped, certificatesUnknown.Reason, true,
		},
		"a file that the kubelet has created": {
			map[string]any{"tlsCertFile": "/var/lib/kubelet/pki/kubelet.crt",
				"tlsPrivateKeyFile": "/var/lib/kubelet/pki/kubelet.key"},
			doctor.Warning, string(reason.TLSSelfSigned), true,
		},
		"a file whose name only ends with that": {
			map[string]any{"tlsCertFile": "/etc/own-kubelet.crt", "tlsPrivateKeyFile": "/etc/own-kubelet.key"},
			doctor.Skipped, certificatesUnknown.Reason, true,
		},
		"serverTLSBootstrap": {map[string]any{"serverTLSBootstrap": true}, doctor.OK, "", false},
		"neither":            {map[string]any{}, doctor.Warning, string(reason.TLSSelfSigned), true},
		"invalid":            {"text", doctor.Skipped, "request-failed", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.node("a", tt.config).Annotations[criSocket] = "x" // the preset pins
			r := w.examine()
			r.want(t, id, tt.status, tt.why)
			if seen := r.check(t, "install").Seen; strings.Contains(seen, "see kubelet TLS") != (tt.status == doctor.Skipped) {
				t.Errorf("got %q", seen)
			}
			if got := strings.HasSuffix(r.Install.Command, " --set kubelet.tls=pin"); got != tt.pins {
				t.Errorf("got %s, want the value for pins: %t", r.Install.Command, tt.pins)
			}
		})
	}
	t.Run("request pending", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.signed("a")
		w.objects[csrs] = &certificatesv1.CertificateSigningRequestList{Items: []certificatesv1.CertificateSigningRequest{
			{ObjectMeta: metav1.ObjectMeta{Name: "csr-2qkdw"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "csr-9wvgt"}, Status: certificatesv1.CertificateSigningRequestStatus{
				Conditions:  []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved}},
				Certificate: []byte("x"),
			}},
		}}
		c := w.examine().want(t, "certificate-requests", doctor.Failed, requestsPending.Reason)
		if !strings.Contains(c.Cure, "\nkubectl get csr\n") || strings.Contains(c.Cure, "kubectl certificate approve") ||
			!slices.Equal(c.Objects, []string{"csr-2qkdw"}) {
			t.Errorf("got %+v", c)
		}
	})
	t.Run("sample", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		for i := range 20 {
			w.signed(fmt.Sprintf("n%02d", i))
		}
		if r := w.examine(); strings.Contains(r.Install.Command, "pin") {
			t.Errorf("without a preset that pins: got %s", r.Install.Command)
		}
		for i := range w.nodes {
			w.nodes[i].Annotations[criSocket] = "x" // the preset pins, and 16 kubelets were not examined
		}
		if r := w.examine(); !strings.HasSuffix(r.Install.Command, " --set kubelet.tls=pin") {
			t.Errorf("got\n%s", r.text)
		}
		w.selfSigned("old").Status.NodeInfo.KubeletVersion = "v1.35.0"
		r := w.examine()
		if !strings.Contains(r.text, "4 of 5 kubelets examined (21 in the cluster): ") ||
			!strings.Contains(r.text, "! kubelet TLS ") || !strings.Contains(r.text, "1 of 5 kubelets examined (21 in the") ||
			!strings.HasSuffix(r.Install.Command, " --set kubelet.tls=pin") {
			t.Errorf("got\n%s", r.text)
		}
	})
}

// TestNodes examines nodes that cannot run the pod.
func TestNodes(t *testing.T) {
	t.Parallel()
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		r := newWorld(t).examine()
		r.want(t, "distribution", doctor.Failed, noNodes.Reason)
		if r.Install == nil {
			t.Error("there is no command")
		}
	})
	t.Run("taints", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.signed("a").Spec.Taints = []corev1.Taint{{Key: "team", Effect: corev1.TaintEffectNoExecute}}
		w.signed("b").Labels[corev1.LabelOSStable] = "windows"
		c := w.examine().want(t, "scheduling", doctor.Warning, noNodeForPod.Reason)
		if !strings.Contains(c.Seen, "no Linux node accepts") || !strings.Contains(c.Seen, "team") {
			t.Errorf("got %+v", c)
		}
	})
	controlPlaneTaint := corev1.Taint{Key: controlPlane, Effect: corev1.TaintEffectNoSchedule}
	t.Run("a control plane with another taint", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.signed("a").Spec.Taints = []corev1.Taint{controlPlaneTaint, {Key: "team", Effect: corev1.TaintEffectNoSchedule}}
		r := w.examine()
		c := r.want(t, "scheduling", doctor.Warning, noNodeForPod.Reason)
		if !strings.Contains(c.Seen, controlPlane+", team") || strings.Contains(r.Install.Command, "tolerations") {
			t.Errorf("got %+v, %s", c, r.Install.Command)
		}
	})
	t.Run("cordoned", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		n := w.signed("worker")
		n.Spec.Unschedulable = true
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
		n = w.signed("cp")
		n.Spec.Unschedulable, n.Spec.Taints = true, []corev1.Taint{controlPlaneTaint}
		c := w.examine().want(t, "scheduling", doctor.Warning, noNodeForPod.Reason)
		if !slices.Equal(c.Objects, []string{"worker"}) || !strings.Contains(c.Cure, "uncordon") {
			t.Errorf("got %+v", c)
		}
	})
	t.Run("taints of a moment", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.signed("a").Spec.Taints = []corev1.Taint{
			{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoExecute},
			{Key: "team", Effect: corev1.TaintEffectPreferNoSchedule},
		}
		w.examine().want(t, "scheduling", doctor.OK, "")
	})
}

// TestInstalled examines a cluster that has kube-vitals.
func TestInstalled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signed("a")
	meta := release("vitals")
	meta.Labels["app.kubernetes.io/name"] = "kube-vitals"
	meta.Annotations["meta.helm.sh/release-namespace"] = "monitoring"
	w.metricsServer("monitoring", "vitals-kube-vitals", meta)
	r := w.examine()
	r.want(t, "owner", doctor.OK, alreadyInstalled.Reason)
	const want = "helm upgrade vitals oci://ghcr.io/kube-vitals/charts/kube-vitals --version 0.2.0 " +
		"--reset-then-reuse-values --namespace monitoring"
	if r.Install.Command != want || r.Server.Kind != doctor.KubeVitals || r.Server.Namespace != "monitoring" {
		t.Errorf("got %s, %+v\nwant %s", r.Install.Command, r.Server, want)
	}
}

// bind adds the ClusterRoleBinding of an installed kube-vitals, and its Service.
func (w *world) bind(namespace, name string, meta metav1.ObjectMeta) {
	meta.Name = name + ":system:auth-delegator"
	list := w.objects[bindings].(*rbacv1.ClusterRoleBindingList)
	list.Items = append(list.Items, rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: []rbacv1.Subject{
		{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: namespace}}})
	w.objects["/api/v1/namespaces/"+namespace+"/services/"+name] = &corev1.Service{}
}

// TestInstalledBeside examines clusters that have kube-vitals although the name of v1beta1's Service does not show it.
func TestInstalledBeside(t *testing.T) {
	t.Parallel()
	ours := func(name, app string) metav1.ObjectMeta {
		meta := release(name)
		meta.Labels = map[string]string{"app.kubernetes.io/name": app, "helm.sh/chart": "kube-vitals-0.2.0"}
		return meta
	}
	const upgrade = "helm upgrade vitals oci://ghcr.io/kube-vitals/charts/kube-vitals --version 0.2.0 " +
		"--reset-then-reuse-values --namespace kube-system"
	for name, tt := range map[string]struct {
		world   func(w *world)
		command string
		server  string
	}{
		"beside the server of GKE": {func(w *world) {
			w.nodes[0].Status.NodeInfo.KubeletVersion = "v1.36.3-gke.1000"
			w.metricsServer("kube-system", "metrics-server", label("addonmanager.kubernetes.io/mode", "Reconcile"))
			w.bind("monitoring", "vitals-kube-vitals", ours("vitals", "kube-vitals"))
		}, upgrade + beside, "monitoring/vitals-kube-vitals"},
		"v1 with nameOverride, beside the server of GKE": {func(w *world) {
			w.metricsServer("kube-system", "metrics-server", label("addonmanager.kubernetes.io/mode", "Reconcile"))
			w.v1(ours("vitals", "metrics"))
			w.bind("kube-system", "vitals-metrics", ours("vitals", "metrics"))
		}, upgrade + beside, "kube-system/vitals-metrics"},
		"beside a provider's server with both versions": {func(w *world) {
			w.metricsServer("kube-system", "metrics-server", label("addonmanager.kubernetes.io/mode", "Reconcile"))
			w.v1(label("addonmanager.kubernetes.io/mode", "Reconcile"))
			w.bind("kube-system", "kube-vitals", ours("vitals", "kube-vitals"))
		}, upgrade + " --set apiService.create=false", "kube-system/kube-vitals"},
		"instead of the server of GKE": {func(w *world) {
			w.nodes[0].Status.NodeInfo.KubeletVersion = "v1.36.3-gke.1000"
			w.metricsServer("kube-system", "kube-vitals", ours("vitals", "kube-vitals"))
			w.bind("kube-system", "kube-vitals", ours("vitals", "kube-vitals"))
		}, upgrade, "kube-system/kube-vitals"},
		"nameOverride, without the permission to list bindings": {func(w *world) {
			w.forbid(bindings)
			w.metricsServer("kube-system", "metrics-server", ours("vitals", "metrics-server"))
		}, upgrade, "kube-system/metrics-server"},
		"without APIServices": {func(w *world) { w.bind("kube-system", "kube-vitals", ours("vitals", "kube-vitals")) },
			upgrade + both, "kube-system/kube-vitals"},
		"v1 only, where v1beta1 is free, with the preset of GKE": {func(w *world) {
			w.nodes[0].Status.NodeInfo.KubeletVersion = "v1.36.3-gke.1000"
			w.v1(ours("vitals", "kube-vitals"))
			w.bind("kube-system", "kube-vitals", ours("vitals", "kube-vitals"))
		}, upgrade + both, "kube-system/kube-vitals"},
		"nameOverride": {func(w *world) {
			w.metricsServer("kube-system", "vitals-metrics", ours("vitals", "metrics"))
			w.bind("kube-system", "vitals-metrics", ours("vitals", "metrics"))
		}, upgrade, "kube-system/vitals-metrics"},
		"fullnameOverride": {func(w *world) {
			w.metricsServer("kube-system", "metrics-server", ours("vitals", "kube-vitals"))
			w.bind("kube-system", "metrics-server", ours("vitals", "kube-vitals"))
		}, upgrade, "kube-system/metrics-server"},
		"kubectl apply": {func(w *world) {
			w.metricsServer("kube-system", "kube-vitals", label("app.kubernetes.io/name", "kube-vitals"))
			w.bind("kube-system", "kube-vitals", label("app.kubernetes.io/name", "kube-vitals"))
		}, "", "kube-system/kube-vitals"},
		"--namespace of the second release": {func(w *world) {
			w.namespace = "b"
			w.metricsServer("kube-system", "kube-vitals", ours("first", "kube-vitals"))
			meta := ours("second", "kube-vitals")
			meta.Annotations["meta.helm.sh/release-namespace"] = "b"
			w.bind("b", "second-kube-vitals", meta)
			w.bind("kube-system", "kube-vitals", ours("first", "kube-vitals"))
		}, "helm upgrade second oci://ghcr.io/kube-vitals/charts/kube-vitals --version 0.2.0 " +
			"--reset-then-reuse-values --namespace b", "b/second-kube-vitals"},
		"a binding that was left behind, and others": {func(w *world) {
			w.bind("kube-system", "kube-vitals", ours("vitals", "kube-vitals"))
			delete(w.objects, "/api/v1/namespaces/kube-system/services/kube-vitals")
			w.bind("kube-system", "metrics-server", label("app.kubernetes.io/name", "metrics-server"))
		}, helmInstall, "/"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.signed("a")
			tt.world(w)
			r := w.examine()
			if r.Install.Command != tt.command || r.Server.String() != tt.server || r.Summary[doctor.Failed] > 0 {
				t.Errorf("got %s, %s\n%s", r.Install.Command, r.Server, r.text)
			}
			if tt.command == "" && (strings.Contains(r.text, "helm upgrade") || !strings.Contains(r.text, "kubectl apply")) {
				t.Errorf("got\n%s", r.text)
			}
		})
	}
}

// TestNamespaceOfTheCA checks that the CA of kubelets is copied to where kube-vitals is, however it was installed.
func TestNamespaceOfTheCA(t *testing.T) {
	t.Parallel()
	kustomize, helm := label("app.kubernetes.io/name", "kube-vitals"), release("kube-vitals")
	helm.Labels = map[string]string{"app.kubernetes.io/name": "kube-vitals", "helm.sh/chart": "kube-vitals-0.2.0"}
	for want, meta := range map[string]metav1.ObjectMeta{"monitoring": kustomize, "kube-system": helm} {
		w := newWorld(t)
		w.signed("a").Labels["node.openshift.io/os_id"] = "rhel"
		w.bind(want, "kube-vitals", meta)
		const copied = "copy the CA of kubelets into the namespace "
		if c := w.examine().check(t, "install"); !strings.HasPrefix(c.Cure, copied+want+" ") {
			t.Errorf("got %s, want namespace %s", c.Cure, want)
		}
	}
}

// TestInstead checks that the command takes v1beta1 over once its server has been removed: after an upgrade that keeps
// apiService.create=false or apiService.versions=[v1], no server would have it.
func TestInstead(t *testing.T) {
	t.Parallel()
	for name, meta := range map[string]metav1.ObjectMeta{
		"helm": release("ms"), "manifest": label("k8s-app", "metrics-server"), "other": label("app", "other"),
	} {
		w := newWorld(t)
		w.signed("a").Status.NodeInfo.KubeletVersion = "v1.36.3-gke.1000" // its preset has v1 only
		service := "metrics-server"
		if name == "other" {
			service = name
		}
		w.metricsServer("kube-system", service, meta)
		if r := w.examine(); r.Install.Command != helmInstall {
			t.Errorf("%s: got %s, want %s", name, r.Install.Command, helmInstall)
		}
		w.bind("kube-system", "kube-vitals", label("app.kubernetes.io/name", "kube-vitals"))
		binding := &w.objects[bindings].(*rbacv1.ClusterRoleBindingList).Items[0]
		binding.Annotations = release("kube-vitals").Annotations
		r := w.examine()
		r.want(t, "owner", doctor.OK, alreadyInstalled.Reason)
		if r.Summary[doctor.Failed] != 1 || !strings.HasPrefix(r.Install.Command, "helm upgrade kube-vitals ") ||
			!strings.HasSuffix(r.Install.Command, both) {
			t.Errorf("%s: got %s", name, r.Install.Command)
		}
	}
}

// TestTakenOver examines a release with nameOverride whose v1beta1 leads to another server: it is not that server.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	meta := release("vitals")
	meta.Labels = map[string]string{"app.kubernetes.io/name": "metrics", "helm.sh/chart": "kube-vitals-0.2.0"}
	w := newWorld(t)
	w.signed("a")
	w.bind("kube-system", "vitals-metrics", meta)
	w.metricsServer("kube-system", "metrics-server", meta)
	if r := w.examine(); strings.Contains(r.text, "helm uninstall") || strings.Contains(r.text, "apiService.") ||
		!strings.Contains(r.text, "kubectl vitals doctor") {
		t.Errorf("got\n%s", r.text)
	}
}

// TestDevelopmentVersion checks that a version without a release uses the chart of a checkout.
func TestDevelopmentVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signed("a")
	for _, w.version = range []string{"v0.0.0-gabc1234", "v0.2.0-1-gabc1234-dirty", "v0.0.0-dev", ""} {
		const want = "helm install kube-vitals charts/kube-vitals --namespace kube-system " +
			"--set image.repository=REGISTRY/kube-vitals,image.tag=TAG"
		if got := w.examine().Install.Command; got != want {
			t.Errorf("%q: got %s, want %s", w.version, got, want)
		}
	}
}

// TestNoPermissions checks that each check is skipped that the user may not do, and that there is
// still a command.
func TestNoPermissions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signed("a")
	w.forbid("/version", "/api/v1/nodes", apiServicePath, bindings, csrs, daemonSets,
		configMaps+"extension-apiserver-authentication")
	r := w.examine()
	if r.Summary[doctor.Failed] > 0 || r.Summary[doctor.Skipped] < 5 || r.Install == nil ||
		r.Install.Command != helmInstall {
		t.Errorf("got %+v, %+v:\n%s", r.Summary, r.Install, r.text)
	}
	r.want(t, "install", doctor.Warning, incomplete)
	for _, c := range r.Checks {
		if c.Status == doctor.Skipped && (c.Reason != "no-permission" || !strings.Contains(c.Seen, "you cannot get")) {
			t.Errorf("got %+v", c)
		}
	}
}

// TestNamespace checks that the command has the user's namespace only if that is a DNS name.
func TestNamespace(t *testing.T) {
	t.Parallel()
	for namespace, want := range map[string]string{"": "kube-system", "team-a": "team-a", "$(a)": "NAMESPACE"} {
		w := newWorld(t)
		w.signed("a")
		w.namespace = namespace
		got := w.examine().Install.Command
		if !strings.Contains(got, " --namespace "+want) ||
			strings.Contains(got, " --create-namespace") != (want == "team-a" || want == "NAMESPACE") {
			t.Errorf("%q: got %s", namespace, got)
		}
	}
}

// TestDocumented checks that docs/why-no-metrics.md has a section for each check and the name of each
// reason, and docs/distributions.md a section for each distribution.
func TestDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/why-no-metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.signed("a")
	for _, c := range w.examine().Checks {
		if !strings.Contains(string(page), "\n### "+c.ID+"\n") {
			t.Errorf("docs/why-no-metrics.md has no section %s", c.ID)
		}
	}
	for _, r := range []string{
		ownerManaged, ownerInstalled, alreadyInstalled.Reason, requestsPending.Reason, certificatesUnknown.Reason,
		hostNetworkNeeded.Reason, noNodeForPod.Reason, noNodes.Reason, incomplete,
	} {
		if !strings.Contains(string(page), "`"+r+"`") {
			t.Errorf("docs/why-no-metrics.md does not have %s", r)
		}
	}
}
