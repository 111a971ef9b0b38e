package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// loopbackServices is a flag of an API server. A process of this machine can listen at the address of a Service.
const loopbackServices = "--service-cluster-ip-range=127.96.0.0/16"

// movedRelease is a release whose chart is replaced, and the Service that its APIServices refer to. The pods are
// simulated. A process responds in the place of those with a container of a name, such as kube-vitals.
type movedRelease struct {
	*servingCluster
	name      string // of the release, its Service and its Deployment
	port      int    // of the Service
	balancer  *balancer
	processes sync.Map // addresses by container
}

// testMoveInRelease replaces the chart of metrics-server's release, as docs/moving-from-metrics-server.md describes
// it, goes back, moves again and uninstalls the release. Meanwhile clients send requests, as long as there are servers.
func (c *servingCluster) testMoveInRelease(t *testing.T) {
	c.kubectl(t, "delete", "serviceaccount,service,rolebinding,clusterrole,clusterrolebinding", inNamespace,
		"--selector=k8s-app=metrics-server")
	r := &movedRelease{servingCluster: c, name: "metrics-server", port: freePort(t)}
	r.helm(t, "install", r.name, filepath.Join(c.Checkout, "test", "e2e", "testdata", "metrics-server"),
		"--set", fmt.Sprintf("port=%d", r.port))
	other := r.startMetricsServer(t)
	r.startProxy(t)
	r.rollOut(t, "metrics-server", other)
	c.awaitTop(t)
	requests := startLoad(t, c.requests("v1beta1"))
	installed := r.objects(t, "name")

	r.testRefusals(t)
	const moved, unverified = "nameOverride=metrics-server", "apiService.insecureSkipTLSVerify=true"
	must(t, r.upgrade(t, moved, unverified))
	own, err := c.server.StartRevision(t.Context(), r.name)
	must(t, err)
	t.Cleanup(own.Kill)
	logOnFailure(t, own)
	r.rollOut(t, "kube-vitals", own)
	must(t, other.Stop(c.shutdownTimeout()))
	c.awaitTop(t)

	ca := c.kubectl(t, "get", "secret", "metrics-server-serving", inNamespace, "--output", `jsonpath={.data.ca\.crt}`)
	patch := func(spec string) {
		c.kubectl(t, "patch", "apiservice", "v1.metrics.k8s.io", "v1beta1.metrics.k8s.io", "--type=merge",
			`--patch={"spec": {`+spec+`}}`)
	}
	patch(`"insecureSkipTLSVerify": null, "caBundle": "` + ca + `"`)
	must(t, r.upgrade(t, moved))
	if got := c.kubectl(t, getAPIServices...); got != " "+ca+"; "+ca+";" {
		t.Errorf("got APIServices with %q, want the caBundle", got)
	}

	patch(`"insecureSkipTLSVerify": true, "caBundle": null`) // with a caBundle the rollback would fail
	r.helm(t, "rollback", r.name, "1")
	other = r.startMetricsServer(t)
	r.rollOut(t, "metrics-server", other)
	must(t, own.Stop(c.shutdownTimeout()))
	c.awaitTop(t)
	requests.stop()
	if left := r.objects(t, "name"); left != installed {
		t.Errorf("after the way back, there are\n%s\nwant\n%s", left, installed)
	}

	must(t, r.upgrade(t, moved, unverified))
	must(t, r.upgrade(t, moved))
	r.helm(t, "uninstall", r.name)
	if left := r.objects(t, "name"); left != "" {
		t.Errorf("after uninstalling, there are\n%s", left)
	}
}

