package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

const (
	ownSecret    = "kube-vitals-serving"
	ownConfigMap = "kube-vitals-ca"
	// A certificate is valid for this long, renewed when a third of it is left, and its CA trusted
	// before it is served.
	ownLifetime = 30 * time.Second
	ownSettle   = 4 * time.Second
)

// TestIdentity has two servers that keep a certificate together, with lifetimes of seconds, behind
// a real aggregation layer and with the rights of the chart.
func TestIdentity(t *testing.T) {
	t.Parallel()
	i := startIdentity(t)
	i.rights(t)
	t.Run("rotation", i.rotation)
	t.Run("emptied", i.emptied)
	t.Run("deleted", i.deleted)
	t.Run("recreated", i.recreated)
	t.Run("caBundle", i.caBundle)
	t.Run("helm", i.helm)
	t.Run("unverified", i.unverified)
	for _, s := range i.servers {
		if log, err := s.Log(); err != nil || strings.Contains(log, "PRIVATE KEY") {
			t.Errorf("the log has a key in it, or cannot be read: %v", err)
		}
	}
}

// owner is a cluster whose kube-vitals has a certificate of its own.
type owner struct {
	*cluster.Cluster
	servers []*cluster.Server
}

// startCluster starts a cluster with one node. The flags are those of its API server.
func startCluster(t *testing.T, flags ...string) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Start(t.Context(), cluster.Config{APIServerArgs: flags, Nodes: []simulation.Node{{Name: "node"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// startIdentity starts both servers, with the Service in front of them.
func startIdentity(t *testing.T) *owner {
	t.Helper()
	i := &owner{Cluster: startCluster(t)}
	first, err := i.Install(t.Context(), fmt.Sprintf("--tls-lifetime=%s", ownLifetime), fmt.Sprintf("--tls-settle=%s", ownSettle),
		fmt.Sprintf("--service=%s.%s.svc", cluster.Release, cluster.Namespace)) // without the port, which changes below
	if err != nil {
		t.Fatal(err)
	}
	second, err := first.StartReplica()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.Kill)
	i.servers = []*cluster.Server{first, second}
	i.eventually(t, "the second server to have the certificate", func(ctx context.Context) error {
		_, err := i.connect(ctx, second, "v1")
		return err
	})
	service := startBalancer(t)
	service.add(first.Address, second.Address)
	if err := i.Upgrade(t.Context(), fmt.Sprintf("service.port=%d", service.port())); err != nil {
		t.Fatal(err)
	}
	return i
}

func (i *owner) eventually(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	if err := process.Poll(t.Context(), soon, what, try); err != nil {
		t.Fatal(err)
	}
}

// kubectl runs kubectl as the administrator and gives what it prints.
func (i *owner) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := i.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// bundle is the caBundle of the APIService of a version.
func (i *owner) bundle(ctx context.Context, version string) ([]byte, error) {
	var service struct {
		Spec struct{ CABundle []byte }
	}
	body, err := i.Client.CoreV1().RESTClient().Get().
		AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/" + version + ".metrics.k8s.io").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &service); err != nil {
		return nil, err
	}
	if len(service.Spec.CABundle) == 0 {
		return nil, errors.New("there is no caBundle")
	}
	return service.Spec.CABundle, nil
}

// connect connects to a server as the API server does, by what the APIService of the version trusts
// at this moment, and gives the certificate.
func (i *owner) connect(ctx context.Context, s *cluster.Server, version string) (*x509.Certificate, error) {
	bundle, err := i.bundle(ctx, version)
	if err != nil {
		return nil, err
	}
	return connectBy(ctx, s, bundle)
}

// connectByConfigMap connects to a server as a client does that reads the CAs from the ConfigMap.
func (i *owner) connectByConfigMap(ctx context.Context, s *cluster.Server) error {
	published, err := i.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(ctx, ownConfigMap, metav1.GetOptions{})
	if err == nil {
		_, err = connectBy(ctx, s, []byte(published.Data["ca.crt"]))
	}
	return err
}

// connectBy connects to a server as a client does that trusts these CAs, and returns the
// certificate.
func connectBy(ctx context.Context, s *cluster.Server, bundle []byte) (*x509.Certificate, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: s.Host}}).DialContext(ctx, "tcp", s.Address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

// repeat does all of this again and again, at the same time, until the function that it gives is
// called. Nothing may fail.
func (i *owner) repeat(t *testing.T, tries map[string]func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var made, failed atomic.Int64
	for what, try := range tries {
		clients.Go(func() {
			for ctx.Err() == nil {
				err := try(ctx)
				made.Add(1)
				if err != nil && ctx.Err() == nil && failed.Add(1) <= 5 {
					t.Errorf("%s: %s: %v", time.Now().Format(time.StampMilli), what, err)
				}
				time.Sleep(25 * time.Millisecond) // a pause between requests, so that there are processors left
			}
		})
	}
	return func() {
		cancel()
		clients.Wait()
		t.Logf("%d of %d requests failed", failed.Load(), made.Load())
	}
}

// connections connect to both servers as the API server does for the versions, and as clients do
// that read the ConfigMap.
func (i *owner) connections(versions ...string) map[string]func(context.Context) error {
	tries := map[string]func(context.Context) error{}
	for _, s := range i.servers {
		tries["connection to "+s.Address+" by the ConfigMap"] = func(ctx context.Context) error { return i.connectByConfigMap(ctx, s) }
	}
	for _, version := range versions {
		for _, s := range i.servers {
			tries["connection to "+s.Address+" for "+version] = func(ctx context.Context) error {
				_, err := i.connect(ctx, s, version)
				return err
			}
		}
	}
	return tries
}

// requests ask through the API server.
func (i *owner) requests(t *testing.T, versions ...string) map[string]func(context.Context) error {
	t.Helper()
	client, err := rest.HTTPClientFor(i.REST)
	if err != nil {
		t.Fatal(err)
	}
	tries := map[string]func(context.Context) error{}
	for _, version := range versions {
		tries["request for "+version] = func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, i.REST.Host+"/apis/metrics.k8s.io/"+version+"/nodes", nil)
			if err != nil {
				return err
			}
			status, body, err := answer(client.Do(request))
			if err == nil && (status != http.StatusOK || !bytes.Contains(body, []byte(`"name":"node"`))) {
				err = fmt.Errorf("status %d: %s", status, body)
			}
			return err
		}
	}
	return tries
}

