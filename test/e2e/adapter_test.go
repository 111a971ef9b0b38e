package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// monitoring is the namespace of kube-prometheus.
const monitoring = "monitoring"

// TestMoveFromPrometheusAdapter follows docs/moving-from-prometheus-adapter.md with the manifests
// for kube-prometheus, and the way back, while clients send requests. A kube-vitals that reads the
// same series runs behind the Service of prometheus-adapter, because no module of that builds with ours.
func TestMoveFromPrometheusAdapter(t *testing.T) {
	t.Parallel()
	c := newAdapterCluster(t)
	c.createNamespaces(t, "shop")
	c.createPods(t, "shop", "node-01", "cart", "web")
	c.pods = 2
	for _, source := range []string{"prometheus", "kubelet"} {
		t.Run(source, func(t *testing.T) { c.testMove(t, source) })
	}
}

// testMove moves to kube-vitals with a source, and back.
func (c *adapterCluster) testMove(t *testing.T, source string) {
	requests := startLoad(t, c.reads(oldKubectl(t)))

	// Kube-vitals runs beside prometheus-adapter.
	overlay, withoutAPIServices := c.writeOverlay(t, source)
	c.kubectl(t, "apply", "--kustomize", withoutAPIServices)
	c.startOverlay(t, source)

	// The API server sends requests to kube-vitals.
	c.patchToKubeVitals(t, monitoring, c.server.Port())
	c.kubectl(t, "apply", "--kustomize", overlay)
	c.kubectl(t, "wait", "apiservices", "--selector=app.kubernetes.io/instance=kube-vitals",
		"--for=condition=Available", fmt.Sprintf("--timeout=%s", timeout))
	c.wantAPIService(t, "kube-vitals  kube-vitals")

	// Kube-prometheus is applied again with prometheus-adapter: its APIService is rejected.
	if err := c.Apply(t.Context(), c.other.apiService()); err == nil || !strings.Contains(err.Error(),
		"may not be true if caBundle is present") {
		t.Errorf("applying the APIService of prometheus-adapter: got error %v", err)
	}

	// Prometheus-adapter is removed, except its APIService.
	file := c.File("delete.yaml")
	must(t, os.WriteFile(file, []byte(c.other.access()), 0o600))
	c.kubectl(t, "delete", "--filename", file)
	c.adapter.Kill()
	c.awaitRequests(t, requests)
	if left := c.kubectl(t, "get", "apiservices,clusterroles,services,serviceaccounts", "--all-namespaces",
		"--selector=app.kubernetes.io/name=prometheus-adapter", "--output=name"); left != "" {
		t.Errorf("objects of prometheus-adapter are left:\n%s", left)
	}

	// The way back.
	c.startAdapter(t)
	c.patchAPIService(t, "v1beta1", c.other.patch())
	c.kubectl(t, "delete", "apiservice", "v1.metrics.k8s.io")
	must(t, c.Apply(t.Context(), c.other.apiService()))
	c.kubectl(t, "delete", "--kustomize", withoutAPIServices)
	c.server.Kill()
	c.awaitRequests(t, requests)
	requests.stop()
	c.wantAPIService(t, "prometheus-adapter true prometheus-adapter")
}

// adapterCluster is a cluster with prometheus-adapter, which reads a Prometheus.
type adapterCluster struct {
	*prometheusCluster
	other   otherServer
	adapter *process.Process
	pods    int // with metrics, in the namespace shop
}

func newAdapterCluster(t *testing.T) *adapterCluster {
	t.Helper()
	c := &adapterCluster{prometheusCluster: newEngineCluster(t, "prometheus")}
	c.other = otherServer{"prometheus-adapter", monitoring, fmt.Sprint(freePort(t)),
		"app.kubernetes.io/name: prometheus-adapter, app.kubernetes.io/part-of: kube-prometheus", ""}
	c.startPrometheus(t)
	must(t, c.CreateNamespace(t.Context(), monitoring))
	c.startAdapter(t)
	must(t, c.Apply(t.Context(), c.other.apiService()))
	eventually(t, "metrics of nodes from prometheus-adapter", c.list(c.get, "nodes", prometheusNodes))
	return c
}

