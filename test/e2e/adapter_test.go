package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// monitoring is the namespace of kube-prometheus.
const monitoring = "monitoring"

// adapterManifest has the objects of prometheus-adapter in kube-prometheus, except its APIService,
// Deployment, and what it does not need on this machine. PORT is replaced.
const adapterManifest = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus-adapter, namespace: monitoring, labels: LABELS}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus-adapter, labels: LABELS}
rules:
- {apiGroups: [""], resources: [nodes, namespaces, pods, services], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:aggregated-metrics-reader", labels: LABELS}
rules:
- {apiGroups: [metrics.k8s.io], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus-adapter, labels: LABELS}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prometheus-adapter}
subjects: [{kind: ServiceAccount, name: prometheus-adapter, namespace: monitoring}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "resource-metrics:system:auth-delegator", labels: LABELS}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{kind: ServiceAccount, name: prometheus-adapter, namespace: monitoring}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: resource-metrics-auth-reader, namespace: kube-system, labels: LABELS}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: prometheus-adapter, namespace: monitoring}]
---
apiVersion: v1
kind: Service
metadata: {name: prometheus-adapter, namespace: monitoring, labels: LABELS}
spec: {type: ExternalName, externalName: localhost}
`

const adapterAPIService = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io, labels: LABELS}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: prometheus-adapter, namespace: monitoring, port: PORT}
`

const adapterLabels = `{app.kubernetes.io/component: metrics-adapter, app.kubernetes.io/name: prometheus-adapter, ` +
	`app.kubernetes.io/part-of: kube-prometheus, app.kubernetes.io/version: 0.12.0}`

// adapterRules is prometheus-adapter's configuration for what the simulated kubelets report, which is
// that of its own manifests.
const adapterRules = `
resourceRules:
  cpu:
    containerLabel: container
    containerQuery: |
      sum by (<<.GroupBy>>) (
        irate(container_cpu_usage_seconds_total{<<.LabelMatchers>>,container!="",pod!=""}[4m])
      )
    nodeQuery: sum by (<<.GroupBy>>) (irate(node_cpu_usage_seconds_total{<<.LabelMatchers>>}[4m]))
    resources: {overrides: {namespace: {resource: namespace}, node: {resource: node}, pod: {resource: pod}}}
  memory:
    containerLabel: container
    containerQuery: sum by (<<.GroupBy>>) (container_memory_working_set_bytes{<<.LabelMatchers>>,container!="",pod!=""})
    nodeQuery: sum by (<<.GroupBy>>) (node_memory_working_set_bytes{<<.LabelMatchers>>})
    resources: {overrides: {namespace: {resource: namespace}, node: {resource: node}, pod: {resource: pod}}}
  window: 5m
`

