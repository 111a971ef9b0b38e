package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// engineNodez is the page of nodes of a server that reads an engine.
type engineNodez struct {
	nodez
	Engine struct {
		Host, State, Reason, Cure, URL, Error string
		Series                                map[string]int
	}
}

// readNodez reads the page of nodes as an administrator.
func (c *prometheusCluster) readNodez(ctx context.Context, t *testing.T) (page engineNodez, err error) {
	body, err := c.asAdmin(t, c.server).getOK(ctx, nodezPath+"?format=json")
	if err == nil {
		err = json.Unmarshal(body, &page)
	}
	return page, err
}

// awaitNodez waits until the page of nodes has the state and the reason of the engine.
func (c *prometheusCluster) awaitNodez(t *testing.T, state, reason string) (page engineNodez) {
	t.Helper()
	eventually(t, "/nodez to show that the engine is "+state, func(ctx context.Context) (err error) {
		if page, err = c.readNodez(ctx, t); err != nil {
			return err
		}
		if page.Engine.State != state || page.Engine.Reason != reason {
			return fmt.Errorf("got %+v", page.Engine)
		}
		return nil
	})
	return page
}

// TestPrometheusDiagnosis checks what a server that reads Prometheus says about missing metrics: of a
// node that Prometheus does not scrape, while Prometheus is down, and when it is back.
func TestPrometheusDiagnosis(t *testing.T) {
	t.Parallel()
	c := newPrometheusCluster(t)
	c.createNamespaces(t, "shop")
	c.createPods(t, "shop", "node-01", "cart")
	c.awaitHealthy(t)
	const cart = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods/cart"

	t.Run("node without series", func(t *testing.T) {
		const node = "not-scraped"
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		if _, err := c.Client.CoreV1().Nodes().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "/nodez to name the node", func(ctx context.Context) error {
			page, err := c.readNodez(ctx, t)
			if err == nil && page.Totals.Reasons["not-in-engine"] != 1 { // in the first minute, it is starting
				err = fmt.Errorf("got %+v", page)
			}
			return err
		})
		check := c.awaitFailure(t, "nodes", "not-in-engine")
		if len(check.Objects) != 1 || check.Objects[0] != node {
			t.Errorf("doctor names %q, want %s: %+v", check.Objects, node, check)
		}
		t.Logf("doctor: %s; %s", check.Seen, check.Cure)
		_, err := c.Kubectl(t.Context(), "top", "node", node)
		if want := "the engine has no current series of the node (check that the engine scrapes"; err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		t.Logf("kubectl top node: %v", err)
		c.kubectl(t, "delete", "node", node)
		c.awaitHealthy(t)
	})

	t.Run("Prometheus stopped", func(t *testing.T) {
		c.prometheus.Kill()
		page := c.awaitNodez(t, "failing", "connect-refused")
		if !strings.Contains(page.Engine.Error, page.Engine.Host) || page.Engine.Cure == "" ||
			!strings.HasSuffix(page.Engine.URL, "#engine-failing") {
			t.Errorf("got %+v", page.Engine)
		}
		check := c.awaitFailure(t, "engine", "connect-refused")
		if !strings.Contains(check.Cure, "check that the engine runs") {
			t.Errorf("got %+v", check)
		}
		t.Logf("doctor: %s; %s", check.Seen, check.Cure)
		c.awaitEvent(t, describeDeployment, "Warning", unavailable,
			"cannot read the engine, so metrics expire: the engine's port refuses connections (connect-refused)")
		eventually(t, "the metrics to expire", func(ctx context.Context) error {
			if out, err := c.Kubectl(ctx, "get", "--raw", cart); err == nil {
				return errors.New("still served: " + out)
			} else if want := "reading the engine has failed since "; !strings.Contains(err.Error(), want) ||
				!strings.Contains(err.Error(), "the engine's port refuses connections (check that the engine runs") {
				return fmt.Errorf("got %w, want %s", err, want)
			} else if strings.Contains(err.Error(), "127.0.0.1") {
				t.Errorf("callers get an address: %v", err)
			}
			return nil
		})
		_, err := c.Kubectl(t.Context(), "top", "pod", "cart", "--namespace=shop")
		t.Logf("kubectl top pod: %v", err)
		text, err := c.asAdmin(t, c.server).getOK(t.Context(), nodezPath+"?format=text")
		if err != nil || !strings.Contains(string(text), "engine-failing") {
			t.Errorf("got %v: %s", err, text)
		}
		t.Logf("/nodez:\n%s", text)
	})

	t.Run("Prometheus started again", func(t *testing.T) {
		c.startPrometheus(t)
		c.awaitNodez(t, "ready", "")
		c.awaitHealthy(t)
		c.awaitEvent(t, describeDeployment, "Normal", restored, "can read the engine again")
		eventually(t, "metrics", func(ctx context.Context) error {
			_, err := c.Kubectl(ctx, "top", "pod", "cart", "--namespace=shop")
			return err
		})
		text, err := c.asAdmin(t, c.server).getOK(t.Context(), nodezPath+"?format=text")
		if err != nil {
			t.Error(err)
		}
		t.Logf("/nodez:\n%s", text)
	})

	t.Run("queries of the dashboard and the alerts", func(t *testing.T) {
		c.awaitQueries(t, isEngineQuery)
	})
}
