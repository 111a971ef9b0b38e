package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

const (
	unavailable = "MetricsUnavailable"
	restored    = "MetricsRestored"
	// oneNode is the node of newCluster.
	oneNode = "node"
)

// describeDeployment are arguments of kubectl.
var describeDeployment = []string{"describe", "deployment", cluster.Release, inNamespace}

// manyNodes are added: if they fail, the event is on the Deployment.
var manyNodes = []string{"many-1", "many-2", "many-3"}

// testEvents lets nodes fail, recover and fail again: one for one reason, and all others for
// another.
func (c *testCluster) testEvents(t *testing.T) {
	t.Helper()
	for _, name := range manyNodes {
		if err := c.Simulation.AddNode(t.Context(), simulation.Node{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "metrics of all nodes", func(ctx context.Context) error {
		table, err := c.Kubectl(ctx, "top", "nodes", "--no-headers")
		if n := strings.Count(table, "\n"); err == nil && n != 1+len(manyNodes) {
			err = errors.New(table)
		}
		return err
	})
	describeNode := []string{"describe", "node", oneNode}

	c.failNodes(kubelettest.Status(http.StatusUnauthorized), kubelettest.Status(http.StatusForbidden))
	c.awaitEvent(t, describeNode, "Warning", unavailable, "(unauthorized): enable webhook authentication")
	c.awaitEvent(t, describeDeployment, "Warning", unavailable, "metrics of 3 of 4 nodes", "(forbidden): grant get on")
	c.failNodes(nil, nil)
	c.awaitEvent(t, describeNode, "Normal", restored, "metrics of this node again")
	c.awaitEvent(t, describeDeployment, "Normal", restored, "metrics of 4 of 4 nodes again")
	c.failNodes(kubelettest.Status(http.StatusUnauthorized), kubelettest.Status(http.StatusForbidden))
	c.awaitEvent(t, describeNode, "Warning", unavailable, "(x2 over ")
	c.awaitEvent(t, describeDeployment, "Warning", unavailable, "(x2 over ")
	c.failNodes(nil, nil)
	t.Log(c.kubectl(t, describeNode...))
	t.Log(c.kubectl(t, describeDeployment...))

	events, err := c.Client.CoreV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ownEvents(events.Items) {
		if e.InvolvedObject.Name != oneNode && e.InvolvedObject.Name != cluster.Release {
			t.Errorf("got an event about %s %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message)
		}
	}
}

// testEventsDisabled disables events in the chart. The server, which still has its old flags, is
// then a server without permissions: it logs that once, and its metrics are not affected.
func (c *testCluster) testEventsDisabled(t *testing.T) {
	t.Helper()
	c.awaitEvent(t, []string{"describe", "node", oneNode}, "Normal", restored, "(x2 over ")
	if err := c.Upgrade(t.Context(), "events.enabled=false"); err != nil {
		t.Fatal(err)
	}
	roles := c.kubectl(t, "get", "roles,rolebindings", "--all-namespaces")
	if strings.Contains(roles, "kube-vitals-events") {
		t.Errorf("there are still permissions for events:\n%s", roles)
	}
	args := c.kubectl(t, "get", "deployment", cluster.Release, inNamespace, "--output=jsonpath={..args}")
	if strings.Contains(args, "--node-events") || strings.Contains(args, "--deployment") {
		t.Errorf("the Deployment has flags for events: %s", args)
	}
	events, err := c.Client.CoreV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before := ownEvents(events.Items)

	const line = `"Cannot write events; grant kube-vitals create and patch on events`
	c.failNodes(kubelettest.Status(http.StatusUnauthorized), nil)
	eventually(t, "a log line", func(context.Context) error {
		if n := c.countLog(t, line); n != 1 {
			return fmt.Errorf("got %d", n)
		}
		return nil
	})
	c.failNodes(kubelettest.Status(http.StatusNotFound), nil)
	last := c.awaitNewer(t, manyNodes[0], time.Time{})
	for range 3 { // the other reason is due, too
		last = c.awaitNewer(t, manyNodes[0], last)
	}
	if n := c.countLog(t, line); n != 1 {
		t.Errorf("it is logged %d times", n)
	}
	if events, err = c.Client.CoreV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if after := ownEvents(events.Items); len(after) != len(before) {
		t.Errorf("got %d events before and %d after permissions were removed", len(before), len(after))
	}
}

// failNodes sets a fault of the node of newCluster, and one of each of manyNodes. Nil is none.
func (c *testCluster) failNodes(one, many kubelettest.Fault) {
	set := func(name string, fault kubelettest.Fault) {
		if fault == nil {
			c.Simulation.Kubelet(name).SetFaults()
			return
		}
		c.Simulation.Kubelet(name).SetFaults(fault)
	}
	set(oneNode, one)
	for _, name := range manyNodes {
		set(name, many)
	}
}

// awaitEvent waits until one line of the output of kubectl describe has all parts.
func (c *testCluster) awaitEvent(t *testing.T, describe []string, parts ...string) {
	t.Helper()
	eventually(t, strings.Join(parts, " ")+" in kubectl "+strings.Join(describe, " "), func(ctx context.Context) error {
		out, err := c.Kubectl(ctx, describe...)
		if err != nil {
			return err
		}
	lines:
		for line := range strings.Lines(out) {
			for _, part := range parts {
				if !strings.Contains(line, part) {
					continue lines
				}
			}
			return nil
		}
		return errors.New(out)
	})
}

// ownEvents returns the events of kube-vitals.
func ownEvents(events []corev1.Event) (own []corev1.Event) {
	for _, e := range events {
		if e.Source.Component == "kube-vitals" {
			own = append(own, e)
		}
	}
	return own
}

// countLog returns how often the server's log has a text.
func (c *testCluster) countLog(t *testing.T, text string) int {
	t.Helper()
	log, err := c.server.Log()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(log, text)
}
