package inventory

import (
	"crypto/sha256"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Object is a pod or a node in the API server. It is immutable once it is in an Index.
type Object struct {
	Namespace, Name string // Namespace is "" for a node
	Labels          Labels // of a node or a running pod
	UID             UID
	CreatedAt       usage.Time // by the API server's clock, in whole seconds

	// Of pods only:
	Node       string           // that the pod is bound to; "": none yet
	Containers []ContainerState // sorted by name; nil if the pod has no container statuses yet
	StartedAt  usage.NodeTime   // when the kubelet accepted the pod, in whole seconds; 0: not known
	Phase      Phase

	indexed bool // whether the labels are indexed, and shared by all objects with equal ones
}

const (
	// maxIndexed limits the labels of an object that is indexed. It bounds the time that
	// the Index is locked.
	maxIndexed = 64
	// maxLabelBytes is the maximum length of a label's text: a prefix, a name and a value.
	maxLabelBytes = 253 + len("/") + 63 + len(keyEnd) + 63 + len(labelEnd)
	// indexedBytes is the memory that the index of a label takes, if no other object has it: an
	// entry of a map, which is half full, a pointer, and rounding. Its text comes on top.
	indexedBytes = 112
	// The index of labels takes at most as much memory as an object has in protobuf. These are
	// sizes that no object is below: that of a pod with all defaults, and that of a node with its
	// conditions. Only a part of that is here.
	minPodSize, minNodeSize = 1 << 10, 8 << 10
)

// ContainerState is the status of a regular container or of a sidecar (an init container with the
// restart policy Always). It may be some seconds older than the kubelet's status.
type ContainerState struct {
	Name      string
	StartedAt usage.NodeTime // in whole seconds; 0 if the container is not running
	Running   bool
	Alive     bool // whether it runs, or waits to be restarted
	Restarted bool // since the pod was created
}

// NoneRuns reports whether a pod has container statuses, but no running container.
func (o *Object) NoneRuns() bool {
	isRunning := func(c ContainerState) bool { return c.Running }
	return len(o.Containers) > 0 && !slices.ContainsFunc(o.Containers, isRunning)
}

// UID is a hash of the UID of an object. It has 16 bytes, the text of a UID has 36.
type UID [16]byte

// UIDOf returns the hash of a UID.
func UIDOf(uid types.UID) UID {
	hash := sha256.Sum256([]byte(uid))
	return UID(hash[:16])
}

// Phase is the phase of a pod in its lifecycle.
type Phase uint8

// The phases of a pod. Nodes have PhaseUnknown.
const (
	PhaseUnknown Phase = iota
	PodPending
	PodRunning
	PodSucceeded
	PodFailed
)

var _ runtime.Object = (*Object)(nil)

// NewObject returns the Object of an API object. It shares strings with obj.
func NewObject(obj any) (*Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	o := &Object{
		Namespace: m.GetNamespace(),
		Name:      m.GetName(),
		UID:       UIDOf(m.GetUID()),
		CreatedAt: usage.At(m.GetCreationTimestamp().Time),
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		o.Node = pod.Spec.NodeName
		o.Phase = phaseOf(pod.Status.Phase)
		if start := pod.Status.StartTime; start != nil {
			o.StartedAt = usage.NodeAt(start.Time)
		}
		o.Containers = containersOf(pod)
		if o.Phase != PodRunning {
			return o, nil // selectors select among running pods
		}
	}
	o.Labels = NewLabels(m.GetLabels())
	o.indexed = isIndexed(obj, o.Labels)
	return o, nil
}

// isIndexed reports whether the labels of an API object are indexed.
func isIndexed(obj any, l Labels) bool {
	count := l.Len()
	cost, size := len(l)+count*indexedBytes, minPodSize
	if _, ok := obj.(*corev1.Node); ok {
		size = minNodeSize
	}
	if cost > size && count <= maxIndexed {
		if sizer, ok := obj.(interface{ Size() int }); ok {
			size = max(size, sizer.Size())
		}
	}
	return count > 0 && count <= maxIndexed && cost <= size
}

func phaseOf(phase corev1.PodPhase) Phase {
	known := []corev1.PodPhase{
		PodPending: corev1.PodPending, PodRunning: corev1.PodRunning,
		PodSucceeded: corev1.PodSucceeded, PodFailed: corev1.PodFailed,
	}
	return Phase(max(0, slices.Index(known, phase)))
}

// containersOf returns the states of the pod's regular containers and of its sidecars. The node
// sets the status, but not the spec: of more containers than the spec has, the others are ignored.
func containersOf(pod *corev1.Pod) []ContainerState {
	regular := pod.Status.ContainerStatuses
	regular = regular[:min(len(regular), len(pod.Spec.Containers))]
	if len(regular) == 0 {
		return nil
	}
	sidecars := pod.Status.InitContainerStatuses
	sidecars = sidecars[:min(len(sidecars), len(pod.Spec.InitContainers))]
	always := map[string]bool{} // init containers with the restart policy Always
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			always[c.Name] = true
		}
	}
	own := map[string]*corev1.Container{} // regular containers with a restart policy of their own
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.RestartPolicy != nil || len(c.RestartPolicyRules) > 0 {
			own[c.Name] = c
		}
	}
	states := make([]ContainerState, 0, len(regular)+min(len(sidecars), len(always)))
	for i := range regular {
		status := &regular[i]
		states = append(states, stateOf(status, willRestart(pod.Spec.RestartPolicy, own[status.Name], status)))
	}
	for i := range sidecars {
		if status := &sidecars[i]; always[status.Name] {
			states = append(states, stateOf(status, true))
		}
	}
	slices.SortStableFunc(states, byName)
	return states
}

