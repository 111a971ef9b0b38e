package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/doctor"
)

// distribution is the name of a preset, unless the default values fit. It is empty if the distribution is
// not recognized.
type distribution string

const (
	kubeadm      distribution = "kubeadm"
	kind         distribution = "kind"
	minikube     distribution = "minikube"
	k3s          distribution = "k3s"
	rke2         distribution = "rke2"
	eks          distribution = "eks"
	eksFargate   distribution = "eks-fargate"
	gke          distribution = "gke"
	aks          distribution = "aks"
	openShift    distribution = "openshift"
	talos        distribution = "talos"
	microk8s     distribution = "microk8s"
	linode       distribution = "linode"
	k0s          distribution = "k0s"
	kops         distribution = "kops"
	digitalOcean distribution = "digitalocean"
)

const (
	computeType    = "eks.amazonaws.com/compute-type"
	criSocket      = "kubeadm.alpha.kubernetes.io/cri-socket" // an annotation by kubeadm
	controlPlane   = "node-role.kubernetes.io/control-plane"
	resourcePrefix = "node.kubernetes.io/" // of taints that go away by themselves
)

// nodes is what is kept of the nodes: a cluster can have thousands.
type nodes struct {
	err           error // of the LIST
	all           int
	distributions map[distribution]int
	evidence      map[distribution]string // of the first node
	sample        []string                // names of those whose kubelets are examined: one of each kind, then others
	others        []string
	kinds         map[string]bool
	schedulable   int
	taints        map[string]int // of Linux nodes on which an ordinary pod cannot run
	linux         int
	controlPlanes int
}

// checkDistribution lists the nodes and recognizes the distribution by them.
func (p *preflight) checkDistribution(ctx context.Context) []doctor.Check {
	c := doctor.Check{ID: "distribution", Title: "distribution", Status: doctor.OK}
	n := &p.nodes
	n.distributions, n.evidence = map[distribution]int{}, map[distribution]string{}
	n.kinds, n.taints = map[string]bool{}, map[string]int{}
	n.err = doctor.Pages(func(o metav1.ListOptions) (string, error) {
		list, err := p.kube.CoreV1().Nodes().List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			n.add(&list.Items[i])
		}
		return list.Continue, nil
	})
	if n.err != nil {
		return []doctor.Check{doctor.Denied(c, n.err)}
	}
	if n.all == 0 {
		c.Status, c.Reason, c.Seen, c.Cure = doctor.Failed, noNodes, "the cluster has no nodes", "add a node"
		return []doctor.Check{c}
	}
	n.sample = append(n.sample, n.others[:min(len(n.others), maxSample-len(n.sample))]...)
	// The most frequent one: a cluster may have nodes of other kinds. Fargate counts only where nothing
	// else is, because the pods of kube-vitals run on other nodes otherwise.
	if n.distributions[eks] > 0 {
		delete(n.distributions, eksFargate)
	}
	best := 0
	for _, d := range sortedKeys(n.distributions) {
		if n.distributions[d] > best {
			p.distribution, best = d, n.distributions[d]
		}
	}
	if p.distribution == "" && p.hasKubeadmConfig(ctx) {
		p.distribution = kubeadm
		n.evidence[kubeadm] = "there is a ConfigMap kube-system/kubeadm-config"
	}
	if p.distribution == "" {
		c.Seen = fmt.Sprintf("%s; the distribution is not recognized, so the values follow from the other checks",
			count(n.all, "node"))
		return []doctor.Check{c}
	}
	if !slices.Contains(defaultsFit, p.distribution) {
		p.presets = []string{string(p.distribution)}
	}
	c.Seen = fmt.Sprintf("%s, %s: %s", p.distribution, count(n.all, "node"), n.evidence[p.distribution])
	return []doctor.Check{c}
}

func (p *preflight) hasKubeadmConfig(ctx context.Context) bool {
	_, err := p.kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "kubeadm-config", metav1.GetOptions{})
	return err == nil
}

