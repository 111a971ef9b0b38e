package server

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/command"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/reason/reasontest"
)

// TestReasonsOfFailingNodes provokes reasons why a scrape fails, each with a node of its own, and checks that
// the metrics of the server, the API, the page of nodes and the events name it.
func TestReasonsOfFailingNodes(t *testing.T) {
	const ofClient = "the tests of package kubelet"
	notProvoked := map[reason.Reason]string{
		reason.ConnectTimeout:  ofClient,
		reason.Timeout:         ofClient,
		reason.TLSHandshake:    ofClient,
		reason.BadHTTP:         ofClient,
		reason.NoToken:         "TestReasonNoToken: the token is the same for all nodes",
		reason.TLSKeyChanged:   "TestReasonsOfPins: it needs --kubelet-pins",
		reason.TLSNotPinned:    "TestReasonsOfPins: it needs --kubelet-pins",
		reason.Canceled:        "the server is stopping, or the node was deleted",
		reason.InternalFailure: "a bug: TestPanicAffectsOneNode of package scrape",
	}
	nodes := failingNodes(t)
	for _, r := range reasontest.Scrapes() {
		_, ok := nodes[r]
		if _, known := notProvoked[r]; ok == known {
			t.Errorf("%s: provoked %v, want %v", r, ok, !known)
		}
	}
	cluster := newCluster(t)
	c := cluster.config(t)
	c.Kubelet.TLS = rest.TLSClientConfig{CAFile: writeFile(t, "ca.crt", authority.PEM())}
	c.Kubelet.AddressTypes = []string{"InternalIP", "Hostname"}
	testReasons(t, cluster, c, nodes)
}

// testReasons starts a server with nodes, and waits until the reason of each is named wherever users may look
// for it.
func testReasons(t *testing.T, cluster *cluster, c Config, nodes map[reason.Reason]*corev1.Node) *client {
	t.Helper()
	for _, node := range nodes {
		cluster.add(node)
	}
	c.Resolution = 2 * time.Second // events come after an interval
	c.EventDeployment = "kube-vitals"
	client := startReady(t, c)
	eventually(t, func() string { return strings.Join(wrongReasons(t, client, cluster, nodes), "\n") })
	return client
}

// TestReasonNoToken is TestReasonsOfFailingNodes for the reason that all nodes have in common.
func TestReasonNoToken(t *testing.T) {
	cluster := newCluster(t)
	valid := authority.Issue(nil, loopback)
	address := kubelettest.New("no-token", kubelettest.Config{}).Start(t, &valid)
	c := cluster.config(t)
	c.KubeletServiceAccount = "missing"
	testReasons(t, cluster, c, map[reason.Reason]*corev1.Node{reason.NoToken: nodeAt("no-token", address)})
}

// TestReasonsOfPins is TestReasonsOfFailingNodes for the reasons with --kubelet-pins. The ConfigMap
// has an entry of one node, and cannot be written.
func TestReasonsOfPins(t *testing.T) {
	cluster := newCluster(t)
	nodes := map[reason.Reason]*corev1.Node{}
	for _, r := range []reason.Reason{reason.TLSKeyChanged, reason.TLSNotPinned} {
		certificate := kubelettest.KubeletSigned(string(r))
		node := nodeAt(string(r), kubelettest.New(string(r), kubelettest.Config{}).Start(t, &certificate))
		node.UID = "uid"
		nodes[r] = node
	}
	const pins = "/api/v1/namespaces/monitoring/configmaps/pins"
	cluster.Put(pins, corev1.ConfigMap{Data: map[string]string{
		string(reason.TLSKeyChanged): "sha256:" + strings.Repeat("0", 64) + " uid"}})
	cluster.Forbid("put", pins)
	c := cluster.config(t)
	c.Kubelet.TLS.Insecure, c.KubeletPins = false, "pins"
	testReasons(t, cluster, c, nodes).awaitSeries(
		`kube_vitals_kubelet_pins{kind="key"} 1`+"\n", "kube_vitals_kubelet_keys_pinned_total 0\n")
}

// TestCapacityTooLow has a node that uses 6 cores, and shows one CPU in its status.
func TestCapacityTooLow(t *testing.T) {
	cluster := newCluster(t)
	certificate := authority.Issue(nil, loopback)
	kubelet := kubelettest.New("small", kubelettest.Config{})
	kubelet.SetNode(kubelettest.Usage{CPU: 6, Memory: 1 << 30})
	node := nodeAt("small", kubelet.Start(t, &certificate))
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	cluster.add(node)
	c := cluster.config(t)
	c.Resolution, c.EventDeployment = 2*time.Second, "kube-vitals"
	client := startReady(t, c)
	eventually(t, func() string {
		var page nodez.Report
		client.read(&page, http.StatusOK, "/nodez?format=json")
		n := page.Nodes[0]
		isShown := n.State == nodez.Ready && n.Reason == reason.AboveCapacity && n.CapacityCores == 1 && n.UsedCores > 5.5
		hasEvent := cluster.hasEvent("small", "CapacityTooLow", reason.AboveCapacity.Describe().Problem,
			reason.AboveCapacity.URL())
		if !isShown || !hasEvent {
			return fmt.Sprintf("event: %v, page: %+v", hasEvent, n)
		}
		return ""
	})
	client.await(http.StatusOK, nodesPath+"/small", "alice")
}