// load does both, for both versions.
func (i *owner) load(t *testing.T) (stop func()) {
	t.Helper()
	tries := i.requests(t, "v1", "v1beta1")
	maps.Copy(tries, i.connections("v1", "v1beta1"))
	return i.repeat(t, tries)
}

// awaitNew waits until both servers serve one certificate that is not the given one, and gives it.
func (i *owner) awaitNew(t *testing.T, old *x509.Certificate) *x509.Certificate {
	t.Helper()
	var got *x509.Certificate
	i.eventually(t, "another certificate", func(ctx context.Context) (err error) {
		for _, s := range i.servers {
			if got, err = i.connect(ctx, s, "v1beta1"); err == nil && old != nil && got.Equal(old) {
				err = errors.New("it is still the same")
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return got
}

// rights checks that neither ServiceAccount may do more than it needs.
func (i *owner) rights(t *testing.T) {
	for account, questions := range map[string]map[string]string{
		account: {
			"get secrets/" + ownSecret:             "yes",
			"update secrets/" + ownSecret:          "yes",
			"create secrets":                       "no",
			"create secrets/" + ownSecret:          "no",
			"delete secrets/" + ownSecret:          "no",
			"get secrets":                          "no",
			"list secrets":                         "no",
			"get secrets/other":                    "no",
			"get configmaps/" + ownConfigMap:       "yes",
			"update configmaps/" + ownConfigMap:    "yes",
			"delete configmaps/" + ownConfigMap:    "no",
			"create configmaps":                    "no",
			"list configmaps":                      "no",
			"update configmaps/other":              "no",
			"patch apiservices/v1.metrics.k8s.io":  "yes",
			"patch apiservices/v1.apps":            "no",
			"delete apiservices/v1.metrics.k8s.io": "no",
			"update apiservices/v1.metrics.k8s.io": "no",
			"list apiservices":                     "no",

			"create serviceaccounts/kube-vitals-kubelet --subresource=token": "yes",
			"create serviceaccounts/kube-vitals --subresource=token":         "no",
			"create serviceaccounts --subresource=token":                     "no",
			"get nodes --subresource=metrics":                                "no",
			"get nodes --subresource=stats":                                  "no",
		},
		kubeletAccount: {
			"get nodes --subresource=metrics":     "yes",
			"get nodes --subresource=stats":       "yes",
			"get nodes --subresource=proxy":       "no",
			"get nodes":                           "no",
			"list nodes":                          "no",
			"list pods":                           "no",
			"get secrets/" + ownSecret:            "no",
			"patch apiservices/v1.metrics.k8s.io": "no",

			"create serviceaccounts/kube-vitals-kubelet --subresource=token": "no",
			"create subjectaccessreviews.authorization.k8s.io":               "no",
			"create tokenreviews.authentication.k8s.io":                      "no",
		},
	} {
		for question, want := range questions {
			args := []string{"auth", "can-i", "--quiet", "--as=" + account, "--namespace", cluster.Namespace}
			got := "yes"
			if _, err := i.Kubectl(t.Context(), append(args, strings.Fields(question)...)...); err != nil {
				got = "no"
			}
			if got != want {
				t.Errorf("may %s %s? %s, want %s", account, question, got, want)
			}
		}
	}
}

// rotation goes through several certificates under requests.
func (i *owner) rotation(t *testing.T) {
	served := i.awaitNew(t, nil)
	defer i.load(t)()
	for range 2 {
		served = i.awaitNew(t, served)
	}
}

// emptied takes away what is in the Secret. It is put back, and replaced.
func (i *owner) emptied(t *testing.T) {
	served := i.awaitNew(t, nil)
	defer i.load(t)()
	i.kubectl(t, "patch", "secret", ownSecret, "--namespace", cluster.Namespace, "--type=json", `--patch=[{"op":"remove","path":"/data"}]`)
	i.awaitNew(t, served)
}

// deleted takes away the Secret. The servers go on, and an upgrade brings it back.
func (i *owner) deleted(t *testing.T) {
	served := i.awaitNew(t, i.awaitNew(t, nil)) // it is new, so there is time
	stop := i.load(t)
	labels := i.kubectl(t, "get", "secret", ownSecret, "--namespace", cluster.Namespace, "--output=jsonpath={.metadata.labels}")
	i.kubectl(t, "delete", "secret", ownSecret, "--namespace", cluster.Namespace)
	i.eventually(t, "the log to tell", func(context.Context) error {
		log, err := i.servers[1].Log()
		if err == nil && !strings.Contains(log, "is gone and cannot be made anew") {
			err = errors.New("it does not")
		}
		return err
	})
	stop()
	if _, err := i.Run(t.Context(), binaries.Helm, "upgrade", cluster.Release, shared.Chart, "--namespace", cluster.Namespace, "--reuse-values"); err != nil {
		t.Fatal(err)
	}
	i.eventually(t, "the Secret to have content", func(ctx context.Context) error {
		secret, err := i.Client.CoreV1().Secrets(cluster.Namespace).Get(ctx, ownSecret, metav1.GetOptions{})
		if err == nil && len(secret.Data["tls.crt"]) == 0 {
			err = errors.New("it has none")
		}
		return err
	})
	if got := i.kubectl(t, "get", "secret", ownSecret, "--namespace", cluster.Namespace, "--output=jsonpath={.metadata.labels}"); got != labels {
		t.Errorf("its labels are %s, want %s", got, labels)
	}
	i.awaitNew(t, served)
}

// recreated takes away the Secret where the servers may make it anew, which is a right on this one
// name still.
func (i *owner) recreated(t *testing.T) {
	if err := i.Helm(t.Context(), "upgrade", "tls.kubeVitals.recreateSecret=true"); err != nil {
		t.Fatal(err)
	}
	if err := i.RouteService(t.Context()); err != nil {
		t.Fatal(err)
	}
	account := "--as=system:serviceaccount:" + cluster.Namespace + ":" + cluster.Release
	if out, err := i.Kubectl(t.Context(), "create", "secret", "generic", "other", "--namespace", cluster.Namespace, account); err == nil {
		t.Errorf("the server may make another Secret: %s", out)
	}
	served := i.awaitNew(t, nil)
	stop := i.load(t)
	i.kubectl(t, "delete", "secret", ownSecret, "--namespace", cluster.Namespace)
	i.awaitNew(t, served)
	stop()
	if got := i.kubectl(t, "get", "secret", ownSecret, "--namespace", cluster.Namespace, "--output",
		`jsonpath={.type} {.metadata.labels.app\.kubernetes\.io/instance}`); got != "Opaque "+cluster.Release {
		t.Errorf("the Secret made anew is %q", got)
	}
}

// caBundle takes away what the API server trusts, and puts in what it should not. Both are mended.
func (i *owner) caBundle(t *testing.T) {
	for _, patch := range []string{
		`{"spec":{"caBundle":null}}`,
		`{"spec":{"caBundle":"` + base64.StdEncoding.EncodeToString(i.CA.PEM()) + `"}}`,
	} {
		_, err := i.Client.CoreV1().RESTClient().Patch(types.MergePatchType).
			AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io").Body([]byte(patch)).DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i.eventually(t, "the caBundle to be as it was", func(ctx context.Context) error {
			for _, s := range i.servers {
				if _, err := i.connect(ctx, s, "v1beta1"); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// helm upgrades and rolls back, and touches neither what is in the Secret and the ConfigMap nor the
// caBundle.
func (i *owner) helm(t *testing.T) {
	stop := i.repeat(t, i.connections("v1", "v1beta1")) // around the Service, which helm leads away from this machine
	for _, args := range [][]string{
		{"upgrade", cluster.Release, shared.Chart, "--reuse-values", "--set", "apiService.annotations.touched=yes"},
		{"rollback", cluster.Release},
	} {
		if _, err := i.Run(t.Context(), binaries.Helm, append(args, "--namespace", cluster.Namespace)...); err != nil {
			t.Error(err)
		}
	}
	stop()
	owners := i.kubectl(t, "get", "apiservice", "v1.metrics.k8s.io", "--show-managed-fields",
		"--output", `jsonpath={range .metadata.managedFields[*]}{.manager} {.fieldsV1}{"\n"}{end}`)
	for line := range strings.Lines(owners) {
		if manager, fields, _ := strings.Cut(line, " "); strings.Contains(fields, `"f:caBundle"`) != (manager == "kube-vitals") {
			t.Errorf("%s owns %s", manager, fields)
		}
	}
}

// unverified switches verification off, and on again.
func (i *owner) unverified(t *testing.T) {
	for _, value := range []string{"true", "false"} {
		want := map[string]string{"true": "true"}[value]
		if err := i.Helm(t.Context(), "upgrade", "apiService.insecureSkipTLSVerify="+value); err != nil {
			t.Fatal(err)
		}
		i.eventually(t, "the APIServices to be as asked for", func(ctx context.Context) error {
			for _, version := range []string{"v1", "v1beta1"} {
				got, err := i.Kubectl(ctx, "get", "apiservice", version+".metrics.k8s.io",
					"--output=jsonpath={.spec.insecureSkipTLSVerify}")
				if err != nil {
					return err
				}
				if _, missing := i.bundle(ctx, version); got != want || (missing != nil) != (want == "true") {
					return fmt.Errorf("insecureSkipTLSVerify of %s is %q, and the caBundle: %w", version, got, missing)
				}
			}
			return nil
		})
		i.eventually(t, "the log to tell", func(context.Context) error {
			log, err := i.servers[0].Log()
			says := map[string]string{"true": "The APIService skips verification", "false": "The APIService is right again"}[value]
			if err == nil && !strings.Contains(log, says) {
				err = fmt.Errorf("it does not say: %s", says)
			}
			return err
		})
	}
}

// TestMoveFromMetricsServer does what the chart's README says, where v1beta1 leads to another
// Service and another release owns it. A kube-vitals whose certificate cannot be verified stands in
// for metrics-server.
func TestMoveFromMetricsServer(t *testing.T) {
	t.Parallel()
	i := startIdentity(t)
	if err := i.Helm(t.Context(), "upgrade", "apiService.create=false"); err != nil {
		t.Fatal(err)
	}
	old, err := i.servers[0].StartReplica("--tls-secret=")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(old.Kill)
	err = i.Apply(t.Context(), fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1beta1.metrics.k8s.io
  labels: {app.kubernetes.io/managed-by: Helm}
  annotations:
    meta.helm.sh/release-name: metrics-server
    meta.helm.sh/release-namespace: kube-system
    helm.sh/resource-policy: keep
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics-server, namespace: kube-system, port: %s}
`, old.Port()))
	if err != nil {
		t.Fatal(err)
	}
	awaitTop(t, i.Cluster)

	port := i.kubectl(t, "get", "service", cluster.Release, "--namespace", cluster.Namespace, "--output=jsonpath={.spec.ports[0].port}")
	if err := i.RouteService(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop := i.repeat(t, i.requests(t, "v1beta1"))
	ca := i.kubectl(t, "get", "secret", ownSecret, "--namespace", cluster.Namespace, "--output", `jsonpath={.data.ca\.crt}`)
	i.kubectl(t, "patch", "apiservice", "v1beta1.metrics.k8s.io", "--type=merge", "--patch", `{"spec":{"insecureSkipTLSVerify":null,
		"caBundle":"`+ca+`","service":{"name":"kube-vitals","namespace":"kube-system","port":`+port+`}}}`)
	i.awaitNew(t, i.awaitNew(t, nil)) // through a rotation
	stop()

	stop = i.repeat(t, i.connections("v1beta1"))
	if _, err := i.Run(t.Context(), binaries.Helm, "upgrade", cluster.Release, shared.Chart, "--namespace", cluster.Namespace,
		"--reuse-values", "--set", "apiService.create=true", "--take-ownership"); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := i.RouteService(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitTop(t, i.Cluster)

	// Without this, v1beta1 would stay when the release is uninstalled, and lead to a Service that
	// does not exist.
	i.kubectl(t, "annotate", "apiservice", "v1beta1.metrics.k8s.io", "helm.sh/resource-policy-")
	if _, err := i.Run(t.Context(), binaries.Helm, "uninstall", cluster.Release, "--namespace", cluster.Namespace, "--wait"); err != nil {
		t.Fatal(err)
	}
	if left := i.kubectl(t, "get", "apiservices", "--output", `jsonpath={.items[?(@.spec.group=="metrics.k8s.io")].metadata.name}`); left != "" {
		t.Errorf("uninstalling leaves %s", left)
	}
}
