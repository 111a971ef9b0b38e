package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// What can be broken, and the test that breaks it, finds cause and cure where the user looks, and
// follows the cure until there are metrics:
//
//	kubelet certificate of another CA  TestDiagnosis/tls-unknown-authority
//	self-signed kubelet certificate    TestDiagnosis/tls-self-signed; TestExplanations for its pods
//	expired kubelet certificate        TestDiagnosis/tls-expired
//	kubelet port closed                TestDiagnosis/connect-refused
//	kubelet port blocked               TestDiagnosis/connect-timeout
//	wrong node address                 TestDiagnosis/tls-name-mismatch
//	runtime without stats              TestDiagnosis/runtime-without-stats
//	node clock set back                TestDiagnosis/clock: metrics stay, the skew is reported
//	pod pending                        TestDiagnosis/pod-pending
//	pod just started                   TestExplanations
//	node outside the node selector     TestDiagnosis/not-selected
//	RBAC rule removed                  TestDiagnosis: testNoKubeletAccess, testNoPodList
//	zero replicas                      TestDiagnosis: testZeroReplicas
//	APIService to another Service      TestDoctor
//	foreign caBundle                   TestDoctor
//	request-header CA missing          TestDoctorAggregation
//	memory limit too small             alerts_test.yaml of test/internal/observability (KubeVitalsMemoryNearLimit),
//	                                   and TestBroken of pkg/doctor
//
// TestReasonsOfFailingNodes of pkg/server has nearly every reason of a failed scrape, in the metrics,
// the API, the page of nodes and the events.

// TestDiagnosis breaks what a user may find broken: kubectl or doctor names cause and cure, and
// metrics come once the cure is followed.
func TestDiagnosis(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	d := &diagnosis{testCluster: c, kubeletCA: c.File("diagnosis-ca.crt")}
	if err := os.WriteFile(d.kubeletCA, c.CA.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	d.fleet = kubelettest.NewFleet(kubelettest.FleetConfig{Certificate: d.certificate})
	t.Cleanup(d.fleet.Close)
	c.install(t, "--node-selector=!"+excludedBy, "--kubelet-certificate-authority="+d.kubeletCA,
		"--kubelet-request-timeout=3s")
	c.createNamespaces(t, explained)

	nodes := []brokenNode{
		{"tls-unknown-authority", "the kubelet's certificate is signed by an unknown authority",
			"set --kubelet-certificate-authority to the CA that signed it", d.breakCA},
		{"tls-self-signed", "the kubelet's certificate is self-signed",
			"set serverTLSBootstrap in the kubelet's configuration, then check and approve its certificate request",
			d.breakBySelfSigned},
		{"tls-expired", "the kubelet's certificate has expired or is not yet valid", "renew it", d.breakByExpiry},
		{"tls-name-mismatch", "the kubelet's certificate is for other names",
			"set serverTLSBootstrap in the kubelet's configuration", d.breakAddress},
		{"connect-refused", "the kubelet's port refuses connections", "check that the kubelet runs", d.breakPort},
		{"connect-timeout", "the kubelet cannot be connected to in time",
			"check the routes, firewalls and NetworkPolicies between kube-vitals and the node", d.breakByFirewall},
		{"runtime-without-stats", "the kubelet cannot read its containers",
			"see the kubelet's log, and check the container runtime", d.breakRuntime},
	}
	repairs := map[string]func(*testing.T){}
	for _, n := range nodes {
		repairs[n.reason] = n.breakIt(t, n.name())
	}
	d.checkDoctor(t, nodes)
	t.Run("one", func(t *testing.T) {
		for _, n := range nodes {
			t.Run(n.reason, func(t *testing.T) {
				t.Parallel()
				d.awaitExplanation(t, "node "+n.name(), n.reason,
					`the metrics of the node cannot be read since .*: `+regexp.QuoteMeta(n.problem+" ("+n.cure))
				repairs[n.reason](t)
				d.awaitMetrics(t, "node", n.name())
			})
		}
		t.Run("clock", d.testClock)
		t.Run("pod-pending", d.testPodPending)
		t.Run("not-selected", d.testNotSelected)
	})
	d.awaitHealthy(t)

	d.testNoKubeletAccess(t)
	d.testNoPodList(t)
	d.testZeroReplicas(t)
}

// diagnosis is a cluster with kubelets that are broken.
type diagnosis struct {
	*testCluster
	kubeletCA string // a file
	fleet     *kubelettest.Fleet

	mu           sync.Mutex
	addresses    int
	certificates map[string]*tls.Certificate // by kubelet
}

// brokenNode is a node without metrics. breakIt creates it and returns what follows the cure.
type brokenNode struct {
	reason, problem, cure string
	breakIt               func(t *testing.T, node string) (repair func(*testing.T))
}

func (n brokenNode) name() string { return "broken-" + n.reason }

func (d *diagnosis) certificate(k *kubelettest.Kubelet, _ netip.Addr) (*tls.Certificate, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.certificates[k.Name()], nil
}

// setCertificate sets the certificate that a kubelet uses from now on.
func (d *diagnosis) setCertificate(kubelet string, certificate tls.Certificate) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.certificates == nil {
		d.certificates = map[string]*tls.Certificate{}
	}
	d.certificates[kubelet] = &certificate
}

