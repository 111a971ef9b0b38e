package e2e

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// TestMovingTools moves metrics-server's objects with tools that do not have helm's releases, as documents describe
// it, and checks the objects in each step. Nothing runs: TestMoveFromMetricsServer sends requests during the same
// steps.
func TestMovingTools(t *testing.T) {
	t.Parallel()
	c := &movingCluster{testCluster: newAPIServer(t)}
	pem, err := os.ReadFile(c.File("ca.crt"))
	must(t, err)
	c.ca = base64.StdEncoding.EncodeToString(pem)
	t.Run("kustomize", c.testKustomize)
	t.Run("server-side apply", c.testServerSide)
}

type movingCluster struct {
	*testCluster
	ca string // in base64
}

// What steps change, as templates of kubectl.
const (
	ofAPIServices = `{range .items[?(@.spec.group=="metrics.k8s.io")]}{.metadata.name} {.spec.service.name}` +
		` {.spec.insecureSkipTLSVerify} {.spec.caBundle};{end}`
	ofDeployment = `{range .spec.template.spec.containers[*]}{.name} {.image} {.env[*].name};{end}`
)

// want checks the APIServices: each element is the name, Service, insecureSkipTLSVerify and caBundle of one.
func (c *movingCluster) want(t *testing.T, step string, want ...string) {
	t.Helper()
	got := c.kubectl(t, "get", "apiservices", "--output=jsonpath="+ofAPIServices)
	if want := strings.Join(want, ";") + ";"; got != strings.ReplaceAll(want, "CA", c.ca) {
		t.Errorf("%s: got APIServices %s, want %s", step, got, want)
	}
}

// metricsServerManifest is a part of metrics-server's manifest; otherServer has the rest.
const metricsServerManifest = `
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system, labels: {k8s-app: metrics-server}}
spec: {selector: {k8s-app: metrics-server}, ports: [{name: https, port: 443, protocol: TCP, targetPort: https}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: metrics-server, namespace: kube-system, labels: {k8s-app: metrics-server}}
spec:
  selector: {matchLabels: {k8s-app: metrics-server}}
  strategy: {rollingUpdate: {maxUnavailable: 0}}
  template:
    metadata: {labels: {k8s-app: metrics-server}}
    spec:
      serviceAccountName: metrics-server
      containers:
      - name: metrics-server
        image: metrics-server
        args: [--cert-dir=/tmp, --secure-port=10250]
        ports: [{name: https, containerPort: 10250, protocol: TCP}]
        volumeMounts: [{name: tmp-dir, mountPath: /tmp}]
      volumes: [{name: tmp-dir, emptyDir: {}}]
`

// testKustomize applies the component metrics-server-names over metrics-server's manifest, and goes back.
func (c *movingCluster) testKustomize(t *testing.T) {
	other := metricsServer("443")
	access, _, _ := strings.Cut(other.access(), "---\napiVersion: v1\nkind: Service\n")
	old := access + "---\n" + metricsServerManifest + "---\n" + other.apiService()
	must(t, c.Apply(t.Context(), old))
	// A new release whose objects would have the names of those.
	_, err := c.Run(t.Context(), binaries.Helm, "install", "vitals", c.Chart, inNamespace,
		"--set=image.tag=dev,fullnameOverride=metrics-server,apiService.create=false")
	if err == nil || !strings.Contains(err.Error(), "remove fullnameOverride or set another one") {
		t.Errorf("got error %v, want one about fullnameOverride", err)
	}
	container := func(step, want string) {
		t.Helper()
		got := c.kubectl(t, "get", "deployment", "metrics-server", inNamespace, "--output=jsonpath="+ofDeployment)
		if !strings.HasPrefix(got, want) || strings.Count(got, ";") != 1 {
			t.Errorf("%s: got containers %s, want %s", step, got, want)
		}
	}
	apply := func(overlay string) {
		t.Helper()
		c.kubectl(t, "apply", "--kustomize",
			filepath.Join(c.Checkout, "test", "chart", "testdata", "moving", "kustomize", overlay))
	}
	const both = "v1.metrics.k8s.io v1beta1.metrics.k8s.io"
	patch := func(spec string) {
		t.Helper()
		c.kubectl(t, append(append([]string{"patch", "apiservice"}, strings.Fields(both)...), "--type=merge",
			`--patch={"spec": {`+spec+`}}`)...)
	}

	apply("step-1")
	container("step 1", "metrics-server ghcr.io/kube-vitals/kube-vitals:")
	c.want(t, "step 1", "v1.metrics.k8s.io metrics-server true ", "v1beta1.metrics.k8s.io metrics-server true ")
	patch(`"insecureSkipTLSVerify": null, "caBundle": "` + c.ca + `"`)
	apply("json-replace-args")
	c.want(t, "step 2", "v1.metrics.k8s.io metrics-server  CA", "v1beta1.metrics.k8s.io metrics-server  CA")

	patch(`"insecureSkipTLSVerify": true, "caBundle": null`)
	must(t, c.Apply(t.Context(), old))
	container("back", "metrics-server metrics-server ;")
	const ours = "--selector=app.kubernetes.io/instance=kube-vitals"
	c.kubectl(t, "delete", "deployment,service,serviceaccount,secret,configmap,role,rolebinding,poddisruptionbudget",
		inNamespace, ours)
	c.kubectl(t, "delete", "role,rolebinding", "--namespace=default", ours)
	c.kubectl(t, "delete", "clusterrole,clusterrolebinding,apiservice", ours)
	c.want(t, "back", "v1beta1.metrics.k8s.io metrics-server true ")
	c.kubectl(t, "get", "service/metrics-server", "serviceaccount/metrics-server",
		"rolebinding/metrics-server-auth-reader", "clusterrole/system:metrics-server",
		"clusterrolebinding/system:metrics-server", inNamespace)
	must(t, c.RunWith(t.Context(), strings.NewReader(old), binaries.Kubectl, "delete", "--filename=-"))
}

