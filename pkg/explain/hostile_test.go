package explain

import (
	"fmt"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/store"
)

// TestManyContainers explains a pod with as many containers as a node can report, and many in its
// status. A quadratic comparison takes some hundred times as long as the preparation of the test.
func TestManyContainers(t *testing.T) {
	started := testenv.CPUTime(t)
	w := newWorld()
	reported := make([]store.ContainerFacts, 1<<15)
	for i := range reported {
		reported[i] = facts(fmt.Sprintf("reported-%05d", i), time.Hour, 8*time.Second)
	}
	w.report(reported...)
	w.pod().Containers = make([]inventory.ContainerState, 15_000)
	for i := range w.pod().Containers {
		w.pod().Containers[i] = inventory.ContainerState{Name: fmt.Sprintf("stopped--%05d", i)}
	}
	w.pod().Containers[0] = running("app", time.Hour)
	prepared := testenv.CPUTime(t)
	got, text := (&Pods{w.config()}).Explain(t.Context(), "shop", "web", now)
	if took, preparation := testenv.CPUTime(t)-prepared, prepared-started; took > 20*preparation {
		t.Errorf("it took %v, and the preparation %v", took, preparation)
	}
	if got != reason.ContainerMissing {
		t.Errorf("got %s: %s", got, text)
	}
}

// TestClockOfAPIServer explains a pod that was created a moment ago by an API server whose clock is
// ahead of ours.
func TestClockOfAPIServer(t *testing.T) {
	for _, test := range []struct {
		ahead  time.Duration
		reason reason.Reason
		text   string
	}{
		{20 * time.Second, reason.PodStarting, "the pod was created 0s ago; metrics are expected within 25s"},
		{time.Hour, reason.NoContainers, `the kubelet of node "n7" responded at 12:05:10 UTC (5s ago), ` +
			`but does not report the pod (see the kubelet's log, and check the container runtime)`},
	} {
		w := newWorld()
		w.pod().CreatedAt, w.pod().Containers = atAgo(-test.ahead), nil
		delete(w.podFacts, "n7/shop/web")
		got, text := (&Pods{w.config()}).Explain(t.Context(), "shop", "web", now)
		if got != test.reason || text != test.text {
			t.Errorf("%v ahead: got %s: %s\nwant %s: %s", test.ahead, got, text, test.reason, test.text)
		}
	}
}