// wrongReasons returns what does not name the reason of a node. It deletes the nodes with everything
// right.
func wrongReasons(
	t *testing.T, client *client, cluster *cluster, nodes map[reason.Reason]*corev1.Node,
) (wrong []string) {
	t.Helper()
	metrics := client.await(http.StatusOK, "/metrics", "alice")
	var page nodez.Report
	client.read(&page, http.StatusOK, "/nodez?format=json")
	for r, node := range nodes {
		name, d, before := node.Name, r.Describe(), len(wrong)
		if !strings.Contains(metrics, fmt.Sprintf(`kube_vitals_node_failing{node=%q,reason=%q} 1`, name, r)) {
			wrong = append(wrong, fmt.Sprintf("%s: /metrics does not have it", r))
		}
		i := slices.IndexFunc(page.Nodes, func(n nodez.Node) bool { return n.Name == name })
		cure := d.Cure
		switch r {
		case reason.NoToken:
			cure = "create that ServiceAccount, or do not set --kubelet-service-account " +
				"(kubelet.serviceAccount.create=false in the chart)"
		case reason.TLSNotPinned:
			cure = "give the ServiceAccount permission to list, watch and update the ConfigMap"
		}
		if i < 0 || page.Nodes[i].Reason != r || page.Nodes[i].Problem != d.Problem || page.Nodes[i].Cure != cure ||
			page.Nodes[i].URL != r.URL() || page.Nodes[i].Error == "" || strings.Contains(page.Nodes[i].Error, cure) {
			wrong = append(wrong, fmt.Sprintf("%s: /nodez has %+v", r, page.Nodes))
		} else if hasCommand := command.IsAcceptKey(page.Nodes[i].Command); hasCommand != (r == reason.TLSKeyChanged) {
			wrong = append(wrong, fmt.Sprintf("%s: /nodez has the command %q", r, page.Nodes[i].Command))
		}
		var status metav1.Status
		client.read(&status, http.StatusNotFound, nodesPath+"/"+name)
		if causesOf(status) != string(r) || !strings.Contains(status.Message, d.Problem) ||
			!strings.Contains(status.Message, cure) || !strings.Contains(status.Message, r.URL()) {
			wrong = append(wrong, fmt.Sprintf("%s: got %q with details %+v", r, status.Message, status.Details))
		}
		if !cluster.hasEvent(name, "MetricsUnavailable", d.Problem, r.URL()) {
			wrong = append(wrong, fmt.Sprintf("%s: there is no event", r))
		}
		if len(wrong) == before {
			delete(nodes, r)
		}
	}
	return wrong
}

// causesOf returns the types of the causes in a status.
func causesOf(status metav1.Status) (causes string) {
	if status.Details != nil {
		for _, c := range status.Details.Causes {
			causes += string(c.Type)
		}
	}
	return causes
}

// authority signs the certificates of the kubelets of failingNodes.
var (
	authority = kubelettest.NewCA()
	loopback  = []net.IP{net.IPv4(127, 0, 0, 1)}
)

// failingNodes returns a node for each reason. Its name is that of the reason.
func failingNodes(t *testing.T) map[reason.Reason]*corev1.Node {
	nodes := map[reason.Reason]*corev1.Node{}
	at := func(r reason.Reason, address netip.AddrPort) { nodes[r] = nodeAt(string(r), address) }
	withCertificate := func(r reason.Reason, certificate tls.Certificate) {
		at(r, kubelettest.New(string(r), kubelettest.Config{}).Start(t, &certificate))
	}
	valid := authority.Issue(nil, loopback)
	withFault := func(r reason.Reason, fault kubelettest.Fault) {
		k := kubelettest.New(string(r), kubelettest.Config{})
		k.SetFaults(fault)
		at(r, k.Start(t, &valid))
	}
	withAddress := func(r reason.Reason, kind corev1.NodeAddressType, address string) {
		node := nodeAt(string(r), netip.AddrPortFrom(netip.IPv4Unspecified(), 10250))
		node.Status.Addresses = []corev1.NodeAddress{{Type: kind, Address: address}}
		nodes[r] = node
	}

	withAddress(reason.NoAddress, corev1.NodeExternalIP, "192.0.2.1") // not a preferred type
	withAddress(reason.BadEndpoint, corev1.NodeInternalIP, "169.254.169.254")
	withAddress(reason.DNS, corev1.NodeHostName, "n7.invalid")
	withAddress(reason.Unreachable, corev1.NodeInternalIP, "255.255.255.255")
	at(reason.ConnectRefused, netip.MustParseAddrPort("127.0.0.1:1"))

	withCertificate(reason.TLSSelfSigned, kubelettest.SelfSigned(nil, loopback))
	withCertificate(reason.TLSAuthority, kubelettest.NewCA().Issue(nil, loopback))
	withCertificate(reason.TLSName, authority.Issue([]string{"other"}, nil))
	withCertificate(reason.TLSExpired, authority.Issue(nil, loopback, kubelettest.Expired))

	withFault(reason.ConnectionLost, kubelettest.Refuse)
	withFault(reason.Unauthorized, kubelettest.Status(http.StatusUnauthorized))
	withFault(reason.Forbidden, kubelettest.Status(http.StatusForbidden))
	withFault(reason.NotFound, kubelettest.Status(http.StatusNotFound))
	withFault(reason.ServerError, kubelettest.Status(http.StatusInternalServerError))
	withFault(reason.BadStatus, kubelettest.Status(http.StatusNoContent))
	withFault(reason.BadFormat, kubelettest.HTML)
	withFault(reason.BodyTooLarge, kubelettest.EndlessBody)
	withFault(reason.Truncated, kubelettest.HalfBody)
	withFault(reason.Undecodable, kubelettest.Edit(func([]byte) []byte { return []byte("<html>\n") }))
	withFault(reason.NoSamples, kubelettest.Edit(func([]byte) []byte { return nil }))
	withFault(reason.RuntimeNoStats, kubelettest.ScrapeError)
	withFault(reason.ClockSkew, kubelettest.ShiftTime(24*time.Hour))
	return nodes
}
