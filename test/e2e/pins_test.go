package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

const pinsConfigMap = "kube-vitals-kubelet-pins"

// TestPinnedKubelets installs the chart with kubelet.tls=pin in a cluster whose kubelets have
// self-signed certificates, except the node of newCluster.
func TestPinnedKubelets(t *testing.T) {
	t.Parallel()
	flags, log := startAudit(t)
	p := &pinned{testCluster: newCluster(t, flags...), log: log}
	first, second := p.startKubelet(t, "first"), p.startKubelet(t, "second")
	p.createNode(t, "first", first.at)
	p.createNode(t, "second", second.at)
	p.installWith(t, []string{"kubelet.tls=pin"})
	for _, node := range []string{"node", "first", "second"} {
		p.awaitMetrics(t, "node", node)
	}
	var pins map[string]string
	eventually(t, "a CA for node, and keys for first and second", func(context.Context) error {
		if pins = p.pins(t); len(pins) != 3 || !strings.HasPrefix(pins["node"], "ca ") ||
			!strings.HasPrefix(pins["first"], "sha256:") || !strings.HasPrefix(pins["second"], "sha256:") {
			return fmt.Errorf("got entries %v", pins)
		}
		return nil
	})

	// Another process uses the same keys, and pins none again. Then both run at the same time.
	replica := p.replica(t, p.server)
	if log, err := replica.Log(); err != nil || strings.Contains(log, "Pinned the keys") {
		t.Errorf("the replica pins keys again, error %v:\n%s", err, log)
	}
	p.wantPins(t, pins)

	p.testManInTheMiddle(t, first)
	p.testRenewedCertificate(t)
	p.testNewNode(t)
	p.testMissingConfigMap(t)
	p.testPermissions(t)
	p.testUninstall(t, replica)
}

// pinned is a cluster whose kubelets have self-signed certificates.
type pinned struct {
	*testCluster
	log string // the API server's audit log
}

// selfSignedKubelet is a kubelet with a key of its own. It records the credentials that it gets.
type selfSignedKubelet struct {
	*kubelettest.Kubelet
	at netip.AddrPort

	mu          sync.Mutex
	credentials []string
}

// startKubelet starts a kubelet of a node, whose certificate has another key than any other one.
func (p *pinned) startKubelet(t *testing.T, node string) *selfSignedKubelet {
	t.Helper()
	k := &selfSignedKubelet{}
	k.Kubelet = kubelettest.New(node, kubelettest.Config{StartCPU: 0.02, Authorize: func(r *http.Request) int {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.credentials = append(k.credentials, r.Header.Get("Authorization"))
		return http.StatusOK
	}})
	k.SetNode(kubelettest.Usage{CPU: 0.5, Memory: 1 << 30})
	certificate := kubelettest.KubeletSigned(node)
	k.at = k.Start(t, &certificate)
	return k
}

// received returns the credentials of all requests.
func (k *selfSignedKubelet) received() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.credentials)
}

// redirect makes a kubelet respond at the address of a node.
func (p *pinned) redirect(t *testing.T, node string, to netip.AddrPort) {
	t.Helper()
	patch := fmt.Sprintf(`{"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": %d}}}}`, to.Port())
	p.kubectl(t, "patch", "node", node, "--subresource=status", "--type=merge", "--patch", patch)
}

// pins returns the entries of the ConfigMap.
func (p *pinned) pins(t *testing.T) map[string]string {
	t.Helper()
	object, err := p.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(t.Context(), pinsConfigMap, metav1.GetOptions{})
	must(t, err)
	return object.Data
}

func (p *pinned) wantPins(t *testing.T, want map[string]string) {
	t.Helper()
	if got := p.pins(t); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got entries %v, want %v", got, want)
	}
}

// awaitRefusal waits until the metrics of the node have expired, and the reason is named.
func (p *pinned) awaitRefusal(t *testing.T, node string) {
	t.Helper()
	eventually(t, "the key of "+node+" to be refused", func(ctx context.Context) error {
		_, text, err := p.kubectlWithErrors(ctx, "top", "node", node)
		if err == nil {
			return errors.New("the node has metrics")
		}
		if !strings.Contains(text, "the kubelet does not have the pinned key") ||
			!strings.Contains(text, "troubleshooting.md#tls-key-changed") {
			return errors.New(text)
		}
		if strings.Contains(text, "sha256:") {
			t.Errorf("the error shows keys: %s", text)
		}
		return nil
	})
	p.awaitEvent(t, []string{"describe", "node", node}, "Warning", "MetricsUnavailable", "tls-key-changed")
}

