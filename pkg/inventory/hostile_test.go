package inventory

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// storedPod returns a running pod as the API server stores it, with the defaults of the API server
// and the status of a kubelet. It has no managed fields, since a client can remove them. No other
// pod has equal labels, or the names of its containers.
func storedPod(i, labels, containers, sidecars int, label func(i, label int) string) *corev1.Pod {
	always, seconds := corev1.ContainerRestartPolicyAlways, int64(300)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "tenant", Name: fmt.Sprintf("pod-%06d", i), UID: uidOf(i), ResourceVersion: "123456789",
		CreationTimestamp: metav1.Unix(1_000, 0), Labels: manyLabels(i, labels, label),
	}}
	p.Spec = corev1.PodSpec{
		NodeName: "node-1", ServiceAccountName: "default", DeprecatedServiceAccount: "default",
		RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst,
		SchedulerName: corev1.DefaultSchedulerName, SecurityContext: &corev1.PodSecurityContext{},
		TerminationGracePeriodSeconds: &seconds,
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
			Key: key, Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &seconds,
		})
	}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBestEffort, HostIP: "10.0.0.1", PodIP: "10.1.0.1",
	}
	for _, condition := range []corev1.PodConditionType{
		"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled",
	} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: condition, Status: "True", LastTransitionTime: metav1.Unix(1_001, 0),
		})
	}
	for c := range containers + sidecars {
		container := corev1.Container{
			Name: fmt.Sprintf("c%d-%d", i, c), Image: "a", ImagePullPolicy: corev1.PullAlways,
			TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: "File",
		}
		status := runningContainer(container.Name, 1_010)
		hash := strings.Repeat("0", 64)
		status.Image, status.ImageID, status.ContainerID = "a", "sha256:"+hash, "containerd://"+hash
		if c < containers {
			p.Spec.Containers = append(p.Spec.Containers, container)
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, status)
		} else {
			container.RestartPolicy = &always
			p.Spec.InitContainers = append(p.Spec.InitContainers, container)
			p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, status)
		}
	}
	return p
}

func uidOf(i int) types.UID { return types.UID(fmt.Sprintf("0b1a4c1e-9d0e-4a6c-8d0b-%012d", i)) }

// shortLabel returns a key that no other object has.
func shortLabel(i, label int) string { return fmt.Sprintf("%x-%x", i, label) }

// longLabel returns the longest key that is valid and that no other object has.
func longLabel(i, label int) string {
	return strings.Repeat("d", 253) + "/" + fmt.Sprintf("%063x", i<<20+label)
}

func manyLabels(i, count int, label func(i, label int) string) map[string]string {
	set := map[string]string{}
	for k := range count {
		set[label(i, k)] = "v"
	}
	return set
}

// storedNode returns a node with the least that the API server and a kubelet store.
func storedNode(i, labels, addresses int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("node-%06d", i), UID: uidOf(i), Labels: manyLabels(i, labels, shortLabel),
	}}
	for k := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: "InternalIP", Address: fmt.Sprint(k)})
	}
	return n
}

// protobufObject is an API object that is read from protobuf.
type protobufObject interface {
	Marshal() ([]byte, error)
	Size() int
}

// keepingTargets keep nodes, as a scraper does.
type keepingTargets map[string]*corev1.Node

func (t keepingTargets) Set(n *corev1.Node) { t[n.Name] = n }
func (t keepingTargets) Delete(name string) { delete(t, name) }

// liveBytes returns the size of the heap without garbage.
func liveBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// grownBy returns by how much copies of an object let the heap grow, each as it comes from a watch,
// and the size of all in protobuf.
func grownBy(t testing.TB, copies int, object func(i int) protobufObject) (grown, size int64) {
	t.Helper()
	pods := New()
	nodes := newNodeStore(New(), keepingTargets{}, nil)
	before := liveBytes()
	for i := range copies {
		o := object(i)
		body, err := o.Marshal()
		must(t, err)
		size += int64(len(body))
		switch o.(type) {
		case *corev1.Pod:
			p := new(corev1.Pod)
			must(t, p.Unmarshal(body))
			must(t, pods.Add(p))
		case *corev1.Node:
			n := new(corev1.Node)
			must(t, n.Unmarshal(body))
			slim, err := nodes.Transformer()(n)
			must(t, err)
			must(t, nodes.Add(slim))
		}
	}
	grown = liveBytes() - before
	runtime.KeepAlive(pods)
	runtime.KeepAlive(nodes)
	return grown, size
}

