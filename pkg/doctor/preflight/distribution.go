package preflight

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/doctor"
	"github.com/kube-vitals/kube-vitals/pkg/internal/pages"
)

// The distributions that need more than the table says.
const (
	kubeadm    = "kubeadm"
	eks        = "eks"
	eksFargate = "eks-fargate"
	openShift  = "openshift"
	gardener   = "gardener"
	talos      = "talos"

	criSocket    = "kubeadm.alpha.kubernetes.io/cri-socket"
	controlPlane = "node-role.kubernetes.io/control-plane"
	computeType  = "eks.amazonaws.com/compute-type"
	noAPIService = "apiService.create=false"
	onlyV1       = "apiService.versions[0]=v1"
	pin          = "kubelet.tls=pin"
)

type distribution struct{ name, mark string }

// distributions are what recognizes a node: a label or annotation, a part of the kubelet's version, or
// the beginning of the OS image or of the provider ID. The first match counts: kind, minikube and
// others use kubeadm, so it comes last. docs/distributions.md has the sources.
var distributions = []distribution{
	{"k3s", "+k3s"},
	{"rke2", "+rke2"},
	{eksFargate, computeType + "=fargate"},
	{eks, "-eks-"},
	{"gke", "-gke."},
	{"aks", "kubernetes.azure.com/cluster"},
	{openShift, "node.openshift.io/os_id"},
	{talos, "Talos"},
	{"k0s", "+k0s"},
	{"microk8s", "microk8s.io/cluster"},
	{"kops", "kops.k8s.io/instancegroup"},
	{gardener, "worker.gardener.cloud/pool"},
	{"linode", "lke.linode.com/pool-id"},
	{"digitalocean", "doks.digitalocean.com/node-id"},
	{"minikube", "minikube.k8s.io/name"},
	{"kind", "kind://"},
	{kubeadm, criSocket},
}

// hasMark reports whether an object has a label or annotation: KEY or KEY=VALUE.
func hasMark(o *metav1.ObjectMeta, mark string) bool {
	key, value, exact := strings.Cut(mark, "=")
	for _, marks := range []map[string]string{o.Annotations, o.Labels} {
		if got, ok := marks[key]; ok && (!exact || got == value) {
			return true
		}
	}
	return false
}

// recognizes reports whether a node has the mark. EKS Anywhere has EKS' versions, but kubeadm's mark (up to 1.33).
func (d *distribution) recognizes(node *corev1.Node) bool {
	info := node.Status.NodeInfo
	return (d.name != eks || !hasMark(&node.ObjectMeta, criSocket)) &&
		(hasMark(&node.ObjectMeta, d.mark) || strings.Contains(info.KubeletVersion, d.mark) ||
			strings.HasPrefix(info.OSImage, d.mark) || strings.HasPrefix(node.Spec.ProviderID, d.mark))
}

// nodes is what is kept of the nodes: a cluster can have thousands.
type nodes struct {
	all           int            // 0: they could not be read
	distributions map[string]int // number of nodes
	kinds         map[string]bool
	sample        []sampledNode // whose kubelets are examined: the first ones, and one of each other kind
	schedulable   int
	controlPlanes int             // that accept a pod with the toleration
	cordoned      []string        // that would accept the pod otherwise
	taints        map[string]bool // of Linux nodes where an ordinary pod cannot run
}

type sampledNode struct{ name, distribution string }

func (n *nodes) add(node *corev1.Node) {
	n.all++
	var name string
	if i := slices.IndexFunc(distributions, func(d distribution) bool { return d.recognizes(node) }); i >= 0 {
		name = distributions[i].name
		n.distributions[name]++
	}
	info := node.Status.NodeInfo
	kind := strings.Join([]string{info.KubeletVersion, info.OSImage, name}, "\n")
	if len(n.sample) < maxSample/2 || !n.kinds[kind] && len(n.sample) < maxSample {
		n.sample = append(n.sample, sampledNode{node.Name, name})
	}
	n.kinds[kind] = true
	if node.Labels[corev1.LabelOSStable] != "linux" {
		return
	}
	taints := map[string]bool{}
	for _, taint := range node.Spec.Taints {
		// Those of node.kubernetes.io go away by themselves.
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			taints[taint.Key] = true
		}
	}
	switch maps.Copy(n.taints, taints); {
	case len(taints) == 0 && node.Spec.Unschedulable:
		n.cordoned = append(n.cordoned, node.Name)
	case len(taints) == 0:
		n.schedulable++
	case len(taints) == 1 && taints[controlPlane] && !node.Spec.Unschedulable:
		n.controlPlanes++
	}
}

