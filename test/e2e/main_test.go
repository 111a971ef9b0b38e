// Package e2e tests the built kube-vitals from outside: behind the aggregation layer of a real API
// server, with the real kubectl, helm and HorizontalPodAutoscaler, and with the permissions in the
// chart. The environment variable KUBE_VITALS names the binary; the default is
// bin/kube-vitals of the source tree.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

const (
	sharedNodes = 6
	// timeout bounds the wait for what takes two scrapes, beside so many other processes that nothing gets a tenth
	// of a processor. Only a test that fails waits so long.
	timeout = 20 * time.Minute

	inNamespace = "--namespace=" + cluster.Namespace // a flag of kubectl and helm
)

// shared is the cluster of most tests. Each uses its own namespaces and does not change the nodes
// of others.
var shared *testCluster

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, m)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, m *testing.M) (code int, err error) {
	if shared, err = startCluster(ctx, os.Stderr, sharedNodes); err != nil {
		return 0, err
	}
	defer shared.Stop()
	done := make(chan int, 1)
	go func() { done <- m.Run() }()
	select {
	case <-ctx.Done():
		return 0, errors.New("interrupted")
	case code = <-done:
		if code != 0 {
			fmt.Fprintln(os.Stderr, shared.server.Tail())
		}
		return code, shared.Running()
	}
}

// testCluster is a cluster with helpers for tests.
type testCluster struct {
	*cluster.Cluster
	server  *cluster.Server // nil: not installed
	started time.Duration   // how long the start took, which shows how busy the machine is
}

// startCluster starts a cluster with nodes and kube-vitals, which has additional flags.
func startCluster(ctx context.Context, progress io.Writer, nodes int, args ...string) (*testCluster, error) {
	began := time.Now()
	c, err := cluster.Start(ctx, cluster.Config{Progress: progress, Nodes: simulation.Nodes(nodes)})
	if err != nil {
		return nil, err
	}
	started := time.Since(began)
	s, err := c.Install(ctx, args...)
	if err != nil {
		c.Stop()
		return nil, err
	}
	return &testCluster{Cluster: c, server: s, started: started}, nil
}

// startBare starts a cluster without kube-vitals for one test.
func startBare(t *testing.T, cfg cluster.Config) *testCluster {
	t.Helper()
	began := time.Now()
	c, err := cluster.Start(t.Context(), cfg)
	must(t, err)
	t.Cleanup(c.Stop)
	return &testCluster{Cluster: c, started: time.Since(began)}
}

// logOnFailure logs the last lines of a process if the test fails.
func logOnFailure(t *testing.T, p interface{ Tail() string }) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.Tail())
		}
	})
}

func freePort(t *testing.T) int {
	t.Helper()
	ports, err := cluster.FreePorts(1)
	must(t, err)
	return ports[0]
}

// newCluster starts a cluster for one test: it has one node, and the test installs kube-vitals. The
// flags are those of its API server.
func newCluster(t *testing.T, flags ...string) *testCluster {
	t.Helper()
	return startBare(t, cluster.Config{APIServerArgs: flags, Nodes: []simulation.Node{{Name: "node"}}})
}

// install installs kube-vitals with additional flags.
func (c *testCluster) install(t *testing.T, args ...string) {
	t.Helper()
	c.installWith(t, nil, args...)
}

// installWith installs kube-vitals with values of the chart and additional flags.
func (c *testCluster) installWith(t *testing.T, values []string, args ...string) {
	t.Helper()
	var err error
	c.server, err = c.InstallWith(t.Context(), values, args...)
	must(t, err)
	logOnFailure(t, c.server)
}

// replica starts another kube-vitals, and waits until it is ready. The args follow the flags of s.
func (c *testCluster) replica(t *testing.T, s *cluster.Server, args ...string) *cluster.Server {
	t.Helper()
	replica, err := s.StartReplica(args...)
	must(t, err)
	t.Cleanup(replica.Kill)
	logOnFailure(t, replica)
	probe := newClient(t, replica)
	probe.transport.TLSClientConfig.InsecureSkipVerify = true
	eventually(t, "another kube-vitals to be ready", func(ctx context.Context) error {
		if err := replica.Running(); err != nil {
			return err
		}
		return probe.ok(ctx, "/readyz")
	})
	return replica
}