// TestHostileObjectsUseBoundedMemory checks that an object takes at most twice the memory that it
// has in protobuf, whatever a tenant or a node puts into it.
func TestHostileObjectsUseBoundedMemory(t *testing.T) {
	const total = 2 << 20 // bytes of protobuf, beside which other use of the heap does not count
	podOf := func(labels, containers, sidecars int, label func(i, label int) string) func(int) protobufObject {
		return func(i int) protobufObject { return storedPod(i, labels, containers, sidecars, label) }
	}
	nodeOf := func(labels, addresses int) func(int) protobufObject {
		return func(i int) protobufObject { return storedNode(i, labels, addresses) }
	}
	pending := func(i int) protobufObject {
		p := storedPod(i, 5_000, 1, 0, shortLabel)
		p.Status = corev1.PodStatus{Phase: corev1.PodPending}
		return p
	}
	longNames := func(i int) protobufObject {
		p := storedPod(i, 1, 1, 0, shortLabel)
		p.Namespace, p.Name = strings.Repeat("n", 63), fmt.Sprintf("%0253d", i)
		p.Spec.NodeName = fmt.Sprintf("%0253d", i)
		return p
	}
	for name, object := range map[string]func(int) protobufObject{
		"no labels":             podOf(0, 1, 0, shortLabel),
		"4 labels":              podOf(4, 1, 0, shortLabel),
		"16 labels":             podOf(16, 1, 0, shortLabel),
		"64 labels":             podOf(64, 1, 0, shortLabel),
		"65 labels":             podOf(65, 1, 0, shortLabel),
		"5000 labels":           podOf(5_000, 1, 0, shortLabel),
		"5000 labels, pending":  pending,
		"8 long labels":         podOf(8, 1, 0, longLabel),
		"64 long labels":        podOf(64, 1, 0, longLabel),
		"4000 long labels":      podOf(4_000, 1, 0, longLabel),
		"64 containers":         podOf(0, 64, 0, shortLabel),
		"2000 containers":       podOf(0, 2_000, 0, shortLabel),
		"2000 sidecars":         podOf(0, 1, 2_000, shortLabel),
		"long names":            longNames,
		"node with 5000 labels": nodeOf(5_000, 1),
		"node with addresses":   nodeOf(1, 10_000),
	} {
		t.Run(name, func(t *testing.T) {
			copies := max(1, total/object(0).Size())
			if grown, size := grownBy(t, copies, object); grown > 2*size {
				t.Errorf("%d objects of %d bytes take %d bytes each: %.2f times their size, want 2",
					copies, size/int64(copies), grown/int64(copies), float64(grown)/float64(size))
			}
		})
	}
}

// TestStatesOfManyContainers checks that the time for the states of all containers of a pod, which the store
// needs when a node reports it, grows with their number.
func TestStatesOfManyContainers(t *testing.T) {
	testenv.CheckLinear(t, func(containers int, start func()) {
		p := running("n", "p")
		for i := range containers {
			status := runningContainer(fmt.Sprint("container-", i), 1_003)
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: status.Name})
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, status)
		}
		start()
		o, err := NewObject(p)
		must(t, err)
		for i := range containers {
			if got := o.EarliestStart(fmt.Sprint("container-", i)); got != usage.NodeAt(time.Unix(1_003, 0)) {
				t.Fatalf("container %d: got the start %d", i, got)
			}
		}
	})
}

// TestSidecarsOfManyContainers checks that the time for a pod grows with its size, not with the
// square of it, which would take minutes here, and that a node, which sets the status of its pods,
// cannot make a pod have more containers than its spec.
func TestSidecarsOfManyContainers(t *testing.T) {
	always, p := corev1.ContainerRestartPolicyAlways, running("n", "p")
	const sidecars = 100_000
	for i := range sidecars {
		name := fmt.Sprint(i)
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: name, RestartPolicy: &always})
		p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, corev1.ContainerStatus{Name: name})
	}
	p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, runningContainer("main", 1_003))
	p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, runningContainer("0", 1_003))
	if o, err := NewObject(p); err != nil || len(o.Containers) != sidecars+2 {
		t.Errorf("got %d containers, error %v", len(o.Containers), err)
	}
}

// BenchmarkHostileLabels updates a pod of 60,000 labels. It reports the memory that the pod takes in
// relation to its size in protobuf, and how long a Get of another pod takes beside the updates.
func BenchmarkHostileLabels(b *testing.B) {
	object := func(i int) protobufObject { return storedPod(i, 60_000, 1, 0, shortLabel) }
	grown, size := grownBy(b, 10, object)
	x, p := New(), storedPod(1, 60_000, 1, 0, shortLabel)
	must(b, x.Replace([]any{running("other", "p"), p}, "1"))
	stop, waits := make(chan struct{}), make(chan []time.Duration)
	go func() { waits <- waitsOfGet(x, stop) }()
	for i := 0; b.Loop(); i++ {
		p.Labels["app"] = fmt.Sprint(i)
		must(b, x.Update(p))
	}
	close(stop)
	w := <-waits
	slices.Sort(w)
	b.ReportMetric(float64(grown)/float64(size), "memory/size")
	b.ReportMetric(float64(w[len(w)/2].Nanoseconds()), "ns/Get-p50")
	b.ReportMetric(float64(w[len(w)*99/100].Nanoseconds()), "ns/Get-p99")
}

// waitsOfGet measures Gets until stop is closed.
func waitsOfGet(x *Index, stop <-chan struct{}) []time.Duration {
	var waits []time.Duration
	for {
		select {
		case <-stop:
			return waits
		case <-time.After(100 * time.Microsecond):
			start := time.Now()
			x.Get("other", "p")
			waits = append(waits, time.Since(start))
		}
	}
}

// TestKeysDoNotKeepLabels checks that the lists of an Index do not keep all labels of an object in
// memory that had one label in common with others. 64 deleted objects could add up to megabytes.
func TestKeysDoNotKeepLabels(t *testing.T) {
	x := New()
	must(t, x.Add(pod("n", "m", "a", "1", "b", "1")))
	var texts []Labels
	for _, name := range []string{"a", "z", "b"} { // the lists are appended to, and inserted into
		must(t, x.Add(pod("n", name, "a", "1", "b", "1", "unique", name)))
		texts = append(texts, x.Get("n", name).Labels)
	}
	must(t, x.Update(pod("n", "z", "b", "1")))
	must(t, x.Delete(pod("n", "a")))
	for key := range x.namespaces["n"] {
		for _, text := range texts {
			start := uintptr(unsafe.Pointer(unsafe.StringData(string(text))))
			if p := uintptr(unsafe.Pointer(unsafe.StringData(key))); p >= start && p < start+uintptr(len(text)) {
				t.Errorf("the key %q is a part of the labels %q", key, text)
			}
		}
	}
}