// testManInTheMiddle has an impostor respond at the address of a node. It gets nothing.
func (p *pinned) testManInTheMiddle(t *testing.T, kubelet *selfSignedKubelet) {
	impostor, before := p.startKubelet(t, "first"), p.pins(t)
	if got := kubelet.received(); len(got) == 0 || !strings.HasPrefix(got[0], "Bearer ") {
		t.Errorf("the kubelet got the credentials %q, so the test proves nothing", got)
	}
	p.redirect(t, "first", impostor.at)
	p.awaitRefusal(t, "first")
	body, err := p.asAdmin(t, p.server).getOK(t.Context(), "/metrics")
	must(t, err)
	for _, want := range []string{
		`kube_vitals_scrapes_total\{reason="tls-key-changed",result="failure"\} [1-9]`,
		`kube_vitals_kubelet_pins\{kind="ca"\} 1`, `kube_vitals_kubelet_pins\{kind="key"\} 2`,
		`kube_vitals_kubelet_keys_pinned_total 2`,
	} {
		if !regexp.MustCompile("(?m)^" + want).Match(body) {
			t.Errorf("/metrics has no line %s", want)
		}
	}
	if got := impostor.received(); len(got) > 0 {
		t.Errorf("the impostor got %d requests", len(got))
	}
	p.wantPins(t, before)
	p.redirect(t, "first", kubelet.at)
	p.awaitNewer(t, "first", time.Now())
}

var acceptCommand = regexp.MustCompile(`; the command: kubectl (.*?) -p '(data: \{second: .*?\})'`)

// testRenewedCertificate renews the certificate of a kubelet, and accepts it with the command in the
// log.
func (p *pinned) testRenewedCertificate(t *testing.T) {
	renewed := p.startKubelet(t, "second")
	p.redirect(t, "second", renewed.at)
	var command []string
	eventually(t, "a command that accepts the key", func(context.Context) error {
		log, err := p.server.Log()
		if command = acceptCommand.FindStringSubmatch(log); command == nil && err == nil {
			err = errors.New("the log has none")
		}
		return err
	})
	if n := len(renewed.received()); n > 0 {
		t.Errorf("the kubelet got %d requests before its key was accepted", n)
	}
	p.kubectl(t, append(strings.Fields(command[1]), "-p", command[2])...)
	eventually(t, "a request to the kubelet", func(context.Context) error {
		if len(renewed.received()) == 0 {
			return errors.New("it got none")
		}
		return nil
	})
}

// testNewNode creates a Node again: the key of its kubelet is pinned without a command.
func (p *pinned) testNewNode(t *testing.T) {
	before := p.pins(t)["first"]
	p.kubectl(t, "delete", "node", "first")
	p.createNode(t, "first", p.startKubelet(t, "first").at)
	p.awaitNewer(t, "first", time.Now())
	if got := p.pins(t)["first"]; got == before || !strings.HasPrefix(got, "sha256:") {
		t.Errorf("the entry is %q, and was %q", got, before)
	}
}

// testMissingConfigMap deletes the ConfigMap: known keys stay in use. When it exists again, the keys
// are pinned again, and what a CA verifies is noted at the next connection.
func (p *pinned) testMissingConfigMap(t *testing.T) {
	before := p.pins(t)
	config := p.Client.CoreV1().ConfigMaps(cluster.Namespace)
	object, err := config.Get(t.Context(), pinsConfigMap, metav1.GetOptions{})
	must(t, err)
	p.kubectl(t, "delete", "configmap", pinsConfigMap, inNamespace)
	p.awaitNewer(t, "second", time.Now())
	object.ResourceVersion, object.UID, object.Data = "", "", nil
	if _, err := config.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the keys to be pinned again", func(ctx context.Context) error {
		object, err := config.Get(ctx, pinsConfigMap, metav1.GetOptions{})
		if err == nil && (object.Data["first"] != before["first"] || object.Data["second"] != before["second"]) {
			err = fmt.Errorf("got entries %v, want %v", object.Data, before)
		}
		return err
	})
	p.awaitNewer(t, "second", time.Now())
}

// testPermissions checks that the server has used each permission on ConfigMaps of its own, and no
// other one.
func (p *pinned) testPermissions(t *testing.T) {
	r := &rbac{testCluster: p.testCluster, log: p.log}
	var permissions []permission
	for _, q := range r.permissionsOf(t, cluster.Release) {
		if q.resource == "configmaps" {
			permissions = append(permissions, q)
		}
	}
	requests, err := auditRequests(p.log, account)
	must(t, err)
	requests = slices.DeleteFunc(requests, func(q auditRequest) bool { return q.resource != "configmaps" })
	for _, q := range notPermitted(permissions, requests) {
		t.Errorf("no permission of the chart allows %+v", q)
	}
	for _, q := range permissions {
		list := q.verb == "list" // before Kubernetes 1.34, a watch may not begin with a list (WatchList)
		if q.name == pinsConfigMap && !list && !slices.ContainsFunc(requests, q.allows) {
			t.Errorf("no request needs %s", q)
		}
	}
}

// testUninstall removes the release while the servers run.
func (p *pinned) testUninstall(t *testing.T, replica *cluster.Server) {
	p.uninstall(t)
	for _, s := range []*cluster.Server{p.server, replica} {
		if err := s.Stop(p.shutdownTimeout()); err != nil {
			t.Errorf("kube-vitals exits with %v", err)
		}
	}
}
