package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// TestSlowKubelet has a kubelet that takes longer to respond than the first request may, and one whose samples
// are minutes old. The former has metrics, and is not reported as failing. The latter has none.
func TestSlowKubelet(t *testing.T) {
	cluster := newCluster(t)
	add := func(name string, fault kubelettest.Fault) *kubelettest.Kubelet {
		k := kubelettest.New(name, kubelettest.Config{})
		k.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
		k.SetFaults(fault)
		certificate := kubelettest.SelfSigned([]string{name}, nil)
		cluster.add(nodeAt(name, k.Start(t, &certificate)))
		return k
	}
	slow := add("slow", kubelettest.Late(500*time.Millisecond))
	add("old", kubelettest.ShiftTime(-3*time.Minute))
	c := cluster.config(t)
	c.Resolution = 2 * time.Second
	c.Kubelet.Timeout, c.Kubelet.SlowTimeout = 300*time.Millisecond, testenv.Patience
	client := start(t, c)

	client.await(http.StatusOK, nodesPath+"/slow", "alice")
	eventually(t, func() string {
		var page nodez.Report
		client.read(&page, http.StatusOK, nodez.Path+"?format=json")
		if n := page.Nodes[1]; n.State != nodez.Ready || n.Reason != reason.Slow || n.Failures > 0 ||
			!strings.HasPrefix(n.Error, "after ") {
			return fmt.Sprintf("got %+v", n)
		}
		return ""
	})
	if n := slow.Requests(kubelettest.SummaryPath); n != 0 {
		t.Errorf("got %d requests for summaries", n)
	}
	eventually(t, func() string { // until a second sample is as old
		body := client.await(http.StatusNotFound, nodesPath+"/old", "alice")
		if !strings.Contains(body, "responds, but its last sample of the node is from") || !strings.Contains(body, "(3m") {
			return "got " + body
		}
		return ""
	})
}