// setValidCertificate sets a certificate as the cluster's CA signs it for a kubelet.
func (d *diagnosis) setValidCertificate(kubelet string) {
	d.setCertificate(kubelet, d.CA.Issue([]string{kubelet}, nil))
}

// startKubelet starts a kubelet with a valid certificate at an address of its own.
func (d *diagnosis) startKubelet(t *testing.T, name string) (*kubelettest.Kubelet, netip.AddrPort) {
	t.Helper()
	d.mu.Lock()
	address := kubelettest.Address(1000 + d.addresses) // the simulation uses the first ones
	d.addresses++
	d.mu.Unlock()
	d.setValidCertificate(name)
	k := newKubelet(name)
	at, err := d.fleet.Add(k, address)
	if err != nil {
		t.Fatal(err)
	}
	return k, at
}

func newKubelet(name string) *kubelettest.Kubelet {
	k := kubelettest.New(name, kubelettest.Config{})
	k.SetNode(kubelettest.Usage{CPU: 0.5, Memory: 1 << 30})
	return k
}

// breakCA lets another CA sign a certificate. The cure is to trust it.
func (d *diagnosis) breakCA(t *testing.T, node string) func(*testing.T) {
	t.Helper()
	_, at := d.startKubelet(t, node)
	other := kubelettest.NewCA()
	d.setCertificate(node, other.Issue([]string{node}, nil))
	d.createNode(t, node, at)
	return func(t *testing.T) {
		t.Helper()
		if err := os.WriteFile(d.kubeletCA, append(d.CA.PEM(), other.PEM()...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// breakBySelfSigned lets a kubelet sign its own certificate. The cure is one of the cluster's CA,
// which serverTLSBootstrap provides.
func (d *diagnosis) breakBySelfSigned(t *testing.T, node string) func(*testing.T) {
	t.Helper()
	_, at := d.startKubelet(t, node)
	d.setCertificate(node, kubelettest.SelfSigned([]string{node}, nil))
	d.createNode(t, node, at)
	return func(*testing.T) { d.setValidCertificate(node) }
}

// breakByExpiry lets a certificate expire. The cure is to renew it.
func (d *diagnosis) breakByExpiry(t *testing.T, node string) func(*testing.T) {
	t.Helper()
	_, at := d.startKubelet(t, node)
	d.setCertificate(node, d.CA.Issue([]string{node}, nil, kubelettest.Expired))
	d.createNode(t, node, at)
	return func(*testing.T) { d.setValidCertificate(node) }
}

// breakAddress creates a node with the address of another kubelet. The cure is to correct it.
func (d *diagnosis) breakAddress(t *testing.T, node string) func(*testing.T) {
	t.Helper()
	_, right := d.startKubelet(t, node)
	_, wrong := d.startKubelet(t, "stranger")
	d.createNode(t, node, wrong)
	return func(t *testing.T) {
		t.Helper()
		eventually(t, "the node's address to be corrected", func(ctx context.Context) error {
			nodes := d.Client.CoreV1().Nodes()
			object, err := nodes.Get(ctx, node, metav1.GetOptions{})
			if err == nil {
				object.Status.Addresses[0].Address = right.Addr().String()
				_, err = nodes.UpdateStatus(ctx, object, metav1.UpdateOptions{})
			}
			return err
		})
	}
}

// breakPort stops a kubelet. The cure is to start it.
func (d *diagnosis) breakPort(t *testing.T, node string) func(*testing.T) {
	t.Helper()
	k, at := d.startKubelet(t, node)
	d.fleet.Remove(node)
	d.createNode(t, node, at)
	return func(t *testing.T) {
		t.Helper()
		if _, err := d.fleet.Add(k, at.Addr()); err != nil {
			t.Fatal(err)
		}
	}
}

// breakByFirewall drops the packets that connect to a kubelet: the queue of its listener is full.
// The cure is to let them pass.
func (d *diagnosis) breakByFirewall(t *testing.T, node string) func(*testing.T) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	setQueue(t, listener, 0)
	var connections []net.Conn
	for blocked := false; !blocked; {
		connection, err := net.DialTimeout("tcp", listener.Addr().String(), 500*time.Millisecond)
		if blocked = err != nil; !blocked {
			t.Cleanup(func() { connection.Close() })
			connections = append(connections, connection)
		}
		if len(connections) > 8 {
			t.Fatal("the queue of the listener is never full")
		}
	}
	d.createNode(t, node, netip.MustParseAddrPort(listener.Addr().String()))
	return func(t *testing.T) {
		t.Helper()
		for _, connection := range connections {
			connection.Close()
		}
		setQueue(t, listener, 16)
		server := &http.Server{
			Handler:           newKubelet(node),
			ReadHeaderTimeout: timeout,
			TLSConfig:         &tls.Config{Certificates: []tls.Certificate{d.CA.Issue([]string{node}, nil)}},
		}
		go func() { _ = server.ServeTLS(listener, "", "") }()
	}
}

// setQueue sets how many connections wait to be accepted.
func setQueue(t *testing.T, listener net.Listener, size int) {
	t.Helper()
	raw, err := listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = syscall.Listen(int(fd), size) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}

// breakRuntime makes a kubelet unable to read its containers. The cure is to repair its runtime.
func (d *diagnosis) breakRuntime(t *testing.T, node string) func(*testing.T) {
	t.Helper()
	k, at := d.startKubelet(t, node)
	k.SetFaults(kubelettest.ScrapeError)
	d.createNode(t, node, at)
	return func(*testing.T) { k.SetFaults() }
}

// checkDoctor waits until doctor names each broken node, and what to do.
func (d *diagnosis) checkDoctor(t *testing.T, nodes []brokenNode) {
	t.Helper()
	eventually(t, "doctor to find the broken nodes", func(ctx context.Context) error {
		code, report, err := d.examine(ctx)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if code != 1 || !slices.ContainsFunc(report.Checks, func(check doctorCheck) bool {
				return check.Status == "failed" && check.Reason == n.reason && strings.Contains(check.Seen, n.problem) &&
					strings.HasPrefix(check.Cure, n.cure) && strings.HasSuffix(check.URL, "#"+n.reason) &&
					slices.Equal(check.Objects, []string{n.name()})
			}) {
				return fmt.Errorf("exit code %d, not found: %s: %+v", code, n.reason, report.Checks)
			}
		}
		return nil
	})
}

// awaitMetrics waits until kubectl top succeeds for a node, or for a pod.
func (c *testCluster) awaitMetrics(t *testing.T, kind, name string) {
	t.Helper()
	eventually(t, "metrics of "+name, func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, "top", kind, name, "--namespace="+explained)
		return err
	})
}