// TestMoveFromPrometheusAdapter follows docs/moving-from-prometheus-adapter.md with the manifests
// for kube-prometheus, and the way back, while clients send requests. The environment variable
// PROMETHEUS_ADAPTER names the program prometheus-adapter. Without it, a kube-vitals that reads the
// same series runs behind its Service, because no module of prometheus-adapter builds with ours.
func TestMoveFromPrometheusAdapter(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"prometheus", "kubelet"} {
		t.Run(source, func(t *testing.T) {
			c := newAdapterCluster(t)
			c.createNamespaces(t, "shop")
			c.createPods(t, "shop", "node-01", "cart", "web")
			c.pods = 2
			requests := startLoad(t, c.reads(oldKubectl(t)))
			c.logTop(t, "prometheus-adapter")

			// Kube-vitals runs beside prometheus-adapter.
			c.writeOverlay(t, source)
			c.kubectl(t, "apply", "--kustomize", c.File("without-apiservices"))
			c.startOverlay(t, source)

			// The API server sends requests to kube-vitals.
			ca := c.kubectl(t, "get", "secret", servingSecret, "--namespace="+monitoring, "--output", `jsonpath={.data.ca\.crt}`)
			c.kubectl(t, "patch", "apiservice", "v1beta1.metrics.k8s.io", "--type=merge", "--patch",
				`{"spec":{"insecureSkipTLSVerify":null,"caBundle":"`+ca+`",
				"service":{"name":"kube-vitals","namespace":"monitoring","port":`+c.server.Port()+`}}}`)
			c.kubectl(t, "apply", "--kustomize", c.File("overlay"))
			c.kubectl(t, "wait", "apiservices", "--selector=app.kubernetes.io/instance=kube-vitals",
				"--for=condition=Available", fmt.Sprintf("--timeout=%s", timeout))
			c.wantAPIService(t, "kube-vitals  kube-vitals")

			// Kube-prometheus is applied again with prometheus-adapter: its APIService is rejected.
			if err := c.Apply(t.Context(), c.adapterAPIService); err == nil || !strings.Contains(err.Error(),
				"may not be true if caBundle is present") {
				t.Errorf("applying the APIService of prometheus-adapter: got error %v", err)
			}

			// Prometheus-adapter is removed, except its APIService.
			c.deleteFile(t, c.adapterManifest)
			c.adapter.Kill()
			c.logTop(t, "kube-vitals")
			c.awaitRequests(t, requests)
			if left := c.kubectl(t, "get", "apiservices,clusterroles,services,serviceaccounts", "--all-namespaces",
				"--selector=app.kubernetes.io/name=prometheus-adapter", "--output=name"); left != "" {
				t.Errorf("objects of prometheus-adapter are left:\n%s", left)
			}

			// The way back.
			c.startAdapter(t)
			c.kubectl(t, "patch", "apiservice", "v1beta1.metrics.k8s.io", "--type=merge", "--patch",
				`{"spec":{"insecureSkipTLSVerify":true,"caBundle":null,
				"service":{"name":"prometheus-adapter","namespace":"monitoring","port":`+c.adapterPort+`}}}`)
			c.kubectl(t, "delete", "apiservice", "v1.metrics.k8s.io")
			c.apply(t, c.adapterAPIService)
			c.kubectl(t, "delete", "--kustomize", c.File("without-apiservices"))
			c.server.Kill()
			c.awaitRequests(t, requests)
			requests.stop()
			c.wantAPIService(t, "prometheus-adapter true prometheus-adapter")
		})
	}
}

// adapterCluster is a cluster with prometheus-adapter, which reads a Prometheus.
type adapterCluster struct {
	*prometheusCluster
	adapter     *process.Process
	adapterPort string
	pods        int // with metrics, in the namespace shop

	adapterManifest, adapterAPIService string
}

func newAdapterCluster(t *testing.T) *adapterCluster {
	t.Helper()
	base := startBare(t, cluster.Config{Nodes: simulation.Nodes(prometheusNodes)})
	ports, err := cluster.FreePorts(2) // they differ
	if err != nil {
		t.Fatal(err)
	}
	c := &adapterCluster{
		prometheusCluster: &prometheusCluster{testCluster: base, port: ports[0]},
		adapterPort:       fmt.Sprint(ports[1]),
	}
	fill := strings.NewReplacer("LABELS", adapterLabels, "PORT", c.adapterPort).Replace
	c.adapterManifest, c.adapterAPIService = fill(adapterManifest), fill(adapterAPIService)
	c.startPrometheus(t)
	if err := c.CreateNamespace(t.Context(), monitoring); err != nil {
		t.Fatal(err)
	}
	c.startAdapter(t)
	c.apply(t, c.adapterAPIService)
	eventually(t, "metrics of nodes from prometheus-adapter", c.hasNodes)
	return c
}

func (c *adapterCluster) apply(t *testing.T, manifest string) {
	t.Helper()
	if err := c.Apply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
}

