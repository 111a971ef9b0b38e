package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

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
	// By default, the API server ends requests after a minute, which lists of these pods need on a busy machine.
	c := startBare(t, cluster.Config{Nodes: simulation.Nodes(nodes), APIServerArgs: []string{"--request-timeout=10m"}})
	for _, namespace := range []string{"tenant", "other"} {
		must(t, c.CreateNamespace(t.Context(), namespace))
	}
	many := make(map[string]string, labels)
	for i := range labels {
		many[strconv.FormatInt(int64(i), 36)] = ""
	}
	// The API server would take seconds to create each of these pods: the time to compute managedFields
	// grows with the square of the number of labels.
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
	must(t, err)

	c.install(t, "--max-sample-age=10m") // for a busy machine
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
	requests := startLoad(t, map[string]func(context.Context) error{
		"GET of another pod": func(ctx context.Context) error { return direct.ok(ctx, other) },
	})
	peak := uint64(0)
	for i := range changes {
		for _, name := range []string{"pod-0", "pod-" + strconv.Itoa(pods-1)} {
			change := fmt.Appendf(nil, `{"metadata":{"labels":{"0":"%d"}}}`, i)
			_, err := c.Client.CoreV1().Pods("tenant").Patch(
				t.Context(), name, types.MergePatchType, change, metav1.PatchOptions{})
			must(t, err)
		}
		used, err := c.server.Usage()
		must(t, err)
		peak = max(peak, used.Anonymous)
	}
	requests.stop()
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
