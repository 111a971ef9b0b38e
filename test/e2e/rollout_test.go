package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

const (
	rolloutRate = 50 * time.Millisecond // between two requests
	// endpointDelay is how long it takes until a Service does not lead to a pod any more that is to
	// end, where that is slow.
	endpointDelay = 2 * time.Second
)

// kubeletDelay is how long a kubelet takes to answer meanwhile, so that a server that has just
// started would be noticed if it were asked before its first figures are there.
const kubeletDelay = time.Second

// rollout replaces two servers one after the other, as a Deployment with maxUnavailable 0 and
// maxSurge 1 does, under a client that asks 20 times a second through the API server. No answer
// fails, and none has less in it than before.
func (d *disturbed) rollout(t *testing.T) {
	slow := d.Simulation.Kubelet("node-01")
	slow.SetFaults(kubelettest.Late(kubeletDelay))
	t.Cleanup(func() { slow.SetFaults() })
	service := startBalancer(t)
	replicas := []*cluster.Server{d.complete(t), d.complete(t)}
	for _, s := range replicas {
		service.add(s.Address)
	}
	t.Cleanup(func() { // the tests that follow are led to the first server again
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if err := d.Upgrade(ctx, "service.port="+d.Server.Port()); err != nil {
			t.Error(err)
		}
	})
	if err := d.Upgrade(t.Context(), fmt.Sprintf("service.port=%d", service.port())); err != nil {
		t.Fatal(err)
	}
	stop := d.ask(t)
	// The endpoint goes before the pod is told to end, at the same time, or some time later.
	for i, late := range []time.Duration{0, endpointDelay, -endpointDelay / 10} {
		replicas = append(replicas, d.complete(t))
		service.add(replicas[len(replicas)-1].Address)
		replace(t, service, replicas[i], late)
	}
	stop()
}

// complete starts a server that has to have all figures as soon as it is ready.
func (d *disturbed) complete(t *testing.T) *cluster.Server {
	t.Helper()
	s := d.replica(t)
	r := d.administrator(t, s)
	if err := errors.Join(wholePods(r.get(t.Context(), podsPath)), wholeNodes(r.get(t.Context(), nodesPath))); err != nil {
		t.Errorf("a server that has just become ready: %v", err)
	}
	return s
}

// replace ends a server, and leads no more connections to it some time later, or before that where
// the time is negative.
func replace(t *testing.T, service *balancer, old *cluster.Server, late time.Duration) {
	t.Helper()
	if late < 0 {
		service.remove(old.Address)
		time.Sleep(-late)
	}
	ended := make(chan error, 1)
	go func() { ended <- old.Stop(shutdownBound) }()
	time.Sleep(max(0, late))
	service.remove(old.Address)
	if err := <-ended; err != nil {
		t.Errorf("a server does not end well: %v", err)
	}
}

// ask asks through the API server for pods and nodes in turn, until the function that it gives is
// called.
func (d *disturbed) ask(t *testing.T) (stop func()) {
	t.Helper()
	client, err := rest.HTTPClientFor(d.REST)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var requests sync.WaitGroup
	var made, failed atomic.Int64
	checks := []struct {
		path  string
		check func(int, []byte, error) error
	}{
		{podsPath, wholePods},
		{nodesPath, wholeNodes},
		{"/apis/metrics.k8s.io/v1beta1/namespaces/" + disturbedNamespace + "/pods", wholePods},
		{"/apis/metrics.k8s.io/v1", wholeDiscovery},
	}
	requests.Go(func() {
		ticker := time.NewTicker(rolloutRate)
		defer ticker.Stop()
		for n := 0; ctx.Err() == nil; n++ {
			requests.Go(func() {
				c := checks[n%len(checks)]
				made.Add(1)
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.REST.Host+c.path, nil)
				if err == nil {
					err = c.check(answer(client.Do(request)))
				}
				if err != nil && failed.Add(1) <= 5 {
					t.Errorf("%s: %s: %v", time.Now().Format(time.StampMilli), c.path, err)
				}
			})
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	})
	return func() {
		cancel()
		requests.Wait()
		t.Logf("%d of %d requests failed", failed.Load(), made.Load())
	}
}

func wholeNodes(status int, body []byte, err error) error {
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("status %d: %s", status, body)
	}
	var list struct {
		Items []struct{ Timestamp time.Time }
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return fmt.Errorf("not a list: %w", err)
	}
	if len(list.Items) != disturbedNodes {
		return fmt.Errorf("%d nodes of %d", len(list.Items), disturbedNodes)
	}
	return nil
}

func wholeDiscovery(status int, body []byte, err error) error {
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	return err
}