func (c *adapterCluster) deleteFile(t *testing.T, manifest string) {
	t.Helper()
	file := c.File("delete.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "delete", "--filename", file)
}

// credentials writes a kubeconfig with a token of a ServiceAccount in monitoring, and returns the
// flags for it.
func (c *adapterCluster) credentials(t *testing.T, account string) (kubeconfig string, flags []string) {
	t.Helper()
	kubeconfig = c.accountKubeconfig(t, monitoring, account)
	return kubeconfig, []string{
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig, "--bind-address=127.0.0.1",
	}
}

// startAdapter creates the objects of prometheus-adapter except its APIService, and starts it.
func (c *adapterCluster) startAdapter(t *testing.T) {
	t.Helper()
	c.apply(t, c.adapterManifest)
	kubeconfig, args := c.credentials(t, "prometheus-adapter")
	args = append(args, fmt.Sprintf("--prometheus-url=http://127.0.0.1:%d", c.port), "--secure-port="+c.adapterPort)
	binary := os.Getenv("PROMETHEUS_ADAPTER")
	if binary != "" {
		rules := c.File("adapter.yaml")
		if err := os.WriteFile(rules, []byte(adapterRules), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config="+rules, "--lister-kubeconfig="+kubeconfig, "--cert-dir="+c.File("adapter"))
	} else {
		var err error
		if binary, err = c.KubeVitals(); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--source=prometheus", "--kubeconfig="+kubeconfig, "--metric-resolution=5s")
	}
	c.adapter = c.startServer(t, binary, "prometheus-adapter.log", args)
	c.awaitServer(t, c.adapter, "127.0.0.1:"+c.adapterPort)
}

func (c *adapterCluster) startServer(t *testing.T, binary, log string, args []string) *process.Process {
	t.Helper()
	p, err := process.Start(process.Config{Path: binary, Args: args, Log: c.File(log)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	logOnFailure(t, p)
	return p
}

// awaitServer waits until a server is ready and has the metrics of all nodes and pods: a server is
// ready when it has all that it can have, and the pods are young.
func (c *adapterCluster) awaitServer(t *testing.T, p *process.Process, address string) {
	t.Helper()
	direct := newClient(t, &cluster.Server{Address: address, CA: c.CA.PEM()}).withToken(c.REST.BearerToken)
	direct.transport.TLSClientConfig.InsecureSkipVerify = true
	eventually(t, address+" to be ready", func(ctx context.Context) error {
		if err := p.Running(); err != nil {
			return err
		}
		if err := direct.ok(ctx, "/readyz"); err != nil {
			return err
		}
		for path, n := range map[string]int{"nodes": prometheusNodes, "namespaces/shop/pods": c.pods} {
			body, err := direct.getOK(ctx, "/apis/metrics.k8s.io/v1beta1/"+path)
			if err != nil {
				return err
			}
			if err := wantItems(body, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// writeOverlay writes kustomizations of the overlay for kube-prometheus, with and without its
// APIServices, as a user does. Instead of pods, there is a process on this machine, behind a Service
// that is an alias of it. The kinds of Prometheus Operator do not exist here.
func (c *adapterCluster) writeOverlay(t *testing.T, source string) {
	t.Helper()
	c.server = &cluster.Server{Address: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	for _, name := range []string{"overlay", "without-apiservices"} {
		if err := os.Mkdir(c.File(name), 0o700); err != nil {
			t.Fatal(err)
		}
		folder, err := filepath.EvalSymlinks(c.File(name))
		if err != nil {
			t.Fatal(err)
		}
		manifests, err := filepath.Rel(folder, filepath.Join(c.Checkout, "manifests")) // absolute paths are rejected
		if err != nil {
			t.Fatal(err)
		}
		components := []string{}
		if name == "without-apiservices" {
			components = append(components, manifests+"/components/without-apiservices")
		}
		var patches []any
		add := func(kind, patch string) {
			patches = append(patches, map[string]any{"target": map[string]string{"kind": kind}, "patch": patch})
		}
		for _, kind := range []string{"ServiceMonitor", "PrometheusRule"} {
			add(kind, fmt.Sprintf("$patch: delete\nkind: %s\nmetadata: {name: any}", kind))
		}
		add("Deployment", "- {op: replace, path: /spec/replicas, value: 0}")
		add("Service", "- {op: replace, path: /spec, value: {type: ExternalName, externalName: localhost}}")
		add("APIService", "- {op: replace, path: /spec/service/port, value: "+c.server.Port()+"}")
		text, err := json.Marshal(map[string]any{ // YAML includes JSON
			"resources":  []string{manifests + "/overlays/kube-prometheus-" + source},
			"components": components, "patches": patches,
		})
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, "kustomization.yaml"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// startOverlay starts kube-vitals with the flags in the Deployment of the overlay, and waits until it
// is ready.
func (c *adapterCluster) startOverlay(t *testing.T, source string) {
	t.Helper()
	binary, err := c.KubeVitals()
	if err != nil {
		t.Fatal(err)
	}
	var flags []string
	text := c.kubectl(t, "get", "deployment", "kube-vitals", "--namespace="+monitoring,
		"--output=jsonpath={.spec.template.spec.containers[0].args}")
	if err := json.Unmarshal([]byte(text), &flags); err != nil {
		t.Fatal(err)
	}
	for i, flag := range flags {
		flags[i] = strings.ReplaceAll(flag, "/var/run/secrets/kubernetes.io/serviceaccount/", c.Dir+"/") // ca.crt
	}
	kubeconfig, args := c.credentials(t, "kube-vitals")
	args = append(append(flags, args...), "--kubeconfig="+kubeconfig, "--secure-port="+c.server.Port(),
		"--service=kube-vitals.monitoring.svc", "--metric-resolution=5s")
	if source == "kubelet" {
		args = append(args, "--kubelet-allow-loopback")
	} else { // the simulated kubelets do not have the series of kube-prometheus
		args = append(args, fmt.Sprintf("--prometheus-url=http://127.0.0.1:%d", c.port), "--prometheus-config=")
	}
	c.server.Process = c.startServer(t, binary, "kube-vitals.log", args)
	c.awaitServer(t, c.server.Process, c.server.Address)
}

// reads returns functions that read v1beta1 through the API server, as autoscalers and this kubectl
// do. A newer kubectl reads v1 as soon as its APIService exists. The API server answers 503 until it
// has checked the APIService, and sometimes when it is deleted.
func (c *adapterCluster) reads(kubectl string) map[string]func(context.Context) error {
	const path = "/apis/metrics.k8s.io/v1beta1/"
	list := func(path string, n int) func(context.Context) error {
		return func(ctx context.Context) error {
			body, err := c.get(ctx, path)
			if err != nil {
				return err
			}
			return wantItems(body, n)
		}
	}
	return map[string]func(context.Context) error{
		"nodes":         list(path+"nodes", prometheusNodes),
		"pods":          list(path+"namespaces/shop/pods", c.pods),
		"pods by label": list(path+"namespaces/shop/pods?labelSelector=app%3Dcart", 1),
		"kubectl top pods": func(ctx context.Context) error {
			out, err := c.Run(ctx, kubectl, "top", "pods", "--namespace=shop", "--no-headers")
			if err == nil && strings.Count(out, "\n") != c.pods {
				err = fmt.Errorf("got\n%s", out)
			}
			return err
		},
	}
}

func (c *adapterCluster) hasNodes(ctx context.Context) error {
	body, err := c.get(ctx, "/apis/metrics.k8s.io/v1beta1/nodes")
	if err != nil {
		return err
	}
	return wantItems(body, prometheusNodes)
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

func (c *adapterCluster) logTop(t *testing.T, server string) {
	t.Helper()
	nodes, pods := c.kubectl(t, "top", "nodes"), c.kubectl(t, "top", "pods", "--namespace=shop", "--containers")
	t.Logf("%s:\n%s%s", server, nodes, pods)
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
