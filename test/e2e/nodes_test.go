package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// addNode adds a node for pods that name it, and removes it after the test.
func addNode(t *testing.T, name string) {
	t.Helper()
	node := simulation.Node{Name: name, Swap: true, Unschedulable: true}
	must(t, shared.Simulation.AddNode(t.Context(), node))
	cleanUp(t, func(ctx context.Context) error {
		if shared.Simulation.Kubelet(name) == nil {
			return nil // the test has removed it
		}
		return shared.Simulation.RemoveNode(ctx, name)
	})
}

// nodeTimestamp returns the timestamp of a node's metrics.
func (c *testCluster) nodeTimestamp(ctx context.Context, node string) (time.Time, error) {
	text, err := c.Kubectl(ctx, "get", "nodemetrics", node, "--output=jsonpath={.timestamp}")
	if err != nil {
		return time.Time{}, err
	}
	return time.Parse(time.RFC3339, text)
}

// awaitNewer waits until a node has metrics that are newer than the time, and returns their
// timestamp.
func (c *testCluster) awaitNewer(t *testing.T, node string, than time.Time) (at time.Time) {
	t.Helper()
	eventually(t, "newer metrics of "+node, func(ctx context.Context) (err error) {
		if at, err = c.nodeTimestamp(ctx, node); err == nil && !at.After(than) {
			err = fmt.Errorf("the timestamp is still %v", at)
		}
		return err
	})
	return at
}

func TestAddAndRemoveNode(t *testing.T) {
	t.Parallel()
	const name = "temporary"
	addNode(t, name)
	shared.awaitNewer(t, name, time.Time{})
	series := fmt.Sprintf("node=%q", name)
	if !strings.Contains(readTelemetry(t), series) {
		t.Errorf("/metrics has no series with %s", series)
	}
	must(t, shared.Simulation.RemoveNode(t.Context(), name))
	eventually(t, "the node's metrics to disappear", func(ctx context.Context) error {
		if _, err := shared.nodeTimestamp(ctx, name); err == nil {
			return errors.New("the node has metrics")
		}
		return nil
	})
	if strings.Contains(readTelemetry(t), series) {
		t.Errorf("/metrics has series with %s after the node was removed", series)
	}
}

// TestKubeletFaults checks that the metrics of other nodes stay fresh with each fault of a kubelet,
// and that its node has metrics again afterwards.
func TestKubeletFaults(t *testing.T) {
	t.Parallel()
	const faulty, healthy = "faulty", "node-01"
	addNode(t, faulty)
	before := shared.awaitNewer(t, faulty, time.Time{})
	last := shared.awaitNewer(t, healthy, time.Time{})
	for _, fault := range []kubelettest.Fault{
		kubelettest.Hang, kubelettest.Refuse, kubelettest.Status(http.StatusInternalServerError), kubelettest.HTML,
		kubelettest.EndlessBody, kubelettest.GzipBomb, kubelettest.HalfBody, kubelettest.ScrapeError,
	} {
		var isHit atomic.Bool
		shared.Simulation.Kubelet(faulty).SetFaults(func(r *kubelettest.Response) {
			isHit.Store(true)
			fault(r)
		})
		eventually(t, "a request to the faulty kubelet", func(context.Context) error {
			if !isHit.Load() {
				return errors.New("there is none")
			}
			return nil
		})
		last = shared.awaitNewer(t, healthy, last)
	}
	shared.Simulation.Kubelet(faulty).SetFaults()
	shared.awaitNewer(t, faulty, before)
	if err := shared.Running(); err != nil {
		t.Error(err)
	}
}
