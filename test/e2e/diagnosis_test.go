package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// TestDiagnosis breaks what a user may find broken: kubectl or doctor names cause and cure, and
// metrics come once the cure is followed. TestDoctor breaks the installation.
// TestReasonsOfFailingNodes of pkg/server has nearly every reason of a failed scrape, in the metrics, the API,
// the page of nodes and the events; alerts_test.yaml of test/internal/observability has a memory limit
// that is too small.
func TestDiagnosis(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	d := &diagnosis{testCluster: c, kubeletCA: c.File("diagnosis-ca.crt"), certificates: map[string]*tls.Certificate{}}
	must(t, os.WriteFile(d.kubeletCA, c.CA.PEM(), 0o600))
	d.fleet = kubelettest.NewFleet(kubelettest.FleetConfig{Certificate: d.certificate})
	t.Cleanup(d.fleet.Close)
	labels := map[string]string{excludedBy: "true"}
	must(t, c.Simulation.AddNode(t.Context(), simulation.Node{Name: excluded, Labels: labels}))
	c.install(t, "--node-selector=!"+excludedBy, "--kubelet-certificate-authority="+d.kubeletCA,
		"--kubelet-request-timeout=3s")
	c.createNamespaces(t, explained)

	nodes := []brokenNode{
		{"tls-unknown-authority", "the kubelet's certificate is signed by an unknown authority",
			"set --kubelet-certificate-authority to the CA that signed it", d.breakCA},
		{"tls-self-signed", "the kubelet's certificate is self-signed",
			"set serverTLSBootstrap in the kubelet's configuration, then check and approve its certificate request",
			d.breakBySelfSigned},
		{"tls-name-mismatch", "the kubelet's certificate is for other names",
			"if it is that of another node, correct the addresses of both", d.breakAddress},
		{"connect-refused", "the kubelet's port refuses connections", "check that the kubelet runs", d.breakPort},
	}
	repairs := map[string]func(*testing.T){}
	for _, n := range nodes {
		repairs[n.reason] = n.breakIt(t, n.name())
	}
	d.checkDoctor(t, nodes)
	t.Run("pods", d.testPods)
	one := map[string]func(*testing.T){
		"clock": d.testClock, "pod-pending": d.testPodPending, "not-selected": d.testNotSelected,
	}
	for _, n := range nodes {
		one[n.reason] = func(t *testing.T) {
			d.awaitExplanation(t, "node "+n.name(), n.reason,
				`the metrics of the node cannot be read since .*: `+regexp.QuoteMeta(n.problem+" ("+n.cure))
			repairs[n.reason](t)
			d.awaitMetrics(t, "node", n.name())
		}
	}
	concurrently(t, one)
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
	d.certificates[kubelet] = &certificate
}

// startKubelet starts a kubelet with a valid certificate at an address of its own.
func (d *diagnosis) startKubelet(t *testing.T, name string) (*kubelettest.Kubelet, netip.AddrPort) {
	t.Helper()
	d.mu.Lock()
	address := kubelettest.Address(1000 + d.addresses) // the simulation uses the first ones
	d.addresses++
	d.mu.Unlock()
	d.setCertificate(name, d.CA.Issue([]string{name}, nil))
	k := newKubelet(name)
	at, err := d.fleet.Add(k, address)
	must(t, err)
	return k, at
}

func newKubelet(name string) *kubelettest.Kubelet {
	k := kubelettest.New(name, kubelettest.Config{StartCPU: 0.02})
	k.SetNode(kubelettest.Usage{CPU: 0.5, Memory: 1 << 30})
	return k
}

// createWithCertificate starts a kubelet with a certificate, and creates its node. It returns what
// provides a certificate of the cluster's CA.
func (d *diagnosis) createWithCertificate(t *testing.T, node string, certificate tls.Certificate) func(*testing.T) {
	t.Helper()
	_, at := d.startKubelet(t, node)
	d.setCertificate(node, certificate)
	d.createNode(t, node, at)
	return func(*testing.T) { d.setCertificate(node, d.CA.Issue([]string{node}, nil)) }
}

// breakCA lets another CA sign a certificate. The cure is to trust it.
func (d *diagnosis) breakCA(t *testing.T, node string) func(*testing.T) {
	t.Helper()
	other := kubelettest.NewCA()
	d.createWithCertificate(t, node, other.Issue([]string{node}, nil))
	return func(t *testing.T) {
		t.Helper()
		must(t, os.WriteFile(d.kubeletCA, append(d.CA.PEM(), other.PEM()...), 0o600))
	}
}

// breakBySelfSigned lets a kubelet sign its own certificate. The cure is one of the cluster's CA,
// which serverTLSBootstrap provides.
func (d *diagnosis) breakBySelfSigned(t *testing.T, node string) func(*testing.T) {
	t.Helper()
	return d.createWithCertificate(t, node, kubelettest.SelfSigned([]string{node}, nil))
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
	c.awaitOutput(t, has(name), "top", kind, name, "--namespace="+explained)
}

