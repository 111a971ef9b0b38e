package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDisruptions has its own cluster for what would disrupt other tests: the serving certificate
// changes, the API server is unavailable, servers are replaced and stopped.
func TestDisruptions(t *testing.T) {
	t.Parallel()
	c, err := startCluster(t.Context(), t.Output(), disruptionNodes, "--max-sample-age="+disruptionMaxAge.String())
	must(t, err)
	t.Cleanup(c.Stop)
	d := &disruption{c}
	started := time.Now()
	d.createNamespaces(t, disruptionNamespace)
	var pods []string
	for i := range disruptionPods {
		pods = append(pods, fmt.Sprintf("pod-%02d", i))
	}
	d.createPods(t, disruptionNamespace, "node-01", pods...)
	eventually(t, "metrics of pods that are not new", func(ctx context.Context) error {
		list, err := d.listPods(d.get(ctx, podsPath))
		if err == nil && oldest(list).Before(started.Add(newPod)) {
			err = fmt.Errorf("the oldest metrics are of %s", oldest(list))
		}
		return err
	})
	t.Run("certificate", d.testCertificate)
	t.Run("outage", d.testOutage)
	t.Run("rollout", d.testRollout)
	t.Run("shutdown", d.testShutdown)
	if err := c.Running(); err != nil {
		t.Error(err)
	}
}

const (
	disruptionNodes     = 3
	disruptionMaxAge    = 2 * time.Minute // on a busy machine, scrapes and the requests of tests are late
	disruptionPods      = 10
	disruptionNamespace = "disruption"
	// A pod younger than newPod may have no metrics in a server that has just started
	// while another one has.
	newPod    = 12 * time.Second
	nodesPath = "/apis/metrics.k8s.io/v1beta1/nodes"
	podsPath  = "/apis/metrics.k8s.io/v1/namespaces/" + disruptionNamespace + "/pods"
)

// disruption is the cluster of TestDisruptions.
type disruption struct{ *testCluster }

// podMetrics has the fields of PodMetrics that are compared.
type podMetrics struct {
	Metadata   metav1.ObjectMeta
	Timestamp  time.Time
	Containers []struct{ Usage struct{ CPU, Memory string } }
}

// listPods decodes a list, and returns an error if metrics of the pods that TestDisruptions creates
// are missing, incomplete or stale.
func (*disruption) listPods(body []byte, err error) ([]podMetrics, error) {
	if err != nil {
		return nil, err
	}
	var list struct{ Items []podMetrics }
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("not a list: %w: %s", err, body)
	}
	if len(list.Items) < disruptionPods {
		return nil, fmt.Errorf("got %d pods, want %d", len(list.Items), disruptionPods)
	}
	for _, pod := range list.Items {
		if len(pod.Containers) != 2 || pod.Containers[0].Usage.CPU == "" || pod.Containers[0].Usage.Memory != "100Mi" {
			return nil, fmt.Errorf("pod %s: got %+v", pod.Metadata.Name, pod.Containers)
		}
		if age := time.Since(pod.Timestamp); age > disruptionMaxAge {
			return nil, fmt.Errorf("pod %s: metrics are %s old", pod.Metadata.Name, age)
		}
	}
	return list.Items, nil
}

// checkPods returns the error of listPods.
func (d *disruption) checkPods(body []byte, err error) error {
	_, err = d.listPods(body, err)
	return err
}

// checkNodes returns an error if the metrics of a node are missing.
func (*disruption) checkNodes(body []byte, err error) error {
	if n := strings.Count(string(body), `"timestamp"`); err == nil && n != disruptionNodes {
		err = fmt.Errorf("got %d nodes, want %d: %s", n, disruptionNodes, body)
	}
	return err
}

// oldest returns the earliest timestamp.
func oldest(pods []podMetrics) time.Time {
	return slices.MinFunc(pods, func(a, b podMetrics) int { return a.Timestamp.Compare(b.Timestamp) }).Timestamp
}