func (n *nodes) add(node *corev1.Node) {
	n.all++
	d, evidence := distributionOf(node)
	if d != "" {
		n.distributions[d]++
		if n.evidence[d] == "" {
			n.evidence[d] = evidence
		}
	}
	info := node.Status.NodeInfo
	kind := strings.Join([]string{info.KubeletVersion, info.OSImage, node.Labels[computeType], string(d)}, "\n")
	switch {
	case !n.kinds[kind] && len(n.sample) < maxSample:
		n.kinds[kind] = true
		n.sample = append(n.sample, node.Name)
	case len(n.others) < maxSample:
		n.others = append(n.others, node.Name)
	}
	if _, ok := node.Labels[controlPlane]; ok {
		n.controlPlanes++
	}
	if node.Labels[corev1.LabelOSStable] != "linux" {
		return
	}
	n.linux++
	blocked := false
	for _, taint := range node.Spec.Taints {
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || strings.HasPrefix(taint.Key, resourcePrefix) {
			continue
		}
		blocked = true
		n.taints[taint.Key]++
	}
	if !blocked && !node.Spec.Unschedulable {
		n.schedulable++
	}
}

// distributions are the presets by what recognizes a node: a part of the kubelet's version, a label,
// the beginning of the image's name or of the provider ID, or an annotation. The first match counts:
// kind, minikube and others use kubeadm, so it comes last. Those of Fargate are nodes of EKS, too.
// docs/distributions.md has the sources.
var distributions = []struct {
	name                                        distribution
	version, label, image, provider, annotation string
}{
	{name: k3s, version: "+k3s"},
	{name: rke2, version: "+rke2"},
	{name: eks, version: "-eks-"},
	{name: gke, version: "-gke."},
	{name: aks, label: "kubernetes.azure.com/cluster"},
	{name: openShift, label: "node.openshift.io/os_id"},
	{name: talos, image: "Talos"},
	{name: k0s, version: "+k0s"},
	{name: microk8s, label: "microk8s.io/cluster"},
	{name: kops, label: "kops.k8s.io/instancegroup"},
	{name: linode, label: "lke.linode.com/pool-id"},
	{name: digitalOcean, label: "doks.digitalocean.com/node-id"},
	{name: minikube, label: "minikube.k8s.io/name"},
	{name: kind, provider: "kind://"},
	{name: kubeadm, annotation: criSocket},
}

// defaultsFit are the distributions without a preset: the default values fit.
var defaultsFit = []distribution{k0s, kops, digitalOcean}

// distributionOf recognizes the distribution of a node, and returns by what.
func distributionOf(node *corev1.Node) (name distribution, evidence string) {
	kubelet, image, provider := node.Status.NodeInfo.KubeletVersion, node.Status.NodeInfo.OSImage, node.Spec.ProviderID
	for _, d := range distributions {
		_, labeled := node.Labels[d.label]
		switch {
		case d.version != "" && strings.Contains(kubelet, d.version):
			evidence = "the kubelets' version is " + kubelet
			if d.name == eks && node.Labels[computeType] == "fargate" {
				return eksFargate, evidence + ", with the label " + computeType + "=fargate"
			}
			return d.name, evidence
		case d.label != "" && labeled:
			return d.name, "the nodes have the label " + d.label
		case d.image != "" && strings.HasPrefix(image, d.image):
			return d.name, "the nodes run " + image
		case d.provider != "" && strings.HasPrefix(provider, d.provider):
			return d.name, "the nodes have the provider ID " + provider
		case d.annotation != "" && node.Annotations[d.annotation] != "":
			return d.name, "the nodes have the annotation " + d.annotation
		}
	}
	return "", ""
}