// testClock sets a node's clock back: its metrics stay, and the skew is reported. The cure is to set
// the clock.
func (d *diagnosis) testClock(t *testing.T) {
	t.Parallel()
	const node = "clock"
	k, at := d.startKubelet(t, node)
	d.createNode(t, node, at)
	d.awaitMetrics(t, "node", node)
	admin := d.asAdmin(t, d.server)
	admin.header.Set("Accept", "application/json")

	// await waits for newer metrics, whose timestamp is of the node's clock, and for the skew in /nodez,
	// the telemetry and doctor's check. The node has metrics all the time.
	await := func(offset time.Duration, skew *regexp.Regexp, series bool, status string) {
		t.Helper()
		began := time.Now().Add(offset)
		eventually(t, fmt.Sprintf("a skew of %s", skew), func(ctx context.Context) error {
			sampled, err := d.nodeTimestamp(ctx, node)
			if err != nil && ctx.Err() == nil {
				t.Fatalf("the node has lost its metrics: %v", err)
			}
			if err != nil {
				return err
			}
			if sampled.Before(began) || sampled.After(time.Now().Add(offset)) {
				return fmt.Errorf("the metrics are of %s", sampled)
			}
			page, err := admin.getOK(ctx, nodezPath)
			if err != nil {
				return err
			}
			for _, n := range decodeNodez(t, page).Nodes {
				if n.Name == node && (n.State != "ready" || !skew.MatchString(fmt.Sprintf("%.0f", n.ClockSkewSeconds))) {
					return fmt.Errorf("got %+v", n)
				}
			}
			telemetry, err := admin.getOK(ctx, "/metrics")
			if err != nil {
				return err
			}
			line := regexp.MustCompile(`(?m)^kube_vitals_node_clock_skew_seconds{node="clock"} (.*)`).FindSubmatch(telemetry)
			if (line != nil) != series || series && !skew.Match(line[1]) {
				return fmt.Errorf("/metrics has %q", line)
			}
			_, report, err := d.examine(ctx)
			if err != nil {
				return err
			}
			for _, check := range report.Checks {
				if check.ID == "clocks" && check.Status == status && (!series ||
					strings.HasPrefix(strings.Join(check.Objects, ","), node+" -") && strings.Contains(check.Cure, "NTP")) {
					return nil
				}
			}
			return fmt.Errorf("doctor does not have clocks %s: %+v", status, report.Checks)
		})
	}

	const logged = `"The clock of the node jumped against ours; the rates of its containers start again (`
	const back = -10 * time.Minute
	k.SetClockOffset(back)
	await(back, regexp.MustCompile(`^-(599|600)`), true, "warning")
	eventually(t, "the skew in the log", func(context.Context) error {
		if n := d.countLog(t, logged); n != 1 {
			return fmt.Errorf("it is logged %d times", n)
		}
		return nil
	})
	k.SetClockOffset(0)
	await(0, regexp.MustCompile(`^-?0`), false, "ok")
}