// list returns a function that requests a list of v1beta1, and fails unless it has n objects.
func (*adapterCluster) list(
	get func(context.Context, string) ([]byte, error), path string, n int,
) func(context.Context) error {
	return func(ctx context.Context) error {
		body, err := get(ctx, cluster.V1beta1+"/"+path)
		if err != nil {
			return err
		}
		return wantItems(body, n)
	}
}

// startAdapter creates the objects of prometheus-adapter except its APIService, and starts it.
func (c *adapterCluster) startAdapter(t *testing.T) {
	t.Helper()
	must(t, c.Apply(t.Context(), c.other.access()))
	c.adapter = c.startServer(t, c.other.name, c.other.port, nil, "--source=prometheus",
		fmt.Sprintf("--prometheus-url=http://127.0.0.1:%d", c.port))
}

// startServer starts a kube-vitals with variables and the ServiceAccount of its name in monitoring, and waits until it
// is ready and has the metrics of all nodes and pods: a server is ready when it has all that it can
// have, and the pods are young.
func (c *adapterCluster) startServer(
	t *testing.T, name, port string, env []string, args ...string,
) *process.Process {
	t.Helper()
	binary, err := c.KubeVitals()
	must(t, err)
	kubeconfig := c.accountKubeconfig(t, monitoring, name)
	args = append(args, "--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig,
		"--authorization-kubeconfig="+kubeconfig, "--bind-address=127.0.0.1", "--secure-port="+port, "--metric-resolution=5s",
		"--max-sample-age=10m") // for a busy machine
	p, err := c.StartProcessWith(env, binary, args...) // may outlive the subtest
	must(t, err)
	logOnFailure(t, p)
	direct := newClient(t, &cluster.Server{Address: "127.0.0.1:" + port, CA: c.CA.PEM()}).withToken(c.REST.BearerToken)
	direct.transport.TLSClientConfig.InsecureSkipVerify = true
	eventually(t, name+" to be ready", func(ctx context.Context) error {
		if err := errors.Join(p.Running(), direct.ok(ctx, "/readyz")); err != nil {
			return err
		}
		return errors.Join(c.list(direct.getOK, "nodes", prometheusNodes)(ctx),
			c.list(direct.getOK, "namespaces/shop/pods", c.pods)(ctx))
	})
	return p
}

// writeOverlay writes kustomizations of the overlay for kube-prometheus, with and without its
// APIServices, as a user does. Instead of pods, there is a process on this machine, behind a Service
// that is an alias of it. The kinds of Prometheus Operator do not exist here.
func (c *adapterCluster) writeOverlay(t *testing.T, source string) (overlay, withoutAPIServices string) {
	t.Helper()
	c.server = &cluster.Server{Address: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	write := func(folder, component string) string {
		must(t, os.Mkdir(folder, 0o700))
		folder, err := filepath.EvalSymlinks(folder)
		must(t, err)
		manifests, err := filepath.Rel(folder, filepath.Join(c.Checkout, "manifests")) // absolute paths are rejected
		must(t, err)
		text := strings.NewReplacer("MANIFESTS", manifests, "SOURCE", source, "PORT", c.server.Port(),
			"COMPONENT", strings.ReplaceAll(component, "MANIFESTS", manifests)).Replace(`
resources: [MANIFESTS/overlays/kube-prometheus-SOURCE]
components: [COMPONENT]
patches:
- {target: {kind: ServiceMonitor}, patch: "$patch: delete\nkind: ServiceMonitor\nmetadata: {name: any}"}
- {target: {kind: PrometheusRule}, patch: "$patch: delete\nkind: PrometheusRule\nmetadata: {name: any}"}
- {target: {kind: Deployment}, patch: "- {op: replace, path: /spec/replicas, value: 0}"}
- {target: {kind: Service}, patch: "- {op: replace, path: /spec, value: {type: ExternalName, externalName: localhost}}"}
- {target: {kind: APIService}, patch: "- {op: replace, path: /spec/service/port, value: PORT}"}
`)
		must(t, os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(text), 0o600))
		return folder
	}
	overlay = write(c.File(source), "")
	return overlay, write(c.File(source+"-without-apiservices"), "MANIFESTS/components/without-apiservices")
}

