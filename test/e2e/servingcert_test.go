package e2e

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

const (
	servingSecret    = "kube-vitals-serving"
	servingConfigMap = "kube-vitals-ca"
)

// certificateLifetime is short: twice the time that the start of the cluster took, and at least a minute. A certificate
// is renewed when a third of that is left, so a renewal has 20 seconds, and more on a busy machine.
func (c *testCluster) certificateLifetime() time.Duration {
	return max(time.Minute, 2*c.started).Round(time.Second)
}

// certificateFlags make certificates short-lived. The time between publishing a CA and serving a certificate of it is a
// part of that.
func (c *testCluster) certificateFlags() []string {
	lifetime := c.certificateLifetime()
	return []string{"--tls-lifetime=" + lifetime.String(), "--tls-settle=" + (lifetime / 8).String()}
}

// TestServingCertificate has two servers that share a certificate with a lifetime of about a minute,
// behind the aggregation layer and with the permissions of the chart.
func TestServingCertificate(t *testing.T) {
	t.Parallel()
	c := startServing(t)
	t.Run("renewal", c.testRenewal)
	t.Run("empty Secret", c.testEmptySecret)
	t.Run("deleted Secret", c.testDeletedSecret)
	t.Run("recreated Secret", c.testRecreatedSecret)
	t.Run("helm", c.testHelm)
	// From here on, there is no load: the API server may find late that a wrong caBundle was corrected.
	t.Run("caBundle", c.testCABundle)
	t.Run("insecureSkipTLSVerify", c.testInsecureSkipTLSVerify)
	t.Run("unknown CA", c.testUnknownCA)
	for _, s := range c.servers {
		if log, err := s.Log(); err != nil || strings.Contains(log, "PRIVATE KEY") {
			t.Errorf("the log contains a key, or cannot be read: %v", err)
		}
	}
}

// servingCluster has two servers that share a serving certificate.
type servingCluster struct {
	*testCluster
	servers []*cluster.Server
}

// startServing starts a cluster with both servers. The flags are those of its API server.
func startServing(t *testing.T, flags ...string) *servingCluster {
	t.Helper()
	c := &servingCluster{testCluster: newCluster(t, flags...)}
	c.start(t)
	return c
}

// start installs kube-vitals and starts both servers behind one Service.
func (c *servingCluster) start(t *testing.T) {
	t.Helper()
	// Without the port of the Service, which changes below. No metrics expire on a busy machine.
	c.install(t, append(c.certificateFlags(), "--service="+cluster.Release+"."+cluster.Namespace+".svc",
		"--max-sample-age=10m")...)
	c.servers = []*cluster.Server{c.server, c.replica(t, c.server)}
	eventually(t, "the second server to have the certificate", func(ctx context.Context) error {
		_, err := c.connect(ctx, c.servers[1], "v1")
		return err
	})
	for _, s := range c.servers {
		c.awaitNode(t, s)
	}
	service := startBalancer(t)
	service.add(c.servers[0].Address, c.servers[1].Address)
	must(t, c.Upgrade(t.Context(), fmt.Sprintf("service.port=%d", service.port())))
}

// bundle returns the caBundle of an APIService.
func (c *servingCluster) bundle(ctx context.Context, version string) ([]byte, error) {
	var apiService struct{ Spec struct{ CABundle []byte } }
	body, err := c.get(ctx, "/apis/apiregistration.k8s.io/v1/apiservices/"+version+".metrics.k8s.io")
	if err == nil {
		err = json.Unmarshal(body, &apiService)
	}
	if err == nil && len(apiService.Spec.CABundle) == 0 {
		err = errors.New("the caBundle is empty")
	}
	return apiService.Spec.CABundle, err
}

// connect connects to a server with the caBundle of an APIService, as the API server does, and
// returns the server's certificate.
func (c *servingCluster) connect(ctx context.Context, s *cluster.Server, version string) (*x509.Certificate, error) {
	bundle, err := c.bundle(ctx, version)
	if err != nil {
		return nil, err
	}
	return servedCertificate(ctx, s, bundle)
}

// connections returns functions that connect to both servers with the caBundles of the versions,
// and with the CAs in the ConfigMap.
func (c *servingCluster) connections(versions ...string) map[string]func(context.Context) error {
	calls := map[string]func(context.Context) error{}
	for _, s := range c.servers {
		calls["connection to "+s.Address+" with the CAs in the ConfigMap"] = func(ctx context.Context) error {
			published, err := c.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(ctx, servingConfigMap, metav1.GetOptions{})
			if err == nil {
				_, err = servedCertificate(ctx, s, []byte(published.Data["ca.crt"]))
			}
			return err
		}
		for _, version := range versions {
			calls["connection to "+s.Address+" for "+version] = func(ctx context.Context) error {
				_, err := c.connect(ctx, s, version)
				return err
			}
		}
	}
	return calls
}

