package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// TestCertManager serves with a certificate of the real cert-manager, whose injector writes its CA into the
// APIServices. The certificate is issued again while clients send requests.
func TestCertManager(t *testing.T) {
	t.Parallel()
	program := clientProgram(t, "certmanager")
	c := &servingCluster{testCluster: newCluster(t)}
	const crds = "deploy/crds/cert-manager.io_"
	c.applyFiles(t, "certmanager", "github.com/cert-manager/cert-manager", crds+"certificates.yaml",
		crds+"certificaterequests.yaml", crds+"issuers.yaml", crds+"clusterissuers.yaml")
	c.awaitOutput(t, has(""), "get", "certificates,certificaterequests,issuers,clusterissuers", inNamespace)
	manager, err := c.StartProcess(program, "--kubeconfig="+c.Kubeconfig)
	must(t, err)
	logOnFailure(t, manager)

	c.installWith(t, []string{"tls.type=cert-manager"}, "--max-sample-age=10m") // for a busy machine
	c.awaitTop(t)
	secrets, name := c.Client.CoreV1().Secrets(cluster.Namespace), cluster.Release+"-tls"
	first, err := secrets.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	bundle := base64.StdEncoding.EncodeToString(first.Data["ca.crt"])
	if got, want := c.kubectl(t, getAPIServices...), fmt.Sprintf(" %s; %[1]s;", bundle); got != want {
		t.Errorf("got APIServices with %q, want the CA of cert-manager", got)
	}

	requests := startLoad(t, c.requests("v1", "v1beta1"))
	must(t, secrets.Delete(t.Context(), name, metav1.DeleteOptions{}))
	next := first
	eventually(t, "another certificate", func(ctx context.Context) error {
		next, err = secrets.Get(ctx, name, metav1.GetOptions{})
		if err == nil && bytes.Equal(next.Data["tls.crt"], first.Data["tls.crt"]) {
			err = errors.New("it is still the same")
		}
		return err
	})
	must(t, c.WriteSecret(cluster.Release+"-kube-vitals-tls-", next)) // as the kubelet does, into that volume
	want, _ := pem.Decode(next.Data["tls.crt"])
	eventually(t, "the server to have that certificate", func(ctx context.Context) error {
		got, err := servedCertificate(ctx, c.server, first.Data["ca.crt"])
		if err == nil && !bytes.Equal(got.Raw, want.Bytes) {
			err = errors.New("it has another one")
		}
		return err
	})
	requests.stop()
}
