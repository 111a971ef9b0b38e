package view

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view/viewtest"
)

// web0 returns the pod n/web-0.
func web0(node string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web-0", UID: uid},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// putWeb0 stores samples of the container a of n/web-0 on the node n1.
func putWeb0(metrics *store.Store, samples ...usage.Sample) {
	metrics.Forget("n1")
	for _, s := range samples {
		s.Memory, s.Has = 1, usage.HasCPU|usage.HasMemory
		metrics.Put("n1", &usage.Scrape{At: usage.Time(s.At), Sent: usage.Time(s.At), Containers: []usage.ContainerSample{
			{Namespace: []byte("n"), Pod: []byte("web-0"), Name: []byte("a"), Sample: s},
		}})
	}
}

// TestReplacedPodHasNoOldUsage checks that the store has no usage of a pod once the inventory has a
// pod of the same name with another UID.
func TestReplacedPodHasNoOldUsage(t *testing.T) {
	clock := usage.NewClock(time.Now())
	v := New(store.Config{MaxSampleAge: time.Minute}, clock)
	served := func() bool { return v.Store.Pod("n1", "n", "web-0", clock.At(time.Now())) != nil }
	for name, change := range map[string]func() error{
		"replaced by an update": func() error { return v.Pods.Update(web0("n1", "2")) },
		"deleted":               func() error { return v.Pods.Delete(web0("n1", "1")) },
		"replaced in a list":    func() error { return v.Pods.Replace([]any{web0("n1", "2")}, "7") },
	} {
		if err := v.Pods.Replace([]any{web0("n1", "1")}, "1"); err != nil {
			t.Fatal(err)
		}
		now := usage.NodeTime(clock.At(time.Now()))
		putWeb0(v.Store, usage.Sample{At: now.Add(-20 * time.Second), CPUSeconds: 10},
			usage.Sample{At: now.Add(-5 * time.Second), CPUSeconds: 11.5})
		if !served() {
			t.Fatalf("%s: not served before", name)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if served() {
			t.Errorf("%s: the old usage is served", name)
		}
	}
}

// TestForceDeletedPodHasNoUsage checks that samples of a force-deleted pod that still runs are not
// those of the next pod of the name: the inventory shows the store when that one started.
func TestForceDeletedPodHasNoUsage(t *testing.T) {
	clock := usage.NewClock(time.Now())
	v := New(store.Config{MaxSampleAge: time.Minute}, clock)
	now := usage.NodeTime(clock.At(time.Now()))
	for bound, want := range map[string]bool{"n1": false, "n2": true} { // n2: nothing is known of the pod on n1
		pod := web0(bound, "2")
		pod.Status.StartTime = new(metav1.NewTime(now.Time()))
		if err := v.Pods.Replace([]any{pod}, "1"); err != nil {
			t.Fatal(err)
		}
		started, later := now.Add(-time.Hour), now.Add(15*time.Second)
		putWeb0(v.Store, usage.Sample{At: now, StartedAt: started, CPUSeconds: 100},
			usage.Sample{At: later, StartedAt: started, CPUSeconds: 101})
		if got := v.Store.Pod("n1", "n", "web-0", usage.Time(later)) != nil; got != want {
			t.Errorf("bound to %s: got %t, want %t", bound, got, want)
		}
	}
}

// TestContainerState has pods whose kubelet has not accepted them, has started some of their containers, or
// sets no times.
func TestContainerState(t *testing.T) {
	containers := []inventory.ContainerState{{Name: "app", StartedAt: 20, Running: true, Alive: true}, {Name: "side"}}
	for name, test := range map[string]struct {
		pod  *inventory.Object
		want usage.ContainerState
	}{
		"bound to another node": {pod: &inventory.Object{Node: "n2", StartedAt: 10, Phase: inventory.PodRunning}},
		"not accepted": {
			&inventory.Object{Node: "n1", CreatedAt: 5, Phase: inventory.PodPending},
			usage.ContainerState{PodCreatedAt: 5},
		},
		"accepted": {
			&inventory.Object{Node: "n1", CreatedAt: 5, StartedAt: 10, Phase: inventory.PodPending},
			usage.ContainerState{Accepted: true, EarliestStart: 10, PodCreatedAt: 5},
		},
		"running": {
			&inventory.Object{Node: "n1", StartedAt: 10, Phase: inventory.PodRunning, Containers: containers},
			usage.ContainerState{Accepted: true, Running: true, Alive: true, StartedAt: 20, EarliestStart: 10},
		},
		"mirror pod of a restarted kubelet": {
			&inventory.Object{Node: "n1", StartedAt: 30, Phase: inventory.PodRunning, Containers: containers},
			usage.ContainerState{Accepted: true, Running: true, Alive: true, StartedAt: 20, EarliestStart: 20},
		},
		"ephemeral container": {
			&inventory.Object{Node: "n1", StartedAt: 10, Phase: inventory.PodRunning},
			usage.ContainerState{Accepted: true, EarliestStart: 10},
		},
		"no times": {
			&inventory.Object{Node: "n1", Phase: inventory.PodRunning}, usage.ContainerState{Accepted: true},
		},
	} {
		test.pod.Namespace, test.pod.Name = "n", "web-0"
		v := &View{Pods: viewtest.Index(test.pod)}
		if got := v.ContainerState("n1", "n", "web-0", "app"); got != test.want {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
		if got := v.ContainerState("n1", "n", "web-1", "app"); got != (usage.ContainerState{}) {
			t.Errorf("no pod: got %+v", got)
		}
	}
}