// testServerSide moves from a release of helm to what Argo CD applies, and removes the release.
func (c *movingCluster) testServerSide(t *testing.T) {
	const release = "metrics-server"
	helm := func(args ...string) string {
		t.Helper()
		text, err := c.Run(t.Context(), binaries.Helm, append(args, inNamespace)...)
		must(t, err)
		return text
	}
	theirs := filepath.Join(c.Checkout, "test", "e2e", "testdata", "metrics-server")
	helm("install", release, theirs)
	sync := func(values ...string) {
		t.Helper()
		args := []string{"template", cluster.Release, c.Chart, "--set=image.tag=dev", "--kube-version=1.36.0", "--no-hooks"}
		for _, value := range values {
			args = append(args, "--set="+value)
		}
		must(t, c.RunWith(t.Context(), strings.NewReader(helm(args...)), binaries.Kubectl, "apply", "--server-side",
			"--force-conflicts", "--field-manager=argocd-controller", "--filename=-"))
	}

	// Taking over the objects of the release cannot work, for two reasons.
	takeOver := func(template, path, edit string) string {
		t.Helper()
		text := helm("template", release, c.Chart,
			"--set=image.tag=dev,nameOverride=metrics-server,apiService.versions={v1beta1}",
			"--kube-version=1.36.0", "--show-only=templates/"+template)
		file := filepath.Join(t.TempDir(), template)
		must(t, os.WriteFile(file, []byte(text+edit), 0o600))
		return c.kubectl(t, "apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller",
			"--dry-run=server", "--filename="+file, "--output=jsonpath="+path)
	}
	const names = "{.spec.template.spec.containers[*].name}"
	if got := takeOver("deployment.yaml", names, ""); got != "metrics-server kube-vitals" {
		t.Errorf("got containers %s, want those of both", got)
	}
	const skips = "{.spec.insecureSkipTLSVerify}"
	if got := takeOver("apiservice.yaml", skips, ""); got != "true" {
		t.Errorf("got insecureSkipTLSVerify %q, want true, which helm owns", got)
	}
	// The field could be taken over, but Argo CD would always report a difference.
	if got := takeOver("apiservice.yaml", skips, "  insecureSkipTLSVerify: false\n"); got != "" {
		t.Errorf("got insecureSkipTLSVerify %q after applying false", got)
	}

	sync("apiService.create=false")
	c.want(t, "beside", "v1beta1.metrics.k8s.io metrics-server true ")
	c.kubectl(t, "annotate", "apiservice", "v1beta1.metrics.k8s.io", "helm.sh/resource-policy=keep")
	helm("upgrade", release, theirs, "--set=apiService.create=false")
	c.kubectl(t, "patch", "apiservice", "v1beta1.metrics.k8s.io", "--type=merge",
		`--patch={"spec": {"insecureSkipTLSVerify": null, "caBundle": "`+c.ca+`",
		"service": {"name": "kube-vitals", "namespace": "kube-system", "port": 443}}}`)
	sync()
	c.want(t, "moved", "v1.metrics.k8s.io kube-vitals  ", "v1beta1.metrics.k8s.io kube-vitals  CA")
	c.kubectl(t, "annotate", "apiservice", "v1beta1.metrics.k8s.io", "helm.sh/resource-policy-",
		"meta.helm.sh/release-name-", "meta.helm.sh/release-namespace-")
	helm("uninstall", release)
	c.want(t, "uninstalled", "v1.metrics.k8s.io kube-vitals  ", "v1beta1.metrics.k8s.io kube-vitals  CA")
	sync()
	c.want(t, "synchronized again", "v1.metrics.k8s.io kube-vitals  ", "v1beta1.metrics.k8s.io kube-vitals  CA")
	const annotations = "--output=jsonpath={.metadata.annotations}"
	if got := c.kubectl(t, "get", "apiservice", "v1beta1.metrics.k8s.io", annotations); strings.Contains(got, "helm.sh/") {
		t.Errorf("got annotations %s, want none of helm", got)
	}
}
