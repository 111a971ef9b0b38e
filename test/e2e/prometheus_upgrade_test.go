package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// TestSourceChange upgrades the release from kubelets to Prometheus and back, while clients send
// requests. Each new server has all metrics as soon as it is ready, and no request fails, although
// the upgrade takes the permission for kubelets from the old server before the new one runs.
func TestSourceChange(t *testing.T) {
	t.Parallel()
	c := newEngineCluster(t, "prometheus")
	c.startPrometheus(t)
	// On a busy machine, the old server may run for long without the permission.
	c.installWith(t, []string{"maxSampleAge=10m"})
	c.createNamespaces(t, "shop")
	c.createPods(t, "shop", "node-01", "cart", "web")

	service := startBalancer(t)
	service.add(c.server.Address)
	address := *c.server
	address.Address = fmt.Sprintf("127.0.0.1:%d", service.port())
	reads := func(s *cluster.Server) func(context.Context) error {
		client := c.asAdmin(t, s)
		return func(ctx context.Context) error {
			pods, err := client.getOK(ctx, "/apis/metrics.k8s.io/v1/namespaces/shop/pods")
			if err == nil {
				err = wantItems(pods, 2)
			}
			nodes, nodesErr := client.getOK(ctx, "/apis/metrics.k8s.io/v1beta1/nodes")
			if nodesErr == nil {
				nodesErr = wantItems(nodes, prometheusNodes)
			}
			return errors.Join(err, nodesErr)
		}
	}
	eventually(t, "all metrics", reads(&address))
	c.awaitSamples(t, `container_cpu_usage_seconds_total{namespace="shop"}`)
	requests := startLoad(t, map[string]func(context.Context) error{"pods and nodes": reads(&address)})
	current := c.server
	for _, values := range [][]string{c.values(), {"source.type=kubelet"}} {
		must(t, c.Helm(t.Context(), "upgrade", values...))
		next, err := current.StartRevision(t.Context(), cluster.Release)
		must(t, err)
		t.Cleanup(next.Kill)
		client := c.asAdmin(t, next)
		eventually(t, "the new server to be ready", func(ctx context.Context) error {
			return errors.Join(next.Running(), client.ok(ctx, "/readyz"))
		})
		checkComplete(t, next, reads(next))
		service.add(next.Address)
		c.stopReplica(t, service, current, 0)
		current = next
	}
	requests.stop()
	left := c.kubectl(t, "get", "secrets,serviceaccounts", "--namespace="+cluster.Namespace, "--output=name")
	if strings.Contains(left, "kube-vitals-prometheus") || !strings.Contains(left, "kube-vitals-kubelet") {
		t.Errorf("after the way back, there are\n%s", left)
	}
}

// awaitSamples waits until each of the series has three samples in the engine that are older than 30 seconds.
// Kubelets give the rate of a new container earlier than the engine has the samples since its start that a
// rate needs: at any later time, also if the engine is slow, these have one.
func (c *prometheusCluster) awaitSamples(t *testing.T, selector string) {
	t.Helper()
	query := fmt.Sprintf("min(count_over_time(%s[1m] offset 30s)) >= 3", selector)
	eventually(t, "samples of "+selector, func(ctx context.Context) error {
		body, _, err := cluster.Get(ctx, http.DefaultClient,
			fmt.Sprintf("http://127.0.0.1:%d/api/v1/query?query=%s", c.port, url.QueryEscape(query)), cluster.TypeJSON)
		if err == nil && !strings.Contains(string(body), `"value":[`) {
			err = errors.New(string(body))
		}
		return err
	})
}