// requests returns functions that list nodes through the API server.
func (c *servingCluster) requests(versions ...string) map[string]func(context.Context) error {
	calls := map[string]func(context.Context) error{}
	for _, version := range versions {
		calls["request for "+version] = func(ctx context.Context) error {
			body, err := c.get(ctx, "/apis/metrics.k8s.io/"+version+"/nodes")
			if err == nil && !bytes.Contains(body, []byte(`"name":"node"`)) {
				err = fmt.Errorf("the node is missing: %s", body)
			}
			return err
		}
	}
	return calls
}

// startLoad connects and sends requests for the versions.
func (c *servingCluster) startLoad(t *testing.T, versions ...string) *load {
	t.Helper()
	calls := c.requests(versions...)
	maps.Copy(calls, c.connections(versions...))
	return startLoad(t, calls)
}

// awaitCertificate waits until both servers serve the same certificate and it is not the old one,
// which may be nil. It returns the certificate.
func (c *servingCluster) awaitCertificate(t *testing.T, old *x509.Certificate) *x509.Certificate {
	t.Helper()
	var certificate *x509.Certificate
	eventually(t, "another certificate", func(ctx context.Context) (err error) {
		for _, s := range c.servers {
			if certificate, err = c.connect(ctx, s, "v1beta1"); err == nil && old != nil && certificate.Equal(old) {
				err = errors.New("it is still the same")
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return certificate
}

// youngCertificate returns a certificate that both servers serve for long enough for a short test: the next one, unless
// the current one is new.
func (c *servingCluster) youngCertificate(t *testing.T) *x509.Certificate {
	t.Helper()
	certificate := c.awaitCertificate(t, nil)
	if time.Until(certificate.NotAfter) < c.certificateLifetime()*5/6 {
		certificate = c.awaitCertificate(t, certificate)
	}
	return certificate
}

// awaitLog waits until a server has logged the text.
func awaitLog(t *testing.T, s *cluster.Server, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%q in the log", text), func(context.Context) error {
		log, err := s.Log()
		if err == nil && !strings.Contains(log, text) {
			err = errors.New("it is not")
		}
		return err
	})
}

// awaitNode waits until a server has the metrics of the node of newCluster: readiness does not wait for the second
// sample of a node younger than 10 seconds.
func (c *testCluster) awaitNode(t *testing.T, s *cluster.Server) {
	t.Helper()
	admin := c.asAdmin(t, s)
	admin.transport.TLSClientConfig.InsecureSkipVerify = true
	eventually(t, "the node's metrics", func(ctx context.Context) error {
		body, err := admin.getOK(ctx, nodesPath)
		if err == nil && !bytes.Contains(body, []byte(`"name":"node"`)) {
			err = fmt.Errorf("the node is missing: %s", body)
		}
		return err
	})
}

// testRenewal awaits two renewals while clients connect and send requests.
func (c *servingCluster) testRenewal(t *testing.T) {
	certificate := c.awaitCertificate(t, nil)
	c.startLoad(t, "v1", "v1beta1")
	for range 2 {
		certificate = c.awaitCertificate(t, certificate)
	}
}

// testEmptySecret removes the Secret's content, which a server restores and then replaces.
func (c *servingCluster) testEmptySecret(t *testing.T) {
	certificate := c.awaitCertificate(t, nil)
	c.startLoad(t, "v1", "v1beta1")
	c.kubectl(t, "patch", "secret", servingSecret, inNamespace, "--type=merge", `--patch={"data":null}`)
	c.awaitCertificate(t, certificate)
}

// testDeletedSecret deletes the Secret. The servers keep their certificate, and helm upgrade
// creates the Secret again.
func (c *servingCluster) testDeletedSecret(t *testing.T) {
	certificate := c.youngCertificate(t)
	load := c.startLoad(t, "v1", "v1beta1")
	getLabels := []string{"get", "secret", servingSecret, inNamespace, "--output=jsonpath={.metadata.labels}"}
	labels := c.kubectl(t, getLabels...)
	c.kubectl(t, "delete", "secret", servingSecret, inNamespace)
	awaitLog(t, c.servers[1], "kubectl create secret generic") // what to do
	load.stop()
	must(t, c.Helm(t.Context(), "upgrade"))
	c.awaitOutput(t, has("tls.crt"), "get", "secret", servingSecret, inNamespace, "--output=jsonpath={.data}")
	if got := c.kubectl(t, getLabels...); got != labels {
		t.Errorf("labels of the Secret: got %s, want %s", got, labels)
	}
	c.awaitCertificate(t, certificate)
}

// testRecreatedSecret deletes the Secret when the servers may create it, and only it.
func (c *servingCluster) testRecreatedSecret(t *testing.T) {
	must(t, c.Helm(t.Context(), "upgrade", "tls.kubeVitals.recreateSecret=true"))
	out, err := c.Kubectl(t.Context(), "create", "secret", "generic", "other", inNamespace, "--as="+account)
	if err == nil {
		t.Errorf("the server may create another Secret: %s", out)
	}
	certificate := c.youngCertificate(t)
	load := c.startLoad(t, "v1", "v1beta1")
	c.kubectl(t, "delete", "secret", servingSecret, inNamespace)
	c.awaitCertificate(t, certificate)
	load.stop()
	if got := c.kubectl(t, "get", "secret", servingSecret, inNamespace, "--output",
		`jsonpath={.type} {.metadata.labels.app\.kubernetes\.io/instance}`); got != "Opaque "+cluster.Release {
		t.Errorf("type and label of the new Secret: got %q", got)
	}
}

// testCABundle removes and replaces the caBundle of an APIService, which a server corrects.
func (c *servingCluster) testCABundle(t *testing.T) {
	for _, patch := range []string{
		`{"spec":{"caBundle":null}}`,
		`{"spec":{"caBundle":"` + base64.StdEncoding.EncodeToString(c.CA.PEM()) + `"}}`,
	} {
		c.patchAPIService(t, "v1beta1", patch)
		c.awaitCertificate(t, nil)
	}
}

// testHelm upgrades and rolls back, which changes neither the Secret, the ConfigMap nor the
// caBundle.
func (c *servingCluster) testHelm(t *testing.T) {
	load := c.startLoad(t, "v1", "v1beta1")
	if err := c.Helm(t.Context(), "upgrade", "apiService.annotations.touched=yes"); err != nil {
		t.Error(err)
	}
	if _, err := c.Run(t.Context(), binaries.Helm, "rollback", cluster.Release, inNamespace); err != nil {
		t.Error(err)
	}
	load.stop()
	owners := c.kubectl(t, "get", "apiservice", "v1.metrics.k8s.io", "--show-managed-fields",
		"--output", `jsonpath={range .metadata.managedFields[*]}{.manager} {.fieldsV1}{"\n"}{end}`)
	for line := range strings.Lines(owners) {
		manager, fields, _ := strings.Cut(line, " ")
		if strings.Contains(fields, `"f:caBundle"`) != (manager == "kube-vitals") {
			t.Errorf("%s owns %s", manager, fields)
		}
	}
}

// getAPIServices are the arguments of kubectl that print how the APIServices are verified.
var getAPIServices = []string{"get", "apiservices", "v1.metrics.k8s.io", "v1beta1.metrics.k8s.io", "--output",
	`jsonpath={range .items[*]}{.spec.insecureSkipTLSVerify} {.spec.caBundle};{end}`}

// testUnknownCA switches to a certificate whose CA the chart does not know, which removes only the caBundles
// that the servers have written. They may no longer write them.
func (c *servingCluster) testUnknownCA(t *testing.T) {
	must(t, c.Helm(t.Context(), "upgrade", "tls.type=existingSecret", "tls.existingSecret.name=missing"))
	c.awaitDenied(t)
	must(t, c.Helm(t.Context(), "upgrade")) // removes what a server has written before it was denied
	if got := c.kubectl(t, getAPIServices...); got != " ; ;" {
		t.Errorf("got APIServices with %q, want no caBundle", got)
	}
	must(t, c.Helm(t.Context(), "upgrade")) // the manifest has no caBundle any more
	bundle := base64.StdEncoding.EncodeToString(c.CA.PEM())
	c.patchAPIService(t, "v1", `{"spec":{"caBundle":"`+bundle+`"}}`)
	must(t, c.Helm(t.Context(), "upgrade"))
	if got := c.kubectl(t, getAPIServices...); got != " "+bundle+"; ;" {
		t.Errorf("got APIServices with %q, want the caBundle of another client", got)
	}
}

// testInsecureSkipTLSVerify disables and enables the verification of the certificate.
func (c *servingCluster) testInsecureSkipTLSVerify(t *testing.T) {
	must(t, c.Helm(t.Context(), "upgrade", "apiService.insecureSkipTLSVerify=true"))
	c.awaitOutput(t, func(text string) bool { return text == "true ;true ;" }, getAPIServices...)
	awaitLog(t, c.servers[0], "The APIService skips verification")
	must(t, c.Helm(t.Context(), "upgrade", "apiService.insecureSkipTLSVerify=false"))
	verified := regexp.MustCompile(`^ [^ ;]+; [^ ;]+;$`)
	c.awaitOutput(t, verified.MatchString, getAPIServices...)
	awaitLog(t, c.servers[0], "The APIService is right again")
}
