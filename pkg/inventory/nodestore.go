package inventory

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// nodeStore is an Index of nodes that applies each change to Targets, too.
type nodeStore struct {
	*Index
	targets     Targets
	annotations []string // keys of the annotations that targets need
}

// newNodeStore returns a nodeStore. The Index comes from New, and is still empty.
func newNodeStore(nodes *Index, targets Targets, annotations []string) *nodeStore {
	s := &nodeStore{Index: nodes, targets: targets, annotations: annotations}
	nodes.removed = func(old *Object) { targets.Delete(old.Name) }
	nodes.stored = s.set
	return s
}

var _ cache.TransformingStore = (*nodeStore)(nil)

// Transformer implements cache.TransformingStore. While a Reflector streams a list, it keeps nodes
// without what is not needed.
func (s *nodeStore) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		if node, ok := object.(*corev1.Node); ok {
			return s.slim(node), nil
		}
		return object, nil
	}
}

func (s *nodeStore) set(object any) {
	target := s.slim(object.(*corev1.Node)) // the Reflector drops objects of other types
	target.Labels = nil
	s.targets.Set(target)
}

// maxAddresses is the number of a node's addresses that are used. A kubelet sets them, and the API server accepts
// thousands.
const maxAddresses = 64

// slim returns a copy of a node with the fields that are needed to serve and to scrape it. Most of
// a whole node is images and conditions.
func (s *nodeStore) slim(node *corev1.Node) *corev1.Node {
	addresses := node.Status.Addresses
	slim := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:              node.Name,
			UID:               node.UID,
			Labels:            node.Labels,
			CreationTimestamp: node.CreationTimestamp,
		},
		Status: corev1.NodeStatus{
			Addresses:       slices.Clone(addresses[:min(len(addresses), maxAddresses)]),
			DaemonEndpoints: node.Status.DaemonEndpoints,
			Capacity:        corev1.ResourceList{corev1.ResourceCPU: *node.Status.Capacity.Cpu()},
		},
	}
	for _, key := range s.annotations {
		if value, ok := node.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&slim.ObjectMeta, key, value)
		}
	}
	return slim
}