// testRefusals tests that the chart refuses upgrades that cannot work, and that helm has then changed nothing.
func (r *movedRelease) testRefusals(t *testing.T) {
	specs := func() string {
		return r.objects(t, `jsonpath={range .items[*]}{.kind} {.metadata.name} {.spec}{"\n"}{end}`)
	}
	before := specs()
	for _, tt := range []struct{ values, want string }{
		{"", "set nameOverride=metrics-server and apiService.insecureSkipTLSVerify=true"},
		{"fullnameOverride=metrics-server", "set nameOverride=metrics-server and apiService.insecureSkipTLSVerify=true"},
		{"fullnameOverride=metrics-server,apiService.create=false",
			"set nameOverride=metrics-server and apiService.create=true ("},
		{"nameOverride=metrics-server,apiService.create=false", "set apiService.create=true ("},
		{"nameOverride=metrics-server,apiService.insecureSkipTLSVerify=true,apiService.versions={v1}",
			"set apiService.versions={v1,v1beta1} ("},
		{"nameOverride=metrics-server", "set apiService.insecureSkipTLSVerify=true ("},
		{"nameOverride=metrics-server,fullnameOverride=x", "set fullnameOverride=metrics-server and apiService."},
	} {
		if err := r.upgrade(t, tt.values); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("upgrade with %s: got error %v, want %s", tt.values, err, tt.want)
		}
	}
	if after := specs(); after != before {
		t.Fatalf("refused upgrades have changed the objects from\n%s\nto\n%s", before, after)
	}
}

// helm runs helm in the namespace of the release.
func (r *movedRelease) helm(t *testing.T, args ...string) {
	t.Helper()
	_, err := r.Run(t.Context(), binaries.Helm, append(args, inNamespace)...)
	must(t, err)
}

// upgrade upgrades the release to kube-vitals' chart.
func (r *movedRelease) upgrade(t *testing.T, values ...string) error {
	t.Helper()
	_, err := r.Run(t.Context(), binaries.Helm, "upgrade", r.name, r.Chart, inNamespace, "--set",
		fmt.Sprintf("image.tag=dev,service.port=%d,nodeSelector.server=kube-vitals,maxSampleAge=10m,%s",
			r.port, strings.Join(values, ",")))
	return err
}

// objects returns the objects of the release, without what controllers create for them.
func (r *movedRelease) objects(t *testing.T, output string) string {
	t.Helper()
	return r.kubectl(t, "get", "deployments,services,serviceaccounts,secrets,configmaps,roles,rolebindings,clusterroles,"+
		"clusterrolebindings,apiservices,validatingadmissionpolicies,validatingadmissionpolicybindings",
		"--all-namespaces", "--selector=app.kubernetes.io/instance="+r.name, "--output="+output)
}

// rollOut lets the pods of a chart become ready, once their process is, and waits until only these are endpoints. The
// pods are pending until the node has the label that they select.
func (r *movedRelease) rollOut(t *testing.T, container string, s *cluster.Server) {
	t.Helper()
	probe := newClient(t, s)
	probe.transport.TLSClientConfig.InsecureSkipVerify = true
	eventually(t, container+" to be ready", func(ctx context.Context) error {
		return errors.Join(s.Running(), probe.ok(ctx, "/readyz"))
	})
	r.awaitNode(t, s)
	r.processes.Store(container, s.Address)
	r.kubectl(t, "label", "node", "node", "--overwrite", "server="+container)
	eventually(t, container+" to be the only endpoint", func(context.Context) error {
		if got := r.balancer.list(); len(got) != 1 || got[0] != s.Address {
			return fmt.Errorf("got endpoints %q", got)
		}
		return nil
	})
}

// startProxy does what kube-proxy does for the Service until the test ends.
func (r *movedRelease) startProxy(t *testing.T) {
	t.Helper()
	ip := r.kubectl(t, "get", "service", r.name, inNamespace, "--output=jsonpath={.spec.clusterIP}")
	r.balancer = startBalancerAt(t, net.JoinHostPort(ip, strconv.Itoa(r.port)))
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() {
		for ctx.Err() == nil {
			if addresses, err := r.endpoints(ctx); err == nil {
				r.balancer.set(addresses)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
}

// endpoints returns the addresses of the processes of the pods that are ready endpoints of the Service.
func (r *movedRelease) endpoints(ctx context.Context) ([]string, error) {
	list, err := r.Client.DiscoveryV1().EndpointSlices(cluster.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + r.name})
	if err != nil {
		return nil, err
	}
	var addresses []string
	for _, slice := range list.Items {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready == nil || !*endpoint.Conditions.Ready {
				continue
			}
			pod, err := r.Client.CoreV1().Pods(cluster.Namespace).Get(ctx, endpoint.TargetRef.Name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			if address, ok := r.processes.Load(pod.Spec.Containers[0].Name); ok {
				addresses = append(addresses, address.(string))
			}
		}
	}
	return addresses, nil
}