// startOverlay starts kube-vitals with the variables and flags in the Deployment of the overlay.
func (c *adapterCluster) startOverlay(t *testing.T, source string) {
	t.Helper()
	text := c.kubectl(t, "get", "deployment", "kube-vitals", "--namespace="+monitoring, "--output=json")
	var deployment appsv1.Deployment
	must(t, json.Unmarshal([]byte(text), &deployment))
	container := deployment.Spec.Template.Spec.Containers[0]
	flags := append(container.Args, "--service=kube-vitals.monitoring.svc")
	if source == "kubelet" {
		flags = append(flags, "--kubelet-allow-loopback")
	} else { // the simulated kubelets do not have the series of kube-prometheus
		flags = append(flags, fmt.Sprintf("--prometheus-url=http://127.0.0.1:%d", c.port), "--prometheus-config=")
	}
	c.server.Process = c.startServer(t, "kube-vitals", c.server.Port(), cluster.Environment(container.Env), flags...)
}

// reads returns functions that read v1beta1 through the API server, as autoscalers and this kubectl
// do. A newer kubectl reads v1 as soon as its APIService exists. The API server answers 503 until it
// has checked the APIService, and sometimes when it is deleted.
func (c *adapterCluster) reads(kubectl string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"nodes":         c.list(c.get, "nodes", prometheusNodes),
		"pods":          c.list(c.get, "namespaces/shop/pods", c.pods),
		"pods by label": c.list(c.get, "namespaces/shop/pods?labelSelector=app%3Dcart", 1),
		"kubectl top pods": func(ctx context.Context) error {
			out, err := c.Run(ctx, kubectl, "top", "pods", "--namespace=shop", "--no-headers")
			if err == nil && strings.Count(out, "\n") != c.pods {
				err = fmt.Errorf("got\n%s", out)
			}
			return err
		},
	}
}

// wantItems returns an error unless the list has n objects, all with metrics.
func wantItems(list []byte, n int) error {
	var got struct{ Items []json.RawMessage }
	if err := json.Unmarshal(list, &got); err != nil {
		return fmt.Errorf("%w: %s", err, list)
	}
	if len(got.Items) != n {
		return fmt.Errorf("got %d items, want %d: %s", len(got.Items), n, list)
	}
	for _, item := range got.Items {
		if !bytes.Contains(item, []byte(`"usage":{"cpu":`)) {
			return fmt.Errorf("an item has no metrics: %s", item)
		}
	}
	return nil
}

// awaitRequests waits until clients have sent more requests.
func (c *adapterCluster) awaitRequests(t *testing.T, l *load) {
	t.Helper()
	start := l.requests.Load()
	eventually(t, "100 requests", func(context.Context) error {
		if n := l.requests.Load() - start; n < 100 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
}

// wantAPIService checks the Service, insecureSkipTLSVerify and the name in the labels of v1beta1, and
// that it has no label of another owner.
func (c *adapterCluster) wantAPIService(t *testing.T, want string) {
	t.Helper()
	got := c.kubectl(t, "get", "apiservice", "v1beta1.metrics.k8s.io", "--output",
		`jsonpath={.spec.service.name} {.spec.insecureSkipTLSVerify} {.metadata.labels.app\.kubernetes\.io/name}`)
	if got != want {
		t.Errorf("v1beta1: got %q, want %q", got, want)
	}
	metadata := c.kubectl(t, "get", "apiservice", "v1beta1.metrics.k8s.io", "--output=jsonpath={.metadata}")
	if strings.HasPrefix(want, "kube-vitals") == strings.Contains(metadata, `"kube-prometheus"`) {
		t.Errorf("v1beta1 has labels of the wrong owner: %s", metadata)
	}
}
