package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	// The API server would take seconds to create or change each of these pods: the time to compute managedFields
	// grows with the square of the number of labels.
	write := func(all ...*corev1.Pod) {
		must(t, c.WriteObjects(t.Context(), len(all), func(i int) (key string, o runtime.Object) {
			return "/registry/pods/" + all[i].Namespace + "/" + all[i].Name, all[i]
		}))
	}
	all := []*corev1.Pod{hostilePod("other", "web", 0, map[string]string{"app": "web"})}
	for i := range pods {
		node := -1 // the first ones run, the others stay Pending
		if i < running {
			node = i
		}
		all = append(all, hostilePod("tenant", fmt.Sprintf("pod-%d", i), node, many))
	}
	write(all...)

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
	changed := []*corev1.Pod{all[1], all[pods]}
	for i := range changes {
		for _, pod := range changed {
			pod.Labels = maps.Clone(many)
			pod.Labels["0"] = strconv.Itoa(i)
		}
		write(changed...)
		eventually(t, "the change of a label", func(ctx context.Context) error {
			list, err := c.get(ctx, fmt.Sprint(selected, "0%3D", i))
			if err == nil && strings.Count(string(list), `"name":"pod-`) != 1 {
				err = errors.New("the pod is not selected")
			}
			return err
		})
		used, err := c.server.Usage()
		must(t, err)
		peak = max(peak, used.Anonymous)
	}
	requests.stop()
	t.Logf("RssAnon: at most %d MiB", peak>>20)
	if peak > maxMemory {
		t.Errorf("RssAnon: %d MiB, want at most %d", peak>>20, maxMemory>>20)
	}
}

// hostilePod returns a pod that runs on a node. If that is negative, it is pending, and no scheduler considers it.
func hostilePod(namespace, name string, node int, labels map[string]string) *corev1.Pod {
	now := metav1.Now()
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: labels, UID: uuid.NewUUID(), CreationTimestamp: now,
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "app", Image: "simulated"}}, SchedulerName: "none",
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if node >= 0 {
		pod.Spec.NodeName = nodeName(node)
		pod.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, StartTime: &now,
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "app", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
			}},
		}
	}
	return pod
}
