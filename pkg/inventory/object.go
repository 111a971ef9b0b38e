package inventory

import (
	"crypto/sha256"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Object is a pod or a node as the API server knows it. It is immutable once an Index has it.
type Object struct {
	Namespace, Name string            // Namespace is "" for a node
	Labels          map[string]string // shared between all objects with equal labels: read-only
	UID             UID
	CreatedAt       usage.Time // by the API server's clock, in whole seconds

	// Of a pod only:
	Node       string           // that the pod is bound to; "": none yet
	Containers []ContainerState // in the order of the pod's status; nil if the API server has no container statuses yet
	Phase      Phase
}

// ContainerState is what the API server knows of a regular container, or of a sidecar (an init
// container that is restarted always). It may be some seconds older than what the kubelet knows.
type ContainerState struct {
	Name      string
	StartedAt usage.Time // by the node's clock, in whole seconds; 0 if the container is not running
	Running   bool
	Restarted bool // whether the container has been restarted, in the lifetime of its pod
}

// UID is a hash of the UID of an object, equal for equal UIDs only: 16 bytes in place of a text of
// 36.
type UID [16]byte

// UIDOf returns the hash of a UID.
func UIDOf(uid types.UID) UID {
	hash := sha256.Sum256([]byte(uid))
	return UID(hash[:16])
}

// Phase is the phase of a pod in its lifecycle.
type Phase uint8

// The phases of a pod. Nodes have none.
const (
	PhaseUnknown Phase = iota
	PodPending
	PodRunning
	PodSucceeded
	PodFailed
	numPhases = iota
)

var _ runtime.Object = (*Object)(nil)

// NewObject returns what an Index keeps of an API object. It shares no memory with obj but strings
// and the labels.
func NewObject(obj any) (*Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	o := &Object{
		Namespace: m.GetNamespace(),
		Name:      m.GetName(),
		Labels:    m.GetLabels(),
		UID:       UIDOf(m.GetUID()),
		CreatedAt: usage.At(m.GetCreationTimestamp().Time),
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		o.Node = pod.Spec.NodeName
		o.Phase = phaseOf(pod.Status.Phase)
		o.Containers = containersOf(pod)
	}
	return o, nil
}

func phaseOf(phase corev1.PodPhase) Phase {
	switch phase {
	case corev1.PodPending:
		return PodPending
	case corev1.PodRunning:
		return PodRunning
	case corev1.PodSucceeded:
		return PodSucceeded
	case corev1.PodFailed:
		return PodFailed
	}
	return PhaseUnknown
}

// containersOf returns the states of a pod's regular containers, then of its sidecars.
func containersOf(pod *corev1.Pod) []ContainerState {
	regular := pod.Status.ContainerStatuses
	if len(regular) == 0 {
		return nil
	}
	states := make([]ContainerState, 0, len(regular)+countSidecars(pod))
	for i := range regular {
		states = append(states, stateOf(&regular[i]))
	}
	for i := range pod.Status.InitContainerStatuses {
		if status := &pod.Status.InitContainerStatuses[i]; isSidecar(pod, status.Name) {
			states = append(states, stateOf(status))
		}
	}
	return states
}

func countSidecars(pod *corev1.Pod) (n int) {
	for i := range pod.Status.InitContainerStatuses {
		if isSidecar(pod, pod.Status.InitContainerStatuses[i].Name) {
			n++
		}
	}
	return n
}

// isSidecar reports whether the init container of that name is restarted always.
func isSidecar(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool {
		return c.Name == name && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	})
}

func stateOf(status *corev1.ContainerStatus) ContainerState {
	state := ContainerState{Name: status.Name, Restarted: status.RestartCount > 0}
	if running := status.State.Running; running != nil {
		state.Running, state.StartedAt = true, usage.At(running.StartedAt.Time)
	}
	return state
}

// Running reports whether the API server knows that the container of that name is running. It
// returns false where Containers is nil, since nothing is known then.
func (o *Object) Running(container string) bool {
	for i := range o.Containers {
		if o.Containers[i].Name == container {
			return o.Containers[i].Running
		}
	}
	return false
}

// GetObjectKind implements runtime.Object, so that a client may list Objects in place of the API's
// own.
func (o *Object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (o *Object) DeepCopyObject() runtime.Object { return o.DeepCopy() }

// DeepCopy returns a copy that shares nothing with o.
func (o *Object) DeepCopy() *Object {
	clone := *o
	clone.Labels = maps.Clone(o.Labels)
	clone.Containers = slices.Clone(o.Containers)
	return &clone
}
