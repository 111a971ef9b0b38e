package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// TestHostileLabels creates pods with as many labels as the API server stores, before kube-vitals
// starts, and changes one of them all the time. The memory stays small, others can read, and
// selectors find these pods.
func TestHostileLabels(t *testing.T) {
	t.Parallel()
	const (
		nodes, running, pods, labels = 20, 10, 40, 60_000
		changes                      = 10
		maxMemory                    = 150 << 20 // RssAnon
	)
	c := startBare(t, cluster.Config{Nodes: simulation.Nodes(nodes)})
	for _, namespace := range []string{"tenant", "other"} {
		if err := c.CreateNamespace(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
	}
	many := make(map[string]string, labels)
	for i := range labels {
		many[strconv.FormatInt(int64(i), 36)] = ""
	}
	// The API server would take seconds to create each of these pods: the time in which it computes
	// managedFields grows with the square of the number of labels.
	err := c.WriteObjects(t.Context(), pods+1, func(i int) (key string, o runtime.Object) {
		if i == pods {
			return hostilePod("other", "web", 0, map[string]string{"app": "web"})
		}
		node := -1 // the first ones run, the others stay Pending
		if i < running {
			node = i
		}
		return hostilePod("tenant", fmt.Sprintf("pod-%d", i), node, many)
	})
	if err != nil {
		t.Fatal(err)
	}

	c.install(t)
	const other = "/apis/metrics.k8s.io/v1/namespaces/other/pods/web"
	const selected = "/apis/metrics.k8s.io/v1/namespaces/tenant/pods?labelSelector="
	eventually(t, "metrics of all running pods", func(ctx context.Context) error {
		if _, err := c.get(ctx, other); err != nil {
			return err
		}
		list, err := c.get(ctx, selected+"zz")
		if got := strings.Count(string(list), `"name":"pod-`); err == nil && got != running {
			err = fmt.Errorf("got %d pods", got)
		}
		return err
	})

	direct := c.asAdmin(t, c.server)
	logLatencies(t, "without updates", direct, other, time.After(time.Second))
	updated, read := make(chan time.Time), make(chan struct{})
	go func() {
		defer close(read)
		logLatencies(t, "beside updates", direct, other, updated)
	}()
	peak := uint64(0)
	for i := range changes {
		for _, name := range []string{"pod-0", "pod-" + strconv.Itoa(pods-1)} {
			change := fmt.Appendf(nil, `{"metadata":{"labels":{"0":"%d"}}}`, i)
			_, err := c.Client.CoreV1().Pods("tenant").Patch(
				t.Context(), name, types.MergePatchType, change, metav1.PatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		used, err := c.server.Usage()
		if err != nil {
			t.Fatal(err)
		}
		peak = max(peak, used.Anonymous)
	}
	close(updated)
	<-read
	eventually(t, "the change of a label", func(ctx context.Context) error {
		list, err := c.get(ctx, fmt.Sprint(selected, "0%3D", changes-1))
		if err == nil && strings.Count(string(list), `"name":"pod-`) != 1 {
			err = errors.New("the pod is not selected")
		}
		return err
	})
	t.Logf("RssAnon: at most %d MiB", peak>>20)
	if peak > maxMemory {
		t.Errorf("RssAnon: %d MiB, want at most %d", peak>>20, maxMemory>>20)
	}
}

// logLatencies gets a path and /livez in turn until the channel has something or is closed, and logs
// how long a GET of each takes. /livez reads no object: what it needs as well is not the index's. Any
// failure is an error. The time is not judged: it depends on the machine.
func logLatencies(t *testing.T, when string, c *client, path string, end <-chan time.Time) {
	took := map[string][]time.Duration{path: nil, "/livez": nil}
	for {
		for path := range took {
			start := time.Now()
			if _, err := c.getOK(t.Context(), path); err != nil {
				t.Errorf("%s: %v", when, err)
				return
			}
			took[path] = append(took[path], time.Since(start))
		}
		select {
		case <-end:
			for path, times := range took {
				slices.Sort(times)
				t.Logf("%d GETs of %s %s: p50 %v, p99 %v",
					len(times), path, when, times[len(times)/2], times[len(times)*99/100])
			}
			return
		default:
		}
	}
}

// hostilePod returns a pod and its key in etcd. Without a node, no scheduler considers it.
func hostilePod(namespace, name string, node int, labels map[string]string) (key string, pod *corev1.Pod) {
	pod = &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: labels, UID: uuid.NewUUID(), CreationTimestamp: metav1.Now(),
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "app", Image: "simulated"}}, SchedulerName: "none",
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if node >= 0 {
		pod.Spec.NodeName = nodeName(node)
	}
	return "/registry/pods/" + namespace + "/" + name, pod
}