// checkScheduling checks that a node accepts the pod.
func (p *preflight) checkScheduling(context.Context) []doctor.Check {
	c := doctor.Check{ID: "scheduling", Title: "scheduling", Status: doctor.OK}
	n := &p.nodes
	switch {
	case n.err != nil || n.all == 0:
		return nil
	case n.schedulable > 0:
		c.Seen = fmt.Sprintf("nodes that accept the pod: %d of %d", n.schedulable, n.all)
		return []doctor.Check{c}
	case p.distribution == eksFargate:
		c.Status, c.Reason = doctor.Warning, noNodeForPod
		c.Seen = "all nodes are of Fargate, which creates a node for each pod of a namespace that a profile selects"
		c.Cure = "let a Fargate profile select the namespace " + p.namespace()
		return []doctor.Check{c}
	}
	c.Reason = noNodeForPod
	if n.taints[controlPlane] > 0 {
		p.values["tolerations"] = []any{map[string]any{"key": controlPlane, "operator": "Exists"}}
		c.Seen = "only control-plane nodes can run the pod, and it needs a toleration, which the command below has"
		return []doctor.Check{c}
	}
	c.Status = doctor.Warning
	c.Seen = fmt.Sprintf("none of %d Linux nodes accepts the pod without a toleration", n.linux)
	if len(n.taints) > 0 {
		c.Seen += "; taints: " + strings.Join(sortedKeys(n.taints), ", ")
	}
	c.Cure = "add a node, or set tolerations in the chart"
	return []doctor.Check{c}
}

// checkNetwork checks whether the API server can connect to pods, as far as objects show it.
func (p *preflight) checkNetwork(ctx context.Context) []doctor.Check {
	c := doctor.Check{ID: "network", Title: "network", Status: doctor.OK}
	plugins, err := p.networkPlugins(ctx)
	if err != nil {
		return []doctor.Check{doctor.Denied(c, err)}
	}
	var cilium map[string]string
	if plugins["cilium"] {
		object, err := p.kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "cilium-config", metav1.GetOptions{})
		switch {
		case err == nil:
			cilium = object.Data
		case !apierrors.IsNotFound(err):
			return []doctor.Check{doctor.Denied(c, err)}
		}
	}
	overlay := plugins["calico-node"] || cilium != nil && cilium["ipam"] != "eni"
	mode := cilium["kube-proxy-replacement"]
	replacesProxy := !plugins["kube-proxy"] && (mode == "true" || mode == "strict")
	if replacesProxy {
		p.presets = append(p.presets, "cilium")
	}
	switch {
	case p.distribution == eks && !plugins["aws-node"] && overlay:
		p.presets = append(p.presets, "host-network")
		c.Reason = hostNetworkNeeded
		c.Seen = "EKS without Amazon's CNI plugin: the API server cannot connect to pods, so they use the nodes' network"
	case replacesProxy && p.nodes.controlPlanes == 0:
		c.Status, c.Reason = doctor.Warning, routeUnknown
		c.Seen = "Cilium replaces kube-proxy, and the API server may run outside of it"
		c.Cure = "if the APIServices stay unavailable (FailedDiscoveryCheck), add the preset host-network"
	case replacesProxy:
		c.Seen = "Cilium replaces kube-proxy, also for the API server if that runs on the cluster's nodes"
	default:
		c.Seen = "nothing is known that keeps the API server from pods; a connection was not tried"
	}
	return []doctor.Check{c}
}

// networkPlugins returns the labels k8s-app of the network's DaemonSets. Those of other namespaces do
// not count, because a tenant can create them. The namespace calico-system is that of the Tigera
// operator if its API exists, and only an administrator can create an API.
func (p *preflight) networkPlugins(ctx context.Context) (map[string]bool, error) {
	namespaces := []string{metav1.NamespaceSystem}
	if _, err := doctor.Get(ctx, p.kube, "/apis/operator.tigera.io"); err == nil {
		namespaces = append(namespaces, "calico-system")
	}
	plugins := map[string]bool{}
	for _, namespace := range namespaces {
		list, err := p.kube.AppsV1().DaemonSets(namespace).List(ctx, metav1.ListOptions{
			LabelSelector: "k8s-app in (aws-node,calico-node,cilium,kube-proxy)",
		})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			plugins[list.Items[i].Labels["k8s-app"]] = true
		}
	}
	return plugins, nil
}
