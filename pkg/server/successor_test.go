package server

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestSuccessorsHaveNoUsageOfTheirPredecessors: as soon as the inventory has a pod of the same name
// with another UID, the store has nothing of the former pod.
func TestSuccessorsHaveNoUsageOfTheirPredecessors(t *testing.T) {
	clock := usage.NewClock(time.Now())
	metrics, pods, _ := newState(time.Minute, clock)
	pod := func(uid types.UID) any {
		o, err := inventory.NewObject(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web-0", UID: uid},
			Spec:       corev1.PodSpec{NodeName: "n1"},
		})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	scrape := func(ago time.Duration, core float64) {
		at := clock.At(time.Now()).Add(-ago)
		s := usage.Sample{At: at, MemoryAt: at, CPUSeconds: core, Memory: 1, Has: usage.HasCPU | usage.HasMemory}
		metrics.Put("n1", &usage.Scrape{At: at, Sent: at, Containers: []usage.ContainerSample{
			{Namespace: []byte("n"), Pod: []byte("web-0"), Name: []byte("a"), Sample: s},
		}})
	}
	served := func() bool { return metrics.Pod("n1", "n", "web-0", clock.At(time.Now())) != nil }
	for name, change := range map[string]func() error{
		"replaced by an update": func() error { return pods.Update(pod("2")) },
		"deleted":               func() error { return pods.Delete(pod("1")) },
		"absent from a list":    func() error { return pods.Replace([]any{pod("2")}, "7") },
	} {
		if err := pods.Replace([]any{pod("1")}, "1"); err != nil {
			t.Fatal(err)
		}
		metrics.Forget("n1")
		scrape(20*time.Second, 10)
		scrape(5*time.Second, 11.5)
		if !served() {
			t.Fatalf("%s: not served before", name)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if served() {
			t.Errorf("%s: the usage is still served", name)
		}
	}
}
