package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// engineNodez is the page of nodes of a server that reads an engine.
type engineNodez struct {
	nodez
	Engine struct {
		Host, State, Reason, Cure, URL, Error string
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
		page, err = c.readNodez(ctx, t)
		if err == nil && (page.Engine.State != state || page.Engine.Reason != reason) {
			err = fmt.Errorf("got %+v", page.Engine)
		}
		return err
	})
	return page
}

// testNodeWithoutSeries adds a node that Prometheus does not scrape.
func (c *prometheusCluster) testNodeWithoutSeries(t *testing.T) {
	const node = "not-scraped"
	c.awaitHealthy(t)
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{Unschedulable: true}}
	_, err := c.Client.CoreV1().Nodes().Create(t.Context(), object, metav1.CreateOptions{})
	must(t, err)
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
	_, err = c.Kubectl(t.Context(), "top", "node", node)
	if want := "the engine has no current series of the node (check that the engine scrapes"; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	c.awaitEvent(t, []string{"describe", "node", node}, "Warning", unavailable, "(not-in-engine)")
	c.kubectl(t, "delete", "node", node)
	c.awaitHealthy(t)
}

// checkDiagnosis checks what the server and doctor say while Prometheus is down.
func (c *prometheusCluster) checkDiagnosis(t *testing.T) {
	t.Helper()
	page := c.awaitNodez(t, "failing", "connect-refused")
	if !strings.Contains(page.Engine.Error, page.Engine.Host) || page.Engine.Cure == "" ||
		!strings.HasSuffix(page.Engine.URL, "#engine-failing") {
		t.Errorf("got %+v", page.Engine)
	}
	check := c.awaitFailure(t, "engine", "connect-refused")
	if !strings.Contains(check.Cure, "check that the engine runs") {
		t.Errorf("got %+v", check)
	}
	c.awaitEvent(t, describeDeployment, "Warning", unavailable,
		"cannot read the engine, so metrics expire: the engine's port refuses connections (connect-refused)")
	eventually(t, "the metrics to expire", func(ctx context.Context) error {
		out, err := c.Kubectl(ctx, "get", "--raw", cartPath)
		if err == nil {
			return errors.New("still served: " + out)
		}
		for _, want := range []string{
			"reading the engine has failed since ", "the engine's port refuses connections (check that the engine runs",
		} {
			if !strings.Contains(err.Error(), want) {
				return fmt.Errorf("got %w, want %s", err, want)
			}
		}
		if strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("callers get an address: %v", err)
		}
		return nil
	})
	text, err := c.asAdmin(t, c.server).getOK(t.Context(), nodezPath+"?format=text")
	if err != nil || !strings.Contains(string(text), "engine-failing") {
		t.Errorf("got %v: %s", err, text)
	}
}

// checkRecovery checks what they say when Prometheus is back.
func (c *prometheusCluster) checkRecovery(t *testing.T) {
	t.Helper()
	c.awaitNodez(t, "ready", "")
	c.awaitHealthy(t)
	c.awaitEvent(t, describeDeployment, "Normal", restored, "can read the engine again")
}

// awaitEqualUsage waits until the metrics of all pods are the same: they do not include a time with
// fewer replicas anymore. From then on the autoscaler has no reason to scale.
func (a autoscaling) awaitEqualUsage(t *testing.T, c *testCluster, replicas int) {
	t.Helper()
	areEqual := func(pods string) bool {
		counts := map[string]int{} // of containers, by name and usage
		for line := range strings.Lines(pods) {
			if fields := strings.Fields(line); len(fields) > 2 {
				counts[fields[1]+" "+fields[2]]++
			}
		}
		for _, n := range counts {
			if n != replicas {
				return false
			}
		}
		return len(counts) == 2
	}
	c.awaitOutput(t, areEqual, "top", "pods", "--namespace="+a.namespace, "--containers", "--no-headers")
}

// awaitInactive waits until the autoscaler reports that it has no metrics. The number of replicas must
// not change.
func (a autoscaling) awaitInactive(t *testing.T, c *testCluster, replicas int32) {
	t.Helper()
	c.awaitAutoscaler(t, a.namespace, func(s *autoscalingv2.HorizontalPodAutoscalerStatus) bool {
		if s.CurrentReplicas != replicas || s.DesiredReplicas != replicas {
			t.Errorf("got %d replicas, and %d are desired, want %d", s.CurrentReplicas, s.DesiredReplicas, replicas)
			return true
		}
		return slices.ContainsFunc(s.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
			return c.Type == autoscalingv2.ScalingActive && c.Status == corev1.ConditionFalse &&
				strings.HasPrefix(c.Reason, "FailedGet")
		})
	})
}
