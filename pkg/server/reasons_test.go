package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// TestReasonsOfFailingNodes provokes every reason why a scrape fails, each with a node of its own,
// and checks that the metrics of the server, the API, the page of nodes and the events name it.
func TestReasonsOfFailingNodes(t *testing.T) {
	notProvoked := map[reason.Reason]string{
		reason.NoToken:         "TestReasonNoToken: the token is the same for all nodes",
		reason.TLSKeyChanged:   "TestReasonsOfPins: it needs --kubelet-pins",
		reason.TLSNotPinned:    "TestReasonsOfPins: it needs --kubelet-pins",
		reason.Canceled:        "the server is stopping, or the node was deleted",
		reason.InternalFailure: "a bug: TestPanicAffectsOneNode of package scrape",
	}
	nodes, timeouts := failingNodes(t), map[reason.Reason]corev1.Node{}
	for _, r := range reason.Scrapes() {
		node, ok := nodes[r]
		if _, known := notProvoked[r]; ok == known {
			t.Errorf("%s: provoked %v, want %v", r, ok, !known)
		}
		if r == reason.ConnectTimeout || r == reason.Timeout {
			timeouts[r] = node
			delete(nodes, r)
		}
	}
	// Only a server whose nodes must reach the timeout has a short one.
	t.Run("timeouts", func(t *testing.T) { testReasons(t, timeouts, time.Second) })
	t.Run("others", func(t *testing.T) { testReasons(t, nodes, testenv.Patience) })
}

// testReasons starts a server with nodes, and checks that the reason of each is named.
func testReasons(t *testing.T, nodes map[reason.Reason]corev1.Node, timeout time.Duration) {
	cluster := newCluster(t)
	cluster.nodes = slices.Collect(maps.Values(nodes))
	c, url := cluster.config(t)
	c.Resolution = 2 * time.Second // events come after an interval
	c.Kubelet.TLS.Insecure, c.Kubelet.TLS.CAFile = false, filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(c.Kubelet.TLS.CAFile, authority.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Kubelet.AddressTypes = []string{"InternalIP", "Hostname"}
	c.Kubelet.Timeout = timeout
	start(t, withEvents(t, c))
	client := newClient(t, url)
	client.await(http.StatusOK, "/readyz", "")
	checkReasons(t, client, cluster, nodes)
}

// TestReasonNoToken is TestReasonsOfFailingNodes for the reason that all nodes have in common.
func TestReasonNoToken(t *testing.T) {
	cluster := newCluster(t)
	valid := authority.Issue(nil, []net.IP{net.IPv4(127, 0, 0, 1)})
	address := kubelettest.New("no-token", kubelettest.Config{}).Start(t, &valid)
	nodes := map[reason.Reason]corev1.Node{reason.NoToken: nodeAt("no-token", address)}
	cluster.nodes = []corev1.Node{nodes[reason.NoToken]}
	c, url := cluster.config(t)
	c.Resolution = time.Second
	c = withEvents(t, c)
	c.KubeletServiceAccount = "missing"
	start(t, c)
	client := newClient(t, url)
	client.await(http.StatusOK, "/readyz", "")
	checkReasons(t, client, cluster, nodes)
}

// TestReasonsOfPins is TestReasonsOfFailingNodes for the reasons with --kubelet-pins. The ConfigMap
// has an entry of one node, and cannot be written.
func TestReasonsOfPins(t *testing.T) {
	cluster := newCluster(t)
	nodes := map[reason.Reason]corev1.Node{}
	for _, r := range []reason.Reason{reason.TLSKeyChanged, reason.TLSNotPinned} {
		certificate := kubelettest.KubeletSigned(string(r))
		node := nodeAt(string(r), kubelettest.New(string(r), kubelettest.Config{}).Start(t, &certificate))
		node.UID = "uid"
		nodes[r] = node
		cluster.nodes = append(cluster.nodes, node)
	}
	cluster.pins.Name = "pins"
	cluster.pins.Data = map[string]string{string(reason.TLSKeyChanged): "sha256:" + strings.Repeat("0", 64) + " uid"}
	c, url := cluster.config(t)
	c.Resolution = 2 * time.Second
	c = withEvents(t, c)
	c.Kubelet.TLS.Insecure, c.KubeletPins = false, "pins"
	start(t, c)
	client := newClient(t, url)
	client.await(http.StatusOK, "/readyz", "")
	checkReasons(t, client, cluster, nodes)
	metrics := client.await(http.StatusOK, "/metrics", "alice")
	for _, want := range []string{`kube_vitals_kubelet_pins{kind="key"} 1`, "kube_vitals_kubelet_keys_pinned_total 0"} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("/metrics does not have %s but %s", want, grep(metrics, "kube_vitals_kubelet_"))
		}
	}
}

// withEvents returns the configuration with events, for a Deployment in the namespace monitoring.
func withEvents(t *testing.T, c Config) Config {
	text, err := os.ReadFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte(`"user": "u"`), []byte(`"user": "u", "namespace": "monitoring"`), 1)
	if err := os.WriteFile(c.Kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c.EventDeployment = "kube-vitals"
	return c
}