func byName(a, b ContainerState) int { return strings.Compare(a.Name, b.Name) }

// willRestart reports whether the kubelet restarts a container if it has ended as its status shows: by the
// policy of the pod, or by that of the container, if it has one.
func willRestart(ofPod corev1.RestartPolicy, own *corev1.Container, status *corev1.ContainerStatus) bool {
	ended, policy := status.State.Terminated, corev1.ContainerRestartPolicy(ofPod)
	switch {
	case ended == nil || own != nil && len(own.RestartPolicyRules) > 0: // rules depend on the exit code
		return true
	case own != nil:
		policy = *own.RestartPolicy
	}
	return policy != corev1.ContainerRestartPolicyNever &&
		(policy != corev1.ContainerRestartPolicyOnFailure || ended.ExitCode != 0)
}

// stateOf returns the state of a container, given whether the kubelet restarts it when it has ended. A container
// that has not run yet is not alive.
func stateOf(status *corev1.ContainerStatus, willRestart bool) ContainerState {
	hasRun := status.State.Terminated != nil || status.LastTerminationState.Terminated != nil || status.RestartCount > 0
	state := ContainerState{Name: status.Name, Restarted: status.RestartCount > 0, Alive: hasRun && willRestart}
	if running := status.State.Running; running != nil {
		state.Running, state.Alive, state.StartedAt = true, true, usage.NodeAt(running.StartedAt.Time)
	}
	return state
}

// EarliestStart returns the earliest possible start of the container with the name, in
// whole seconds; 0 if it is not known. That is the start of the pod. A kubelet that lost the status of
// a pod sets that to a later time, but the start of a running container is always that of the container
// runtime.
func (o *Object) EarliestStart(container string) usage.NodeTime {
	c := o.Container(container)
	switch {
	case c.StartedAt == 0:
		return o.StartedAt
	case o.StartedAt == 0:
		return c.StartedAt
	}
	return min(o.StartedAt, c.StartedAt)
}

// Container returns the state of the container with the name; the zero state if there is none.
func (o *Object) Container(name string) ContainerState {
	if i, ok := slices.BinarySearchFunc(o.Containers, ContainerState{Name: name}, byName); ok {
		return o.Containers[i]
	}
	return ContainerState{}
}

// GetObjectKind implements runtime.Object, so that a list for a Reflector can have Objects.
func (o *Object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (o *Object) DeepCopyObject() runtime.Object {
	clone := *o
	clone.Containers = slices.Clone(o.Containers)
	return &clone
}