// testPodPending creates a pod that fits on no node. The cure is to look at its events, which say
// what to change.
func (d *diagnosis) testPodPending(t *testing.T) {
	t.Parallel()
	const pod, label = "picky", "kube-vitals.test/disk"
	d.addPod(t, pod, `nodeSelector: {`+label+`: fast}`)
	d.awaitExplanation(t, "pod "+pod, "pod-pending",
		`the pod has been pending since .* \(see its events with kubectl describe pod\)`)
	d.awaitEvent(t, []string{"describe", "pod", pod, "--namespace=" + explained},
		"FailedScheduling", "didn't match Pod's node affinity/selector")
	d.kubectl(t, "label", "node", oneNode, label+"=fast")
	d.awaitMetrics(t, "pod", pod)
}

// testNotSelected adds a node that the node selector excludes. The cure is to change its labels.
func (d *diagnosis) testNotSelected(t *testing.T) {
	t.Parallel()
	labels := map[string]string{excludedBy: "true"}
	if err := d.Simulation.AddNode(t.Context(), simulation.Node{Name: excluded, Labels: labels}); err != nil {
		t.Fatal(err)
	}
	d.awaitExplanation(t, "node "+excluded, "not-selected",
		`the node is not selected for scraping \(change the node's labels or --node-selector\)`)
	d.kubectl(t, "label", "node", excluded, excludedBy+"-")
	d.awaitMetrics(t, "node", excluded)
}

