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

// Object is a pod or a node in the API server. It is immutable once it is in an Index.
type Object struct {
	Namespace, Name string            // Namespace is "" for a node
	Labels          map[string]string // read-only, shared by all objects with equal labels
	UID             UID
	CreatedAt       usage.Time // by the API server's clock, in whole seconds

	// Of pods only:
	Node       string           // to which the pod is bound; "": none yet
	Containers []ContainerState // in the order of the pod's status; nil if the pod has no container statuses yet
	Phase      Phase
}

// ContainerState is the status of a regular container or of a sidecar (an init container with the
// restart policy Always). It may be some seconds older than the kubelet's status.
type ContainerState struct {
	Name      string
	StartedAt usage.Time // by the node's clock, in whole seconds; 0 if the container is not running
	Running   bool
	Restarted bool // since the pod was created
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
	numPhases = iota
)

var _ runtime.Object = (*Object)(nil)

// NewObject returns the Object of an API object. It shares strings and labels with obj.
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

// containersOf returns the states of the pod's regular containers, then of its sidecars. The node
// sets the status, but not the spec: of more containers than the spec has, the others are ignored.
func containersOf(pod *corev1.Pod) []ContainerState {
	regular := pod.Status.ContainerStatuses
	regular = regular[:min(len(regular), len(pod.Spec.Containers))]
	if len(regular) == 0 {
		return nil
	}
	sidecars := pod.Status.InitContainerStatuses
	sidecars = sidecars[:min(len(sidecars), len(pod.Spec.InitContainers))]
	states := make([]ContainerState, 0, len(regular))
	for i := range regular {
		states = append(states, stateOf(&regular[i]))
	}
	for i := range sidecars {
		if status := &sidecars[i]; isSidecar(pod, status.Name) {
			states = append(states, stateOf(status))
		}
	}
	return states
}

// isSidecar reports whether the init container with the name has the restart policy Always.
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

// Running reports whether the container with the name is running. It returns false if Containers is
// nil.
func (o *Object) Running(container string) bool {
	for i := range o.Containers {
		if o.Containers[i].Name == container {
			return o.Containers[i].Running
		}
	}
	return false
}

// GetObjectKind implements runtime.Object, so that a list for a Reflector can have Objects.
func (o *Object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (o *Object) DeepCopyObject() runtime.Object {
	clone := *o
	clone.Labels = maps.Clone(o.Labels)
	clone.Containers = slices.Clone(o.Containers)
	return &clone
}