// checkReasons waits until the reason of each node is named wherever users may look for it.
func checkReasons(t *testing.T, client *client, cluster *cluster, nodes map[reason.Reason]corev1.Node) {
	t.Helper()
	eventually(t, func() string { return strings.Join(wrongReasons(t, client, cluster, nodes), "\n") })
}

// wrongReasons returns what does not name the reason of a node. It deletes the nodes with everything
// right.
func wrongReasons(
	t *testing.T, client *client, cluster *cluster, nodes map[reason.Reason]corev1.Node,
) (wrong []string) {
	t.Helper()
	metrics := client.await(http.StatusOK, "/metrics", "alice")
	var page nodez.Report
	client.read(&page, http.StatusOK, "/nodez?format=json")
	for r, node := range nodes {
		name, d, before := node.Name, r.Describe(), len(wrong)
		series := fmt.Sprintf(`kube_vitals_node_failing{node=%q,reason=%q} 1`, name, r)
		if !strings.Contains(metrics, series) {
			wrong = append(wrong, fmt.Sprintf("/metrics does not have %s but %s",
				series, grep(metrics, `node_failing{node="`+name+`"`)))
		}
		i := slices.IndexFunc(page.Nodes, func(n nodez.Node) bool { return n.Name == name })
		if i < 0 || page.Nodes[i].Reason != r || page.Nodes[i].Problem != d.Problem || page.Nodes[i].Cure != d.Cure ||
			page.Nodes[i].URL != r.URL() || page.Nodes[i].Error == "" {
			wrong = append(wrong, fmt.Sprintf("%s: /nodez has %+v", r, page.Nodes))
		}
		var status metav1.Status
		client.read(&status, http.StatusNotFound, nodesPath+"/"+name)
		if status.Details == nil || len(status.Details.Causes) != 1 || status.Details.Causes[0].Type != metav1.CauseType(r) ||
			!strings.Contains(status.Message, d.Problem) || !strings.Contains(status.Message, d.Cure) ||
			!strings.Contains(status.Message, r.URL()) {
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

// grep returns the lines of a text that contain a part.
func grep(text, part string) (lines []string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			lines = append(lines, line)
		}
	}
	return lines
}

// authority signs the certificates of the kubelets of failingNodes.
var authority = kubelettest.NewCA()

// failingNodes returns a node for each reason why scrapes fail. Its name is that of the reason.
func failingNodes(t *testing.T) map[reason.Reason]corev1.Node {
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	nodes := map[reason.Reason]corev1.Node{}
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
	at(reason.ConnectRefused, closedPort(t))
	at(reason.ConnectTimeout, fullBacklog(t))

	withCertificate(reason.TLSSelfSigned, kubelettest.SelfSigned(nil, loopback))
	withCertificate(reason.TLSAuthority, kubelettest.NewCA().Issue(nil, loopback))
	withCertificate(reason.TLSName, authority.Issue([]string{"other"}, nil))
	withCertificate(reason.TLSExpired, authority.Issue(nil, loopback, kubelettest.Expired))
	at(reason.TLSHandshake, speaking(t, nil, "SSH-2.0-OpenSSH_9.2\r\n"))
	at(reason.BadHTTP, speaking(t, &valid, "SSH-2.0-OpenSSH_9.2\r\n"))

	withFault(reason.Timeout, kubelettest.Hang)
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

// closedPort returns an address at which nothing listens, and nothing can until the test ends.
func closedPort(t *testing.T) netip.AddrPort {
	_, address := boundSocket(t)
	return address
}

// fullBacklog returns the address of a listener that accepts no connection, because its queue is
// full: the kernel drops further requests to connect.
func fullBacklog(t *testing.T) netip.AddrPort {
	fd, address := boundSocket(t)
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for range 8 { // until one times out
		connection, err := net.DialTimeout("tcp", address.String(), 200*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { connection.Close() })
	}
	t.Fatal("the backlog of the listener is never full")
	return address
}

// boundSocket returns a socket that has a port until the test ends, but does not listen.
func boundSocket(t *testing.T) (fd int, address netip.AddrPort) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	loopback := [4]byte{127, 0, 0, 1}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: loopback}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, netip.AddrPortFrom(netip.AddrFrom4(loopback), uint16(name.(*unix.SockaddrInet4).Port))
}

// speaking returns the address of a server that sends a text when it gets a request, and closes the
// connection. Without a certificate it uses no TLS.
func speaking(t *testing.T, certificate *tls.Certificate, text string) netip.AddrPort {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := netip.MustParseAddrPort(listener.Addr().String())
	if certificate != nil {
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{*certificate}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			// A client may connect for a request that it has canceled meanwhile.
			context.AfterFunc(ctx, func() { connection.Close() })
			go func() {
				defer connection.Close()
				if n, _ := connection.Read(make([]byte, 4096)); n > 0 {
					_, _ = connection.Write([]byte(text))
				}
			}()
		}
	}()
	return address
}
