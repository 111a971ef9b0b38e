package server

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/api"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/memory"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestMemoryReport(t *testing.T) {
	nodes, pods := inventory.New(), inventory.New()
	report := memoryReport(nodes, pods, true)
	if got, want := report().ForecastBytes, memory.Forecast(memory.Objects{}); got != want {
		t.Errorf("without objects: got a forecast of %d, want %d", got, want)
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	objects := []any{
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "pending"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "running"}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "a"}, {Name: "b"}, {Name: "c"}},
		}, Status: corev1.PodStatus{
			ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: running}, {Name: "b", State: running}, {Name: "c"}},
		}},
	}
	if err := pods.Replace(objects, "1"); err != nil {
		t.Fatal(err)
	}
	if err := nodes.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}); err != nil {
		t.Fatal(err)
	}
	got := report()
	if want := memory.Forecast(memory.Objects{Nodes: 1, Pods: 2, Containers: 2}); got.ForecastBytes != want {
		t.Errorf("got a forecast of %d, want %d", got.ForecastBytes, want)
	}
	if got.LimitBytes != memory.Limit() {
		t.Errorf("got a limit of %d, want %d", got.LimitBytes, memory.Limit())
	}
	if got := memoryReport(nodes, pods, false)().ForecastBytes; got != 0 {
		t.Errorf("without scrapes: got a forecast of %d, want none", got)
	}
}

func TestMemoryMetrics(t *testing.T) {
	i := newInstruments("v1.2.3", "0123abc", nil, usage.NewClock(now))
	i.registerMemory(func() *nodez.Memory { return &nodez.Memory{ForecastBytes: 2000} })
	expect(t, i, "memory_forecast_bytes 2000\nmemory_limit_bytes 0\n", "memory_")

	i = newInstruments("v1.2.3", "0123abc", nil, usage.NewClock(now))
	i.registerMemory(func() *nodez.Memory { return &nodez.Memory{} })
	expect(t, i, "memory_limit_bytes 0\n", "memory_")
}

func TestListMemory(t *testing.T) {
	if got, want := listMemory(1<<30), (api.ListMemory{Large: 128 << 20, Small: 64 << 20, Max: 512 << 20}); got != want {
		t.Errorf("with a limit of 1 GiB: got %+v, want %+v", got, want)
	}
	if got, want := listMemory(0), (api.ListMemory{Large: 128 << 20, Small: 64 << 20, Max: 1 << 30}); got != want {
		t.Errorf("without a limit: got %+v, want %+v", got, want)
	}
}