// testClock sets a node's clock back: its metrics stay, and the skew is reported. The cure is to set
// the clock.
func (d *diagnosis) testClock(t *testing.T) {
	const node = "clock"
	k, at := d.startKubelet(t, node)
	d.createNode(t, node, at)
	d.awaitMetrics(t, "node", node)

	const back = 10 * time.Minute
	var last time.Time // the timestamp that was read last, by our clock
	// await waits for newer metrics, whose timestamp is of the node's clock, and for doctor's check. Metrics that expire
	// are those of a busy machine.
	await := func(offset time.Duration, status, object string) {
		t.Helper()
		k.SetClockOffset(offset)
		began := time.Now().Add(offset)
		eventually(t, "the clocks to be "+status, func(ctx context.Context) error {
			sampled, err := d.nodeTimestamp(ctx, node)
			if err != nil && strings.Contains(err.Error(), "(NotFound)") && time.Since(last) < 20*time.Second {
				t.Fatalf("the node has lost its metrics: %v", err)
			}
			if err == nil {
				last = sampled
				if time.Since(last) > back/2 {
					last = last.Add(back)
				}
			}
			if err == nil && (sampled.Before(began) || sampled.After(time.Now().Add(offset))) {
				err = fmt.Errorf("the metrics are of %s", sampled)
			}
			if err != nil {
				return err
			}
			_, report, err := d.examine(ctx)
			if err != nil {
				return err
			}
			for _, check := range report.Checks {
				if check.ID == "clocks" && check.Status == status && strings.HasPrefix(strings.Join(check.Objects, ","), object) {
					return nil
				}
			}
			return fmt.Errorf("doctor does not have clocks %s: %+v", status, report.Checks)
		})
	}
	await(-back, "warning", node+" -")
	const logged = `"The clock of the node jumped against ours; the rates of its containers start again (`
	awaitLog(t, d.server, logged)
	if n := d.countLog(t, logged); n != 1 {
		t.Errorf("the skew is logged %d times", n)
	}
	await(0, "ok", "")
}

// testPodPending creates a pod that fits on no node. The cure is to look at its events, which say
// what to change.
func (d *diagnosis) testPodPending(t *testing.T) {
	const pod, label = "picky", "kube-vitals.test/disk"
	d.addPod(t, pod, `nodeSelector: {`+label+`: fast}`)
	d.awaitExplanation(t, "pod "+pod, "pod-pending",
		`the pod has been pending since .* \(see its events with kubectl describe pod\)`)
	d.awaitEvent(t, []string{"describe", "pod", pod, "--namespace=" + explained},
		"FailedScheduling", "didn't match Pod's node affinity/selector")
	d.kubectl(t, "label", "node", oneNode, label+"=fast")
	d.awaitMetrics(t, "pod", pod)
}

// testNotSelected changes the labels of a node that the node selector excludes.
func (d *diagnosis) testNotSelected(t *testing.T) {
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
	must(t, err)
	before := len(object.Rules)
	object.Rules = slices.DeleteFunc(object.Rules, func(rule rbacv1.PolicyRule) bool {
		return slices.Equal(rule.Resources, []string{resource})
	})
	if len(object.Rules) == before {
		t.Fatalf("ClusterRole %s has no rule for %s", role, resource)
	}
	_, err = roles.Update(t.Context(), object, metav1.UpdateOptions{})
	must(t, err)
}

// testNoKubeletAccess removes the permission to read the metrics of kubelets. The cure is to grant
// it.
func (d *diagnosis) testNoKubeletAccess(t *testing.T) {
	const node = "forbidden"
	d.removeRule(t, "system:"+cluster.Release+"-kubelet", "nodes/metrics")
	check := d.awaitFailure(t, "permissions", "permission-missing") // by now, it is in effect
	if !slices.Equal(check.Objects, []string{"get nodes/metrics"}) || !strings.Contains(check.Seen, "-kubelet cannot") {
		t.Errorf("got %+v", check)
	}
	d.Simulation.ForgetPermissions()
	must(t, d.Simulation.AddNode(t.Context(), simulation.Node{Name: node}))
	d.awaitExplanation(t, "node "+node, "forbidden",
		`the kubelet denies access \(grant get on nodes/metrics to the user that kubelets see `)
	d.kubectl(t, "create", "clusterrole", node, "--verb=get", "--resource=nodes/metrics")
	d.kubectl(t, "create", "clusterrolebinding", node, "--clusterrole="+node,
		"--serviceaccount="+strings.TrimPrefix(kubeletAccount, "system:serviceaccount:"))
	d.awaitMetrics(t, "node", node)
	d.awaitHealthy(t)
}

// testNoPodList removes the permission to list pods, and restarts the server. The cure is to restore
// the role.
func (d *diagnosis) testNoPodList(t *testing.T) {
	d.server.Kill()
	d.removeRule(t, "system:"+cluster.Release, "pods")
	d.restart(t)
	d.awaitError(t)
	check := d.awaitFailure(t, "permissions", "permission-missing")
	if !slices.Contains(check.Objects, "list+watch pods") || !strings.Contains(check.Cure, "helm upgrade") {
		t.Errorf("got %+v", check)
	}
	must(t, d.Upgrade(t.Context()))
	d.awaitHealthy(t)
	d.awaitMetrics(t, "node", oneNode)
}

// testZeroReplicas stops the server. The cure is to start it.
func (d *diagnosis) testZeroReplicas(t *testing.T) {
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
	must(t, d.Helm(t.Context(), "upgrade"))
	d.awaitMetrics(t, "node", oneNode)
}

// restart starts the server that was killed, at its old address.
func (c *testCluster) restart(t *testing.T) {
	t.Helper()
	replica, err := c.server.StartReplica("--secure-port=" + c.server.Port())
	must(t, err)
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
		if _, err := d.Kubectl(ctx, "top", "nodes"); err == nil {
			return errors.New("it succeeds")
		}
		return nil
	})
}
