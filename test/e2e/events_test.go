package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
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
	for _, name := range manyNodes {
		must(t, c.Simulation.AddNode(t.Context(), simulation.Node{Name: name}))
	}
	c.awaitOutput(t, hasLines(1+len(manyNodes)), "top", "nodes", "--no-headers")
	describeNode := []string{"describe", "node", oneNode}

	c.failNodes(kubelettest.Status(http.StatusUnauthorized), kubelettest.Status(http.StatusForbidden))
	c.awaitEvent(t, describeNode, "Warning", unavailable, "(unauthorized): enable webhook authentication")
	c.awaitEvent(t, describeDeployment, "Warning", unavailable, "metrics of 3 of 4 nodes", "(forbidden): grant get on")
	first := c.countManyEvents(t)
	c.failNodes(nil, nil)
	c.awaitEvent(t, describeNode, "Normal", restored, "metrics of this node again")
	c.awaitEvent(t, describeDeployment, "Normal", restored, "metrics of 4 of 4 nodes again")
	c.failNodes(kubelettest.Status(http.StatusUnauthorized), kubelettest.Status(http.StatusForbidden))
	c.awaitEvent(t, describeNode, "Warning", unavailable, "(x2 over ")
	c.awaitEvent(t, describeDeployment, "Warning", unavailable, "(x2 over ")
	second := c.countManyEvents(t) - first
	c.failNodes(nil, nil)
	if first >= len(manyNodes) || second >= len(manyNodes) {
		t.Errorf("got %d and %d events about %d nodes, want one event about all", first, second, len(manyNodes))
	}
}

// countManyEvents returns how often each of manyNodes was reported as unavailable, in sum. That is right for a node
// that fails an interval before so many others do that the Deployment is reported.
func (c *testCluster) countManyEvents(t *testing.T) (n int) {
	t.Helper()
	for _, e := range c.ownEvents(t) {
		switch name := e.InvolvedObject.Name; {
		case slices.Contains(manyNodes, name):
			if e.Reason == unavailable {
				n += int(e.Count)
			}
		case name != oneNode && name != cluster.Release:
			t.Errorf("got an event about %s %s: %s", e.InvolvedObject.Kind, name, e.Message)
		}
	}
	return n
}

// testEventsDisabled disables events in the chart. The server, which still has its old flags, is
// then a server without permissions: it logs that once, and its metrics are not affected.
func (c *testCluster) testEventsDisabled(t *testing.T) {
	c.awaitEvent(t, []string{"describe", "node", oneNode}, "Normal", restored, "(x2 over ")
	must(t, c.Upgrade(t.Context(), "events.enabled=false"))
	before := c.ownEvents(t)

	const line = `"Cannot write events; grant kube-vitals create and patch on events`
	c.failNodes(kubelettest.Status(http.StatusUnauthorized), nil)
	awaitLog(t, c.server, line)
	c.failNodes(kubelettest.Status(http.StatusNotFound), nil)
	last := c.awaitNewer(t, manyNodes[0], time.Time{})
	for range 3 { // the other reason is due, too
		last = c.awaitNewer(t, manyNodes[0], last)
	}
	if n := c.countLog(t, line); n != 1 {
		t.Errorf("it is logged %d times", n)
	}
	if after := c.ownEvents(t); len(after) != len(before) {
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
	hasEvent := func(text string) bool {
		for line := range strings.Lines(text) {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
				return true
			}
		}
		return false
	}
	c.awaitOutput(t, hasEvent, describe...)
}

// ownEvents returns the events of kube-vitals.
func (c *testCluster) ownEvents(t *testing.T) (own []corev1.Event) {
	t.Helper()
	events, err := c.Client.CoreV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, e := range events.Items {
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
	must(t, err)
	return strings.Count(log, text)
}