func (p *preflight) checkDistribution(ctx context.Context, c doctor.Check) []doctor.Check {
	n := nodes{distributions: map[string]int{}, kinds: map[string]bool{}, taints: map[string]bool{}}
	if err := pages.Each(ctx, p.kube.CoreV1().Nodes().List, metav1.ListOptions{}, n.add); err != nil {
		return c.Denied(err)
	}
	if n.all == 0 {
		return c.Fail(noNodes, "the cluster has no nodes")
	}
	p.nodes = n
	// The most frequent one: a cluster may have nodes of other kinds. Fargate counts only where nothing
	// else is, because the pods of kube-vitals run on other nodes otherwise.
	if n.distributions[eks] > 0 {
		delete(n.distributions, eksFargate)
	}
	for _, name := range slices.Sorted(maps.Keys(n.distributions)) {
		if p.distribution == "" || n.distributions[name] > n.distributions[p.distribution] {
			p.distribution = name
		}
	}
	if p.distribution == "" {
		_, err := p.kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "kubeadm-config", metav1.GetOptions{})
		if err != nil {
			return c.OK("%s; the distribution is not recognized, so the values follow from the other checks",
				doctor.Count(n.all, "node"))
		}
		p.distribution = kubeadm
	}
	known := distributions[slices.IndexFunc(distributions, func(d distribution) bool { return d.name == p.distribution })]
	p.addPreset(known.name)
	if n.distributions[known.name] == 0 {
		known.mark = "ConfigMap kube-system/kubeadm-config"
	}
	return c.OK("%s, %s; recognized by %q", known.name, doctor.Count(n.all, "node"), known.mark)
}

func (p *preflight) checkScheduling(_ context.Context, c doctor.Check) []doctor.Check {
	n := &p.nodes
	switch {
	case n.all == 0:
		return nil
	case n.schedulable > 0:
		return c.OK("nodes that accept the pod: %d of %d", n.schedulable, n.all)
	case p.distribution == eksFargate:
		return c.Warn(doctor.Problem{Reason: noNodeForPod.Reason,
			Cure: "let a Fargate profile select the namespace of kube-vitals"},
			"all nodes are of Fargate, which creates a node for each pod of a namespace that a profile selects")
	case n.controlPlanes > 0:
		p.values = append(p.values, "tolerations[0].key="+controlPlane, "tolerations[0].operator=Exists")
		return c.With(doctor.OK, doctor.Problem{Reason: noNodeForPod.Reason},
			"only control-plane nodes can run the pod, and it needs a toleration, which the command below has")
	}
	c.Objects = n.cordoned
	return c.Warn(noNodeForPod, "no Linux node accepts the pod; taints: %s; nodes without these, but cordoned: %d",
		cmp.Or(strings.Join(slices.Sorted(maps.Keys(n.taints)), ", "), "none"), len(n.cordoned))
}

// checkNetwork checks whether the API server can connect to pods. The only network that is known to prevent
// it is that of EKS with another CNI plugin than Amazon's, unless Cilium uses Amazon's network (ipam: eni).
// DaemonSets of other namespaces do not count, because a tenant can create them. calico-system is that of the
// Tigera operator if its API exists, and only an administrator can create an API.
func (p *preflight) checkNetwork(ctx context.Context, c doctor.Check) []doctor.Check {
	namespaces, plugins := []string{metav1.NamespaceSystem}, map[string]bool{}
	if err := doctor.Get(ctx, p.kube, "/apis/operator.tigera.io", &struct{}{}); err == nil {
		namespaces = append(namespaces, "calico-system")
	}
	known := metav1.ListOptions{LabelSelector: "k8s-app in (aws-node,calico-node,cilium)"}
	for _, namespace := range namespaces {
		list, err := p.kube.AppsV1().DaemonSets(namespace).List(ctx, known)
		if err != nil {
			return c.Denied(err)
		}
		for i := range list.Items {
			plugins[list.Items[i].Labels["k8s-app"]] = true
		}
	}
	overlay := plugins["calico-node"]
	if plugins["cilium"] {
		config, err := p.kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "cilium-config", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return c.Denied(err)
		}
		overlay = overlay || err == nil && config.Data["ipam"] != "eni"
	}
	if p.distribution == eks && overlay && !plugins["aws-node"] {
		p.addPreset("host-network")
		return c.With(doctor.OK, hostNetworkNeeded,
			"EKS without Amazon's CNI plugin: the API server cannot connect to pods, so they use the nodes' network")
	}
	return c.OK("nothing is known that keeps the API server from pods; a connection was not tried")
}