// removeRule removes a rule from a ClusterRole.
func (d *diagnosis) removeRule(t *testing.T, role, resource string) {
	t.Helper()
	roles := d.Client.RbacV1().ClusterRoles()
	object, err := roles.Get(t.Context(), role, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, rule := range object.Rules {
		if slices.Equal(rule.Resources, []string{resource}) {
			object.Rules = slices.Delete(object.Rules, i, i+1)
			if _, err := roles.Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("ClusterRole %s has no rule for %s", role, resource)
}

// testNoKubeletAccess removes the permission to read the metrics of kubelets. The cure is to grant
// it.
func (d *diagnosis) testNoKubeletAccess(t *testing.T) {
	t.Helper()
	const node = "forbidden"
	d.removeRule(t, "system:"+cluster.Release+"-kubelet", "nodes/metrics")
	check := d.awaitFailure(t, "permissions", "permission-missing") // by now, it is in effect
	if !slices.Equal(check.Objects, []string{"get nodes/metrics"}) || !strings.Contains(check.Seen, "-kubelet cannot") {
		t.Errorf("got %+v", check)
	}
	d.Simulation.ForgetPermissions()
	if err := d.Simulation.AddNode(t.Context(), simulation.Node{Name: node}); err != nil {
		t.Fatal(err)
	}
	d.awaitExplanation(t, "node "+node, "forbidden",
		`the kubelet denies access \(grant get on nodes/metrics to the user that kube-vitals runs as\)`)
	d.kubectl(t, "create", "clusterrole", node, "--verb=get", "--resource=nodes/metrics")
	d.kubectl(t, "create", "clusterrolebinding", node, "--clusterrole="+node,
		"--serviceaccount="+strings.TrimPrefix(kubeletAccount, "system:serviceaccount:"))
	d.awaitMetrics(t, "node", node)
	d.awaitHealthy(t)
}

// testNoPodList removes the permission to list pods, and restarts the server. The cure is to restore
// the role.
func (d *diagnosis) testNoPodList(t *testing.T) {
	t.Helper()
	d.server.Kill()
	d.removeRule(t, "system:"+cluster.Release, "pods")
	d.restart(t)
	d.awaitError(t)
	check := d.awaitFailure(t, "permissions", "permission-missing")
	if !slices.Contains(check.Objects, "list+watch pods") || !strings.Contains(check.Cure, "helm upgrade") {
		t.Errorf("got %+v", check)
	}
	if err := d.Upgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.awaitHealthy(t)
	d.awaitMetrics(t, "node", oneNode)
}

// testZeroReplicas stops the server. The cure is to start it.
func (d *diagnosis) testZeroReplicas(t *testing.T) {
	t.Helper()
	d.server.Kill()
	d.kubectl(t, "patch", "service", cluster.Release, inNamespace, "--patch",
		`{"spec": {"type": "ClusterIP", "externalName": null}}`)
	d.awaitError(t)
	d.awaitFailure(t, "endpoints", "no-endpoints")
	check := d.awaitFailure(t, "deployment", "zero-replicas")
	_, command, found := strings.Cut(check.Cure, "\nkubectl ")
	if !found || !strings.Contains(command, " scale deployment "+cluster.Release+" --replicas=1") {
		t.Fatalf("got %+v", check)
	}
	d.kubectl(t, strings.Fields(command)...)
	// The simulated pod does nothing. This is what it would start.
	d.restart(t)
	if err := d.RouteService(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.awaitMetrics(t, "node", oneNode)
}

// restart starts the server that was killed, at its old address.
func (c *testCluster) restart(t *testing.T) {
	t.Helper()
	replica, err := c.server.StartReplica("--secure-port=" + c.server.Port())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(replica.Kill)
	logOnFailure(t, replica)
	replica.Address = c.server.Address
	c.server = replica
}

// awaitError waits until kubectl top fails. It has only its own text for an API that is unavailable:
// doctor has the cause.
func (d *diagnosis) awaitError(t *testing.T) {
	t.Helper()
	eventually(t, "kubectl top to fail", func(ctx context.Context) error {
		_, got, err := d.kubectlWithErrors(ctx, "top", "nodes")
		if err == nil {
			return errors.New("it succeeds")
		}
		t.Log(got)
		return nil
	})
}
