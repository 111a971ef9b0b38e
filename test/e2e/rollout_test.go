package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

const (
	// endpointDelay is a slow propagation of the removal of a pod from a Service's endpoints.
	endpointDelay = 2 * time.Second
	// kubeletDelay is the response time of a kubelet during the rollout. A new server that was
	// ready before its first metrics would be noticed.
	kubeletDelay = time.Second
	// firstMetricsTimeout is how long a server waits for its first metrics, see pkg/server.
	firstMetricsTimeout = 30 * time.Second
)

// testRollout replaces servers as a Deployment with maxUnavailable 0 and maxSurge 1 does, while
// clients send requests through the API server. No request fails and no response has less in it
// than before.
func (d *disruption) testRollout(t *testing.T) {
	slow := d.Simulation.Kubelet("node-01")
	slow.SetFaults(kubelettest.Late(kubeletDelay))
	t.Cleanup(func() { slow.SetFaults() })
	service := startBalancer(t)
	replicas := []*cluster.Server{d.completeReplica(t), d.completeReplica(t)}
	for _, s := range replicas {
		service.add(s.Address)
	}
	cleanUp(t, func(ctx context.Context) error { return d.Upgrade(ctx, "service.port="+d.server.Port()) })
	must(t, d.Upgrade(t.Context(), fmt.Sprintf("service.port=%d", service.port())))
	requests := startLoad(t, map[string]func(context.Context) error{
		"pods, v1":      func(ctx context.Context) error { return d.checkPods(d.get(ctx, podsPath)) },
		"pods, v1beta1": func(ctx context.Context) error { return d.checkPods(d.get(ctx, podsPathV1beta1)) },
		"nodes":         func(ctx context.Context) error { return d.checkNodes(d.get(ctx, nodesPath)) },
		"discovery": func(ctx context.Context) error {
			_, err := d.get(ctx, "/apis/metrics.k8s.io/v1")
			return err
		},
	})
	// An endpoint is removed when its server gets SIGTERM, later, or earlier.
	for i, delay := range []time.Duration{0, endpointDelay, -endpointDelay / 10} {
		replicas = append(replicas, d.completeReplica(t))
		service.add(replicas[len(replicas)-1].Address)
		d.stopReplica(t, service, replicas[i], delay)
	}
	requests.stop()
}

const podsPathV1beta1 = "/apis/metrics.k8s.io/v1beta1/namespaces/" + disruptionNamespace + "/pods"

// completeReplica starts a server, which must have all metrics as soon as it is ready.
func (d *disruption) completeReplica(t *testing.T) *cluster.Server {
	t.Helper()
	s := d.replica(t, d.server)
	client := d.asAdmin(t, s)
	checkComplete(t, s, func(ctx context.Context) error {
		return errors.Join(d.checkPods(client.getOK(ctx, podsPath)), d.checkNodes(client.getOK(ctx, nodesPath)))
	})
	return s
}

var readyAfter = regexp.MustCompile(`"Ready" after="([^"]+)"`)

// checkComplete tests that a server which has just become ready has all metrics. On a very busy machine,
// a server may become ready without them, since it does not wait for longer than firstMetricsTimeout.
func checkComplete(t *testing.T, s *cluster.Server, check func(context.Context) error) {
	t.Helper()
	err := check(t.Context())
	if err == nil {
		return
	}
	var after time.Duration
	eventually(t, "the server to log that it is ready", func(context.Context) error {
		log, logErr := s.Log()
		match := readyAfter.FindStringSubmatch(log)
		if logErr != nil || match == nil {
			return errors.Join(logErr, errors.New("not logged yet"))
		}
		after, logErr = time.ParseDuration(match[1])
		return logErr
	})
	if after < firstMetricsTimeout {
		t.Errorf("a server that became ready after %v: %v", after, err)
	}
	eventually(t, "all metrics", check)
}

// stopReplica stops a server, and removes it from the endpoints some time after SIGTERM, or before
// it if the delay is negative.
func (c *testCluster) stopReplica(t *testing.T, service *balancer, s *cluster.Server, delay time.Duration) {
	t.Helper()
	if delay < 0 {
		service.remove(s.Address)
		time.Sleep(-delay)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Stop(c.shutdownTimeout()) }()
	time.Sleep(max(0, delay))
	service.remove(s.Address)
	if err := <-ended; err != nil {
		t.Errorf("a replica exits with %v", err)
	}
}
