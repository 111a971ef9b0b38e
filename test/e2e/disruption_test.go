package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// TestDisturbances has a cluster of its own for what would disturb other tests: certificates that
// change, an API server that goes away, and servers that come and go.
func TestDisturbances(t *testing.T) {
	l, err := startLab(t.Context(), disturbedNodes, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Stop)
	d := &disturbed{l}
	began := time.Now()
	d.namespaces(t, disturbedNamespace)
	d.run(t, disturbedNamespace, "node-01", podNames("pod", disturbedPods)...)
	d.eventually(t, "the pods to be no newcomers", func(ctx context.Context) error { return sampledAfter(ctx, d, began.Add(newcomer)) })
	t.Run("certificate", d.certificate)
	t.Run("outage", d.outage)
	t.Run("rollout", d.rollout)
	t.Run("shutdown", d.shutdown)
	if err := l.Running(); err != nil {
		t.Error(err)
	}
}

const (
	disturbedNodes     = 3
	disturbedPods      = 10
	disturbedNamespace = "disturbed"
	newcomer           = 12 * time.Second // as long as a server that has just started may have no figures of a new pod, and some
	nodesPath          = "/apis/metrics.k8s.io/v1beta1/nodes"
	podsPath           = "/apis/metrics.k8s.io/v1/namespaces/" + disturbedNamespace + "/pods"
)

// sampledAfter says which pod's figures are not of a time after the moment.
func sampledAfter(ctx context.Context, d *disturbed, moment time.Time) error {
	out, err := d.Kubectl(ctx, "get", "podmetrics", "--namespace", disturbedNamespace,
		"--output", `jsonpath={range .items[*]}{.metadata.name} {.timestamp}{"\n"}{end}`)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		name, stamp, _ := strings.Cut(strings.TrimSpace(line), " ")
		if at, err := time.Parse(time.RFC3339, stamp); err != nil || at.Before(moment) {
			return fmt.Errorf("the figures of %s are of %q", name, stamp)
		}
	}
	return nil
}

// disturbed is the cluster of TestDisturbances.
type disturbed struct{ *lab }

func podNames(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%02d", prefix, i))
	}
	return names
}

func (d *disturbed) namespaces(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := d.CreateNamespace(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
}

// run creates pods that use 100 millicores and 64 MiB, and waits until kubectl shows what they use.
func (d *disturbed) run(t *testing.T, namespace, node string, names ...string) {
	t.Helper()
	var manifest strings.Builder
	for _, name := range names {
		fmt.Fprintf(&manifest, `
apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: %s
  annotations: {simulation.kube-vitals/cpu: 100m, simulation.kube-vitals/memory: 64Mi}
spec: {nodeName: %s, containers: [{name: main, image: none}]}
---`, name, namespace, node)
	}
	if err := d.Apply(t.Context(), manifest.String()); err != nil {
		t.Fatal(err)
	}
	d.eventually(t, "figures of the pods in "+namespace, func(ctx context.Context) error {
		out, err := d.Kubectl(ctx, "top", "pods", "--namespace", namespace, "--no-headers")
		if n := strings.Count(out, "\n"); err == nil && n != len(names) {
			err = fmt.Errorf("%d of %d pods have figures", n, len(names))
		}
		return err
	})
}

func (d *disturbed) eventually(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	if err := process.Poll(t.Context(), soon, what, try); err != nil {
		t.Fatal(err)
	}
}

// replica starts a further kube-vitals for the time of the test, and waits until it is ready.
func (d *disturbed) replica(t *testing.T, args ...string) *cluster.Server {
	t.Helper()
	return d.replicaOf(t, d.Server, args...)
}

// replicaOf does that, with what clients know of the server that is given.
func (d *disturbed) replicaOf(t *testing.T, known *cluster.Server, args ...string) *cluster.Server {
	t.Helper()
	s, err := known.StartReplica(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Tail())
		}
		s.Kill()
	})
	probe := newReader(t, s)
	d.eventually(t, "another kube-vitals to be ready", func(ctx context.Context) error {
		if err := s.Running(); err != nil {
			return err
		}
		return probe.ok(ctx, "/readyz")
	})
	return s
}

// user is a certificate of the cluster's CA. The group may be empty.
func (d *disturbed) user(name, group string) tls.Certificate {
	subject := pkix.Name{CommonName: name}
	if group != "" {
		subject.Organization = []string{group}
	}
	return d.CA.Issue(nil, nil, kubelettest.Subject(subject))
}

// administrator may do everything, without anybody being asked.
func (d *disturbed) administrator(t *testing.T, s *cluster.Server) *reader {
	return newReader(t, s).with(d.user("admin", "system:masters"))
}

// reader sends requests straight to a kube-vitals, around the API server.
type reader struct {
	address   string
	transport *http.Transport
	token     string // "": none
}

func newReader(t *testing.T, s *cluster.Server) *reader {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.CA) {
		t.Fatal("the chart's Secret has no CA certificate")
	}
	r := &reader{
		address: s.Address,
		transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: roots, ServerName: s.Host},
			ForceAttemptHTTP2: true,
		},
	}
	t.Cleanup(r.transport.CloseIdleConnections)
	return r
}

// with makes the reader show a certificate.
func (r *reader) with(certificate tls.Certificate) *reader {
	r.transport.TLSClientConfig.Certificates = []tls.Certificate{certificate}
	return r
}

// get gives the answer's status and body.
func (r *reader) get(ctx context.Context, path string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+r.address+path, nil)
	if err != nil {
		return 0, nil, err
	}
	if r.token != "" {
		request.Header.Set("Authorization", "Bearer "+r.token)
	}
	return answer(r.transport.RoundTrip(request))
}

func answer(response *http.Response, err error) (status int, body []byte, _ error) {
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// ok says what is wrong where the answer is not 200.
func (r *reader) ok(ctx context.Context, path string) error {
	status, body, err := r.get(ctx, path)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %s", path, status, body)
	}
	return err
}

// wholePods says what is wrong with a list of the pods that run from the start of the test on.
func wholePods(status int, body []byte, err error) error {
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("status %d: %s", status, body)
	}
	var list struct {
		Items []struct {
			Metadata   metav1.ObjectMeta
			Timestamp  time.Time
			Containers []struct{ Usage struct{ CPU, Memory string } }
		}
	}
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&list); err != nil {
		return fmt.Errorf("not a list: %w", err)
	}
	if len(list.Items) < disturbedPods {
		return fmt.Errorf("%d pods of %d", len(list.Items), disturbedPods)
	}
	for _, pod := range list.Items {
		if len(pod.Containers) != 1 || pod.Containers[0].Usage.CPU == "" || pod.Containers[0].Usage.Memory != "64Mi" {
			return fmt.Errorf("pod %s uses %+v", pod.Metadata.Name, pod.Containers)
		}
		if age := time.Since(pod.Timestamp); age > freshness {
			return fmt.Errorf("the figures of pod %s are %s old", pod.Metadata.Name, age)
		}
	}
	return nil
}