// kubectl runs kubectl as the administrator and returns its output.
func (c *testCluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), args...)
	must(t, err)
	return out
}

// accountKubeconfig writes a kubeconfig with a token of a ServiceAccount, and returns its name.
func (c *testCluster) accountKubeconfig(t *testing.T, namespace, account string) string {
	t.Helper()
	file, err := c.WriteAccountKubeconfig(t.Context(), namespace, account)
	must(t, err)
	return file
}

// get requests a path of the API server, without retries.
func (c *testCluster) get(ctx context.Context, path string) ([]byte, error) {
	return c.Client.Discovery().RESTClient().Get().RequestURI(path).MaxRetries(0).DoRaw(ctx)
}

// createNamespaces creates namespaces, and deletes them after the test.
func (c *testCluster) createNamespaces(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		must(t, c.CreateNamespace(t.Context(), name))
		cleanUp(t, func(ctx context.Context) error {
			_, err := c.Kubectl(ctx, "delete", "namespace", name, "--wait=false")
			return err
		})
	}
}

// createPods creates pods in a namespace that exists, and waits until all have metrics. Each has
// the containers main, which uses 250m of CPU and 100 MiB, and side, which uses no CPU and 8 MiB.
// The label app is the pod's name.
func (c *testCluster) createPods(t *testing.T, namespace, node string, names ...string) {
	t.Helper()
	var manifest strings.Builder
	for _, name := range names {
		fmt.Fprintf(&manifest, `
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  namespace: %[2]s
  labels: {app: %[1]s, tier: test}
  annotations:
    simulation.kube-vitals/cpu: main=250m,side=0
    simulation.kube-vitals/memory: main=100Mi,side=8Mi
spec:
  nodeName: %[3]s
  containers: [{name: main, image: none}, {name: side, image: none}]
---`, name, namespace, node)
	}
	must(t, c.Apply(t.Context(), manifest.String()))
	eventually(t, "metrics of the pods in "+namespace, func(ctx context.Context) error {
		body, err := c.get(ctx, cluster.V1beta1+"/namespaces/"+namespace+"/pods")
		if err == nil {
			err = wantItems(body, len(names))
		}
		return err
	})
}

// awaitTop waits until kubectl top shows the node of newCluster.
func (c *testCluster) awaitTop(t *testing.T) {
	t.Helper()
	c.awaitOutput(t, has("node "), "top", "nodes", "--no-headers")
}

// awaitOutput waits until kubectl succeeds and its output is right.
func (c *testCluster) awaitOutput(t *testing.T, isRight func(output string) bool, args ...string) {
	t.Helper()
	eventually(t, "the output of kubectl "+strings.Join(args, " "), func(ctx context.Context) error {
		output, err := c.Kubectl(ctx, args...)
		if err == nil && !isRight(output) {
			err = errors.New(output)
		}
		return err
	})
}

// hasLines returns a function that reports whether a text has n lines.
func hasLines(n int) func(string) bool {
	return func(text string) bool { return strings.Count(text, "\n") == n }
}

// has returns a function that reports whether a text has another one in it.
func has(part string) func(string) bool {
	return func(text string) bool { return strings.Contains(text, part) }
}

// must ends the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until try returns nil.
func eventually(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	must(t, process.Poll(t.Context(), timeout, what, try))
}

// concurrently runs subtests at the same time, whatever -parallel is: they mostly wait. With t.Parallel, each would
// wait for a turn behind the tests that have not begun.
func concurrently(t *testing.T, subtests map[string]func(*testing.T)) {
	t.Helper()
	var group sync.WaitGroup
	for name, subtest := range subtests {
		group.Go(func() { t.Run(name, subtest) })
	}
	group.Wait()
}

// cleanUp calls a function after the test, when the test's own context has ended.
func cleanUp(t *testing.T, f func(context.Context) error) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if err := f(ctx); err != nil {
			t.Error(err)
		}
	})
}
